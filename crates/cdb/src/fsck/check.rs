//! One partition against the invariants.

use std::collections::{BTreeMap, BTreeSet};

use duroxide::providers::WorkItem;
use duroxide::{Event, EventKind};
use serde_json::Value;

use super::events::{References, chunk_references, decode, texts};
use super::{Defect, Family, Level, Repair};
use duroxide_cdb::{FORMAT_VERSION, is_reserved};

use crate::ending;
use crate::model::{Head, KINDS, Manifest, Partition, Queued, kind, text_of, type_of};
use crate::timeline::{self, Span, SpanKind};

/// What is wrong in one partition.
pub(crate) fn check(instance: &str, partition: &Partition, family: &Family, now_ms: u64) -> Vec<Defect> {
    let mut report = Report { instance, defects: Vec::new() };
    for document in partition.documents().iter().filter(|document| !KINDS.contains(&type_of(document))) {
        if !is_reserved(instance) {
            report.broken(format!(
                "document {:?} has the unknown type {:?}",
                text_of(document, "id"),
                type_of(document)
            ));
        }
    }
    if is_reserved(instance) {
        return report.defects;
    }
    let Some(head) = partition.head() else {
        headless(partition, &mut report);
        return report.defects;
    };
    if head.format_version > u64::from(FORMAT_VERSION) {
        report.broken(format!("its layout {} is newer than this program: upgrade cdb", head.format_version));
        return report.defects;
    }
    // Whoever deletes it removes the rest, in an order that breaks every rule below.
    if head.kind == kind::DELETING {
        return report.defects;
    }
    litter(partition, &head, now_ms, &mut report);
    expiry(partition, &mut report);
    if head.is_visible() {
        history(partition, &head, family, now_ms, &mut report);
    }
    report.defects
}

struct Report<'a> {
    instance: &'a str,
    defects: Vec<Defect>,
}

impl Report<'_> {
    fn add(&mut self, level: Level, text: String, repair: Option<Repair>) {
        self.defects.push(Defect { instance: self.instance.to_owned(), level, text, repair });
    }

    fn broken(&mut self, text: String) {
        self.add(Level::Broken, text, None);
    }
}

/// Without a head only messages may wait, and marks that outlive an instance.
fn headless(partition: &Partition, report: &mut Report<'_>) {
    let orphans: BTreeSet<&str> = partition
        .documents()
        .iter()
        .map(type_of)
        .filter(|kind_of| [kind::HISTORY, kind::EXECUTION, kind::VALUE, kind::WORK].contains(kind_of))
        .collect();
    if !orphans.is_empty() {
        let kinds: Vec<&str> = orphans.into_iter().collect();
        report.broken(format!("it has no head and yet documents of the types {}", kinds.join(", ")));
    }
}

/// What the service will remove by itself must be all there is of an instance that is over.
fn expiry(partition: &Partition, report: &mut Report<'_>) {
    let expires = |document: &&Value| document["ttl"].as_i64().is_some_and(|ttl| ttl > 0);
    for document in partition.documents().iter().filter(expires) {
        let is_head = type_of(document) == kind::INSTANCE;
        let text = if is_head {
            let left = partition.documents().iter().map(type_of).find(|kind| LEFT_BEHIND.contains(kind));
            match left {
                None if duroxide_cdb::may_expire(document) => continue,
                None => "the service will remove its head, and it has not ended or does not stand alone"
                    .to_owned(),
                Some(kind) => {
                    format!("the service will remove its head and leave a document of the type {kind}")
                }
            }
        } else if type_of(document) == kind::TOMBSTONE {
            continue;
        } else {
            format!(
                "the service will remove its document {:?} and nothing else of it",
                text_of(document, "id")
            )
        };
        let (id, etag) = (text_of(document, "id").to_owned(), text_of(document, "_etag").to_owned());
        report.add(Level::Broken, text, Some(Repair::Keep { id, etag }));
    }
}

/// Documents of an instance that would be left if only its head went.
const LEFT_BEHIND: [&str; 7] =
    [kind::HISTORY, kind::EXECUTION, kind::VALUE, kind::WORK, kind::INTENT, kind::CHUNK, kind::STAGED];

/// Documents that nothing points to.
fn litter(partition: &Partition, head: &Head, now_ms: u64, report: &mut Report<'_>) {
    let mut references = References::default();
    for document in partition.documents() {
        chunk_references(document, &mut references);
    }
    let stored = partition.documents().iter().filter(|document| type_of(document) == kind::CHUNK).count();
    // A damaged reference may claim billions of pieces: one more than there are shows that some are missing.
    let pieces: BTreeSet<String> = references
        .readable
        .iter()
        .flat_map(|reference| reference.ids().take(stored + 1).collect::<Vec<_>>())
        .collect();
    // Which pieces such a reference means is not known, so all of its commit stay.
    let beyond = references.readable.iter().filter(|reference| reference.count > stored as u64);
    let spared: BTreeSet<&str> = beyond
        .map(|reference| reference.commit.as_str())
        .chain(references.unreadable.iter().map(String::as_str))
        .collect();
    let values: BTreeSet<&str> = head
        .kv
        .values()
        .flat_map(|cell| [&cell.stored, &cell.changed])
        .filter_map(|stored| stored.as_ref().and_then(|stored| stored.document.as_deref()))
        .chain(head.custom_status_value.as_deref())
        .collect();
    let commits: Vec<String> =
        partition.of::<Manifest>(kind::MANIFEST).into_iter().map(|manifest| manifest.commit).collect();
    let mut found = BTreeSet::new();
    for document in partition.documents() {
        let id = text_of(document, "id");
        found.insert(id);
        let is_wanted = match type_of(document) {
            kind::CHUNK => {
                pieces.contains(id)
                    || commits.iter().any(|commit| id.contains(commit.as_str()))
                    || spared.iter().any(|commit| id.contains(commit))
            }
            kind::VALUE => values.contains(id) || !commits.is_empty(),
            kind::STAGED => commits.iter().any(|commit| id.contains(commit.as_str())),
            _ => true,
        };
        let age_ms = now_ms.saturating_sub(document.get("_ts").and_then(Value::as_u64).unwrap_or(0) * 1000);
        // A commit that is being prepared right now writes such documents first.
        if !is_wanted && age_ms > PREPARATION_MS {
            let repair = Repair::Remove { id: id.to_owned(), etag: text_of(document, "_etag").to_owned() };
            report.add(
                Level::Litter,
                format!("nothing points to {id:?} ({})", type_of(document)),
                Some(repair),
            );
        }
    }
    for commit in &references.unreadable {
        report.broken(format!("a reference to the pieces of {commit:?} cannot be read"));
    }
    for value in values.iter().filter(|value| !found.contains(**value)) {
        report.broken(format!("the value {value:?} is missing"));
    }
    for piece in pieces.iter().filter(|piece| !found.contains(piece.as_str())) {
        report.broken(format!("the piece {piece:?} of a large text is missing"));
    }
}

/// The history against the head, and what the workflow waits for against the queues.
fn history(partition: &Partition, head: &Head, family: &Family, now_ms: u64, report: &mut Report<'_>) {
    let executions = match texts(partition) {
        Ok(executions) => executions,
        Err(text) => return report.broken(text),
    };
    let mut current = Vec::new();
    for (execution, texts) in &executions {
        match decode(*execution, texts) {
            Ok(events) => {
                order(*execution, &events, report);
                if *execution == head.current_execution_id {
                    current = events;
                }
            }
            Err(text) => report.broken(text),
        }
        if *execution > head.current_execution_id {
            report.broken(format!("it has history of execution {execution}, which has not begun"));
        }
    }
    // A large turn that is committed and not carried out yet has the rest of its history elsewhere.
    let is_settled = partition.of::<Manifest>(kind::MANIFEST).is_empty();
    if !head.is_legacy() && is_settled {
        let bytes =
            executions.get(&head.current_execution_id).map_or(0, |texts| texts.iter().map(String::len).sum());
        counters(head, &current, bytes as u64, report);
    }
    if head.has_ended() {
        if ending::terminal(&current).is_none() && is_settled {
            report.broken(format!("it is {} and its history does not end so", head.status));
        }
    } else if is_settled && !head.is_locked(now_ms) {
        waits(partition, head, &current, family, report);
    }
}

fn order(execution: u64, events: &[Event], report: &mut Report<'_>) {
    let is_rising = events.windows(2).all(|pair| pair[0].event_id < pair[1].event_id);
    if !is_rising {
        report.broken(format!("the events of execution {execution} are not in order"));
    }
    if let Some(foreign) = events.iter().find(|event| event.instance_id != report.instance) {
        report.broken(format!(
            "event {} of execution {execution} belongs to {:?}",
            foreign.event_id, foreign.instance_id
        ));
    }
    if !matches!(events.first().map(|event| &event.kind), Some(EventKind::OrchestrationStarted { .. })) {
        report.broken(format!("execution {execution} does not begin with its start"));
    }
}

fn counters(head: &Head, events: &[Event], bytes: u64, report: &mut Report<'_>) {
    let last = events.last().map_or(0, |event| event.event_id);
    let count = events.len() as u64;
    if (head.last_event_id, head.event_count) == (last, count) {
        return;
    }
    let text = format!(
        "its head counts {} events up to #{}, its history has {count} up to #{last}",
        head.event_count, head.last_event_id
    );
    // Missing history cannot be made up; a wrong count over a whole history can be mended.
    let repair =
        (last >= head.last_event_id && !head.batch.iter().any(|held| !held.id.is_empty())).then(|| {
            Repair::Counters {
                id: head.id.clone(),
                etag: head.etag.clone(),
                last_event_id: last,
                event_count: count,
                event_bytes: bytes,
            }
        });
    report.add(Level::Broken, text, repair);
}

/// Everything a workflow waits for must come from somewhere.
fn waits(partition: &Partition, head: &Head, events: &[Event], family: &Family, report: &mut Report<'_>) {
    let messages: Vec<(String, Value)> =
        partition.of::<Queued>(kind::MESSAGE).iter().map(Queued::item).collect();
    let work: Vec<Queued> = partition.of(kind::WORK);
    let scheduled: BTreeMap<u64, &EventKind> =
        events.iter().map(|event| (event.event_id, &event.kind)).collect();
    for span in timeline::open(report.instance, events) {
        let is_answered = messages.iter().any(|(variant, fields)| {
            let field = if span.kind == SpanKind::Child { "parent_id" } else { "id" };
            fields.get(field).and_then(Value::as_u64) == Some(span.id) || variant.is_empty()
        });
        if is_answered {
            continue;
        }
        match (span.kind, scheduled.get(&span.id)) {
            (SpanKind::Activity, Some(EventKind::ActivityScheduled { name, input, session_id, tag })) => {
                if !work.iter().any(|item| is_work_of(item, head, span.id)) {
                    let item = WorkItem::ActivityExecute {
                        instance: report.instance.to_owned(),
                        execution_id: head.current_execution_id,
                        id: span.id,
                        name: name.clone(),
                        input: input.clone(),
                        session_id: session_id.clone(),
                        tag: tag.clone(),
                    };
                    let text = format!("activity {name} (#{}) is neither queued nor done", span.id);
                    report.add(Level::Broken, text, Some(Repair::Work(item)));
                }
            }
            (SpanKind::Timer, Some(EventKind::TimerCreated { fire_at_ms })) => {
                let item = WorkItem::TimerFired {
                    instance: report.instance.to_owned(),
                    execution_id: head.current_execution_id,
                    id: span.id,
                    fire_at_ms: *fire_at_ms,
                };
                report.add(
                    Level::Broken,
                    format!("timer #{} will never fire", span.id),
                    Some(Repair::Message(item)),
                );
            }
            (SpanKind::Child, Some(EventKind::SubOrchestrationScheduled { name, input, .. })) => {
                child(head, &span, (name, input), family, report);
            }
            // These come from outside, whenever somebody sends them.
            (SpanKind::Event | SpanKind::Queue, _) | (_, Some(_) | None) => {}
        }
    }
}

fn is_work_of(item: &Queued, head: &Head, activity: u64) -> bool {
    item.activity_id == Some(activity) && item.execution_id.is_none_or(|id| id == head.current_execution_id)
}

fn child(head: &Head, span: &Span, (name, input): (&str, &str), family: &Family, report: &mut Report<'_>) {
    let child = &span.name;
    let parent = report.instance.to_owned();
    match family.status.get(child).map(String::as_str) {
        Some("Completed" | "Failed") => {
            if !family.sending.contains(&(child.clone(), parent.clone())) {
                let repair = Repair::Result {
                    child: child.clone(),
                    parent,
                    execution: head.current_execution_id,
                    event: span.id,
                };
                report.add(
                    Level::Broken,
                    format!("the result of {child} (#{}) never arrived", span.id),
                    Some(repair),
                );
            }
        }
        Some(_) => {}
        None => {
            let is_coming = family.with_messages.contains(child)
                || family.sending.contains(&(parent.clone(), child.clone()));
            if !is_coming {
                let item = WorkItem::StartOrchestration {
                    instance: child.clone(),
                    orchestration: name.to_owned(),
                    input: input.to_owned(),
                    version: None,
                    parent_instance: Some(parent),
                    parent_id: Some(span.id),
                    parent_execution_id: Some(head.current_execution_id),
                    execution_id: 1,
                };
                let text = format!("sub-orchestration {child} (#{}) was never started", span.id);
                report.add(Level::Broken, text, Some(Repair::Message(item)));
            }
        }
    }
}

/// A commit that is being prepared is not older than this.
const PREPARATION_MS: u64 = 10 * 60 * 1000;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const NOW: u64 = 2_000_000_000_000;

    fn event(id: u64, source: Option<u64>, kind: EventKind) -> String {
        serde_json::to_string(&Event::with_event_id(id, "a", 1, source, kind)).unwrap()
    }

    fn started() -> String {
        event(
            1,
            None,
            EventKind::OrchestrationStarted {
                name: "Bake".into(),
                version: "1.0.0".into(),
                input: String::new(),
                parent_instance: None,
                parent_id: None,
                parent_execution_id: None,
                carry_forward_events: None,
                initial_custom_status: None,
            },
        )
    }

    fn activity() -> String {
        let kind = EventKind::ActivityScheduled {
            name: "Bake".into(),
            input: "x".into(),
            session_id: None,
            tag: None,
        };
        event(2, None, kind)
    }

    fn partition(events: &[String], head: &Value, more: Vec<Value>) -> Partition {
        let mut merged = json!({"id": "a:instance", "instanceId": "a", "type": "instance", "formatVersion": 2,
            "started": true, "status": "Running", "orchestrationName": "Bake", "currentExecutionId": 1,
            "lastEventId": events.len(), "eventCount": events.len(), "_etag": "e"});
        merged.as_object_mut().unwrap().extend(head.as_object().unwrap().clone());
        let history = json!({"id": "a:history:1:1", "instanceId": "a", "type": "history", "executionId": 1,
            "eventId": 1, "events": events, "eventCount": events.len()});
        let mut documents = vec![merged, history];
        documents.extend(more);
        Partition::new(documents)
    }

    /// The same with the last events in the head.
    fn with_events_in_head(events: &[String], in_head: usize, more: Vec<Value>) -> Partition {
        let (filed, kept) = events.split_at(events.len() - in_head);
        let counters = json!({"lastEventId": events.len(), "eventCount": events.len(), "events": kept});
        let mut documents = partition(filed, &counters, more).documents().to_vec();
        documents.retain(|document| document["type"] != "history" || !filed.is_empty());
        Partition::new(documents)
    }

    fn texts_of(partition: &Partition) -> Vec<String> {
        check("a", partition, &Family::default(), NOW).into_iter().map(|defect| defect.text).collect()
    }

    #[test]
    fn a_sound_instance_has_no_defects() {
        let work = json!({"id": "work:1:2", "instanceId": "a", "type": "worker_queue", "activityId": 2,
            "execution": 1, "workItem": "{}"});
        assert!(texts_of(&partition(&[started(), activity()], &json!({}), vec![work])).is_empty());
    }

    #[test]
    fn an_activity_of_another_execution_is_not_the_one_that_is_waited_for() {
        // The public crate's name for it counts as well.
        for name in ["execution", "executionId"] {
            let mut work = json!({"id": "work:7:2", "instanceId": "a", "type": "worker_queue", "activityId": 2,
                "workItem": "{}"});
            work[name] = 7.into();
            let texts = texts_of(&partition(&[started(), activity()], &json!({}), vec![work]));
            assert_eq!(texts, ["activity Bake (#2) is neither queued nor done"], "{name}");
        }
    }

    #[test]
    fn a_lost_activity_is_found_and_can_be_queued_again() {
        let defects =
            check("a", &partition(&[started(), activity()], &json!({}), vec![]), &Family::default(), NOW);
        assert_eq!(defects.len(), 1);
        assert_eq!(defects[0].text, "activity Bake (#2) is neither queued nor done");
        let Some(Repair::Work(WorkItem::ActivityExecute { id, input, .. })) = &defects[0].repair else {
            panic!()
        };
        assert_eq!((*id, input.as_str()), (2, "x"));
        let held = &json!({"lockToken": "t", "lockedUntil": NOW + 1});
        assert!(
            texts_of(&partition(&[started(), activity()], held, vec![])).is_empty(),
            "a turn is under way"
        );
    }

    #[test]
    fn lost_timers_and_children_are_found() {
        let timer = event(2, None, EventKind::TimerCreated { fire_at_ms: NOW + 1 });
        let child = event(
            3,
            None,
            EventKind::SubOrchestrationScheduled {
                name: "r".into(),
                instance: "sub::3".into(),
                input: "".into(),
            },
        );
        let lost = partition(&[started(), timer, child], &json!({}), vec![]);
        assert_eq!(
            texts_of(&lost),
            ["timer #2 will never fire", "sub-orchestration a::sub::3 (#3) was never started"]
        );
        let mut family = Family::default();
        family.status.insert("a::sub::3".to_owned(), "Completed".to_owned());
        let defects = check("a", &lost, &family, NOW);
        assert!(matches!(defects[1].repair, Some(Repair::Result { .. })), "{defects:?}");
        family.sending.insert(("a::sub::3".to_owned(), "a".to_owned()));
        assert_eq!(check("a", &lost, &family, NOW).len(), 1, "its result is on the way");
    }

    #[test]
    fn counters_order_and_ends_are_checked() {
        let wrong = partition(&[started()], &json!({"eventCount": 5, "lastEventId": 1}), vec![]);
        let defects = check("a", &wrong, &Family::default(), NOW);
        assert_eq!(defects[0].text, "its head counts 5 events up to #1, its history has 1 up to #1");
        assert!(matches!(defects[0].repair, Some(Repair::Counters { event_count: 1, .. })));
        let ended = partition(&[started()], &json!({"status": "Completed"}), vec![]);
        assert_eq!(texts_of(&ended), ["it is Completed and its history does not end so"]);
        let truncated = partition(&[activity()], &json!({"lastEventId": 2}), vec![]);
        assert!(texts_of(&truncated).contains(&"execution 1 does not begin with its start".to_owned()));
    }

    #[test]
    fn litter_and_missing_pieces_are_told_apart() {
        let old = NOW / 1000 - 7200;
        let more = vec![
            json!({"id": "chunk:c:0", "instanceId": "a", "type": "chunk", "data": "", "_ts": old, "_etag": "x"}),
            json!({"id": "chunk:new:0", "instanceId": "a", "type": "chunk", "data": "", "_ts": NOW / 1000}),
            json!({"id": "m", "instanceId": "a", "type": "orch_queue", "workItem": "", "visibleAt": NOW + 9,
                "chunks": {"commit": "d", "first": 0, "count": 1, "bytes": 1}}),
        ];
        let defects = check("a", &partition(&[started()], &json!({}), more), &Family::default(), NOW);
        let texts: Vec<&str> = defects.iter().map(|defect| defect.text.as_str()).collect();
        assert_eq!(
            texts,
            ["nothing points to \"chunk:c:0\" (chunk)", "the piece \"chunk:d:0\" of a large text is missing"]
        );
        assert_eq!(defects[0].level, Level::Litter);
    }

    #[test]
    fn a_reference_that_is_damaged_costs_none_of_the_pieces() {
        let old = NOW / 1000 - 7200;
        let piece = |id: &str| json!({"id": id, "instanceId": "a", "type": "chunk", "data": "", "_ts": old});
        let message = |chunks: Value| {
            json!({"id": "m", "instanceId": "a", "type": "orch_queue", "workItem": "", "visibleAt": NOW + 9,
                "chunks": chunks})
        };
        let texts = |chunks: Value| {
            let more = vec![piece("chunk:d:0"), piece("chunk:d:5"), message(chunks)];
            texts_of(&partition(&[started()], &json!({}), more))
        };
        let billions = texts(json!({"commit": "d", "first": 0, "count": 4_000_000_000_u64, "bytes": 1}));
        let missing = |index: u32| format!("the piece \"chunk:d:{index}\" of a large text is missing");
        assert_eq!(billions, [missing(1), missing(2)]);
        let beyond = texts(json!({"commit": "d", "first": u64::MAX, "count": 9, "bytes": 1}));
        assert!(!beyond.iter().any(|text| text.contains("nothing points to")), "{beyond:?}");
        let unreadable = texts(json!({"commit": "d", "first": "nought", "count": 2, "bytes": 1}));
        assert_eq!(unreadable, ["a reference to the pieces of \"d\" cannot be read"]);
    }

    #[test]
    fn only_a_head_that_stands_alone_may_expire() {
        let done = event(2, None, EventKind::OrchestrationCompleted { output: String::new() });
        let ended = |ttl: i64, more: Vec<Value>, change: Value| {
            let mut partition = with_events_in_head(&[started(), done.clone()], 2, more).documents().to_vec();
            let over = json!({"status": "Completed", "completedAt": 1, "executionCount": 1, "totalEventCount": 2,
                "formatVersion": 3, "ttl": ttl});
            for changes in [over, change] {
                partition[0].as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
            }
            texts_of(&Partition::new(partition)).into_iter().filter(|text| text.contains("service")).count()
        };
        let value = json!({"id": "value:1:0", "instanceId": "a", "type": "value", "value": ""});
        let fleeting = json!({"id": "message:x", "instanceId": "a", "type": "orch_queue", "ttl": 5});
        assert_eq!(ended(60, vec![], json!({})), 0);
        assert_eq!(ended(60, vec![value.clone()], json!({})), 1);
        assert_eq!(ended(-1, vec![value], json!({})), 0);
        assert_eq!(ended(60, vec![], json!({"parentInstanceId": "p"})), 1);
        assert_eq!(ended(60, vec![], json!({"status": "Running"})), 1);
        assert_eq!(ended(60, vec![fleeting], json!({})), 1);
    }

    #[test]
    fn an_instance_that_is_being_deleted_has_no_defects() {
        let halfway =
            partition(&[activity()], &json!({"type": "deleting", "customStatusValue": "gone"}), vec![]);
        assert_eq!(texts_of(&halfway), Vec::<String>::new());
    }

    #[test]
    fn only_the_providers_own_partitions_are_left_alone() {
        let orphan = Partition::new(vec![json!({"id": "h", "type": "history"})]);
        let count = |name: &str| check(name, &orphan, &Family::default(), NOW).len();
        assert_eq!(["__mine", "__meta__", "__session__:s"].map(count), [1, 0, 0]);
    }

    #[test]
    fn events_in_the_head_are_the_last_of_the_history() {
        let work = json!({"id": "work:1:2", "instanceId": "a", "type": "worker_queue", "activityId": 2,
            "execution": 1, "workItem": "{}"});
        let events = [started(), activity()];
        for in_head in [1, 2] {
            let sound = with_events_in_head(&events, in_head, vec![work.clone()]);
            assert!(texts_of(&sound).is_empty(), "{:?}", texts_of(&sound));
            let waits = with_events_in_head(&events, in_head, vec![]);
            assert_eq!(texts_of(&waits).len(), 1, "the activity is missed: {:?}", texts_of(&waits));
        }
        let broken = with_events_in_head(&[started(), "{}".to_owned()], 1, vec![]);
        assert!(texts_of(&broken).iter().any(|text| text.contains("decoded")), "{:?}", texts_of(&broken));
    }

    #[test]
    fn history_without_a_head_and_newer_layouts_are_reported() {
        let orphan = Partition::new(vec![json!({"id": "h", "instanceId": "a", "type": "history"})]);
        assert_eq!(texts_of(&orphan), ["it has no head and yet documents of the types history"]);
        let newer = partition(&[started()], &json!({"formatVersion": 9}), vec![]);
        assert!(texts_of(&newer)[0].contains("upgrade"));
        let waiting = Partition::new(vec![json!({"id": "m", "instanceId": "a", "type": "orch_queue"})]);
        assert!(texts_of(&waiting).is_empty());
    }
}
