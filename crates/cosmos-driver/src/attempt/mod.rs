//! One try at one endpoint: build → sign → send → outcome.
//!
//! Retries that stay in the region happen here, decided by [`throttle::verdict`]: waiting out a 429, one more try on
//! another connection when a connection broke, and one by the ordinary gateway when Gateway 2.0 ([`gateway2`]) does not
//! work. Everything else is the operation's business.

pub(crate) mod build;
mod gateway2;
pub(crate) mod outcome;
pub(crate) mod sign;
pub(crate) mod throttle;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cosmos_wire::status::Status;
use tokio::time::{Instant, sleep};

use crate::diagnostics::{Attempt, Context, Delivery, Diagnostics};
use crate::driver::Core;
use crate::error::Error;
use crate::request::{Kind, Operation};
use crate::response::charge;
use crate::routing::Endpoint;
use crate::transport::{Address, HttpErrorKind, Label, Limit, Sending, Sent};
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
    /// Set when another region has answered.
    pub(crate) lost: Option<&'a AtomicBool>,
}

impl Try<'_> {
    fn has_lost(&self) -> bool {
        self.lost.is_some_and(|lost| lost.load(Ordering::Relaxed))
    }
}

/// Where attempts are written down.
pub(crate) trait Journal {
    fn push(&mut self, attempt: Attempt);
}

impl Journal for Diagnostics {
    fn push(&mut self, attempt: Attempt) {
        Self::push(self, attempt);
    }
}

/// Sends the operation to one endpoint until there is an answer worth deciding on.
pub(crate) async fn send(
    core: &Core,
    operation: &Operation,
    attempt: Try<'_>,
    budget: &mut Budget,
    log: &mut impl Journal,
) -> Result<Outcome, Error> {
    let mut avoid = None;
    let mut context = attempt.context;
    let mut way = gateway2::way(core, operation, &attempt);
    loop {
        let now = core.clock.now();
        let headers = build::headers(core, operation, &attempt.message);
        let request =
            sign::sign(core, operation, headers, label(operation, attempt.endpoint), attempt.deadline)
                .await?;
        let limit = Limit { deadline: attempt.deadline, attempt: now + patience(core, operation) };
        let frame =
            way.as_ref().and_then(|way| gateway2::wrapped(&request, operation, &attempt.message, way));
        let is_gateway2 = frame.is_some();
        let address = match &way {
            Some(way) if is_gateway2 => &way.endpoint.address,
            Some(_) | None => &attempt.endpoint.address,
        };
        let mut sending = core.transport.send(address, frame.unwrap_or(request), limit, avoid).await;
        if is_gateway2 {
            sending.result = sending.result.and_then(gateway2::unwrapped);
        }
        let (outcome, mut record) = record(sending, operation, &attempt, context, now);
        record.gateway2 = is_gateway2;
        tracing::trace!(attempt = %record, "attempt");
        let shard = record.shard;
        let has_failed = is_gateway2 && has_failed(&outcome, &record);
        log.push(record);
        budget.attempts += 1;
        let verdict =
            throttle::verdict(&outcome, operation.repeat(), is_gateway2, budget, &core.config.retry);
        if has_failed && verdict != Verdict::OtherShard {
            leave_gateway2(core, address);
        }
        match verdict {
            Verdict::Propagate => return Ok(outcome),
            // The other leg has answered the caller: this one ends, and sends nothing more.
            Verdict::Wait(_) | Verdict::OtherShard | Verdict::OrdinaryGateway if attempt.has_lost() => {
                return Ok(outcome);
            }
            Verdict::Wait(wait) => {
                if core.clock.now() + wait >= attempt.deadline {
                    return Ok(outcome);
                }
                budget.throttles += 1;
                budget.waited += wait;
                core.meters.throttled.increment(1);
                sleep(wait).await;
                if attempt.has_lost() {
                    return Ok(outcome);
                }
                context = Context::Retry;
            }
            Verdict::OtherShard => {
                budget.has_changed_shard = true;
                budget.has_unknown |=
                    matches!(&outcome, Outcome::Broken(error) if error.sent == Sent::Unknown);
                avoid = shard;
                context = Context::OtherShard;
            }
            Verdict::OrdinaryGateway => {
                budget.has_unknown |=
                    matches!(&outcome, Outcome::Broken(error) if error.sent == Sent::Unknown);
                way = None;
                avoid = None;
                context = Context::OrdinaryGateway;
            }
        }
    }
}

/// Whether an endpoint of Gateway 2.0 did not do what it is there for, so that all requests of this driver leave it for a
/// while. What lies with the caller (little time, more requests than there are slots) does not count. Pure.
fn has_failed(outcome: &Outcome, record: &Attempt) -> bool {
    let error = match outcome {
        Outcome::Answered(answer) => return answer.status.code == Status::SERVICE_UNAVAILABLE.code,
        Outcome::Broken(error) => error,
    };
    let asked_for = record.elapsed.saturating_sub(record.slot_wait + record.connect_wait);
    match (error.kind, error.sent) {
        // It would be as long elsewhere.
        (HttpErrorKind::TooLarge, _) => false,
        (HttpErrorKind::AttemptTimeout | HttpErrorKind::Deadline, Sent::No) => {
            record.connect_wait > record.slot_wait && record.connect_wait >= GATEWAY2_PATIENCE
        }
        (HttpErrorKind::Deadline, Sent::Unknown) => asked_for >= GATEWAY2_PATIENCE,
        (
            HttpErrorKind::AttemptTimeout
            | HttpErrorKind::Connect
            | HttpErrorKind::Tls
            | HttpErrorKind::Closed
            | HttpErrorKind::Refused
            | HttpErrorKind::Protocol,
            _,
        ) => true,
    }
}

/// Longer than any point operation takes, shorter than callers' deadlines usually are: an endpoint that has said nothing
/// for so long hangs.
const GATEWAY2_PATIENCE: Duration = Duration::from_millis(500);

/// Sends no other operation to an endpoint of Gateway 2.0 that failed; a probe will tell when it is back.
fn leave_gateway2(core: &Core, address: &Address) {
    let until = core.clock.now() + core.clock.jitter(core.config.timeouts.endpoint_unavailable);
    if core.router.gateway2_failed(address, until) {
        tracing::debug!(endpoint = %address, "Gateway 2.0 is left for a while");
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
    let timeouts = &core.config.timeouts;
    if operation.kind.is_metadata() {
        timeouts.metadata_attempt
    } else if operation.kind.is_feed() {
        timeouts.feed_attempt
    } else {
        timeouts.attempt
    }
}

fn record(
    sending: Sending,
    operation: &Operation,
    attempt: &Try<'_>,
    context: Context,
    started: Instant,
) -> (Outcome, Attempt) {
    let Sending { result, via, timing } = sending;
    let outcome = Outcome::of(result);
    let outcome = if operation.kind == Kind::Batch { outcome.of_batch() } else { outcome };
    let (status, ru, error) = match &outcome {
        Outcome::Answered(answer) => (Some(answer.status), charge(&answer.headers), None),
        Outcome::Broken(error) => (None, 0.0, Some(error.message.clone())),
    };
    let (delivery, response_bytes) = match &outcome {
        Outcome::Answered(answer) => (Delivery::Answered, answer.body.len()),
        Outcome::Broken(error) if error.sent == Sent::No => (Delivery::NotSent, 0),
        Outcome::Broken(_) => (Delivery::MayHaveArrived, 0),
    };
    let attempt = Attempt {
        context,
        region: attempt.endpoint.region.clone(),
        shard: via.map(|via| via.shard),
        protocol: via.map(|via| via.protocol),
        status,
        charge: ru,
        delivery,
        slot_wait: timing.slot,
        connect_wait: timing.connect,
        headers: timing.headers,
        body: timing.body,
        request_bytes: operation.body.len(),
        response_bytes,
        started: started.duration_since(attempt.begun),
        elapsed: started.elapsed(),
        error,
        late: None,
        gateway2: false,
    };
    (outcome, attempt)
}
