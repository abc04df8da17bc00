//! What a runtime does between a fetch and its ack, for those who watch: how long turns and activities take, as histograms,
//! and a span for each, from the fetch to the ack, that says which instance, execution and activity it is about.
//!
//! Spans of one workflow are made by many processes. They have the same `duroxide.trace.id`, which is worked out from the
//! instance's name, so that whoever collects them can put them together without anything being stored or sent along.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use duroxide::providers::{OrchestrationItem, WorkItem};
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;
use tracing::Span;

/// Turns and activities that this process's runtime has and has not acked.
#[derive(Debug, Default)]
pub(crate) struct Telemetry {
    held: Mutex<HashMap<String, Held>>,
}

#[derive(Debug)]
struct Held {
    began: Instant,
    kind: Kind,
    name: String,
    /// It ends when this is dropped.
    span: Span,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Turn,
    Activity,
}

/// How a turn or an activity ended, as far as the provider is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Its result is stored.
    Completed,
    /// Its error is stored.
    Failed,
    /// It was cancelled: there is no result.
    Cancelled,
    /// The runtime gave it back.
    Abandoned,
    /// It could not be stored: the lock was lost.
    Lost,
}

impl Outcome {
    fn name(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Abandoned => "abandoned",
            Self::Lost => "lost",
        }
    }

    /// What the ack of an activity says.
    pub(crate) fn of(completion: Option<&WorkItem>) -> Self {
        match completion {
            Some(WorkItem::ActivityFailed { .. }) => Self::Failed,
            Some(_) => Self::Completed,
            None => Self::Cancelled,
        }
    }
}

impl Telemetry {
    /// The runtime has a turn from now on.
    pub(crate) fn turn(&self, token: &str, item: &OrchestrationItem) {
        let span = tracing::info_span!(
            "turn",
            otel.name = format!("turn {}", item.orchestration_name),
            otel.kind = "consumer",
            duroxide.instance.id = item.instance,
            duroxide.execution.id = item.execution_id,
            duroxide.orchestration.name = item.orchestration_name,
            duroxide.orchestration.version = item.version,
            duroxide.messages = item.messages.len(),
            duroxide.trace.id = trace_id(&item.instance),
            duroxide.outcome = tracing::field::Empty,
        );
        self.hold(
            token,
            Held { began: Instant::now(), kind: Kind::Turn, name: item.orchestration_name.clone(), span },
        );
    }

    /// The runtime has an activity from now on.
    pub(crate) fn activity(&self, token: &str, item: &WorkItem) {
        let WorkItem::ActivityExecute { instance, execution_id, id, name, .. } = item else { return };
        let span = tracing::info_span!(
            "activity",
            otel.name = format!("activity {name}"),
            otel.kind = "consumer",
            duroxide.instance.id = instance,
            duroxide.execution.id = execution_id,
            duroxide.activity.id = id,
            duroxide.activity.name = name,
            duroxide.trace.id = trace_id(instance),
            duroxide.outcome = tracing::field::Empty,
        );
        self.hold(token, Held { began: Instant::now(), kind: Kind::Activity, name: name.clone(), span });
    }

    fn hold(&self, token: &str, held: Held) {
        let mut all = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        // A runtime that was stopped never acks what it had.
        if all.len() >= HELD_MAX {
            all.clear();
        }
        all.insert(token.to_owned(), held);
    }

    /// The runtime has it no more.
    pub(crate) fn end(&self, token: &str, outcome: Outcome) {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner).remove(token);
        let Some(Held { began, kind, name, span }) = held else { return };
        span.record("duroxide.outcome", outcome.name());
        let (metric, label) = match kind {
            Kind::Turn => ("duroxide_cdb_turn_seconds", "orchestration"),
            Kind::Activity => ("duroxide_cdb_activity_seconds", "activity"),
        };
        metrics::histogram!(metric, label => name, "outcome" => outcome.name()).record(began.elapsed());
    }
}

/// What the spans of an instance have in common: 32 hexadecimal digits, as trace ids have.
fn trace_id(instance: &str) -> String {
    let hash = Sha256::digest(instance.as_bytes());
    hash[..16].iter().map(|byte| format!("{byte:02x}")).collect()
}

const HELD_MAX: usize = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_id_is_the_same_in_every_process() {
        // By sha256sum.
        assert_eq!(trace_id("abc"), "ba7816bf8f01cfea414140de5dae2223");
        assert_ne!(trace_id("a"), trace_id("b"));
    }

    #[tokio::test]
    async fn what_is_never_acked_takes_no_room_for_ever() {
        let telemetry = Telemetry::default();
        let item = WorkItem::ActivityExecute {
            instance: "i".into(),
            execution_id: 1,
            id: 2,
            name: "n".into(),
            input: String::new(),
            session_id: None,
            tag: None,
        };
        for number in 0..=HELD_MAX {
            telemetry.activity(&number.to_string(), &item);
        }
        assert_eq!(telemetry.held.lock().unwrap().len(), 1);
        telemetry.end(&HELD_MAX.to_string(), Outcome::of(None));
        telemetry.end("nobody", Outcome::Lost);
        assert!(telemetry.held.lock().unwrap().is_empty());
    }
}
