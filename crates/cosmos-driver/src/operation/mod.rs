//! One logical operation, over all regions.
//!
//! [`run`] is the only loop: resolve a route, make an attempt (or race two), decide, apply the effects, and either
//! finish or go round again. [`decide::decide`] and [`crate::routing::resolve::resolve`] are pure; everything the
//! loop changes outside itself is named in [`decide::Effects`].

pub(crate) mod decide;
mod effects;
pub(crate) mod hedge;
mod span;
pub(crate) mod state;
pub(crate) mod threshold;

use std::borrow::Cow;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cosmos_wire::status::Status;
use cosmos_wire::{date, header};
use http::HeaderValue;
use tokio::time::{Instant, sleep, timeout_at};
use tracing::Instrument;

use crate::attempt::build::{self, Ask, Message};
use crate::attempt::outcome::{Answer, Outcome, text};
use crate::attempt::throttle::Budget;
use crate::attempt::{self, Try};
use crate::config::FOREVER;
use crate::diagnostics::{Context, Diagnostics};
use crate::driver::Core;
use crate::error::Error;
use crate::metadata::ranges::RangeMap;
use crate::options::{CallOptions, Consistency, ReadConsistencyStrategy};
use crate::request::{Operation, Repeat, Target};
use crate::response::{Response, charge};
use crate::routing::account::{AccountRoutes, Traffic};
use crate::routing::partition::Failure;
use crate::routing::resolve::{Route, Want, resolve};
use crate::transport::{Address, HttpError, HttpErrorKind};
use decide::{Action, Effects, Event, View, decide};
use state::RetryState;
use threshold::Class;

/// One call of the public API: its options and its time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call<'a> {
    pub(crate) options: &'a CallOptions,
    pub(crate) begun: Instant,
    pub(crate) deadline: Instant,
}

impl<'a> Call<'a> {
    pub(crate) fn start(core: &Core, options: &'a CallOptions) -> Self {
        let begun = core.clock.now();
        let timeout = options.timeout.unwrap_or(core.config.timeouts.operation).min(FOREVER);
        Self { options, begun, deadline: begun + timeout }
    }

    /// Bounds work that is not itself an attempt.
    pub(crate) async fn within<T>(&self, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        timeout_at(self.deadline, work).await.unwrap_or_else(|_| {
            Err(Error::deadline("the operation's deadline passed before it could be sent"))
        })
    }
}

/// Runs one operation to its end.
pub(crate) async fn run(core: &Arc<Core>, operation: Operation, call: &Call<'_>) -> Result<Response, Error> {
    let kind = operation.kind;
    let span = span::open(&operation);
    let result = Run::new(core, operation, call).go().instrument(span.clone()).await;
    span::close(&span, &result);
    core.meters.finished(kind.is_read(), call.begun.elapsed(), result.as_ref().err());
    result
}

/// The loop's own state.
struct Run<'a> {
    core: &'a Arc<Core>,
    operation: Operation,
    call: &'a Call<'a>,
    activity: HeaderValue,
    state: RetryState,
    context: Context,
    budget: Budget,
    log: Diagnostics,
    has_raced: bool,
    /// Endpoints a write failed at; avoided only once another place has shown that it can be done.
    suspects: Vec<Address>,
}

/// One iteration's view of the world.
struct Iteration {
    account: Arc<AccountRoutes>,
    ranges: Option<Arc<RangeMap>>,
    range: Option<(Arc<str>, HeaderValue)>,
    is_part_of_range: bool,
    session: Option<HeaderValue>,
    /// What is asked for; `names_level` if by the driver's configuration and not by the caller.
    consistency: Ask,
    names_level: bool,
}

impl<'a> Run<'a> {
    fn new(core: &'a Arc<Core>, operation: Operation, call: &'a Call<'a>) -> Self {
        Self {
            core,
            operation,
            call,
            activity: build::activity(core),
            state: RetryState::default(),
            context: Context::Initial,
            budget: Budget::default(),
            log: Diagnostics::default(),
            has_raced: false,
            suspects: Vec::new(),
        }
    }

    async fn go(mut self) -> Result<Response, Error> {
        loop {
            let iteration = self.iteration()?;
            if let Some(error) = self.refusal(&iteration) {
                return Err(self.unsent(&iteration, error));
            }
            let route = self.route(&iteration);
            let (outcome, region) = match self.attempt(&iteration, &route).await {
                Ok(made) => made,
                Err(error) => return Err(self.unsent(&iteration, error)),
            };
            self.state.has_unknown |= self.budget.has_unknown && !self.operation.kind.is_read();
            let (action, effects) = self.decide(&iteration, &outcome, &region);
            if effects != Effects::SUCCESS
                || !self.suspects.is_empty()
                || !self.core.router.health().is_empty()
            {
                Box::pin(self.apply(&iteration, &route, &region, effects, &outcome)).await;
            }
            match action {
                Action::Complete => return Ok(self.complete(&iteration, outcome)),
                Action::Fail { is_unknown } => return Err(self.fail(&iteration, outcome, is_unknown)),
                Action::Retry { context, delay, state } => {
                    let delay = if delay.is_zero() { delay } else { self.core.clock.jitter(delay) };
                    let is_over = self.core.clock.now() + delay >= self.call.deadline
                        || self.budget.attempts >= self.core.config.retry.attempts_max;
                    if is_over {
                        let is_unknown = state.has_unknown;
                        return Err(self.fail(&iteration, outcome, is_unknown));
                    }
                    tracing::debug!(?context, ?delay, region = &*region, "retrying");
                    self.state = state;
                    self.context = context;
                    if !delay.is_zero() {
                        sleep(delay).await;
                    }
                }
            }
        }
    }

    /// Why the attempt is not made, if so.
    fn refusal(&self, iteration: &Iteration) -> Option<Error> {
        if self.has_lost_its_range() {
            return Some(Error::answered(Status::PARTITION_KEY_RANGE_GONE, Bytes::new()));
        }
        iteration.account.unmet(self.core.config.requirements).map(Error::account_unfit)
    }

    /// The part of the key space that is asked for no longer lies within one range: the query that fans out must split it.
    fn has_lost_its_range(&self) -> bool {
        match (&self.operation.target, &self.operation.container) {
            (Target::Range { want, .. }, Some(container)) => {
                !container.ranges.load().holding(&want.min).bounds.contains_range(want)
            }
            (Target::Range { .. } | Target::Key { .. } | Target::None, _) => false,
        }
    }

    /// Fails only before anything is sent: for what the caller asked, not for what happened since.
    fn iteration(&self) -> Result<Iteration, Error> {
        let account = Arc::clone(&self.core.router.account());
        let ranges = self.operation.container.as_ref().map(|container| container.ranges.load_full());
        let range = ranges.as_ref().and_then(|ranges| match &self.operation.target {
            Target::Key { epk, .. } => Some(ranges.holding(epk)),
            Target::Range { want, .. } => Some(ranges.holding(&want.min)),
            Target::None => None,
        });
        let own = self.operation.consistency;
        let is_item_read = self.operation.kind.is_data() && self.operation.kind.is_read();
        let strategy = self.read_strategy().filter(|_| is_item_read);
        let required = account.level_asked(self.core.config.requirements).filter(|_| is_item_read);
        let (consistency, level) = match (strategy, own.or(required)) {
            (Some(strategy), _) => (Ask::Strategy(strategy), level_of(strategy, &account)?),
            (None, Some(level)) => (Ask::Level(level), Some(level)),
            (None, None) => (Ask::Nothing, account.consistency),
        };
        let session = self.session(&account, level, range.map(|range| (&*range.id, &range.parents[..])))?;
        let is_part_of_range = match (&self.operation.target, range) {
            (Target::Range { want, .. }, Some(range)) => range.bounds != *want,
            (Target::Range { .. } | Target::Key { .. } | Target::None, _) => false,
        };
        let range = range.map(|range| (range.id.clone(), range.id_header.clone()));
        let names_level = strategy.is_none() && own.is_none() && required.is_some();
        Ok(Iteration { account, ranges, range, is_part_of_range, session, consistency, names_level })
    }

    /// How the read is to be made, if that was said: by the call, as a strategy, by level (which is no strategy), or the driver.
    fn read_strategy(&self) -> Option<ReadConsistencyStrategy> {
        let by_driver = || {
            let strategy = self.core.config.read_consistency;
            self.operation.consistency.is_none().then_some(strategy)
        };
        let strategy = self.call.options.read_consistency.or_else(by_driver);
        strategy.filter(|strategy| *strategy != ReadConsistencyStrategy::Default)
    }

    fn traffic(&self) -> Traffic {
        let kind = self.operation.kind;
        match (kind.is_read(), kind.is_data()) {
            (true, _) => Traffic::Read,
            (false, true) => Traffic::PartitionWrite,
            (false, false) => Traffic::Write,
        }
    }

    /// The token of the range that is asked, if this operation is part of a session at all.
    fn session(
        &self,
        account: &AccountRoutes,
        level: Option<Consistency>,
        range: Option<(&str, &[String])>,
    ) -> Result<Option<HeaderValue>, Error> {
        let operation = &self.operation;
        match &self.call.options.session_token {
            Some(token) if operation.kind.is_data() => HeaderValue::from_str(token).map(Some).map_err(|_| {
                Error::bad_request("the session token contains characters that no header can carry")
            }),
            Some(_) | None => Ok(self.known_session(account, level, range)),
        }
    }

    /// What the driver itself knows of the session.
    fn known_session(
        &self,
        account: &AccountRoutes,
        level: Option<Consistency>,
        range: Option<(&str, &[String])>,
    ) -> Option<HeaderValue> {
        let operation = &self.operation;
        if !operation.kind.is_data() || cosmos_wire::mutant!(27) {
            return None;
        }
        let is_session = level == Some(Consistency::Session);
        if !is_session || (!operation.kind.is_read() && !account.is_multi_write) {
            return None;
        }
        let sessions = &operation.container.as_ref()?.sessions;
        match range {
            Some((id, parents)) => sessions.header(id, parents),
            None => sessions.combined().and_then(|token| HeaderValue::try_from(token).ok()),
        }
    }

    fn excluded(&self) -> Cow<'_, [String]> {
        let (own, driver) = (&self.call.options.excluded_regions, &self.core.config.regions.excluded);
        match (own.is_empty(), driver.is_empty()) {
            (true, _) => Cow::Borrowed(driver),
            (false, true) => Cow::Borrowed(own),
            (false, false) => Cow::Owned(own.iter().chain(driver).cloned().collect()),
        }
    }

    fn want<'w>(&'w self, iteration: &'w Iteration, excluded: &'w [String]) -> Want<'w> {
        let container = self.operation.container.as_ref();
        Want {
            traffic: self.traffic(),
            at_write_region: self.state.at_write_region || self.call.options.at_write_region,
            excluded,
            tried: &self.state.tried,
            partition: container
                .zip(iteration.range.as_ref())
                .map(|(container, (range, _))| (&container.rid, range)),
            pinned: self.operation.pinned.as_deref(),
        }
    }

    fn route(&self, iteration: &Iteration) -> Route {
        let excluded = self.excluded();
        let want = self.want(iteration, &excluded);
        for _ in 0..PROBE_CLAIMS_MAX {
            let now = self.core.clock.now();
            let route = resolve(&want, &iteration.account, &self.core.router.health(), now);
            let is_ours = match &route.probe {
                Some(cell) => self.core.router.claim_probe(cell, now, &self.core.config.breaker),
                None => true,
            };
            if is_ours {
                return route;
            }
        }
        Route { endpoint: iteration.account.default.clone(), probe: None }
    }

    async fn attempt(&mut self, iteration: &Iteration, route: &Route) -> Result<(Outcome, Arc<str>), Error> {
        let message = Message {
            activity: &self.activity,
            session: iteration.session.as_ref(),
            range: iteration.range.as_ref().map(|(_, header)| header),
            is_part_of_range: iteration.is_part_of_range,
            is_tentative_write: iteration.account.is_multi_write && !self.operation.kind.is_read(),
            consistency: iteration.consistency,
        };
        let first = Try {
            endpoint: &route.endpoint,
            context: self.context,
            message,
            begun: self.call.begun,
            deadline: self.call.deadline,
            lost: None,
        };
        if let Some((second, delay)) = self.hedge(iteration, route) {
            self.has_raced = true;
            let second = Try { endpoint: &second.endpoint, context: Context::Hedging, ..first };
            // Two attempts at once are large; operations of one region should not carry their size.
            let race = hedge::race(self.core, &self.operation, [first, second], delay, &self.budget);
            let race = Box::pin(race).await?;
            self.budget = race.budget;
            self.log.merge(race.log);
            // Either leg of a write may be the one that was executed.
            self.budget.has_unknown |= race.is_hedged;
            if race.is_hedged && race.region == second.endpoint.region {
                self.report(iteration, &route.endpoint.region, Some(Failure::LostRace));
            }
            if race.is_both_failed {
                self.state.tried.push(second.endpoint.region.clone());
            }
            return Ok((race.outcome, race.region));
        }
        let outcome =
            attempt::send(self.core, &self.operation, first, &mut self.budget, &mut self.log).await?;
        Ok((outcome, route.endpoint.region.clone()))
    }

    /// A second place and the time to wait before it is asked, if this operation may race.
    fn hedge(&self, iteration: &Iteration, route: &Route) -> Option<(Route, Duration)> {
        let kind = self.operation.kind;
        let account = &iteration.account;
        let is_allowed = kind.may_hedge()
            && (kind.is_read() || (account.is_multi_write && self.operation.repeat() == Repeat::Safe))
            && account.candidates(self.traffic()).len() > 1
            && iteration.consistency != Ask::Strategy(ReadConsistencyStrategy::LatestCommitted)
            && self.core.config.hedging.switch.allows()
            && !account.is_hedging_disabled
            && !self.has_raced
            && !self.call.options.at_write_region
            && self.operation.pinned.is_none();
        if !is_allowed {
            return None;
        }
        self.core.hedge_budget.earn();
        let mode = self.call.options.hedging.unwrap_or(self.core.config.hedging.mode);
        let p99 = self.core.latencies.p99(&route.endpoint.region, Class::of(kind));
        let delay = threshold::threshold(mode, p99)?;
        let excluded = self.excluded();
        let want = self.want(iteration, &excluded);
        let now = self.core.clock.now();
        let second = crate::routing::resolve::resolve_hedge(
            &want,
            &route.endpoint,
            account,
            &self.core.router.health(),
            now,
        )?;
        Some((second, delay))
    }

    fn decide(&self, iteration: &Iteration, outcome: &Outcome, region: &Arc<str>) -> (Action, Effects) {
        let event = match outcome {
            Outcome::Answered(answer) => Event::Answered(answer.status),
            Outcome::Broken(error) => Event::Broken { kind: error.kind, sent: error.sent },
        };
        let kind = self.operation.kind;
        let view = View {
            is_read: kind.is_read(),
            repeat: self.operation.repeat(),
            regions: iteration.account.candidates(self.traffic()).len(),
            is_multi_write: iteration.account.is_multi_write,
            may_have_moved: self.traffic() == Traffic::PartitionWrite
                && iteration.account.has_partition_failover(),
            names_level: iteration.names_level,
            region,
            is_clock_off: matches!(outcome, Outcome::Answered(answer) if self.clock_error(answer).is_some()),
            now: self.core.clock.now(),
        };
        decide(event, &self.state, &view, &self.core.config.retry)
    }

    /// The service's time, when ours is further off than it accepts.
    fn clock_error(&self, answer: &Answer) -> Option<u64> {
        if !matches!(answer.status.code, 401 | 403) {
            return None;
        }
        let theirs = date::parse(text(&answer.headers, header::DATE)?)?;
        let theirs = theirs.duration_since(std::time::UNIX_EPOCH).ok()?.as_secs();
        (theirs.abs_diff(self.core.clock.unix_secs()) > CLOCK_SKEW_SECS).then_some(theirs)
    }

    fn complete(mut self, iteration: &Iteration, outcome: Outcome) -> Response {
        let answer = match outcome {
            Outcome::Answered(answer) => answer,
            Outcome::Broken(_) => unreachable!("only answers complete an operation"),
        };
        self.learn(iteration, &answer);
        if self.operation.kind.is_data()
            && let Some(winner) = self.log.winner()
        {
            let (class, now_ms) = (Class::of(self.operation.kind), self.core.clock.tick_ms());
            self.core.latencies.record(&winner.region, class, winner.elapsed, now_ms);
        }
        self.log.finish(self.call.begun.elapsed(), !iteration.account.gateway2.announced.is_empty());
        Response::new(answer.status, answer.headers, answer.body, self.log)
    }

    fn learn(&self, iteration: &Iteration, answer: &Answer) {
        if self.operation.kind.is_data()
            && let Some(container) = &self.operation.container
            && let Some(token) = answer.headers.get(header::SESSION_TOKEN)
        {
            container.learn(token);
            let asked = iteration.range.as_ref().map(|(range, _)| range.as_bytes());
            let is_as_asked = asked.is_none_or(|asked| {
                token.as_bytes().strip_prefix(asked).is_some_and(|rest| rest.starts_with(b":"))
            });
            // Requests by key are answered whichever range has it: nothing else tells that ranges have changed.
            if !is_as_asked && container.sessions.has_unlisted() {
                self.list_ranges(container);
            }
        }
    }

    /// An attempt that could not be made changes nothing about those before it: one of them may have been executed.
    fn unsent(mut self, iteration: &Iteration, error: Error) -> Error {
        let is_unknown = error.may_have_been_applied() || self.state.has_unknown || self.budget.has_unknown;
        self.log.merge(error.diagnostics().clone());
        self.log.finish(self.call.begun.elapsed(), !iteration.account.gateway2.announced.is_empty());
        error
            .with_activity_id(build::activity_text(&self.activity))
            .with_applied(is_unknown && !self.operation.kind.is_read())
            .with_diagnostics(self.log)
    }

    fn fail(mut self, iteration: &Iteration, outcome: Outcome, is_unknown: bool) -> Error {
        self.log.finish(self.call.begun.elapsed(), !iteration.account.gateway2.announced.is_empty());
        let error = match outcome {
            Outcome::Answered(answer) => {
                // "Not there" and "conflict" are reads of the state too.
                if matches!(answer.status.code, 404 | 409 | 412)
                    && answer.status != Status::READ_SESSION_NOT_AVAILABLE
                {
                    self.learn(iteration, &answer);
                }
                let (retry_after, ru) = (answer.retry_after(), charge(&answer.headers));
                Error::answered(answer.status, answer.body).with_retry_after(retry_after).with_charge(ru)
            }
            Outcome::Broken(HttpError { kind: HttpErrorKind::Deadline, message, .. }) => {
                Error::deadline(message.to_string())
            }
            Outcome::Broken(HttpError { kind: HttpErrorKind::TooLarge, message, .. }) => {
                Error::protocol(message.to_string())
            }
            Outcome::Broken(error) => Error::connection(error.message.to_string()),
        };
        error
            .with_activity_id(build::activity_text(&self.activity))
            .with_applied(is_unknown && !self.operation.kind.is_read())
            .with_diagnostics(self.log)
    }
}

/// The level that a strategy amounts to, as far as session tokens are concerned; refused where the account cannot do it.
fn level_of(
    strategy: ReadConsistencyStrategy,
    account: &AccountRoutes,
) -> Result<Option<Consistency>, Error> {
    match strategy {
        ReadConsistencyStrategy::Default => Ok(account.consistency),
        ReadConsistencyStrategy::Session => Ok(Some(Consistency::Session)),
        ReadConsistencyStrategy::Eventual => Ok(Some(Consistency::Eventual)),
        ReadConsistencyStrategy::LatestCommitted => Ok(None),
        ReadConsistencyStrategy::GlobalStrong if account.consistency == Some(Consistency::Strong) => {
            Ok(Some(Consistency::Strong))
        }
        ReadConsistencyStrategy::GlobalStrong => {
            let level = account.consistency.map_or("unknown", Consistency::as_str);
            Err(Error::bad_request(format!(
                "a read with GlobalStrong needs an account whose default consistency is Strong; this one's is {level}"
            )))
        }
    }
}

/// The service accepts a quarter of an hour; a few minutes off is worth correcting when it has refused us.
const CLOCK_SKEW_SECS: u64 = 240;
const PROBE_CLAIMS_MAX: usize = 8;
