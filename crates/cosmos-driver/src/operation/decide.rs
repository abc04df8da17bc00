//! What to do after an attempt. The whole table, pure.

use std::sync::Arc;
use std::time::Duration;

use cosmos_wire::status::Status;
use tokio::time::Instant;

use super::state::RetryState;
use crate::attempt::throttle::backoff;
use crate::config::Retry;
use crate::diagnostics::Context;
use crate::request::Repeat;
use crate::transport::{HttpErrorKind, Sent};

/// What the decision may depend on besides the outcome.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View<'a> {
    pub(crate) is_read: bool,
    pub(crate) repeat: Repeat,
    /// Regions this operation could go to.
    pub(crate) regions: usize,
    pub(crate) is_multi_write: bool,
    /// It is a write to one partition, which may have moved to another region on its own.
    pub(crate) may_have_moved: bool,
    /// The attempt named the consistency that the account is known to have.
    pub(crate) names_level: bool,
    /// The region of the attempt.
    pub(crate) region: &'a Arc<str>,
    /// The service's date differs from ours by more than it accepts.
    pub(crate) is_clock_off: bool,
    pub(crate) now: Instant,
}

/// How the attempt ended, without its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Answered(Status),
    Broken { kind: HttpErrorKind, sent: Sent },
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Give the answer to the caller.
    Complete,
    /// Give the error to the caller; true if a write may have happened.
    Fail { is_unknown: bool },
    /// Try again.
    Retry { context: Context, delay: Duration, state: RetryState },
}

/// What the world should learn from the attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Effects {
    pub(crate) refresh_account: bool,
    pub(crate) refresh_container: bool,
    pub(crate) refresh_ranges: bool,
    pub(crate) endpoint_unavailable: bool,
    pub(crate) partition_failed: bool,
    pub(crate) partition_succeeded: bool,
    pub(crate) set_clock: bool,
}

impl Effects {
    /// What there is to learn from an attempt that went well.
    pub(crate) const SUCCESS: Self = Self {
        refresh_account: false,
        refresh_container: false,
        refresh_ranges: false,
        endpoint_unavailable: false,
        partition_failed: false,
        partition_succeeded: true,
        set_clock: false,
    };
}

/// The table.
pub(crate) fn decide(event: Event, state: &RetryState, view: &View<'_>, rules: &Retry) -> (Action, Effects) {
    match event {
        Event::Answered(status) if status.is_success() || status.code == 304 => {
            (Action::Complete, Effects::SUCCESS)
        }
        Event::Answered(status) => answered(status, state, view, rules),
        Event::Broken { kind, sent } => broken(kind, sent, state, view, rules),
    }
}

fn answered(status: Status, state: &RetryState, view: &View<'_>, rules: &Retry) -> (Action, Effects) {
    let none = Effects::default();
    let fail = |effects: Effects| (Action::Fail { is_unknown: state.has_unknown }, effects);
    match status {
        Status::WRITE_FORBIDDEN | Status::DATABASE_ACCOUNT_NOT_FOUND => {
            wrong_region(status, state, view, rules)
        }
        Status::READ_SESSION_NOT_AVAILABLE => session(state, view, rules),
        Status { code: 401 | 403, .. } if view.is_clock_off && !state.has_set_clock => {
            let state = RetryState { has_set_clock: true, ..state.clone() };
            let action = Action::Retry { context: Context::Retry, delay: Duration::ZERO, state };
            (action, Effects { set_clock: true, ..none })
        }
        // Perhaps the account promises less by now: that is not what was wrong with the request, so it is found out.
        Status::BAD_REQUEST if view.names_level && !state.has_checked_account => {
            let state = RetryState { has_checked_account: true, ..state.clone() };
            let action = Action::Retry { context: Context::Retry, delay: Duration::ZERO, state };
            (action, Effects { refresh_account: true, ..none })
        }
        Status::COLLECTION_RID_MISMATCH | Status::NAME_CACHE_STALE => {
            reroute(state, rules, Effects { refresh_container: true, ..none })
        }
        Status::PARTITION_KEY_RANGE_GONE
        | Status::COMPLETING_SPLIT_OR_MERGE
        | Status::COMPLETING_PARTITION_MIGRATION => {
            reroute(state, rules, Effects { refresh_ranges: !cosmos_wire::mutant!(25), ..none })
        }
        Status::CONTAINER_CREATE_IN_PROGRESS | Status { code: 449, .. } => in_place(state, rules),
        // The service answered that it did nothing: any operation may go elsewhere.
        Status { code: 410 | 503, .. } | Status::SYSTEM_RESOURCE_UNAVAILABLE => {
            failover(state, view, rules, Effects { partition_failed: true, ..none })
        }
        // It gave up or failed half-way: only what may be repeated goes elsewhere.
        Status { code: 408 | 500 | 502.., .. } => {
            let effects = Effects { partition_failed: true, ..none };
            let is_repeatable = view.is_read || (status.code == 408 && view.repeat == Repeat::Safe);
            if is_repeatable {
                let state = RetryState { has_unknown: state.has_unknown || !view.is_read, ..state.clone() };
                failover(&state, view, rules, effects)
            } else {
                (Action::Fail { is_unknown: !view.is_read }, effects)
            }
        }
        // A definite no: the partition works, unless it was not the service that spoke.
        _ => fail(Effects { partition_succeeded: status.code >= 400 && status.code != 429, ..none }),
    }
}

fn broken(
    kind: HttpErrorKind,
    sent: Sent,
    state: &RetryState,
    view: &View<'_>,
    rules: &Retry,
) -> (Action, Effects) {
    let is_unknown = state.has_unknown || (sent == Sent::Unknown && !view.is_read);
    let none = Effects::default();
    match kind {
        HttpErrorKind::Deadline | HttpErrorKind::TooLarge => (Action::Fail { is_unknown }, none),
        // Connect failures are about the endpoint and must not blame a partition.
        HttpErrorKind::Connect => failover(
            state,
            view,
            rules,
            Effects { endpoint_unavailable: true, refresh_account: view.regions > 1, ..none },
        ),
        HttpErrorKind::Tls => {
            let effects = Effects { endpoint_unavailable: true, ..none };
            if view.regions > 1 {
                failover(state, view, rules, effects)
            } else {
                (Action::Fail { is_unknown }, effects)
            }
        }
        HttpErrorKind::Closed
        | HttpErrorKind::Refused
        | HttpErrorKind::Protocol
        | HttpErrorKind::AttemptTimeout => {
            // A request that was never sent, for want of a slot or because its connection was about to end, says nothing
            // about the partition it was for.
            let effects = Effects { partition_failed: sent == Sent::Unknown, ..none };
            match (sent, view.repeat) {
                (Sent::No, _) | (Sent::Unknown, Repeat::Safe) => {
                    let state = RetryState { has_unknown: is_unknown, ..state.clone() };
                    failover(&state, view, rules, effects)
                }
                (Sent::Unknown, Repeat::Unsafe) => (Action::Fail { is_unknown }, effects),
            }
        }
    }
}

/// The next region, or the same one after a pause when it is the only one.
fn failover(state: &RetryState, view: &View<'_>, rules: &Retry, effects: Effects) -> (Action, Effects) {
    let mut next = state.clone();
    if view.regions > 1 && state.regions < rules.regions_max {
        next.regions += 1;
        next.tried.push(view.region.clone());
        return (Action::Retry { context: Context::Failover, delay: Duration::ZERO, state: next }, effects);
    }
    if view.regions <= 1 && state.connects < SINGLE_REGION_RETRIES {
        let delay = backoff(rules, state.connects);
        next.connects += 1;
        return (Action::Retry { context: Context::Retry, delay, state: next }, effects);
    }
    (Action::Fail { is_unknown: state.has_unknown }, effects)
}

/// The account has changed: learn how, and go where writes are taken now.
fn wrong_region(status: Status, state: &RetryState, view: &View<'_>, rules: &Retry) -> (Action, Effects) {
    let refresh_account = !cosmos_wire::mutant!(26);
    let effects = Effects { refresh_account, partition_failed: view.may_have_moved, ..Effects::default() };
    let since = state.forbidden_since.unwrap_or(view.now);
    if view.now.duration_since(since) >= FORBIDDEN_MAX {
        return (Action::Fail { is_unknown: state.has_unknown }, effects);
    }
    let mut next = RetryState { forbidden_since: Some(since), reroutes: state.reroutes + 1, ..state.clone() };
    // A read that is refused here is served elsewhere, and so is a write of a partition that moved on its own; other
    // writes follow the refreshed write region.
    if status == Status::DATABASE_ACCOUNT_NOT_FOUND || view.is_multi_write || view.may_have_moved {
        next.tried.push(view.region.clone());
    }
    let delay = if state.forbidden_since.is_some() { backoff(rules, state.reroutes) } else { Duration::ZERO };
    (Action::Retry { context: Context::Failover, delay, state: next }, effects)
}

/// Another region may have caught up; the write region has.
fn session(state: &RetryState, view: &View<'_>, rules: &Retry) -> (Action, Effects) {
    if state.sessions >= rules.session_max {
        return (Action::Fail { is_unknown: state.has_unknown }, Effects::default());
    }
    let mut next = RetryState { sessions: state.sessions + 1, ..state.clone() };
    next.tried.push(view.region.clone());
    next.at_write_region = !view.is_multi_write;
    let delay =
        if view.regions > 1 && state.sessions == 0 { Duration::ZERO } else { backoff(rules, state.sessions) };
    (Action::Retry { context: Context::Session, delay, state: next }, Effects::default())
}

fn reroute(state: &RetryState, rules: &Retry, effects: Effects) -> (Action, Effects) {
    if state.reroutes >= rules.attempts_max {
        return (Action::Fail { is_unknown: state.has_unknown }, effects);
    }
    let delay = if state.reroutes == 0 { Duration::ZERO } else { backoff(rules, state.reroutes) };
    let next = RetryState { reroutes: state.reroutes + 1, ..state.clone() };
    (Action::Retry { context: Context::Rerouted, delay, state: next }, effects)
}

fn in_place(state: &RetryState, rules: &Retry) -> (Action, Effects) {
    if state.in_place >= rules.throttle_max {
        return (Action::Fail { is_unknown: state.has_unknown }, Effects::default());
    }
    let delay = backoff(rules, state.in_place);
    let next = RetryState { in_place: state.in_place + 1, ..state.clone() };
    (Action::Retry { context: Context::Retry, delay, state: next }, Effects::default())
}

/// How long a refused region is insisted on while the account settles.
const FORBIDDEN_MAX: Duration = Duration::from_secs(5);
/// An account of one region has no other place; a restart takes about this many doubling pauses.
const SINGLE_REGION_RETRIES: u32 = 6;

#[cfg(test)]
mod tests;
