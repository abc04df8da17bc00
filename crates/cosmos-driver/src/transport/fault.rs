//! Faults on purpose: a rule picks requests, its fault breaks them. Wraps one connection, below slots and pools, so
//! that everything above reacts as it would to the network.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use cosmos_wire::header;
use http::{HeaderMap, HeaderValue, StatusCode};
use tokio::time::{Instant, sleep};

use super::{Call, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService, Label, Progress, Sent};
use crate::clock::Clock;

/// What happens to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// It is answered with a status, without being sent.
    Status {
        /// HTTP status.
        code: u16,
        /// Cosmos sub-status; 0 for none.
        sub_status: u32,
        /// `x-ms-retry-after-ms`.
        retry_after: Option<Duration>,
    },
    /// It is sent after a while.
    Delay(Duration),
    /// The connection ends before it is sent.
    ResetBefore,
    /// It is sent and executed, but the answer is lost with the connection.
    LostAnswer,
    /// Nothing ever comes back.
    Hang,
    /// A connection is not opened. Strikes connections, not requests: only [`Rule::endpoint`], [`Rule::shard`] and what
    /// counts or times apply.
    RefuseConnect,
    /// A connection is opened after a while. Strikes connections, as `RefuseConnect`.
    SlowConnect(Duration),
}

impl Fault {
    fn is_about_connecting(&self) -> bool {
        match self {
            Self::RefuseConnect | Self::SlowConnect(_) => true,
            Self::Status { .. } | Self::Delay(_) | Self::ResetBefore | Self::LostAnswer | Self::Hang => false,
        }
    }
}

/// Which requests are picked, and what happens to them. Absent conditions match everything.
#[derive(Clone, Debug)]
#[must_use]
pub struct Rule {
    fault: Fault,
    operation: Option<String>,
    region: Option<String>,
    container: Option<String>,
    shard: Option<u32>,
    endpoint: Option<String>,
    after: Duration,
    lasting: Option<Duration>,
    probability: f64,
    skip: u64,
    times: u64,
}

impl Rule {
    /// Every request gets this fault.
    pub fn new(fault: Fault) -> Self {
        Self {
            fault,
            operation: None,
            region: None,
            container: None,
            shard: None,
            endpoint: None,
            after: Duration::ZERO,
            lasting: None,
            probability: 1.0,
            skip: 0,
            times: u64::MAX,
        }
    }

    /// Every request is answered with this status.
    pub fn status(code: u16, sub_status: u32) -> Self {
        Self::new(Fault::Status { code, sub_status, retry_after: None })
    }

    /// Only this operation, such as `read_item` or `batch`.
    pub fn operation(mut self, name: impl Into<String>) -> Self {
        self.operation = Some(name.into());
        self
    }

    /// Only requests to this region.
    pub fn region(mut self, name: impl Into<String>) -> Self {
        self.region = Some(name.into());
        self
    }

    /// Only this container, as `database/container`.
    pub fn container(mut self, name: impl Into<String>) -> Self {
        self.container = Some(name.into());
        self
    }

    /// Only this connection of an endpoint.
    pub fn shard(mut self, id: u32) -> Self {
        self.shard = Some(id);
        self
    }

    /// Only this endpoint, as scheme, host and port: `https://account-westeurope.documents.azure.com:443`.
    pub fn endpoint(mut self, endpoint: impl Into<String>) -> Self {
        self.endpoint = Some(endpoint.into().trim_end_matches('/').to_owned());
        self
    }

    /// Not before so much time has passed since the rule was added.
    pub fn after(mut self, delay: Duration) -> Self {
        self.after = delay;
        self
    }

    /// Only for so long, from when it is first in force.
    pub fn lasting(mut self, time: Duration) -> Self {
        self.lasting = Some(time);
        self
    }

    /// Each with this chance, by the driver's own dice.
    pub fn probability(mut self, chance: f64) -> Self {
        self.probability = chance;
        self
    }

    /// Lets the first ones pass.
    pub fn skip(mut self, requests: u64) -> Self {
        self.skip = requests;
        self
    }

    /// Only so many of them.
    pub fn times(mut self, requests: u64) -> Self {
        self.times = requests;
        self
    }

    /// Whether it asks for nothing that only a request has.
    fn is_for_all(&self) -> bool {
        self.operation.is_none() && self.region.is_none() && self.container.is_none()
    }

    /// Whether it is in force so long after it was added. Pure.
    fn is_in_force(&self, age: Duration) -> bool {
        age >= self.after && self.lasting.is_none_or(|time| age - self.after < time)
    }

    fn matches_connection(&self, connection: &ConnectionName) -> bool {
        self.shard.is_none_or(|wanted| wanted == connection.shard)
            && self.endpoint.as_deref().is_none_or(|wanted| wanted == &*connection.endpoint)
    }

    fn matches(&self, label: &Label, connection: &ConnectionName) -> bool {
        let is = |wanted: &Option<String>, actual: Option<&str>| {
            wanted.as_deref().is_none_or(|wanted| actual == Some(wanted))
        };
        is(&self.operation, Some(label.operation))
            && is(&self.region, label.region.as_deref())
            && is(&self.container, label.container.as_deref())
            && self.matches_connection(connection)
    }
}

/// One connection, as rules see it.
#[derive(Clone, Debug)]
pub(super) struct ConnectionName {
    pub(super) endpoint: Arc<str>,
    pub(super) shard: u32,
}

/// The rules of one driver. Judged in order; the first that strikes wins.
#[derive(Debug, Default)]
pub struct Faults {
    rules: Mutex<Vec<Arc<Installed>>>,
}

#[derive(Debug)]
struct Installed {
    rule: Rule,
    added: Instant,
    matched: AtomicU64,
    struck: AtomicU64,
}

/// Keeps a rule in force; dropping it removes the rule.
#[derive(Debug)]
#[must_use]
pub struct RuleGuard {
    faults: Arc<Faults>,
    installed: Arc<Installed>,
}

impl RuleGuard {
    /// How many requests were struck so far.
    #[must_use]
    pub fn struck(&self) -> u64 {
        self.installed.struck.load(Ordering::Relaxed)
    }
}

impl Drop for RuleGuard {
    fn drop(&mut self) {
        self.faults.lock().retain(|rule| !Arc::ptr_eq(rule, &self.installed));
    }
}

impl Faults {
    /// No rules yet.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Puts a rule in force until its guard is dropped.
    pub fn add(self: &Arc<Self>, rule: Rule) -> RuleGuard {
        let installed = Arc::new(Installed {
            rule,
            added: Instant::now(),
            matched: AtomicU64::new(0),
            struck: AtomicU64::new(0),
        });
        self.lock().push(installed.clone());
        RuleGuard { faults: self.clone(), installed }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Installed>>> {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn judge(&self, label: &Label, connection: &ConnectionName, clock: &Clock) -> Option<Fault> {
        self.pick(clock, |rule| !rule.fault.is_about_connecting() && rule.matches(label, connection))
    }

    /// What becomes of a connection that is about to be opened: nothing, a pause, or no connection.
    pub(super) async fn before_connect(
        &self,
        connection: &ConnectionName,
        clock: &Clock,
    ) -> Result<(), HttpError> {
        let is_about = |rule: &Rule| {
            rule.fault.is_about_connecting() && rule.is_for_all() && rule.matches_connection(connection)
        };
        match self.pick(clock, is_about) {
            Some(Fault::SlowConnect(delay)) => {
                sleep(delay).await;
                Ok(())
            }
            Some(Fault::RefuseConnect) => {
                let why = "fault: the connection was refused";
                Err(HttpError::new(HttpErrorKind::Connect, Sent::No, why))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// The fault of the first rule that is meant and strikes.
    fn pick(&self, clock: &Clock, is_meant: impl Fn(&Rule) -> bool) -> Option<Fault> {
        self.lock().iter().find_map(|installed| {
            let rule = &installed.rule;
            if !is_meant(rule) || !rule.is_in_force(installed.added.elapsed()) {
                return None;
            }
            let nth = installed.matched.fetch_add(1, Ordering::Relaxed);
            let is_counted = nth >= rule.skip && installed.struck.load(Ordering::Relaxed) < rule.times;
            if !is_counted || (rule.probability < 1.0 && clock.fraction() >= rule.probability) {
                return None;
            }
            installed.struck.fetch_add(1, Ordering::Relaxed);
            Some(rule.fault.clone())
        })
    }
}

/// A connection under rules.
pub(super) struct Faulty {
    inner: Arc<dyn HttpService>,
    faults: Arc<Faults>,
    connection: ConnectionName,
    clock: Clock,
}

impl Faulty {
    pub(super) fn wrap(
        inner: Arc<dyn HttpService>,
        faults: Arc<Faults>,
        connection: ConnectionName,
        clock: Clock,
    ) -> Arc<dyn HttpService> {
        Arc::new(Self { inner, faults, connection, clock })
    }

    async fn strike(
        &self,
        fault: Fault,
        request: HttpRequest,
        progress: &Progress,
    ) -> Result<HttpResponse, HttpError> {
        match fault {
            Fault::Status { code, sub_status, retry_after } => Ok(answer(code, sub_status, retry_after)),
            Fault::Delay(delay) => {
                sleep(delay).await;
                self.inner.call(request, progress).await
            }
            Fault::ResetBefore => {
                self.inner.kill();
                Err(HttpError::new(
                    HttpErrorKind::Closed,
                    Sent::No,
                    "fault: connection ended before the request",
                ))
            }
            Fault::LostAnswer => {
                let _lost = self.inner.call(request, progress).await?;
                self.inner.kill();
                Err(HttpError::new(HttpErrorKind::Closed, Sent::Unknown, "fault: the answer was lost"))
            }
            Fault::Hang => {
                progress.mark_sent();
                std::future::pending().await
            }
            // Never picked for a request.
            Fault::RefuseConnect | Fault::SlowConnect(_) => self.inner.call(request, progress).await,
        }
    }
}

impl HttpService for Faulty {
    fn call<'a>(&'a self, request: HttpRequest, progress: &'a Progress) -> Call<'a> {
        match self.faults.judge(&request.label, &self.connection, &self.clock) {
            None => self.inner.call(request, progress),
            Some(fault) => Box::pin(self.strike(fault, request, progress)),
        }
    }

    fn capacity(&self) -> u32 {
        self.inner.capacity()
    }

    fn is_suspect(&self) -> bool {
        self.inner.is_suspect()
    }

    fn is_closed(&self) -> bool {
        self.inner.is_closed()
    }

    fn kill(&self) {
        self.inner.kill();
    }
}

fn answer(code: u16, sub_status: u32, retry_after: Option<Duration>) -> HttpResponse {
    let mut headers = HeaderMap::new();
    if sub_status != 0 {
        headers.insert(header::SUBSTATUS, HeaderValue::from(sub_status));
    }
    if let Some(wait) = retry_after {
        let ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        headers.insert(header::RETRY_AFTER_MS, HeaderValue::from(ms));
    }
    HttpResponse {
        status: StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
        headers,
        body: Bytes::from_static(br#"{"code":"Injected","message":"injected by a fault rule"}"#),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_has_its_time() {
        let s = Duration::from_secs;
        let always = Rule::new(Fault::Hang);
        let later = Rule::new(Fault::Hang).after(s(5));
        let window = Rule::new(Fault::Hang).after(s(5)).lasting(s(10));
        for (age, expected) in [
            (0, [true, false, false]),
            (5, [true, true, true]),
            (14, [true, true, true]),
            (15, [true, true, false]),
        ] {
            let now = [&always, &later, &window].map(|rule| rule.is_in_force(s(age)));
            assert_eq!(now, expected, "after {age} s");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn connections_are_struck_by_their_own_rules_only() {
        let faults = Faults::new();
        let clock = Clock::new(Some(1));
        let connection = ConnectionName { endpoint: "http://a:1".into(), shard: 0 };
        let elsewhere = ConnectionName { endpoint: "http://b:1".into(), shard: 0 };
        let request = faults.add(Rule::new(Fault::Hang));
        let refused = faults.add(Rule::new(Fault::RefuseConnect).endpoint("http://a:1/").times(1));
        let never = faults.add(Rule::new(Fault::RefuseConnect).region("East"));
        faults.before_connect(&elsewhere, &clock).await.expect("another endpoint");
        faults.before_connect(&connection, &clock).await.expect_err("refused once");
        faults.before_connect(&connection, &clock).await.expect("once");
        assert_eq!((request.struck(), refused.struck(), never.struck()), (0, 1, 0));
        let _slow = faults.add(Rule::new(Fault::SlowConnect(Duration::from_secs(9))));
        let begun = Instant::now();
        faults.before_connect(&connection, &clock).await.expect("in the end");
        assert_eq!(begun.elapsed(), Duration::from_secs(9));
        assert_eq!(faults.judge(&Label::default(), &connection, &clock), Some(Fault::Hang));
    }
}
