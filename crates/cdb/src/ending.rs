//! How a workflow ended, and where its failure began.

use duroxide::{AppErrorKind, ErrorDetails, Event, EventKind};

use crate::fsck::{decode, texts};
use crate::model::Partition;
use crate::timeline::{self, End, Span, SpanKind};

/// The event that ended an execution. What the runtime takes back when a workflow ends is written after it.
pub(crate) fn terminal(events: &[Event]) -> Option<&Event> {
    let is_afterword = |event: &&Event| {
        matches!(
            event.kind,
            EventKind::ActivityCancelRequested { .. }
                | EventKind::SubOrchestrationCancelRequested { .. }
                | EventKind::ExternalSubscribedCancelled { .. }
                | EventKind::QueueSubscriptionCancelled { .. }
        )
    };
    events.iter().rev().find(|event| !is_afterword(event)).filter(|event| event.is_terminal())
}

/// Spans of an execution; what nobody waits for any more is left, not open.
pub(crate) fn settled(spans: Vec<Span>, events: &[Event]) -> Vec<Span> {
    let Some(end) = terminal(events) else { return spans };
    let settle = |mut span: Span| {
        if span.end == End::Open {
            (span.end, span.ended_ms) = (End::Left, Some(end.timestamp_ms));
        }
        span
    };
    spans.into_iter().map(settle).collect()
}

/// How a workflow failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) instance: String,
    /// Milliseconds since 1970.
    pub(crate) at_ms: u64,
    pub(crate) error: String,
    pub(crate) cause: Cause,
}

/// Where a failure came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Cause {
    /// Somebody asked it to stop.
    Cancelled { reason: String },
    /// An activity, tried so often.
    Activity { name: String, id: u64, tries: usize },
    /// A child.
    Child { instance: String, id: u64 },
    /// A message that came to nothing so often that the runtime gave it up.
    Poison { attempts: u32 },
    /// Its own code.
    Own,
}

/// How an execution failed, if it did.
pub(crate) fn failure(instance: &str, events: &[Event]) -> Option<Failure> {
    let end = terminal(events)?;
    let EventKind::OrchestrationFailed { details } = &end.kind else { return None };
    let error = details.display_message();
    let cause = match details {
        ErrorDetails::Application { kind: AppErrorKind::Cancelled { reason }, .. } => {
            Cause::Cancelled { reason: reason.clone() }
        }
        ErrorDetails::Poison { attempt_count, .. } => Cause::Poison { attempts: *attempt_count },
        ErrorDetails::Application { .. }
        | ErrorDetails::Infrastructure { .. }
        | ErrorDetails::Configuration { .. } => cause_of(instance, events, &error),
    };
    Some(Failure { instance: instance.to_owned(), at_ms: end.timestamp_ms, error, cause })
}

/// The last thing that failed with an error that is in the workflow's own.
fn cause_of(instance: &str, events: &[Event], error: &str) -> Cause {
    let spans = timeline::spans(instance, events);
    let told = |span: &&Span| matches!(&span.end, End::Failed(text) if !text.is_empty() && error.contains(text.as_str()));
    match spans.iter().rev().find(told) {
        Some(span) if span.kind == SpanKind::Child => {
            Cause::Child { instance: span.name.clone(), id: span.id }
        }
        Some(span) => {
            let is_same = |other: &&Span| {
                other.kind == span.kind && other.name == span.name && matches!(other.end, End::Failed(_))
            };
            let tries = spans.iter().filter(is_same).count();
            Cause::Activity { name: span.name.clone(), id: span.id, tries }
        }
        None => Cause::Own,
    }
}

/// How the current execution of a partition failed, if it did and can be read.
pub(crate) fn failure_in(instance: &str, partition: &Partition) -> Option<Failure> {
    let head = partition.head()?;
    let executions = texts(partition).ok()?;
    let events = decode(head.current_execution_id, executions.get(&head.current_execution_id)?).ok()?;
    failure(instance, &events)
}

/// How an error that says that somebody asked the workflow to stop begins, as duroxide writes it.
pub(crate) const CANCELLED: &str = "canceled: ";

/// A workflow that was asked to stop has failed as far as duroxide is concerned. People mean something else by that.
pub(crate) fn shown_status<'a>(status: &'a str, output: &str) -> &'a str {
    if status == "Failed" && output.starts_with(CANCELLED) { "Cancelled" } else { status }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(kinds: Vec<(Option<u64>, EventKind)>) -> Vec<Event> {
        let event = |(index, (source, kind)): (usize, (Option<u64>, EventKind))| {
            let mut event = Event::with_event_id(index as u64 + 1, "a", 1, source, kind);
            event.timestamp_ms = 1000 * (index as u64 + 1);
            event
        };
        kinds.into_iter().enumerate().map(event).collect()
    }

    fn application(kind: AppErrorKind, message: &str) -> ErrorDetails {
        ErrorDetails::Application { kind, message: message.to_owned(), retryable: false }
    }

    fn failed(message: &str) -> EventKind {
        let details = application(AppErrorKind::OrchestrationFailed, message);
        EventKind::OrchestrationFailed { details }
    }

    fn scheduled(name: &str) -> EventKind {
        EventKind::ActivityScheduled { name: name.into(), input: String::new(), session_id: None, tag: None }
    }

    fn activity_failed(message: &str) -> EventKind {
        EventKind::ActivityFailed { details: application(AppErrorKind::ActivityFailed, message) }
    }

    #[test]
    fn what_is_taken_back_at_the_end_is_not_the_end() {
        let reason = || "orchestration_terminal_failed".to_owned();
        let events = events(vec![
            (None, scheduled("Bake")),
            (None, failed("x")),
            (Some(1), EventKind::ActivityCancelRequested { reason: reason() }),
            (Some(1), EventKind::SubOrchestrationCancelRequested { reason: reason() }),
        ]);
        assert_eq!(terminal(&events).map(|event| event.event_id), Some(2));
        assert_eq!(terminal(&events[..1]), None);
        assert_eq!(terminal(&[]), None);
        assert_eq!(terminal(&[&events[1..2], &events[..1]].concat()), None, "something was begun after it");
    }

    #[test]
    fn a_failure_names_what_failed_and_how_often_it_was_tried() {
        let twice = events(vec![
            (None, scheduled("Boom")),
            (Some(1), activity_failed("no oven")),
            (None, scheduled("Boom")),
            (Some(3), activity_failed("no oven")),
            (None, failed("baking: no oven")),
        ]);
        let failure = super::failure("a", &twice).unwrap();
        assert_eq!(failure.cause, Cause::Activity { name: "Boom".into(), id: 3, tries: 2 });
        assert_eq!((failure.at_ms, failure.error.as_str()), (5000, "baking: no oven"));
        let own =
            events(vec![(None, scheduled("Boom")), (Some(1), activity_failed("x y")), (None, failed("z"))]);
        assert_eq!(super::failure("a", &own).unwrap().cause, Cause::Own);
    }

    #[test]
    fn a_failure_of_a_child_and_a_cancellation_are_told_apart() {
        let child = EventKind::SubOrchestrationScheduled {
            name: "route".into(),
            instance: "sub::1".into(),
            input: String::new(),
        };
        let details = application(AppErrorKind::OrchestrationFailed, "lost");
        let family = events(vec![
            (None, child),
            (Some(1), EventKind::SubOrchestrationFailed { details }),
            (None, failed("lost")),
        ]);
        let cause = Cause::Child { instance: "a::sub::1".into(), id: 1 };
        assert_eq!(super::failure("a", &family).unwrap().cause, cause);
        let details = application(AppErrorKind::Cancelled { reason: "enough".into() }, "");
        let cancelled = events(vec![(None, EventKind::OrchestrationFailed { details })]);
        let failure = super::failure("a", &cancelled).unwrap();
        assert_eq!(failure.cause, Cause::Cancelled { reason: "enough".into() });
        assert_eq!(shown_status("Failed", &failure.error), "Cancelled");
        assert_eq!(shown_status("Failed", "no flour"), "Failed");
    }
}
