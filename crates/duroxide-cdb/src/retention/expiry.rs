//! Whether the service may remove an ended instance by itself: a pure function of the head that a commit is about to write.
//!
//! A document that expires takes nothing else with it. So a head may only expire if it is all there is of its instance: no
//! document beside it that would be left, and nothing that is still on its way from or to this life of it. All of that can
//! be told from the history, if the whole history is in the head.

use std::collections::HashSet;

use duroxide::{Event, EventKind};
use serde::Deserialize as _;

use super::Retention;
use crate::documents::{Head, Status};

/// The time to live that a head is to have, in seconds, from a write at `now_ms`. `None` if the service must not remove it.
pub(crate) fn time_to_live(head: &Head, policy: &Retention, now_ms: u64) -> Option<i64> {
    let keep = policy.keep(&head.orchestration_name, &head.status)?;
    if !stands_alone(head) {
        return None;
    }
    let ends_at = head.completed_at?.saturating_add(u64::try_from(keep.as_millis()).ok()?);
    // Never so short that who has just read the head could not go on with it.
    let seconds = ends_at.saturating_sub(now_ms).div_ceil(1000).max(SECONDS_MIN);
    i64::try_from(seconds.min(SECONDS_MAX)).ok()
}

/// Whether a stored head, as JSON, is one that the service may remove: it has ended and nothing else belongs to it.
#[must_use]
pub fn may_expire(head: &serde_json::Value) -> bool {
    Head::deserialize(head).is_ok_and(|head| stands_alone(&head))
}

/// Whether an instance has ended, is a root, and is nothing but its head, now and for ever: whatever it started is over and
/// was heard of, so nothing can come for this life of it any more.
pub(crate) fn stands_alone(head: &Head) -> bool {
    let is_ended = head.is_visible() && Status::ends_instance(&head.status) && head.completed_at.is_some();
    let is_of_this_layout = !head.is_legacy() && !head.incarnation.starts_with("legacy-");
    let is_first = head.current_execution_id == 1 && head.execution_count == 1;
    let has_records = head.output_in_record || head.record_written;
    let cells = head.kv.values();
    let has_values = head.custom_status_value.is_some()
        || cells
            .flat_map(|cell| [&cell.stored, &cell.changed])
            .flatten()
            .any(|value| value.document.is_some());
    let is_whole = head.events.len() as u64 == head.event_count && head.event_count == head.total_event_count;
    is_ended
        && is_of_this_layout
        && is_first
        && head.parent_instance_id.is_none()
        && !has_records
        && !has_values
        && is_whole
        && is_settled(&head.events)
}

/// Whether a history tells of nothing that another instance knows of, and of nothing that has no answer yet.
fn is_settled(events: &[String]) -> bool {
    let mut unanswered: HashSet<u64> = HashSet::new();
    for text in events {
        let Ok(event) = serde_json::from_str::<Event>(text) else { return false };
        match event.kind {
            EventKind::ActivityScheduled { .. } | EventKind::TimerCreated { .. } => {
                unanswered.insert(event.event_id);
            }
            EventKind::ActivityCompleted { .. }
            | EventKind::ActivityFailed { .. }
            | EventKind::TimerFired { .. } => {
                if let Some(source) = event.source_event_id {
                    unanswered.remove(&source);
                }
            }
            // Of another instance that started this one, or to another instance, or of another execution of this one; and
            // whatever later versions know.
            EventKind::OrchestrationStarted { parent_instance: Some(_), .. }
            | EventKind::OrchestrationChained { .. }
            | EventKind::SubOrchestrationScheduled { .. }
            | EventKind::SubOrchestrationCompleted { .. }
            | EventKind::SubOrchestrationFailed { .. }
            | EventKind::SubOrchestrationCancelRequested { .. }
            | EventKind::OrchestrationContinuedAsNew { .. } => return false,
            EventKind::OrchestrationStarted { .. }
            | EventKind::OrchestrationCompleted { .. }
            | EventKind::OrchestrationFailed { .. }
            | EventKind::OrchestrationCancelRequested { .. }
            | EventKind::ExternalSubscribed { .. }
            | EventKind::ExternalSubscribedCancelled { .. }
            | EventKind::ExternalEvent { .. }
            | EventKind::QueueSubscribed { .. }
            | EventKind::QueueSubscriptionCancelled { .. }
            | EventKind::QueueEventDelivered { .. }
            | EventKind::CustomStatusUpdated { .. }
            | EventKind::KeyValueSet { .. }
            | EventKind::KeyValueCleared { .. }
            | EventKind::KeyValuesCleared => {}
            // A cancelled activity may have been completed a moment before: then its result is in the queue, and with nobody
            // there to take it, it would be there still when the name is used again.
            EventKind::ActivityCancelRequested { .. } => return false,
            #[allow(
                unreachable_patterns,
                reason = "reachable when another crate turns a feature of duroxide on"
            )]
            _ => return false,
        }
    }
    unanswered.is_empty()
}

const SECONDS_MIN: u64 = 60;
/// The service's limit.
const SECONDS_MAX: u64 = i32::MAX as u64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::documents::{Cell, Stored};

    fn event(id: u64, source: Option<u64>, kind: EventKind) -> String {
        serde_json::to_string(&Event::with_event_id(id, "a", 1, source, kind)).unwrap()
    }

    fn started(parent: Option<&str>) -> EventKind {
        EventKind::OrchestrationStarted {
            name: "order".to_owned(),
            version: "1.0.0".to_owned(),
            input: String::new(),
            parent_instance: parent.map(ToOwned::to_owned),
            parent_id: None,
            parent_execution_id: None,
            carry_forward_events: None,
            initial_custom_status: None,
        }
    }

    fn scheduled() -> EventKind {
        EventKind::ActivityScheduled {
            name: "Bake".to_owned(),
            input: String::new(),
            session_id: None,
            tag: None,
        }
    }

    fn ended(events: Vec<String>) -> Head {
        let mut head = Head::unstarted("a", 1_000);
        head.started = true;
        head.orchestration_name = "order".to_owned();
        head.status = Status::COMPLETED.to_owned();
        head.completed_at = Some(1_000_000);
        head.execution_count = 1;
        (head.event_count, head.total_event_count) = (events.len() as u64, events.len() as u64);
        head.events = events;
        head
    }

    fn with(change: impl FnOnce(&mut Head)) -> Head {
        let mut head = ended(vec![event(1, None, started(None))]);
        change(&mut head);
        head
    }

    fn with_events(kinds: &[(Option<u64>, EventKind)]) -> Head {
        let first = (None, started(None));
        let all = std::iter::once(&first).chain(kinds);
        ended((1..).zip(all).map(|(id, (source, kind))| event(id, *source, kind.clone())).collect())
    }

    #[test]
    fn only_a_root_that_has_ended_and_is_all_in_its_head_expires() {
        assert!(stands_alone(&with(|_| {})));
        let far = |document: &str| Stored { document: Some(document.to_owned()), ..Stored::inline("", 1) };
        for (what, head) in [
            ("it runs", with(|head| head.status = Status::RUNNING.to_owned())),
            ("it goes on", with(|head| head.status = Status::CONTINUED_AS_NEW.to_owned())),
            ("nobody knows since when", with(|head| head.completed_at = None)),
            ("it is being deleted", with(|head| head.kind = "deleting".to_owned())),
            ("it only holds a lock", with(|head| head.started = false)),
            ("it is a child", with(|head| head.parent_instance_id = Some("p".to_owned()))),
            ("it has a history document", with(|head| (head.event_count, head.total_event_count) = (9, 9))),
            ("another execution has events", with(|head| head.total_event_count = 2)),
            ("it is the second execution", with(|head| head.current_execution_id = 2)),
            ("it had executions", with(|head| head.execution_count = 2)),
            ("its output is elsewhere", with(|head| head.output_in_record = true)),
            ("it has a record", with(|head| head.record_written = true)),
            ("its status is elsewhere", with(|head| head.custom_status_value = Some("v".to_owned()))),
            (
                "a value is elsewhere",
                with(|head| {
                    head.kv.insert("k".to_owned(), Cell { stored: Some(far("v")), ..Cell::default() });
                }),
            ),
            ("0.1.10 wrote it", with(|head| head.incarnation = "legacy-5".to_owned())),
            ("0.1.10 wrote it and nobody since", with(|head| head.format_version = 0)),
            ("an event cannot be read", with(|head| head.events[0] = "{}".to_owned())),
        ] {
            assert!(!stands_alone(&head), "{what}");
        }
    }

    #[test]
    fn whatever_may_still_come_for_it_keeps_the_head() {
        let timer = EventKind::TimerCreated { fire_at_ms: 1 };
        let fired = EventKind::TimerFired { fire_at_ms: 1 };
        let done = EventKind::ActivityCompleted { result: String::new() };
        let cancel = EventKind::ActivityCancelRequested { reason: String::new() };
        let child = EventKind::SubOrchestrationScheduled {
            name: "c".to_owned(),
            instance: "c".to_owned(),
            input: String::new(),
        };
        let chained = EventKind::OrchestrationChained {
            name: "c".to_owned(),
            instance: "c".to_owned(),
            input: String::new(),
        };
        for (what, kinds, expected) in [
            ("answered", vec![(None, scheduled()), (Some(2), done.clone())], true),
            ("never answered", vec![(None, scheduled())], false),
            ("another was answered", vec![(None, scheduled()), (Some(1), done.clone())], false),
            ("fired", vec![(None, timer.clone()), (Some(2), fired)], true),
            ("a timer that lost a race", vec![(None, timer), (None, scheduled()), (Some(3), done)], false),
            ("cancelled", vec![(None, scheduled()), (Some(2), cancel)], false),
            ("a child", vec![(None, child)], false),
            ("a stranger", vec![(None, chained)], false),
        ] {
            assert_eq!(stands_alone(&with_events(&kinds)), expected, "{what}");
        }
        assert!(!stands_alone(&ended(vec![event(1, None, started(Some("p")))])), "its parent knows it");
    }

    #[test]
    fn the_time_to_live_counts_from_the_end_and_not_from_the_last_write() {
        let policy: Retention = "completed=1h".parse().unwrap();
        let head = with(|_| {});
        let at = |seconds: u64| time_to_live(&head, &policy, 1_000_000 + seconds * 1_000);
        assert_eq!([at(0), at(600), at(3_599), at(9_999)], [Some(3_600), Some(3_000), Some(60), Some(60)]);
        assert_eq!(time_to_live(&head, &Retention::default(), 1_000_000), None);
        let failed = with(|head| head.status = Status::FAILED.to_owned());
        assert_eq!(time_to_live(&failed, &policy, 1_000_000), None);
    }
}
