//! The race: a second region is asked when the first has not answered in time.
//!
//! The first final answer wins. Each leg keeps its own log and budget; both are merged, so that nothing of the loser
//! is lost. A dropped race drops both legs, and their guards give back what they held.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{Either, select};
use tokio::time::sleep;

use super::request::Operation;
use crate::attempt::outcome::Outcome;
use crate::attempt::throttle::Budget;
use crate::attempt::{self, Try};
use crate::diagnostics::{Attempt, Diagnostics};
use crate::driver::Core;
use crate::error::Error;

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
    core: &Core,
    operation: &Operation,
    legs: [Try<'_>; 2],
    delay: Duration,
    budget: &Budget,
) -> Result<Race, Error> {
    let [first, second] = legs;
    let (mut first_log, mut second_log) = (Diagnostics::default(), Diagnostics::default());
    let (mut first_budget, mut second_budget) = (budget.clone(), budget.clone());
    let mut hedged_at = None;
    let ended: Result<Ended, Error> = async {
        let mut primary = pin!(attempt::send(core, operation, first, &mut first_budget, &mut first_log));
        match select(primary.as_mut(), pin!(sleep(delay))).await {
            Either::Left((outcome, _)) => Ok(Ended::Primary(outcome?)),
            Either::Right(((), primary)) if !core.hedge_budget.spend() => Ok(Ended::Primary(primary.await?)),
            Either::Right(((), primary)) => {
                hedged_at = Some(core.clock.now());
                core.meters.hedges.increment(1);
                let secondary =
                    pin!(attempt::send(core, operation, second, &mut second_budget, &mut second_log));
                Ok(match select(primary, secondary).await {
                    Either::Left((outcome, secondary)) => {
                        let outcome = outcome?;
                        if is_final(&outcome) {
                            Ended::Primary(outcome)
                        } else {
                            let other = secondary.await?;
                            if is_final(&other) { Ended::Hedge(other) } else { Ended::Neither(outcome) }
                        }
                    }
                    Either::Right((outcome, primary)) => {
                        let outcome = outcome?;
                        if is_final(&outcome) {
                            Ended::Hedge(outcome)
                        } else {
                            let other = primary.await?;
                            if is_final(&other) { Ended::Primary(other) } else { Ended::Neither(other) }
                        }
                    }
                })
            }
        }
    }
    .await;
    let ended = match ended {
        Ok(ended) => ended,
        Err(error) => {
            // The leg that could not be sent ended the race; the other one may have been executed.
            let is_unknown = hedged_at.is_some() || first_budget.has_unknown || second_budget.has_unknown;
            first_log.merge(second_log);
            return Err(error.with_applied(is_unknown).with_diagnostics(first_log));
        }
    };
    let now = core.clock.now();
    if hedged_at.is_some() {
        note_loser(&mut first_log, &first, first.begun, now, &ended, true);
        note_loser(&mut second_log, &second, hedged_at.unwrap_or(now), now, &ended, false);
    }
    let spent = Budget {
        attempts: first_budget.attempts + second_budget.attempts - budget.attempts,
        throttles: first_budget.throttles.max(second_budget.throttles),
        waited: first_budget.waited.max(second_budget.waited),
        has_changed_shard: first_budget.has_changed_shard,
        has_unknown: first_budget.has_unknown || second_budget.has_unknown,
    };
    first_log.merge(second_log);
    let (outcome, region, is_both_failed) = match ended {
        Ended::Primary(outcome) => (outcome, first.endpoint.region.clone(), false),
        Ended::Hedge(outcome) => (outcome, second.endpoint.region.clone(), false),
        Ended::Neither(outcome) => (outcome, first.endpoint.region.clone(), true),
    };
    Ok(Race {
        outcome,
        region,
        log: first_log,
        budget: spent,
        is_hedged: hedged_at.is_some(),
        is_both_failed,
    })
}

enum Ended {
    Primary(Outcome),
    Hedge(Outcome),
    Neither(Outcome),
}

/// A leg that was cut short still appears in the log.
fn note_loser(
    log: &mut Diagnostics,
    leg: &Try<'_>,
    started: tokio::time::Instant,
    now: tokio::time::Instant,
    ended: &Ended,
    is_primary: bool,
) {
    let has_lost = match ended {
        Ended::Primary(_) => !is_primary,
        Ended::Hedge(_) => is_primary,
        Ended::Neither(_) => false,
    };
    let is_logged = log.attempts().last().is_some_and(|last| last.status.is_some() || last.error.is_some());
    if has_lost && !is_logged {
        log.push(Attempt {
            context: leg.context,
            region: leg.endpoint.region.clone(),
            shard: None,
            protocol: None,
            status: None,
            charge: 0.0,
            started: started.duration_since(leg.begun),
            elapsed: now.duration_since(started),
            error: Some("lost the race".into()),
        });
    }
}

/// An answer no other region would give differently. Pure.
pub(crate) fn is_final(outcome: &Outcome) -> bool {
    match outcome {
        Outcome::Broken(_) => false,
        Outcome::Answered(answer) => match (answer.status.code, answer.status.sub) {
            (200..=299 | 304, _) => true,
            (404, 1002 | 1013) | (400, 1024) => false,
            (400 | 401 | 404 | 409 | 412 | 413, _) => true,
            _ => false,
        },
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use cosmos_wire::status::Status;
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
