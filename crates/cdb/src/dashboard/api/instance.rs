//! One instance: what it is, what it did, what it waits for.

use cosmos_driver::Query;
use duroxide::{Event, EventKind};
use serde::Deserialize;
use serde_json::{Value, json};

use super::super::Store;
use super::super::answer::{Failure, Outcome};
use super::super::route::Asked;
use super::instances::row;
use super::told;
use crate::clock::now_ms;
use crate::commands::why;
use crate::documents::Documents;
use crate::exit::Problem;
use crate::fsck::{decode, texts};
use crate::listing::COLUMNS;
use crate::model::{Head, Partition, Queued, kind, text_of};
use crate::timeline::{self, End, Span, SpanKind};

/// Everything of the page but what its tabs ask for when they are opened.
pub(in super::super) async fn show(store: &Store, asked: &Asked, id: &str) -> Outcome {
    let documents = store.documents();
    let (partition, execution) = read(&documents, id, asked.number("execution")).await?;
    let head = partition.head().unwrap_or_default();
    let stored = partition.documents().iter().find(|document| text_of(document, "id") == head.id);
    let is_current = execution == head.current_execution_id || head.current_execution_id == 0;
    let history = events_of(&partition, execution);
    let events = history.clone().unwrap_or_default();
    let is_over = !is_current || head.has_ended();
    let work: Vec<Queued> = partition.of(kind::WORK);
    let spans: Vec<Value> =
        timeline::spans(id, &events).iter().map(|span| span_json(span, &events, is_over, &work)).collect();
    let executions = executions(&partition, &head);
    let evidence = why::evidence(&documents, id, partition.clone(), history.clone()).await?;
    let (level, findings) = why::answer(&evidence);
    let children = children(&documents, id).await?;
    let (input, output) = ends(&events);
    let error = history.err();
    let shown = events.len().saturating_sub(EVENTS_MAX);
    let answer = json!({
        "head": stored.map(row),
        "began": partition.head().is_some_and(|head| head.is_visible()),
        "execution": execution,
        "executions": executions,
        "input": input.map(payload),
        "output": output.as_ref().map(|(text, _)| payload(text)),
        "failed": output.as_ref().is_some_and(|(_, is_failure)| *is_failure),
        "lock": head.is_locked(now_ms()).then(|| json!({"owner": head.lock_owner, "until": head.locked_until})),
        "pinned": head.pinned_version,
        "bytes": head.event_bytes,
        "spans": spans,
        "events": events[shown..].iter().map(event_json).collect::<Vec<_>>(),
        "eventsLeftOut": shown,
        "historyError": error,
        "why": {"level": level, "findings": findings},
        "children": children,
        "waitsFor": waits_for(id, &events, is_over),
        "keys": head.kv.keys().collect::<Vec<_>>(),
    });
    Ok(told(store, &documents, answer))
}

/// One event with its payload, whatever its size.
pub(in super::super) async fn event(store: &Store, asked: &Asked, id: &str, number: &str) -> Outcome {
    let documents = store.documents();
    let number: u64 = number.parse().map_err(|_| Failure::usage("events have numbers"))?;
    let (partition, execution) = read(&documents, id, asked.number("execution")).await?;
    let events = events_of(&partition, execution).map_err(|error| anyhow::anyhow!(error))?;
    let event = events.iter().find(|event| event.event_id == number);
    let event = event.ok_or_else(|| Problem::Missing(format!("{id:?} has no event {number}")))?;
    Ok(told(store, &documents, json!({"event": event})))
}

/// The children of an instance.
pub(in super::super) async fn children_of(store: &Store, id: &str) -> Outcome {
    let documents = store.documents();
    let children = children(&documents, id).await?;
    Ok(told(store, &documents, json!({"children": children})))
}

/// Its key-values. The provider knows how they are stored.
pub(in super::super) async fn key_values(store: &Store, id: &str) -> Outcome {
    let documents = store.documents();
    let client = duroxide::Client::new(store.provider().await?);
    let mut values: Vec<(String, String)> = client.get_kv_all_values(id).await?.into_iter().collect();
    values.sort();
    let rows: Vec<Value> =
        values.iter().map(|(key, value)| json!({"key": key, "value": payload(value)})).collect();
    Ok(told(store, &documents, json!({"values": rows})))
}

/// Its documents as they are stored, long texts cut.
pub(in super::super) async fn documents(store: &Store, id: &str) -> Outcome {
    let documents = store.documents();
    let mut stored = documents.partition(id).await?;
    let count = stored.len();
    stored.truncate(DOCUMENTS_MAX);
    for document in &mut stored {
        shorten(document);
    }
    Ok(told(store, &documents, json!({"documents": stored, "count": count})))
}

/// The partition without the histories of other executions.
async fn read(documents: &Documents, id: &str, execution: Option<u64>) -> Result<(Partition, u64), Failure> {
    let head = documents.head(id).await?;
    let current = head.as_ref().map_or(1, |head| head.current_execution_id.max(1));
    let execution = execution.unwrap_or(current);
    let query = Query::new(
        "SELECT * FROM c WHERE c.type != 'tombstone' AND (c.type != 'history' OR c.executionId = @execution)",
    );
    let partition = Partition::new(documents.query(id, query.with("@execution", execution)).await?);
    if partition.is_empty() || duroxide_cdb::is_reserved(id) {
        return Err(Problem::no_instance(id).into());
    }
    Ok((partition, execution))
}

fn events_of(partition: &Partition, execution: u64) -> Result<Vec<Event>, String> {
    let texts = texts(partition)?;
    decode(execution, texts.get(&execution).map(Vec::as_slice).unwrap_or_default())
}

async fn children(documents: &Documents, id: &str) -> anyhow::Result<Vec<Value>> {
    let query = Query::new(format!(
        "SELECT {COLUMNS} FROM c WHERE c.parentInstanceId = @id AND c.type = 'instance' AND c.started = true"
    ));
    let (rows, _) = documents.up_to(query.with("@id", id), CHILDREN_MAX).await?;
    let mut rows: Vec<Value> = rows.iter().map(row).collect();
    rows.sort_by(|one, other| {
        let place = |row: &Value| {
            let (stem, length, number) = crate::commands::tree::place(text_of(row, "instance"));
            (stem.to_owned(), length, number.to_owned())
        };
        place(one).cmp(&place(other))
    });
    Ok(rows)
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Record {
    execution_id: u64,
    status: String,
    started_at: u64,
    completed_at: Option<u64>,
    event_count: u64,
}

fn executions(partition: &Partition, head: &Head) -> Vec<Value> {
    let mut records: Vec<Record> = partition.of(kind::EXECUTION);
    if head.current_execution_id > 0
        && !records.iter().any(|record| record.execution_id == head.current_execution_id)
    {
        records.push(Record {
            execution_id: head.current_execution_id,
            status: head.status.clone(),
            started_at: 0,
            completed_at: None,
            event_count: head.event_count,
        });
    }
    records.sort_by_key(|record| record.execution_id);
    records
        .iter()
        .map(|record| {
            json!({"execution": record.execution_id, "status": record.status, "startedAt": record.started_at,
                "completedAt": record.completed_at, "events": record.event_count})
        })
        .collect()
}

/// The input, and what it ended with and whether that is a failure.
fn ends(events: &[Event]) -> (Option<&str>, Option<(String, bool)>) {
    let (mut input, mut output) = (None, None);
    for event in events {
        match &event.kind {
            EventKind::OrchestrationStarted { input: text, .. } => input = Some(text.as_str()),
            EventKind::OrchestrationCompleted { output: text } => output = Some((text.clone(), false)),
            EventKind::OrchestrationFailed { details } => output = Some((details.display_message(), true)),
            EventKind::OrchestrationContinuedAsNew { input: text } => output = Some((text.clone(), false)),
            _ => {}
        }
    }
    (input, output)
}

/// The names of events and queues that somebody could send something to.
fn waits_for(id: &str, events: &[Event], is_over: bool) -> Vec<Value> {
    if is_over {
        return Vec::new();
    }
    let open = timeline::open(id, events);
    let outside = open.iter().filter(|span| matches!(span.kind, SpanKind::Event | SpanKind::Queue));
    outside.map(|span| json!({"kind": span.kind.word(), "name": span.name})).collect()
}

fn span_json(span: &Span, events: &[Event], is_over: bool, work: &[Queued]) -> Value {
    let now = now_ms();
    let item = work.iter().find(|item| item.activity_id == Some(span.id));
    let state = match &span.end {
        End::Done(_) => "done",
        End::Failed(_) => "failed",
        End::Cancelled => "cancelled",
        End::Left => "left",
        // Nobody waits for it any more.
        End::Open if is_over => "left",
        End::Open => match (span.kind, item) {
            (SpanKind::Activity, Some(item)) if item.is_locked(now) => "running",
            (SpanKind::Activity, Some(item)) if item.visible_at > now => "backoff",
            (SpanKind::Activity, Some(_)) => "queued",
            (SpanKind::Activity, None) => "running",
            _ => "waiting",
        },
    };
    let last = events.iter().map(|event| event.timestamp_ms).max();
    let ended = span.ended_ms.or(if state == "left" { last } else { None });
    let note = match &span.end {
        End::Done(text) | End::Failed(text) => text.chars().take(NOTE_MAX).collect(),
        End::Open | End::Cancelled | End::Left => String::new(),
    };
    let name = if span.kind == SpanKind::Child { child_name(span, events) } else { span.name.clone() };
    json!({
        "id": span.id,
        "kind": span.kind.word(),
        "name": name,
        "child": (span.kind == SpanKind::Child).then_some(&span.name),
        "began": span.began_ms,
        "ended": ended,
        "due": span.due_ms,
        "state": state,
        "note": note,
        "attempts": item.map(|item| item.attempt_count),
        "session": item.and_then(|item| item.session_id.clone()),
        "tag": item.and_then(|item| item.tag.clone()),
    })
}

fn child_name(span: &Span, events: &[Event]) -> String {
    let scheduled = events.iter().find(|event| event.event_id == span.id).map(|event| &event.kind);
    match scheduled {
        Some(EventKind::SubOrchestrationScheduled { name, .. }) => name.clone(),
        _ => span.name.clone(),
    }
}

/// An event as it is stored, long texts cut: the page asks for those that somebody wants to see.
fn event_json(event: &Event) -> Value {
    let mut value = serde_json::to_value(event).unwrap_or_default();
    shorten(&mut value);
    for field in ["instance_id", "execution_id", "duroxide_version"] {
        if let Some(fields) = value.as_object_mut() {
            fields.remove(field);
        }
    }
    value
}

/// The beginning of a text, and how long it is.
fn payload(text: impl AsRef<str>) -> Value {
    let text = text.as_ref();
    match text.char_indices().nth(PAYLOAD_MAX) {
        Some((end, _)) => json!({"text": &text[..end], "bytes": text.len(), "cut": true}),
        None => json!({"text": text, "bytes": text.len(), "cut": false}),
    }
}

/// Cuts every long text in a value, and says so in it.
fn shorten(value: &mut Value) {
    match value {
        Value::String(text) => {
            if let Some((end, _)) = text.char_indices().nth(TEXT_MAX) {
                *text = format!("{}… ({} bytes)", &text[..end], text.len());
            }
        }
        Value::Array(items) => items.iter_mut().for_each(shorten),
        Value::Object(fields) => fields.values_mut().for_each(shorten),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

const CHILDREN_MAX: u32 = 500;
const EVENTS_MAX: usize = 5000;
const DOCUMENTS_MAX: usize = 200;
/// Characters of a payload in the header of the page.
const PAYLOAD_MAX: usize = 16 * 1024;
/// Characters of a text in a list of events or documents.
const TEXT_MAX: usize = 1024;
const NOTE_MAX: usize = 200;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_cut_wherever_they_are() {
        let mut value = json!({"a": ["x".repeat(3000)], "b": "ü".repeat(2000), "c": 1});
        shorten(&mut value);
        assert!(value["a"][0].as_str().unwrap().ends_with("… (3000 bytes)"));
        assert!(value["b"].as_str().unwrap().ends_with("… (4000 bytes)"));
        assert_eq!(payload("x".repeat(PAYLOAD_MAX + 1))["cut"], true);
        assert_eq!(payload("x"), json!({"text": "x", "bytes": 1, "cut": false}));
    }

    #[test]
    fn what_an_ended_workflow_left_open_does_not_go_on() {
        let mut created =
            Event::with_event_id(2, "a", 1, None, EventKind::TimerCreated { fire_at_ms: 90_000 });
        created.timestamp_ms = 1000;
        let mut done =
            Event::with_event_id(3, "a", 1, None, EventKind::OrchestrationCompleted { output: "x".into() });
        done.timestamp_ms = 2000;
        let events = [created, done];
        let span = &timeline::spans("a", &events)[0];
        let shown = span_json(span, &events, true, &[]);
        assert_eq!((shown["state"].as_str().unwrap(), shown["ended"].as_u64()), ("left", Some(2000)));
        assert_eq!(span_json(span, &events, false, &[])["state"], "waiting");
    }
}
