use super::*;
use crate::documents::{Held, successor};
use crate::staging::layout::{Limits, layout};
use crate::store::OpKind;

fn event(id: u64, kind: EventKind) -> Event {
    Event::with_event_id(id, "a", 1, None, kind)
}

fn timer(id: u64) -> Event {
    event(id, EventKind::TimerCreated { fire_at_ms: id })
}

fn activity(instance: &str, id: u64) -> WorkItem {
    WorkItem::ActivityExecute {
        instance: instance.into(),
        execution_id: 1,
        id,
        name: "n".into(),
        input: "i".into(),
        session_id: None,
        tag: None,
    }
}

fn mail(instance: &str) -> WorkItem {
    WorkItem::QueueMessage { instance: instance.into(), name: "q".into(), data: String::new() }
}

fn locked(ids: &[(&str, bool)]) -> Head {
    let mut head = Head::unstarted("a", 1);
    let held = |(id, delivered): &(&str, bool)| Held {
        id: (*id).to_owned(),
        attempts: 1,
        delivered: *delivered,
        chunks: None,
    };
    head.lock("secret", u64::MAX, "me", ids.iter().map(held).collect());
    head
}

fn started() -> Head {
    let mut head = locked(&[("m", false)]);
    head.started = true;
    head.execution_count = 1;
    (head.last_event_id, head.event_count) = (3, 3);
    head
}

/// The JSON text that a write sends.
fn text(op: &Op) -> String {
    op.body().map(|body| String::from_utf8(body.to_vec()).unwrap()).unwrap_or_default()
}

fn decide(head: &Head, turn: &Turn) -> Result<Plan, Refusal> {
    let clock = Clock::default();
    plan(
        head,
        turn,
        Surroundings {
            clock: &clock,
            commit: "commit",
            tombstone_ttl_seconds: 9,
            intent_age_ms: 5,
            retention: &"completed=1h failed=2h".parse().unwrap(),
            members: 1,
            home: None,
        },
    )
}

fn first_execution(turn: Turn) -> Turn {
    Turn { execution_id: 1, ..turn }
}

#[test]
fn the_commit_releases_the_lock_and_carries_its_id() {
    let plan = decide(&started(), &first_execution(Turn::default())).unwrap();
    assert_eq!((plan.head.turn, plan.head.commit.as_deref()), (1, Some("commit")));
    assert_eq!((plan.head.lock_token, plan.head.batch.len(), plan.head.held_count), (None, 0, 0));
}

#[test]
fn a_first_turn_makes_an_instance_even_without_a_name() {
    let plan = decide(&locked(&[("m", false)]), &first_execution(Turn::default())).unwrap();
    assert!(plan.head.started && plan.head.is_visible());
    assert_eq!((plan.head.status.as_str(), plan.head.execution_count), ("Running", 1));
}

#[test]
fn delivered_messages_leave_tombstones_and_others_go() {
    let plan = decide(&locked(&[("x", false), ("y", true)]), &first_execution(Turn::default())).unwrap();
    let shape: Vec<(OpKind, &str)> = plan.pinned.iter().map(|op| (op.kind(), op.id())).collect();
    assert_eq!(shape, [(OpKind::Delete, "x"), (OpKind::Replace, "y")]);
    assert!(text(&plan.pinned[1]).contains(r#""ttl":9"#));
}

#[test]
fn an_event_id_that_history_has_is_refused() {
    for (ids, refused) in [(&[4, 5][..], None), (&[4, 4], Some(4)), (&[5, 3], Some(3)), (&[1], Some(1))] {
        let turn = Turn { history_delta: ids.iter().map(|id| timer(*id)).collect(), ..Turn::default() };
        let outcome = decide(&started(), &first_execution(turn)).err();
        assert_eq!(outcome, refused.map(Refusal::DuplicateEvent), "{ids:?}");
    }
}

#[test]
fn counters_follow_the_events_of_the_current_execution() {
    let turn = Turn { history_delta: vec![timer(4), timer(5)], ..Turn::default() };
    let plan = decide(&started(), &first_execution(turn)).unwrap();
    let bytes: usize = plan.events.iter().map(|(_, text)| text.len()).sum();
    assert_eq!((plan.head.event_count, plan.head.last_event_id, plan.head.event_bytes), (5, 5, bytes as u64));
    let next = Turn { execution_id: 2, history_delta: vec![timer(1)], ..Turn::default() };
    let plan = decide(&plan.head, &next).unwrap();
    assert_eq!((plan.head.event_count, plan.head.last_event_id, plan.head.total_event_count), (1, 1, 3));
    assert_eq!(
        plan.pinned.iter().map(Op::id).collect::<Vec<_>>(),
        ["a:execution:1"],
        "the first one's record"
    );
    let back = Turn { execution_id: 1, ..Turn::default() };
    assert_eq!(decide(&plan.head, &back).unwrap().head.current_execution_id, 2);
}

#[test]
fn a_new_execution_runs_without_the_old_ones_status_output_and_pin() {
    let mut head = started();
    head.pinned_version = Some([0, 1, 2]);
    let metadata = ExecutionMetadata {
        status: Some("ContinuedAsNew".into()),
        output: Some("next".into()),
        ..ExecutionMetadata::default()
    };
    let head = decide(&head, &first_execution(Turn { metadata, ..Turn::default() })).unwrap().head;
    assert_eq!((head.status.as_str(), head.output.as_deref()), ("ContinuedAsNew", Some("next")));
    let head = decide(&head, &Turn { execution_id: 2, ..Turn::default() }).unwrap().head;
    assert_eq!((head.status.as_str(), head.output, head.pinned_version), ("Running", None, None));
}

#[test]
fn items_for_others_become_intents_and_own_items_messages() {
    let items = vec![mail("a"), mail("b"), mail("a")];
    let turn = Turn { orchestrator_items: items, worker_items: vec![activity("b", 1)], ..Turn::default() };
    let plan = decide(&started(), &first_execution(turn)).unwrap();
    assert_eq!((plan.messages.len(), plan.intents.len(), plan.works.len()), (2, 2, 0));
    assert!(plan.messages[0].seq < plan.messages[1].seq);
    assert_eq!(plan.head.last_sequence, plan.messages[1].seq);
    assert_ne!(plan.intents[0].id, plan.intents[1].id);
}

#[test]
fn an_activity_scheduled_and_cancelled_in_one_turn_never_exists() {
    let cancel = |id| ScheduledActivityIdentifier { instance: "a".into(), execution_id: 1, activity_id: id };
    let turn = Turn {
        worker_items: vec![activity("a", 1), activity("a", 2)],
        cancelled: vec![cancel(2), cancel(3)],
        ..Turn::default()
    };
    let plan = decide(&started(), &first_execution(turn)).unwrap();
    assert_eq!(plan.works.iter().map(|work| work.id.as_str()).collect::<Vec<_>>(), ["work:1:1"]);
    assert_eq!(plan.cancels, ["work:1:3"]);
}

#[test]
fn the_last_custom_status_counts_once() {
    let set = |id, status: Option<&str>| {
        event(id, EventKind::CustomStatusUpdated { status: status.map(ToOwned::to_owned) })
    };
    let turn = Turn { history_delta: vec![set(4, Some("x")), set(5, Some("y"))], ..Turn::default() };
    let head = decide(&started(), &first_execution(turn)).unwrap().head;
    assert_eq!((head.custom_status.as_deref(), head.custom_status_version), (Some("y"), 1));
    let clear = Turn { history_delta: vec![set(6, None)], ..Turn::default() };
    let head = decide(&head, &first_execution(clear)).unwrap().head;
    assert_eq!((head.custom_status, head.custom_status_version), (None, 2));
}

#[test]
fn large_values_live_outside_the_head_and_are_removed_when_replaced() {
    let set = |id, value: String| {
        event(id, EventKind::KeyValueSet { key: "k".into(), value, last_updated_at_ms: 1 })
    };
    let turn = Turn { history_delta: vec![set(4, "v".repeat(5000))], ..Turn::default() };
    let head = decide(&started(), &first_execution(turn)).unwrap().head;
    let id = head.kv["k"].changed.as_ref().unwrap().document.clone().unwrap();
    let turn =
        Turn { history_delta: vec![set(5, "w".repeat(5000)), set(6, "small".into())], ..Turn::default() };
    let plan = decide(&head, &first_execution(turn)).unwrap();
    assert_eq!(plan.deletes, [id], "and the value that never came to be is not written");
    assert!(!plan.movable.iter().any(|op| op.id().starts_with("value:")));
}

#[test]
fn a_turn_within_the_limits_is_one_batch() {
    let turn = Turn { worker_items: (1..=90).map(|id| activity("a", id)).collect(), ..Turn::default() };
    let plan = decide(&started(), &first_execution(turn)).unwrap();
    let head = Op::replace(&plan.head.id, &plan.head, None).unwrap();
    let fitted = layout(plan.writes(), head, 7, Limits::default()).unwrap();
    assert_eq!((fitted.commit.len(), fitted.staged.len()), (92, 0));
    assert!(fitted.prepared.is_none() && fitted.manifest.is_none());
}

#[test]
fn a_turn_over_the_limits_is_staged_around_one_batch() {
    let cancel = |id| ScheduledActivityIdentifier { instance: "a".into(), execution_id: 1, activity_id: id };
    let turn = Turn {
        worker_items: (1..=1000).map(|id| activity("a", id)).collect(),
        orchestrator_items: (0..120).map(|_| mail("a")).chain([successor("a")]).collect(),
        cancelled: (2000..2060).map(cancel).collect(),
        ..Turn::default()
    };
    let plan = decide(&started(), &first_execution(turn)).unwrap();
    let head = Op::replace(&plan.head.id, &plan.head, None).unwrap();
    let fitted = layout(plan.writes(), head, 7, Limits::default()).unwrap();
    assert!(fitted.commit.len() <= 100);
    assert!(fitted.staged.iter().all(|group| group.staged.documents.len() < 100));
    let staged: usize = fitted.staged.iter().map(|group| group.staged.documents.len()).sum();
    let is_cancelled = |op: &&Op| (2000..2060).any(|id| op.id() == ids::work(1, id));
    let cancels = fitted.commit.iter().filter(is_cancelled).count();
    // Besides the head, the message, the successor, and the manifest.
    assert_eq!(cancels, 96, "as many as there is room for, two operations each");
    assert_eq!(staged, 1120, "and nothing else");
    let begins = |op: &Op| text(op).contains("ContinueAsNew");
    assert!(fitted.commit.iter().any(begins), "whatever else there is");
    let (prepared, manifest) = (fitted.prepared.unwrap(), fitted.manifest.unwrap());
    assert_eq!((prepared.committed, manifest.committed), (false, true));
    assert_eq!((prepared.id, prepared.staged), (manifest.id.clone(), manifest.staged));
    assert_eq!(manifest.deletes.len(), 60 - 48);
    let last = fitted.commit.last().unwrap();
    assert_eq!(
        (last.kind(), last.id()),
        (OpKind::Replace, manifest.id.as_str()),
        "a swept commit cannot happen"
    );
}

#[test]
fn bytes_count_as_well_as_operations() {
    let mut big = activity("a", 1);
    if let WorkItem::ActivityExecute { input, .. } = &mut big {
        *input = "x".repeat(300_000);
    }
    let turn = Turn { worker_items: vec![big; 10], ..Turn::default() };
    let plan = decide(&started(), &first_execution(turn)).unwrap();
    let head = Op::replace(&plan.head.id, &plan.head, None).unwrap();
    let fitted = layout(plan.writes(), head, 7, Limits::default()).unwrap();
    let bytes: usize = fitted.commit.iter().map(Op::len).sum();
    assert!(bytes <= Limits::default().bytes && !fitted.staged.is_empty(), "{bytes}");
    for group in &fitted.staged {
        let bytes: usize = group.staged.documents.iter().map(|document| document.get().len()).sum();
        assert!(bytes <= Limits::default().staged_bytes, "{bytes}");
    }
}

#[test]
fn what_of_a_wide_fan_in_does_not_fit_into_the_commit_is_removed_after_it() {
    let results: Vec<String> = (0..150).map(|n| format!("message:{n}")).collect();
    let held: Vec<(&str, bool)> = results.iter().map(|id| (id.as_str(), id == "message:149")).collect();
    let head = Head { started: true, ..locked(&held) };
    let plan = decide(&head, &first_execution(Turn::default())).unwrap();
    let pinned: Vec<&str> = plan.pinned.iter().map(Op::id).collect();
    assert_eq!(pinned[..64], results[..64], "what the commit itself consumes");
    assert_eq!(pinned[64..], ["message:149"], "and what leaves a tombstone");
    let head = Op::replace(&plan.head.id, &plan.head, None).unwrap();
    let fitted = layout(plan.writes(), head, 7, Limits::default()).unwrap();
    let manifest = fitted.manifest.unwrap();
    assert_eq!((fitted.commit.len(), fitted.prepared.is_none()), (100, true));
    let consumed: HashSet<&str> =
        fitted.commit.iter().map(Op::id).chain(manifest.deletes.iter().map(String::as_str)).collect();
    assert!(results.iter().all(|id| consumed.contains(id.as_str())));
    assert_eq!(manifest.deletes.len(), 150 - 65 - 33, "the batch is filled up");
}

#[test]
fn each_page_of_a_wide_fan_out_has_a_share_for_each_member() {
    for members in [2_usize, 3, 4, 8, 16] {
        for first in [0, 100, 700] {
            let mut shares = vec![0; members];
            for index in first..first + 100 {
                shares[usize::from(dealt_to(index)) * members / SLOTS] += 1;
            }
            let fair = 100 / members;
            assert!(
                shares.iter().all(|share| fair - 2 <= *share && *share <= fair + 3),
                "{members}: {shares:?}"
            );
        }
    }
    let all: HashSet<u8> = (0..SLOTS).map(dealt_to).collect();
    assert_eq!(all.len(), SLOTS);
    let starts: Vec<u64> = (0..1000).map(|index| head_start_ms(index, 1000)).collect();
    assert!(starts.is_sorted_by(|one, next| one >= next));
    assert!(starts.chunk_by(|one, next| one == next).all(|moment| moment.len() < 10), "{starts:?}");
}
