//! What is told of instances in every state.

use duroxide::EventKind;
use serde_json::json;

use super::*;
use crate::fleet::tests::{NOW, member, table};

fn evidence(documents: Vec<Value>, kinds: Vec<EventKind>) -> Evidence {
    let mut events: Vec<Event> = Vec::new();
    for (index, kind) in kinds.into_iter().enumerate() {
        let mut event = Event::with_event_id(index as u64 + 1, "a", 1, None, kind);
        event.timestamp_ms = NOW - 60_000;
        events.push(event);
    }
    Evidence {
        instance: "a".to_owned(),
        partition: Partition::new(documents),
        history: Ok(events),
        arriving: Vec::new(),
        dead_letters: Vec::new(),
        children: Vec::new(),
        sessions: Vec::new(),
        failures: Vec::new(),
        fleet: None,
        now_ms: NOW,
    }
}

fn head(more: &Value) -> Value {
    let mut head = json!({"id": "a:instance", "instanceId": "a", "type": "instance", "formatVersion": 2,
        "started": true, "status": "Running", "orchestrationName": "Bake", "currentExecutionId": 1});
    head.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    head
}

fn work(more: &Value) -> Value {
    let mut item = json!({"id": "work:1:1", "instanceId": "a", "type": "worker_queue", "activityId": 1,
        "execution": 1, "visibleAt": NOW - 60_000, "enqueuedAt": NOW - 60_000, "attemptCount": 0,
        "workItem": "{}"});
    item.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    item
}

fn bake() -> EventKind {
    EventKind::ActivityScheduled { name: "Bake".into(), input: String::new(), session_id: None, tag: None }
}

fn first(evidence: &Evidence) -> (Level, String) {
    let finding = diagnose(evidence).into_iter().next().expect("there is always an answer");
    (finding.level, finding.text)
}

#[test]
fn an_activity_nobody_takes_is_stuck() {
    let (level, text) = first(&evidence(vec![head(&json!({})), work(&json!({}))], vec![bake()]));
    assert_eq!(
        (level, text.as_str()),
        (Level::Stuck, "activity Bake (#1) is queued since 1 m 00 s ago, 0 attempts")
    );
}

#[test]
fn an_activity_that_is_being_run_is_not_stuck() {
    let locked = work(&json!({"lockToken": "t", "lockedUntil": NOW + 5000, "attemptCount": 2}));
    let (level, text) = first(&evidence(vec![head(&json!({})), locked], vec![bake()]));
    assert_eq!(level, Level::Waiting);
    assert!(text.contains("being run by a worker, 2 attempts, lock until in 5.0 s"), "{text}");
}

#[test]
fn an_activity_without_an_item_or_a_result_is_lost() {
    let (level, text) = first(&evidence(vec![head(&json!({}))], vec![bake()]));
    assert!(level == Level::Stuck && text.ends_with("it was lost"), "{text}");
}

#[test]
fn a_foreign_session_explains_the_wait() {
    let mut evidence = evidence(vec![head(&json!({})), work(&json!({"sessionId": "oven"}))], vec![bake()]);
    evidence.sessions.push(("oven".to_owned(), "node-7".to_owned(), NOW + 3000));
    let (level, text) = first(&evidence);
    assert!(level == Level::Waiting && text.contains("only node-7 may run it"), "{text}");
}

#[test]
fn timers_events_and_queues_are_waited_for() {
    let kinds = vec![
        EventKind::TimerCreated { fire_at_ms: NOW + 90_000 },
        EventKind::ExternalSubscribed { name: "yes".into() },
        EventKind::QueueSubscribed { name: "orders".into() },
    ];
    let findings = diagnose(&evidence(vec![head(&json!({}))], kinds));
    let texts: Vec<&str> = findings.iter().map(|finding| finding.text.as_str()).collect();
    assert_eq!(texts[0], "timer #1 fires in 1 m 30 s");
    assert_eq!(texts[1], "it waits for the event \"yes\", since 1 m 00 s ago");
    assert!(findings[1].advice.as_ref().unwrap().contains("cdb raise a yes DATA"));
    assert!(findings[2].advice.as_ref().unwrap().contains("cdb enqueue a orders DATA"));
    assert!(findings.iter().all(|finding| finding.level == Level::Waiting));
}

#[test]
fn the_lock_holder_and_what_it_holds_are_named() {
    let message = json!({"id": "m", "instanceId": "a", "type": "orch_queue", "visibleAt": NOW - 20_000,
        "workItem": json!({"ActivityCompleted": {"instance": "a", "id": 1}}).to_string()});
    let head = head(&json!({"lockToken": "t", "lockedUntil": NOW + 2000, "lockOwner": "node-1",
        "batch": [{"id": "m", "n": 3}]}));
    let findings = diagnose(&evidence(vec![head, message], vec![bake()]));
    let texts: Vec<&str> = findings.iter().map(|finding| finding.text.as_str()).collect();
    assert_eq!(texts[0], "a turn is being run: locked by node-1, until in 2.0 s unless renewed");
    assert_eq!(texts[1], "result of activity #1 waits since 20.0 s ago, 3 attempts so far");
}

#[test]
fn children_late_messages_and_dead_letters_are_named() {
    let kinds = vec![EventKind::SubOrchestrationScheduled {
        name: "route".into(),
        instance: "sub::1".into(),
        input: String::new(),
    }];
    let intent = json!({"id": "intent:1:0", "instanceId": "a", "type": "outbox_intent",
        "targetInstanceId": "a::sub::1", "createdAt": NOW - 30_000, "attemptCount": 4});
    let mut evidence = evidence(vec![head(&json!({})), intent], kinds);
    evidence.dead_letters.push(DeadLetter { reason: "too large".into(), ..DeadLetter::default() });
    let texts: Vec<String> = diagnose(&evidence).into_iter().map(|finding| finding.text).collect();
    assert!(texts[0].contains("to a::sub::1 is undelivered since 30.0 s ago, 4 attempts"), "{texts:?}");
    assert!(texts[1].contains("too large"), "{texts:?}");
    assert!(texts[2].contains("the start of sub-orchestration a::sub::1 (#1) is on the way"), "{texts:?}");
}

#[test]
fn an_instance_that_waits_for_nothing_has_lost_something() {
    let (level, text) = first(&evidence(vec![head(&json!({}))], vec![]));
    assert_eq!((level, text.as_str()), (Level::Stuck, "it waits for nothing and nothing waits for it"));
    let (level, _) = first(&evidence(vec![head(&json!({"status": "Completed"}))], vec![]));
    assert_eq!(level, Level::Fine);
}

#[test]
fn work_that_is_put_back_again_and_again_is_stuck_since_it_was_sent() {
    let back = json!({"visibleAt": NOW + 12_600, "enqueuedAt": NOW - 74_000, "attemptCount": 5});
    let findings = diagnose(&evidence(vec![head(&json!({})), work(&back)], vec![bake()]));
    let expected = "activity Bake (#1) waits since 1 m 14 s ago, 5 attempts, again in 12.6 s";
    assert_eq!((findings[0].level, findings[0].text.as_str()), (Level::Stuck, expected));
    assert!(findings[0].advice.as_ref().unwrap().contains("no activity \"Bake\" registered"));
    let start = json!({"id": "m", "instanceId": "a", "type": "orch_queue", "visibleAt": NOW - 1000,
        "enqueuedAt": NOW - 74_000, "attemptCount": 5,
        "workItem": json!({"StartOrchestration": {"instance": "a", "orchestration": "order"}}).to_string()});
    let findings = diagnose(&evidence(vec![start], vec![]));
    let expected = "start of order waits since 1 m 14 s ago, 5 attempts so far";
    assert_eq!((findings[0].level, findings[0].text.as_str()), (Level::Stuck, expected));
    assert!(findings[0].advice.as_ref().unwrap().contains("no orchestration \"order\" registered"));
}

#[test]
fn a_failed_workflow_tells_what_failed_down_to_where_it_began() {
    let mut evidence = evidence(vec![head(&json!({"status": "Failed"}))], vec![]);
    let failure = |instance: &str, cause: Cause| Failure {
        instance: instance.to_owned(),
        at_ms: NOW - 180_000,
        error: "no oven".to_owned(),
        cause,
    };
    evidence.failures = vec![
        failure("a", Cause::Child { instance: "a::sub::2".into(), id: 2 }),
        failure("a::sub::2", Cause::Activity { name: "Boom".into(), id: 4, tries: 3 }),
    ];
    let findings = diagnose(&evidence);
    let texts: Vec<&str> = findings.iter().map(|finding| finding.text.as_str()).collect();
    assert_eq!(texts[0], "it failed 3 m 00 s ago: no oven");
    assert_eq!(texts[1], "its sub-orchestration a::sub::2 (#2) failed");
    assert_eq!(texts[2], "in a::sub::2: activity Boom (#4) failed, the last of 3 tries: no oven");
    assert!(findings.iter().all(|finding| finding.level == Level::Failed));
    evidence.failures = vec![failure("a", Cause::Cancelled { reason: "the customer called".into() })];
    assert_eq!(first(&evidence), (Level::Fine, "it was cancelled 3 m 00 s ago: the customer called".into()));
    evidence.failures.clear();
    assert_eq!(first(&evidence).0, Level::Failed, "whatever the history says");
}

#[test]
fn the_owner_of_its_slot_is_named_and_whether_it_can_be_expected_to_do_anything() {
    let with = |rows: &[Value]| {
        let mut evidence =
            evidence(vec![head(&json!({}))], vec![EventKind::ExternalSubscribed { name: "yes".into() }]);
        evidence.fleet = Some(Fleet::new(rows, NOW));
        let owner = diagnose(&evidence)
            .into_iter()
            .find(|finding| finding.text != "it waits for the event \"yes\", since 1 m 00 s ago");
        let owner = owner.unwrap();
        (owner.level, format!("{} {}", owner.text, owner.advice.unwrap_or_default()))
    };
    let (level, text) = with(&[member("node-1", NOW - 1200), table(&[(0, 255, "node-1")])]);
    assert!(
        level == Level::Fine && text.contains("is looked after by \"node-1\" on h (7), heard of 1.2 s ago"),
        "{text}"
    );
    let (level, text) = with(&[member("node-1", NOW - 6000), table(&[(0, 255, "node-1")])]);
    assert!(level == Level::Waiting && text.contains("others take over in 4.0 s"), "{text}");
    let dead = [member("node-1", NOW - 60_000), member("node-2", NOW), table(&[(0, 255, "node-1")])];
    let (level, text) = with(&dead);
    assert!(
        level == Level::Waiting && text.contains("belongs to \"node-1\", whose lease has ended"),
        "{text}"
    );
    let (level, text) = with(&[member("node-2", NOW)]);
    assert!(level == Level::Waiting && text.contains("belongs to nobody"), "{text}");
    let (level, text) = with(&[]);
    assert!(level == Level::Waiting && text.contains("nobody is there"), "{text}");
    let mut idle = member("node-1", NOW);
    idle["servesTurns"] = json!(false);
    let (level, text) = with(&[idle.clone(), table(&[(0, 255, "node-1")])]);
    assert!(level == Level::Stuck && text.contains("runs no orchestrations"), "{text}");
    let (level, text) = with(&[idle, member("node-2", NOW), table(&[(0, 255, "node-1")])]);
    assert!(level == Level::Waiting && text.contains("takes what it passes over"), "{text}");
}

#[test]
fn an_activity_whose_tag_nobody_runs_is_stuck() {
    let item = work(&json!({"tag": "gpu", "visibleAt": NOW - 100, "enqueuedAt": NOW - 100}));
    let mut evidence = evidence(vec![head(&json!({})), item], vec![bake()]);
    assert_eq!(first(&evidence).0, Level::Waiting, "nothing is known of who runs what");
    evidence.fleet = Some(Fleet::new(&[member("node-1", NOW), table(&[(0, 255, "node-1")])], NOW));
    let finding = diagnose(&evidence).remove(0);
    assert_eq!(finding.level, Level::Stuck);
    assert_eq!(
        finding.advice.unwrap(),
        "no living member runs activities of tag \"gpu\": start a runtime that does"
    );
}
