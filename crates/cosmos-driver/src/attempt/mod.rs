//! One try at one endpoint: build → sign → send → outcome.
//!
//! Retries that stay at the endpoint happen here, decided by [`throttle::verdict`]: waiting out a 429, and one more
//! try on another connection when a connection broke. Everything else is the operation's business.

pub(crate) mod build;
pub(crate) mod outcome;
pub(crate) mod sign;
pub(crate) mod throttle;

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::diagnostics::{Attempt, Context, Diagnostics};
use crate::driver::Core;
use crate::error::Error;
use crate::operation::request::{Kind, Operation};
use crate::response::charge;
use crate::routing::Endpoint;
use crate::transport::{Label, Limit, Sending, Sent};
use build::Message;
use outcome::Outcome;
use throttle::{Budget, Verdict};

/// What one attempt needs to know besides the operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Try<'a> {
    pub(crate) endpoint: &'a Endpoint,
    pub(crate) context: Context,
    pub(crate) message: Message<'a>,
    pub(crate) begun: Instant,
    pub(crate) deadline: Instant,
}

/// Sends the operation to one endpoint until there is an answer worth deciding on.
pub(crate) async fn send(
    core: &Core,
    operation: &Operation,
    attempt: Try<'_>,
    budget: &mut Budget,
    log: &mut Diagnostics,
) -> Result<Outcome, Error> {
    let mut avoid = None;
    let mut context = attempt.context;
    loop {
        let now = core.clock.now();
        let headers = build::headers(core, operation, &attempt.message);
        let request =
            sign::sign(core, operation, headers, label(operation, attempt.endpoint), attempt.deadline)
                .await?;
        let limit = Limit { deadline: attempt.deadline, attempt: now + patience(core, operation) };
        let sending = core.transport.send(&attempt.endpoint.address, request, limit, avoid).await;
        let (outcome, record) = record(sending, operation.kind, &attempt, context, now);
        let shard = record.shard;
        log.push(record);
        budget.attempts += 1;
        match throttle::verdict(&outcome, operation.repeat(), budget, &core.config.retry) {
            Verdict::Propagate => return Ok(outcome),
            Verdict::Wait(wait) => {
                if core.clock.now() + wait >= attempt.deadline {
                    return Ok(outcome);
                }
                budget.throttles += 1;
                budget.waited += wait;
                core.meters.throttled.increment(1);
                sleep(wait).await;
                context = Context::Retry;
            }
            Verdict::OtherShard => {
                budget.has_changed_shard = true;
                budget.has_unknown |=
                    matches!(&outcome, Outcome::Broken(error) if error.sent == Sent::Unknown);
                avoid = shard;
                context = Context::OtherShard;
            }
        }
    }
}

fn label(operation: &Operation, endpoint: &Endpoint) -> Label {
    Label {
        operation: operation.kind.name(),
        region: Some(endpoint.region.clone()),
        container: operation.container.as_ref().map(|container| container.name.clone()),
    }
}

fn patience(core: &Core, operation: &Operation) -> Duration {
    if operation.kind.is_feed() { core.config.timeouts.feed_attempt } else { core.config.timeouts.attempt }
}

fn record(
    sending: Sending,
    kind: Kind,
    attempt: &Try<'_>,
    context: Context,
    started: Instant,
) -> (Outcome, Attempt) {
    let via = sending.via;
    let outcome = Outcome::of(sending.result);
    let outcome = if kind == Kind::Batch { outcome.of_batch() } else { outcome };
    let (status, ru, error) = match &outcome {
        Outcome::Answered(answer) => (Some(answer.status), charge(&answer.headers), None),
        Outcome::Broken(error) => (None, 0.0, Some(error.message.clone())),
    };
    let attempt = Attempt {
        context,
        region: attempt.endpoint.region.clone(),
        shard: via.map(|via| via.shard),
        protocol: via.map(|via| via.protocol),
        status,
        charge: ru,
        started: started.duration_since(attempt.begun),
        elapsed: started.elapsed(),
        error,
    };
    (outcome, attempt)
}
