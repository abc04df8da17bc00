//! The race: a second region is asked when the first has not answered in time.
//!
//! The first final answer wins, and the operation goes on with it. The loser is not broken off: its answer says what it
//! was charged, so a task of its own waits for it a while, and writes the charge where the operation's diagnostics look.
//! It sends nothing more. A dropped race drops both legs, and their guards give back what they held.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cosmos_wire::status::Status;
use futures::future::{Either, select};
use http::HeaderValue;
use tokio::time::{Instant, sleep, timeout};

use crate::attempt::build::Message;
use crate::attempt::outcome::Outcome;
use crate::attempt::throttle::Budget;
use crate::attempt::{self, Journal, Try};
use crate::diagnostics::{Attempt, Delivery, Diagnostics, LateCell};
use crate::driver::Core;
use crate::error::Error;
use crate::request::Operation;
use crate::routing::Endpoint;

/// How a race ended.
pub(crate) struct Race {
    pub(crate) outcome: Outcome,
    pub(crate) region: Arc<str>,
    pub(crate) log: Diagnostics,
    pub(crate) budget: Budget,
    /// The second leg was started.
    pub(crate) is_hedged: bool,
    /// Neither leg gave a final answer: the failover loop goes on, and both regions count as tried.
    pub(crate) is_both_failed: bool,
}

pub(crate) async fn race(
    core: &Arc<Core>,
    operation: &Operation,
    legs: [Try<'_>; 2],
    delay: Duration,
    budget: &Budget,
) -> Result<Race, Error> {
    let [first, second] = legs;
    let mut primary = Leg::start(core, operation, &first, budget);
    let early = match select(&mut primary.run, pin!(sleep(delay))).await {
        Either::Left((end, _)) => Some(end),
        Either::Right(_) if core.hedge_budget.spend() => None,
        Either::Right(_) => Some((&mut primary.run).await),
    };
    if let Some(end) = early {
        return alone(&primary, end);
    }
    core.meters.hedges.increment(1);
    let mut secondary = Leg::start(core, operation, &second, budget);
    let (side, end) = match select(&mut primary.run, &mut secondary.run).await {
        Either::Left((end, _)) => (Side::Primary, end),
        Either::Right((end, _)) => (Side::Hedge, end),
    };
    let finish = if end.is_final() {
        Finish { side, end, has_loser_ended: false, is_both_failed: false }
    } else {
        let late = match side {
            Side::Primary => (&mut secondary.run).await,
            Side::Hedge => (&mut primary.run).await,
        };
        match (late.is_final(), side) {
            (true, side) => {
                Finish { side: side.other(), end: late, has_loser_ended: true, is_both_failed: false }
            }
            (false, Side::Primary) => Finish { side, end, has_loser_ended: true, is_both_failed: true },
            (false, Side::Hedge) => {
                Finish { side: Side::Primary, end: late, has_loser_ended: true, is_both_failed: true }
            }
        }
    };
    let Finish { side, end, has_loser_ended, is_both_failed } = finish;
    let (winner, loser) = match side {
        Side::Primary => (primary, secondary),
        Side::Hedge => (secondary, primary),
    };
    let mut log = winner.journal.take();
    log.merge(if has_loser_ended { loser.journal.take() } else { loser.leave(core) });
    let LegEnd { outcome, budget: used } = end;
    let outcome = match outcome {
        Ok(outcome) => outcome,
        // The leg that could not be sent ended the race; the other one may have been executed.
        Err(error) => return Err(error.with_applied(true).with_diagnostics(log)),
    };
    let attempts = budget.attempts + u32::try_from(log.attempts().len()).unwrap_or(u32::MAX);
    let region = winner.endpoint.region.clone();
    Ok(Race { outcome, region, log, budget: Budget { attempts, ..used }, is_hedged: true, is_both_failed })
}

/// The first leg ended by itself.
fn alone(leg: &Leg, end: LegEnd) -> Result<Race, Error> {
    let log = leg.journal.take();
    match end.outcome {
        Ok(outcome) => Ok(Race {
            outcome,
            region: leg.endpoint.region.clone(),
            log,
            budget: end.budget,
            is_hedged: false,
            is_both_failed: false,
        }),
        Err(error) => Err(error.with_applied(end.budget.has_unknown).with_diagnostics(log)),
    }
}

/// Whose answer counts.
struct Finish {
    side: Side,
    end: LegEnd,
    has_loser_ended: bool,
    is_both_failed: bool,
}

#[derive(Clone, Copy)]
enum Side {
    Primary,
    Hedge,
}

impl Side {
    fn other(self) -> Self {
        match self {
            Self::Primary => Self::Hedge,
            Self::Hedge => Self::Primary,
        }
    }
}

/// How a leg ended.
struct LegEnd {
    outcome: Result<Outcome, Error>,
    budget: Budget,
}

impl LegEnd {
    /// Also a leg that could not be sent ends the race: the other would fail for the same reason.
    fn is_final(&self) -> bool {
        self.outcome.as_ref().map_or(true, is_final)
    }
}

/// One of the two, owning what it needs: it may outlive the operation.
struct Leg {
    endpoint: Arc<Endpoint>,
    journal: SharedJournal,
    lost: Arc<AtomicBool>,
    /// When it was started, by the operation's clock.
    started: Duration,
    begun: Instant,
    context: crate::diagnostics::Context,
    request_bytes: usize,
    run: Pin<Box<dyn Future<Output = LegEnd> + Send>>,
}

impl Leg {
    fn start(core: &Arc<Core>, operation: &Operation, attempt: &Try<'_>, budget: &Budget) -> Self {
        let now = core.clock.now();
        let endpoint = Arc::new(attempt.endpoint.clone());
        let (journal, lost) = (SharedJournal::default(), Arc::new(AtomicBool::new(false)));
        let run = {
            let own = OwnTry::of(attempt);
            let (core, operation, mut budget) = (core.clone(), operation.clone(), budget.clone());
            let (endpoint, mut journal, lost) = (endpoint.clone(), journal.clone(), lost.clone());
            async move {
                let attempt = own.borrowed(&endpoint, &lost);
                let outcome = attempt::send(&core, &operation, attempt, &mut budget, &mut journal).await;
                LegEnd { outcome, budget }
            }
        };
        Self {
            endpoint,
            journal,
            lost,
            started: now.duration_since(attempt.begun),
            begun: now,
            context: attempt.context,
            request_bytes: operation.body.len(),
            run: Box::pin(run),
        }
    }

    /// Leaves the race while the leg is under way: returns what is known of it, and lets a task wait for its charge.
    fn leave(self, core: &Arc<Core>) -> Diagnostics {
        self.lost.store(true, Ordering::Relaxed);
        let mut log = self.journal.take();
        let late = LateCell::default();
        let tries = log.attempts().last();
        let started = tries.map_or(self.started, |last| last.started + last.elapsed);
        log.push(Attempt {
            context: self.context,
            region: self.endpoint.region.clone(),
            shard: None,
            protocol: None,
            gateway2: false,
            status: None,
            charge: 0.0,
            delivery: Delivery::MayHaveArrived,
            slot_wait: Duration::ZERO,
            connect_wait: Duration::ZERO,
            headers: None,
            body: None,
            request_bytes: self.request_bytes,
            response_bytes: 0,
            started,
            elapsed: (self.started + self.begun.elapsed()).saturating_sub(started),
            error: Some("lost the race".into()),
            late: Some(late.clone()),
        });
        tokio::spawn(wait_for_charge(core.clone(), self.journal, self.run, late));
        log
    }
}

/// The charge of the leg that lost, whose operation has ended; unknown if its answer takes too long or never comes.
async fn wait_for_charge(
    core: Arc<Core>,
    journal: SharedJournal,
    run: Pin<Box<dyn Future<Output = LegEnd> + Send>>,
    late: LateCell,
) {
    let ended = timeout(LOSER_PATIENCE, run).await;
    let log = journal.take();
    let answered: Vec<&Attempt> = log.attempts().iter().filter(|attempt| attempt.status.is_some()).collect();
    let charge = (ended.is_ok() && !log.has_unknown_charge())
        .then(|| answered.iter().fold(0.0, |sum, attempt| sum + attempt.charge));
    match charge {
        Some(charge) => core.meters.late_units.record(charge),
        None => core.meters.unknown_charges.increment(1),
    }
    late.set(charge);
}

/// The log of a leg, which both the leg and the race that leaves it read.
#[derive(Clone, Default)]
struct SharedJournal(Arc<Mutex<Diagnostics>>);

impl SharedJournal {
    fn lock(&self) -> MutexGuard<'_, Diagnostics> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Diagnostics {
        std::mem::take(&mut self.lock())
    }
}

impl Journal for SharedJournal {
    fn push(&mut self, attempt: Attempt) {
        self.lock().push(attempt);
    }
}

/// A [`Try`] that borrows nothing.
struct OwnTry {
    context: crate::diagnostics::Context,
    activity: HeaderValue,
    session: Option<HeaderValue>,
    range: Option<HeaderValue>,
    is_part_of_range: bool,
    is_tentative_write: bool,
    consistency: crate::attempt::build::Ask,
    begun: Instant,
    deadline: Instant,
}

impl OwnTry {
    fn of(attempt: &Try<'_>) -> Self {
        let message = &attempt.message;
        Self {
            context: attempt.context,
            activity: message.activity.clone(),
            session: message.session.cloned(),
            range: message.range.cloned(),
            is_part_of_range: message.is_part_of_range,
            is_tentative_write: message.is_tentative_write,
            consistency: message.consistency,
            begun: attempt.begun,
            deadline: attempt.deadline,
        }
    }

    fn borrowed<'a>(&'a self, endpoint: &'a Endpoint, lost: &'a AtomicBool) -> Try<'a> {
        Try {
            endpoint,
            context: self.context,
            message: Message {
                activity: &self.activity,
                session: self.session.as_ref(),
                range: self.range.as_ref(),
                is_part_of_range: self.is_part_of_range,
                is_tentative_write: self.is_tentative_write,
                consistency: self.consistency,
            },
            begun: self.begun,
            deadline: self.deadline,
            lost: Some(lost),
        }
    }
}

/// An answer no other region would give differently. Pure.
pub(crate) fn is_final(outcome: &Outcome) -> bool {
    match outcome {
        Outcome::Broken(_) => false,
        Outcome::Answered(answer) => match answer.status {
            Status::READ_SESSION_NOT_AVAILABLE
            | Status::CONTAINER_CREATE_IN_PROGRESS
            | Status::COLLECTION_RID_MISMATCH => false,
            Status { code, .. } => {
                matches!(code, 200..=299 | 304 | 400 | 401 | 404 | 409 | 412 | 413)
            }
        },
    }
}

/// How long a task waits for the charge of a loser; its slot is taken for as long.
const LOSER_PATIENCE: Duration = Duration::from_secs(2);
#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::HeaderMap;

    use super::*;
    use crate::attempt::outcome::Answer;

    #[test]
    fn transient_answers_do_not_end_a_race() {
        let cases = [
            (200, 0, true),
            (304, 0, true),
            (404, 0, true),
            (409, 0, true),
            (412, 0, true),
            (404, 1002, false),
            (403, 3, false),
            (408, 0, false),
            (410, 1002, false),
            (429, 3200, false),
            (449, 0, false),
            (500, 0, false),
            (503, 0, false),
        ];
        for (code, sub, expected) in cases {
            let status = Status::new(code, sub);
            let outcome = Outcome::Answered(Answer { status, headers: HeaderMap::new(), body: Bytes::new() });
            assert_eq!(is_final(&outcome), expected, "{status}");
        }
    }
}
