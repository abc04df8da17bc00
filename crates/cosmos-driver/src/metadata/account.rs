//! Reading the account document, and keeping it fresh in the background.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use cosmos_wire::gateway2::PROBE_PATH;
use cosmos_wire::resource::ResourceKind;
use http::uri::PathAndQuery;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::attempt::build::{self, Ask, Message};
use crate::attempt::outcome::Outcome;
use crate::attempt::throttle::Budget;
use crate::attempt::{self, Try};
use crate::diagnostics::{Context, Diagnostics};
use crate::driver::Core;
use crate::error::Error;
use crate::request::{Kind, Operation};
use crate::routing::Endpoint;
use crate::routing::account::{AccountDocument, AccountRoutes};
use crate::transport::{Address, HttpErrorKind, HttpRequest, Label, Limit};

/// Limits refreshes on demand to one per interval; a failed or abandoned one gives its slot back.
#[derive(Debug)]
pub(crate) struct RefreshLimit {
    /// Tick of the last refresh plus one; zero means never.
    last: AtomicU64,
    /// Told after every attempt to refresh.
    pub(crate) done: Notify,
}

impl RefreshLimit {
    pub(crate) fn new() -> Self {
        Self { last: AtomicU64::new(0), done: Notify::new() }
    }

    fn claim(&self, now_ms: u64, least: Duration) -> Option<Slot<'_>> {
        let last = self.last.load(Ordering::Acquire);
        let is_due = last == 0 || u128::from((now_ms + 1).saturating_sub(last)) >= least.as_millis();
        let claimed = is_due
            && self.last.compare_exchange(last, now_ms + 1, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        claimed.then_some(Slot { limit: self, previous: last, is_used: false })
    }
}

/// A claimed refresh. The operation that claimed it may be dropped before it is made; the slot goes back then as well.
#[derive(Debug)]
struct Slot<'a> {
    limit: &'a RefreshLimit,
    previous: u64,
    is_used: bool,
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        if !self.is_used {
            self.limit.last.store(self.previous, Ordering::Release);
        }
        self.limit.done.notify_waiters();
    }
}

/// Reads the account from the first endpoint that answers and takes its routes. Fetch first, then replace.
pub(crate) async fn refresh(core: &Arc<Core>) -> Result<(), Error> {
    let mut failure = None;
    for endpoint in endpoints_to_ask(&core.router.account()) {
        match read(core, &endpoint).await {
            Ok(document) => {
                let default = core.router.account().default.clone();
                let mut routes = AccountRoutes::build(&document, &core.config.regions, default)?;
                if !core.config.has_gateway2() {
                    routes.gateway2.use_none();
                }
                core.router.replace_account(&routes);
                core.meters.account_refreshes.increment(1);
                if let Some(unmet) = routes.unmet(core.config.requirements) {
                    tracing::error!("nothing is sent while {unmet}");
                }
                return Ok(());
            }
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    Err(failure.unwrap_or_else(|| Error::protocol("no endpoint to ask for the account")))
}

/// Refreshes because the service hinted at a change, at most once per interval. Returns at once if another refresh is
/// recent; the caller retries with whatever is known by then.
pub(crate) async fn refresh_on_demand(core: &Arc<Core>) {
    let limit = &core.refresh_limit;
    let Some(mut slot) = limit.claim(core.clock.tick_ms(), core.config.timeouts.account_refresh_min) else {
        return;
    };
    match refresh(core).await {
        Ok(()) => slot.is_used = true,
        Err(error) => tracing::debug!(%error, "account refresh failed"),
    }
}

/// The named endpoint first, then every region: one of them may be all that is left.
fn endpoints_to_ask(routes: &AccountRoutes) -> Vec<Arc<Endpoint>> {
    let mut endpoints = vec![routes.default.clone()];
    for endpoint in routes.writes.iter().chain(&routes.reads) {
        if endpoints.iter().all(|known| known.address != endpoint.address) {
            endpoints.push(endpoint.clone());
        }
    }
    endpoints.sort_by_key(|endpoint| routes.is_unavailable(&endpoint.address));
    endpoints
}

async fn read(core: &Arc<Core>, endpoint: &Endpoint) -> Result<AccountDocument, Error> {
    let operation =
        Operation::new(Kind::ReadAccount, ResourceKind::Account, "".into(), PathAndQuery::from_static("/"));
    let activity = build::activity(core);
    let message = Message {
        activity: &activity,
        session: None,
        range: None,
        is_part_of_range: false,
        is_tentative_write: false,
        consistency: Ask::Nothing,
    };
    let now = core.clock.now();
    let attempt = Try {
        endpoint,
        context: Context::Initial,
        message,
        begun: now,
        deadline: now + core.config.timeouts.metadata_attempt,
        lost: None,
    };
    let mut log = Diagnostics::default();
    let outcome = attempt::send(core, &operation, attempt, &mut Budget::default(), &mut log).await?;
    log.finish(now.elapsed(), false);
    match outcome {
        Outcome::Answered(answer) if answer.status.is_success() => serde_json::from_slice(&answer.body)
            .map_err(|e| Error::serialization("the account document cannot be read", e)),
        Outcome::Answered(answer) => Err(Error::answered(answer.status, answer.body)
            .with_activity_id(build::activity_text(&activity))
            .with_diagnostics(log)),
        Outcome::Broken(error) if error.kind == HttpErrorKind::TooLarge => {
            Err(Error::protocol(error.message.to_string()).with_diagnostics(log))
        }
        Outcome::Broken(error) => Err(Error::connection(error.message.to_string()).with_diagnostics(log)),
    }
}

/// Background care: account refresh, probes of avoided endpoints, breaker sweep. Stops when dropped.
#[derive(Debug)]
pub(crate) struct Caretaker(JoinHandle<()>);

impl Caretaker {
    pub(crate) fn start(core: &Arc<Core>) -> Self {
        Self(tokio::spawn(care(Arc::downgrade(core))))
    }
}

impl Drop for Caretaker {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn care(core: Weak<Core>) {
    let (mut refreshed, mut swept) = match core.upgrade() {
        Some(core) => (core.clock.now(), core.clock.now()),
        None => return,
    };
    loop {
        if let Some(core) = core.upgrade() {
            probe_gateway2(&core);
        }
        sleep(CARE_INTERVAL).await;
        let Some(core) = core.upgrade() else { return };
        let now = core.clock.now();
        if now.duration_since(refreshed) >= core.config.timeouts.account_refresh {
            refreshed = now;
            if let Err(error) = refresh(&core).await {
                tracing::debug!(%error, "periodic account refresh failed");
            }
        }
        if now.duration_since(swept) >= core.config.breaker.failback {
            swept = now;
            core.router.sweep(now, &core.config.breaker);
        }
        let due = core.router.account().due_for_probe(now);
        for address in due {
            probe(&core, address).await;
        }
    }
}

/// Asks an avoided endpoint for the account: an answer, whatever it says, brings its traffic back.
async fn probe(core: &Arc<Core>, address: Address) {
    let endpoint = Endpoint { region: "probe".into(), address };
    let answered = match read(core, &endpoint).await {
        Ok(_) => true,
        Err(error) => error.status().is_some_and(|status| status < 500),
    };
    if answered {
        tracing::debug!(endpoint = %endpoint.address, "endpoint is back");
        core.router.mark_available(&endpoint.address);
    } else {
        let again = core.clock.jitter(core.config.timeouts.endpoint_unavailable);
        core.router.mark_unavailable(&endpoint.address, core.clock.now() + again);
    }
}

/// Asks endpoints of Gateway 2.0 whether they take frames, those that are new and those whose time is over. None of them is
/// waited for: a port that swallows everything must not hold up other care.
fn probe_gateway2(core: &Arc<Core>) {
    let now = core.clock.now();
    let limit = core.config.connections.connect_timeout + core.config.timeouts.metadata_attempt;
    let account = core.router.account().clone();
    // Whose callers leave before a connection has failed to open does not learn of it from them.
    for address in account.gateway2.in_use().filter(|address| core.transport.is_cut_off(address)) {
        let again = core.clock.jitter(core.config.timeouts.endpoint_unavailable);
        core.router.gateway2_failed(address, now + again);
    }
    for address in account.gateway2.due(now) {
        // Until this probe has ended, the next pass of the caretaker starts no other.
        core.router.gateway2_failed(&address, now + limit * 2);
        let core = core.clone();
        tokio::spawn(async move {
            if is_taking_frames(&core, &address, now + limit).await {
                core.router.gateway2_answered(&address);
            } else {
                let again = core.clock.jitter(core.config.timeouts.endpoint_unavailable);
                core.router.gateway2_failed(&address, core.clock.now() + again);
            }
        });
    }
}

/// Only 200 counts: 503 says that the endpoint is there, and that its service is not.
async fn is_taking_frames(core: &Core, address: &Address, deadline: Instant) -> bool {
    let mut headers = http::HeaderMap::with_capacity(1);
    headers.insert(http::header::USER_AGENT, core.user_agent.clone());
    let request = HttpRequest {
        method: http::Method::POST,
        path: PathAndQuery::from_static(PROBE_PATH),
        headers,
        before_body: Bytes::new(),
        body: Bytes::new(),
        may_leave: true,
        is_metadata: true,
        label: Label { operation: "probe", ..Label::default() },
    };
    let limit = Limit { deadline, attempt: deadline };
    let answered = core.transport.send(address, request, limit, None).await.result;
    match &answered {
        Ok(answer) => tracing::debug!(endpoint = %address, status = %answer.status, "Gateway 2.0 was probed"),
        Err(error) => tracing::debug!(endpoint = %address, error = %error.message, "Gateway 2.0 was probed"),
    }
    answered.is_ok_and(|answer| answer.status == http::StatusCode::OK)
}

const CARE_INTERVAL: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refreshes_on_demand_are_rare_and_failures_cost_nothing() {
        let limit = RefreshLimit::new();
        let least = Duration::from_secs(5);
        let first = limit.claim(0, least).expect("the first is free");
        assert!(limit.claim(1000, least).is_none());
        drop(first);
        let mut second = limit.claim(1000, least).expect("a failed one gave its slot back");
        second.is_used = true;
        drop(second);
        assert!(limit.claim(5999, least).is_none());
        assert!(limit.claim(6000, least).is_some());
    }
}
