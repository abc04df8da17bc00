//! Where payloads are in what duroxide hands over: one place, for sealing and for opening.

use duroxide::providers::WorkItem;
use duroxide::{AppErrorKind, ErrorDetails, EventKind, PoisonMessageType};

/// Something done to one payload.
pub(super) type Change<'a, E> = &'a mut dyn FnMut(&mut String) -> Result<(), E>;

/// Changes every payload of an event. False if it is of a kind that nobody here knows, so that nothing was done.
pub(super) fn of_event<E>(kind: &mut EventKind, change: Change<'_, E>) -> Result<bool, E> {
    match kind {
        EventKind::OrchestrationStarted { input, carry_forward_events, initial_custom_status, .. } => {
            change(input)?;
            for (_, data) in carry_forward_events.iter_mut().flatten() {
                change(data)?;
            }
            initial_custom_status.as_mut().map_or(Ok(()), change)?;
        }
        EventKind::OrchestrationCompleted { output: payload }
        | EventKind::ActivityScheduled { input: payload, .. }
        | EventKind::ActivityCompleted { result: payload }
        | EventKind::ExternalEvent { data: payload, .. }
        | EventKind::OrchestrationChained { input: payload, .. }
        | EventKind::SubOrchestrationScheduled { input: payload, .. }
        | EventKind::SubOrchestrationCompleted { result: payload }
        | EventKind::OrchestrationContinuedAsNew { input: payload }
        | EventKind::OrchestrationCancelRequested { reason: payload }
        | EventKind::QueueEventDelivered { data: payload, .. }
        | EventKind::KeyValueSet { value: payload, .. } => change(payload)?,
        EventKind::CustomStatusUpdated { status } => status.as_mut().map_or(Ok(()), change)?,
        EventKind::OrchestrationFailed { details }
        | EventKind::ActivityFailed { details }
        | EventKind::SubOrchestrationFailed { details } => of_error(details, change)?,
        // Names, keys, times, and reasons that are the framework's own words.
        EventKind::ActivityCancelRequested { .. }
        | EventKind::SubOrchestrationCancelRequested { .. }
        | EventKind::TimerCreated { .. }
        | EventKind::TimerFired { .. }
        | EventKind::ExternalSubscribed { .. }
        | EventKind::ExternalSubscribedCancelled { .. }
        | EventKind::QueueSubscribed { .. }
        | EventKind::QueueSubscriptionCancelled { .. }
        | EventKind::KeyValueCleared { .. }
        | EventKind::KeyValuesCleared => {}
        #[allow(unreachable_patterns, reason = "reachable when another crate turns a feature of duroxide on")]
        _ => return Ok(false),
    }
    Ok(true)
}

/// Changes every payload of a message or an activity. False as above.
pub(super) fn of_item<E>(item: &mut WorkItem, change: Change<'_, E>) -> Result<bool, E> {
    match item {
        WorkItem::StartOrchestration { input: payload, .. }
        | WorkItem::ActivityExecute { input: payload, .. }
        | WorkItem::ActivityCompleted { result: payload, .. }
        | WorkItem::ExternalRaised { data: payload, .. }
        | WorkItem::SubOrchCompleted { result: payload, .. }
        | WorkItem::CancelInstance { reason: payload, .. }
        | WorkItem::QueueMessage { data: payload, .. } => change(payload)?,
        WorkItem::ActivityFailed { details, .. } | WorkItem::SubOrchFailed { details, .. } => {
            of_error(details, change)?;
        }
        WorkItem::ContinueAsNew { input, carry_forward_events, initial_custom_status, .. } => {
            change(input)?;
            for (_, data) in carry_forward_events {
                change(data)?;
            }
            initial_custom_status.as_mut().map_or(Ok(()), change)?;
        }
        WorkItem::TimerFired { .. } => {}
        #[allow(unreachable_patterns, reason = "reachable when another crate turns a feature of duroxide on")]
        _ => return Ok(false),
    }
    Ok(true)
}

fn of_error<E>(details: &mut ErrorDetails, change: Change<'_, E>) -> Result<(), E> {
    match details {
        ErrorDetails::Infrastructure { message, .. } => change(message),
        ErrorDetails::Configuration { message, .. } => message.as_mut().map_or(Ok(()), change),
        ErrorDetails::Application { kind, message, .. } => {
            if let AppErrorKind::Cancelled { reason } = kind {
                change(reason)?;
            }
            change(message)
        }
        ErrorDetails::Poison { message_type, message, .. } => {
            if let PoisonMessageType::FailedDeserialization { error, .. } = message_type {
                change(error)?;
            }
            change(message)
        }
    }
}
