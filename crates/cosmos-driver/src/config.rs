//! Configuration, grouped by concern. Every field does something and says why its default is what it is.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use crate::error::Error;
use crate::options::ReadConsistencyStrategy;
use crate::proxy::Proxy;
use crate::transport::TransportPlug;

/// Everything that can be set about a driver besides its endpoint and credential.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Config {
    /// Where requests go.
    pub regions: Regions,
    /// How long things may take.
    pub timeouts: Timeouts,
    /// How often things are tried.
    pub retry: Retry,
    /// Sockets, TLS and protocol.
    pub connections: Connections,
    /// Connections per endpoint and their health.
    pub sharding: Sharding,
    /// The second request when the first is slow.
    pub hedging: Hedging,
    /// Avoiding a bad partition in one region.
    pub breaker: Breaker,
    /// What the account must promise. Default: nothing.
    pub requirements: Requirements,
    /// How items are read where a call does not say. Default: as the account promises.
    pub read_consistency: ReadConsistencyStrategy,
    /// Whether the process's environment fills in what is not set here. Default: it does.
    pub environment: Environment,
    /// Appended to the user agent, so that the service's logs tell applications apart.
    pub application_name: Option<String>,
    /// Seed of all random choices (jitter, ids). Default: taken from the system.
    pub seed: Option<u64>,
    /// What carries requests in place of sockets. Default: none, the driver opens its own connections, and `connections`
    /// says how.
    pub transport: Option<TransportPlug>,
}

/// Whether a driver reads the environment of its process when it is built.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Environment {
    /// Settings that have their default are taken from the variables of [`Config::with_env`]; those that were set to
    /// something else stay. A variable whose value cannot be used fails the build of the driver, and is named.
    #[default]
    Fill,
    /// It is not looked at. Proxies of the environment have a switch of their own, [`Connections::proxy`].
    Ignore,
}

/// Where requests go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Regions {
    /// Regions to use, best first. Default: the account's own order.
    pub preferred: Vec<String>,
    /// Regions never used unless nothing else is left.
    pub excluded: Vec<String>,
    /// Domains, besides the account's own, whose hosts an account document may name as regions. Signed requests and
    /// tokens go to no others. Default: none; needed when the account is reached by a name that is not its own.
    pub trusted_domains: Vec<String>,
}

/// What the account must promise. The account's document says what it does promise, and it is read again from time to
/// time: while it promises less, the driver is not built, and a driver that runs refuses every operation with
/// [`ErrorKind::AccountUnfit`](crate::ErrorKind::AccountUnfit) before it is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Requirements {
    /// Reads see all that this driver has written and read before. Reads of items then ask for session consistency,
    /// also on accounts of bounded staleness; those of strong accounts stay strong.
    pub session_reads: bool,
    /// All clients write in the same region.
    pub single_write: bool,
}

/// How long things may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// One operation with all its retries. Default 30 s: longer than any failover the driver waits for.
    pub operation: Duration,
    /// One attempt at a point operation. Default 6 s: the service itself gives up after 5 s.
    pub attempt: Duration,
    /// One attempt at a query page, feed page or batch. Default 10 s.
    pub feed_attempt: Duration,
    /// One attempt at what the driver has to know before it can ask for items: the account, a container, its ranges, the
    /// plan of a query. Default 5 s: small answers, and another region has them as well.
    pub metadata_attempt: Duration,
    /// How often the account's regions are read again. Default 5 min.
    pub account_refresh: Duration,
    /// Least time between two account reads on demand. Default 5 s.
    pub account_refresh_min: Duration,
    /// How long an endpoint that refused connections is avoided before it is probed. Default 60 s.
    pub endpoint_unavailable: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            operation: Duration::from_secs(30),
            attempt: Duration::from_secs(6),
            feed_attempt: Duration::from_secs(10),
            metadata_attempt: Duration::from_secs(5),
            account_refresh: Duration::from_secs(300),
            account_refresh_min: Duration::from_secs(5),
            endpoint_unavailable: Duration::from_secs(60),
        }
    }
}

/// How often things are tried. One budget covers all layers of one operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retry {
    /// Attempts of one operation altogether. Default 20: a bound, not a goal.
    pub attempts_max: u32,
    /// Retries after 429. Default 9.
    pub throttle_max: u32,
    /// Time spent waiting on 429 altogether. Default 30 s.
    pub throttle_wait_max: Duration,
    /// Retries in another region. Default 3.
    pub regions_max: u32,
    /// Retries when the service says the session's writes have not arrived. Default 5.
    pub session_max: u32,
    /// First pause of every exponential backoff. Default 20 ms.
    pub backoff: Duration,
    /// Longest single pause. Default 2 s.
    pub backoff_max: Duration,
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            attempts_max: 20,
            throttle_max: 9,
            throttle_wait_max: Duration::from_secs(30),
            regions_max: 3,
            session_max: 5,
            backoff: Duration::from_millis(20),
            backoff_max: Duration::from_secs(2),
        }
    }
}

/// Sockets, TLS and protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connections {
    /// Which HTTP versions to speak. Default: whatever the endpoint agrees to, HTTP/2 first.
    pub negotiation: Negotiation,
    /// Whether operations on items go by the Gateway 2.0 endpoints of an account that offers them; its other endpoints
    /// stay the fallback. Default true. They need HTTP/2 and sockets: with `negotiation` HTTP/1.1, or with a transport of
    /// your own, they are not used.
    pub gateway2: bool,
    /// Whom to trust. Default: the system's roots.
    pub certificates: Certificates,
    /// Opening one connection, with TLS and protocol. Default 5 s.
    pub connect_timeout: Duration,
    /// TCP keepalive, and HTTP/2 pings while idle. Default 30 s.
    pub tcp_keepalive: Duration,
    /// Silence on a busy HTTP/2 connection before it is pinged. Default 200 ms.
    pub ping_after: Duration,
    /// Time for a ping to be answered before the connection is given up. Default 1 s. Requests that may be repeated
    /// leave after a quarter of it.
    pub ping_timeout: Duration,
    /// Bytes of one answer's body that are taken; a longer one fails the operation at once. Default 16 MiB: the service
    /// ends its pages and batches at 4 MB, and nothing else it answers is as large.
    pub response_bytes_max: usize,
    /// The proxy on the way to endpoints. Default: the one that the environment names, if any.
    pub proxy: Proxy,
    /// The address of this machine that connections come from. Default: the system's choice.
    pub local_address: Option<IpAddr>,
}

impl Default for Connections {
    fn default() -> Self {
        Self {
            negotiation: Negotiation::Adaptive,
            gateway2: true,
            certificates: Certificates::System,
            connect_timeout: Duration::from_secs(5),
            tcp_keepalive: Duration::from_secs(30),
            ping_after: Duration::from_millis(200),
            ping_timeout: Duration::from_secs(1),
            response_bytes_max: 16 << 20,
            proxy: Proxy::Environment,
            local_address: None,
        }
    }
}

/// Which HTTP versions to speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Negotiation {
    /// ALPN on TLS; on plain HTTP, HTTP/2 by prior knowledge, else HTTP/1.1.
    Adaptive,
    /// HTTP/1.1 and nothing else.
    Http1Only,
    /// HTTP/2 and nothing else.
    Http2Only,
}

/// Whose certificates are accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Certificates {
    /// The system's roots; loopback endpoints are not checked, since nobody certifies those.
    System,
    /// These roots (DER) and no others, loopback included.
    Trust(Vec<Vec<u8>>),
    /// Anything. Only for an emulator on another machine.
    DangerouslyAcceptAny,
}

/// Connections per endpoint and their health.
#[derive(Clone, Debug, PartialEq)]
pub struct Sharding {
    /// Requests an HTTP/2 connection carries before another is used. Default 16, below the service's 20.
    pub streams_target: u32,
    /// Requests it carries when no further connection may be opened. Default 20, the service's limit.
    pub streams_max: u32,
    /// HTTP/2 connections per endpoint. Default twice the processors, 32 where those cannot be counted.
    pub connections_max: usize,
    /// Connections kept open once used. Default 1.
    pub connections_min: usize,
    /// HTTP/1.1 connections per endpoint. Default 256.
    pub http1_connections_max: usize,
    /// Connections per endpoint, above the others, for metadata alone (see [`Timeouts::metadata_attempt`]): opened when
    /// all are full and an operation has to ask where to send requests. Default 1.
    pub metadata_connections: usize,
    /// Share of `streams_target` in use at which the next connection is opened in advance. Default 0.75.
    pub growth_threshold: f64,
    /// Unused connections above the minimum close after this. Default 60 s.
    pub idle_timeout: Duration,
    /// Time between health checks. Default 10 s.
    pub sweep_interval: Duration,
    /// Silence under load after which a connection is given up. Default 15 s; pings usually notice first.
    pub read_hang: Duration,
    /// Failures in a row, while others succeed, after which a connection is given up. Default 5.
    pub failure_threshold: u32,
    /// Time after a success in which failures are forgiven. Default 2 s.
    pub eviction_grace: Duration,
    /// Time that requests on a connection which is given up for its failures have to end. Default 5 s. One from which
    /// nothing comes any more is closed at once.
    pub drain_timeout: Duration,
    /// Machine load above which slow connections are not blamed. Default 0.9.
    pub cpu_guard: f64,
}

impl Default for Sharding {
    fn default() -> Self {
        Self {
            streams_target: 16,
            streams_max: 20,
            connections_max: std::thread::available_parallelism().map_or(32, |cpus| cpus.get() * 2),
            connections_min: 1,
            http1_connections_max: 256,
            metadata_connections: 1,
            growth_threshold: 0.75,
            idle_timeout: Duration::from_secs(60),
            sweep_interval: Duration::from_secs(10),
            read_hang: Duration::from_secs(15),
            failure_threshold: 5,
            eviction_grace: Duration::from_secs(2),
            drain_timeout: Duration::from_secs(5),
            cpu_guard: 0.9,
        }
    }
}

/// The second request when the first is slow.
#[derive(Clone, Debug, PartialEq)]
pub struct Hedging {
    /// Whether to hedge at all. Default on: point reads and queries everywhere; on accounts that write in several regions
    /// also writes that do no harm when two regions take them: replace and delete under an ETag, and what the caller
    /// allows with [`OnUnknown::Repeat`](crate::OnUnknown::Repeat). Creates, upserts, patches and batches never race
    /// otherwise: both regions would take them, and the account would have a conflict to resolve.
    pub mode: HedgingMode,
    /// Turns hedging off, and on again, while drivers run: one for all drivers that were given clones of it.
    /// [`HedgingSwitch::of_process`] does so for all drivers there are, whatever they were given, and
    /// `AZURE_COSMOS_HEDGING_THRESHOLD_MS=0` from their start.
    pub switch: HedgingSwitch,
    /// Hedges per primary request, as a share. Default 0.1: a slow region costs at most a tenth more.
    pub budget: f64,
    /// Hedges that may be saved up. Default 20.
    pub budget_max: u32,
}

impl Default for Hedging {
    fn default() -> Self {
        Self { mode: HedgingMode::default(), switch: HedgingSwitch::default(), budget: 0.1, budget_max: 20 }
    }
}

/// Says to the drivers that share it whether they may hedge. On by default.
#[derive(Clone, Debug)]
pub struct HedgingSwitch(Arc<AtomicBool>);

impl Default for HedgingSwitch {
    fn default() -> Self {
        Self(Arc::new(AtomicBool::new(true)))
    }
}

impl HedgingSwitch {
    /// The switch that every driver of this process obeys, besides the one it was given.
    pub fn of_process() -> Self {
        OF_PROCESS.clone()
    }

    /// Lets the drivers that share this switch hedge as they are configured.
    pub fn turn_on(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Lets none of them hedge, whatever their configuration or a call says.
    pub fn turn_off(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    /// Whether this one and that of the process let a driver hedge.
    pub(crate) fn allows(&self) -> bool {
        self.is_on() && OF_PROCESS.is_on()
    }

    fn is_on(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

static OF_PROCESS: LazyLock<HedgingSwitch> = LazyLock::new(HedgingSwitch::default);

/// Equal while they say the same.
impl PartialEq for HedgingSwitch {
    fn eq(&self, other: &Self) -> bool {
        self.is_on() == other.is_on()
    }
}

/// When the second request starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HedgingMode {
    /// Never.
    Off,
    /// After a fixed time.
    After(Duration),
    /// After the recent 99th percentile, within these bounds; 50 ms and 4 s always bound it as well.
    Dynamic {
        /// Not before this.
        min: Duration,
        /// Not after this.
        max: Duration,
    },
}

impl Default for HedgingMode {
    fn default() -> Self {
        Self::Dynamic { min: HEDGE_MIN, max: HEDGE_MAX }
    }
}

/// No hedge starts earlier than this.
pub(crate) const HEDGE_MIN: Duration = Duration::from_millis(50);
/// No hedge starts later than this.
pub(crate) const HEDGE_MAX: Duration = Duration::from_secs(4);

/// Avoiding a bad partition in one region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Breaker {
    /// Failed reads in a row that open it. Default 2.
    pub read_failures: u32,
    /// Failed writes in a row that open it. Default 5.
    pub write_failures: u32,
    /// Races lost in a row to another region that open it: slow is a failure too. Default 5.
    pub lost_races: u32,
    /// Failures further apart than this do not add up. Default 5 min.
    pub window: Duration,
    /// Time open before one request may try again. Default 5 s.
    pub probe_after: Duration,
    /// Time between background passes that close what has been quiet. Default 300 s.
    pub failback: Duration,
}

impl Default for Breaker {
    fn default() -> Self {
        Self {
            read_failures: 2,
            write_failures: 5,
            lost_races: 5,
            window: Duration::from_secs(300),
            probe_after: Duration::from_secs(5),
            failback: Duration::from_secs(300),
        }
    }
}

impl Config {
    /// Whether endpoints of Gateway 2.0 can be used, if there are any.
    pub(crate) fn has_gateway2(&self) -> bool {
        self.connections.gateway2
            && self.connections.negotiation != Negotiation::Http1Only
            && self.transport.is_none()
    }

    /// Lays the environment over this configuration, also over what was set. A driver that is built does the same with
    /// settings that have their default, so that applications need not call this; see [`Environment`].
    ///
    /// | variable | sets |
    /// |---|---|
    /// | `AZURE_COSMOS_MAX_STREAMS_PER_CLIENT` | `sharding.streams_target` (and `streams_max` if lower) |
    /// | `AZURE_COSMOS_MAX_CLIENTS_PER_ENDPOINT` | `sharding.connections_max` |
    /// | `AZURE_COSMOS_SHARD_IDLE_TIMEOUT_SECS` | `sharding.idle_timeout` |
    /// | `AZURE_COSMOS_HEDGING_THRESHOLD_MS` | `hedging.mode`, a fixed time; 0 turns it off |
    ///
    /// # Errors
    /// When a variable is set to something that is not a number in its range.
    pub fn with_env(self) -> Result<Self, Error> {
        self.with_lookup(variable, |_, _| true)
    }

    /// Takes from the environment what has its default, if this configuration allows it.
    pub(crate) fn filled(self, lookup: impl Fn(&str) -> Option<String>) -> Result<Self, Error> {
        let default = Self::default();
        match self.environment {
            Environment::Fill => self.with_lookup(lookup, |config, is_same| is_same(config, &default)),
            Environment::Ignore => Ok(self),
        }
    }

    /// Every variable must be usable; those that `wants` says are used.
    fn with_lookup(
        mut self,
        lookup: impl Fn(&str) -> Option<String>,
        wants: impl Fn(&Self, Same) -> bool,
    ) -> Result<Self, Error> {
        let given = self.clone();
        for (name, range, is_same, set) in ENVIRONMENT {
            let Some(text) = lookup(name) else { continue };
            let value =
                text.trim().parse::<u64>().ok().filter(|value| range.contains(value)).ok_or_else(|| {
                    let (low, high) = (range.start(), range.end());
                    Error::configuration(format!(
                        "{name}={text:?}: write a whole number from {low} to {high}"
                    ))
                })?;
            if wants(&given, is_same) {
                set(&mut self, value);
            }
        }
        Ok(self)
    }

    /// Makes times that are meant to be endless ones that can be added to the clock.
    pub(crate) fn bound(&mut self) {
        let Self { timeouts, retry, breaker, .. } = self;
        for time in [
            &mut timeouts.operation,
            &mut timeouts.attempt,
            &mut timeouts.feed_attempt,
            &mut timeouts.metadata_attempt,
            &mut timeouts.account_refresh,
            &mut timeouts.account_refresh_min,
            &mut timeouts.endpoint_unavailable,
            &mut retry.throttle_wait_max,
            &mut retry.backoff,
            &mut retry.backoff_max,
            &mut breaker.window,
            &mut breaker.probe_after,
            &mut breaker.failback,
        ] {
            *time = (*time).min(FOREVER);
        }
    }

    pub(crate) fn validate(&self) -> Result<(), Error> {
        let sharding = &self.sharding;
        let rules = [
            (sharding.streams_target >= 1, "sharding.streams_target must be at least 1"),
            (sharding.connections_max >= 1, "sharding.connections_max must be at least 1"),
            (sharding.http1_connections_max >= 1, "sharding.http1_connections_max must be at least 1"),
            (
                sharding.connections_min <= sharding.connections_max,
                "sharding.connections_min must not exceed sharding.connections_max",
            ),
            (
                (0.0..=1.0).contains(&sharding.growth_threshold),
                "sharding.growth_threshold must be within 0..=1",
            ),
            ((0.0..=1.0).contains(&sharding.cpu_guard), "sharding.cpu_guard must be within 0..=1"),
            (
                !(self.requirements.session_reads
                    && self.read_consistency == ReadConsistencyStrategy::Eventual),
                "read_consistency Eventual does not give what requirements.session_reads asks for",
            ),
            (!sharding.sweep_interval.is_zero(), "sharding.sweep_interval must not be zero"),
            ((0.0..=1.0).contains(&self.hedging.budget), "hedging.budget must be within 0..=1"),
            (!self.timeouts.operation.is_zero(), "timeouts.operation must not be zero"),
            (!self.timeouts.attempt.is_zero(), "timeouts.attempt must not be zero"),
            (!self.timeouts.feed_attempt.is_zero(), "timeouts.feed_attempt must not be zero"),
            (!self.timeouts.metadata_attempt.is_zero(), "timeouts.metadata_attempt must not be zero"),
            (!self.timeouts.account_refresh.is_zero(), "timeouts.account_refresh must not be zero"),
            (!self.connections.ping_after.is_zero(), "connections.ping_after must not be zero"),
            (self.connections.response_bytes_max >= 1, "connections.response_bytes_max must be at least 1"),
            (self.retry.attempts_max >= 1, "retry.attempts_max must be at least 1"),
            (self.breaker.read_failures >= 1, "breaker.read_failures must be at least 1"),
            (self.breaker.write_failures >= 1, "breaker.write_failures must be at least 1"),
            (self.breaker.lost_races >= 1, "breaker.lost_races must be at least 1"),
            (!self.breaker.failback.is_zero(), "breaker.failback must not be zero"),
        ];
        match rules.iter().find(|(holds, _)| !holds) {
            Some((_, text)) => Err(Error::configuration(*text)),
            None => Ok(()),
        }
    }
}

/// A time longer than this has no end; adding it to the clock must not overflow.
pub(crate) const FOREVER: Duration = Duration::from_secs(30 * 365 * 86_400);

/// A variable of this process; one that is no text is text that no setting understands.
pub(crate) fn variable(name: &str) -> Option<String> {
    std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
}

type Same = fn(&Config, &Config) -> bool;
type Setter = fn(&mut Config, u64);

/// The one table of environment variables.
const ENVIRONMENT: [(&str, std::ops::RangeInclusive<u64>, Same, Setter); 4] = [
    (
        "AZURE_COSMOS_MAX_STREAMS_PER_CLIENT",
        1..=10_000,
        |a, b| a.sharding.streams_target == b.sharding.streams_target,
        |config, value| {
            let streams = u32::try_from(value).unwrap_or(u32::MAX);
            config.sharding.streams_target = streams;
            config.sharding.streams_max = config.sharding.streams_max.max(streams);
        },
    ),
    (
        "AZURE_COSMOS_MAX_CLIENTS_PER_ENDPOINT",
        1..=10_000,
        |a, b| a.sharding.connections_max == b.sharding.connections_max,
        |config, value| {
            config.sharding.connections_max = usize::try_from(value).unwrap_or(usize::MAX);
            config.sharding.connections_min =
                config.sharding.connections_min.min(config.sharding.connections_max);
        },
    ),
    (
        "AZURE_COSMOS_SHARD_IDLE_TIMEOUT_SECS",
        1..=86_400,
        |a, b| a.sharding.idle_timeout == b.sharding.idle_timeout,
        |config, value| {
            config.sharding.idle_timeout = Duration::from_secs(value);
        },
    ),
    (
        "AZURE_COSMOS_HEDGING_THRESHOLD_MS",
        0..=60_000,
        |a, b| a.hedging.mode == b.hedging.mode,
        |config, value| {
            config.hedging.mode = match value {
                0 => HedgingMode::Off,
                ms => HedgingMode::After(Duration::from_millis(ms)),
            };
        },
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn from(pairs: &[(&str, &str)]) -> Result<Config, Error> {
        Config::default()
            .filled(|name| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn defaults_hold_together() {
        Config::default().validate().expect("defaults are valid");
    }

    #[test]
    fn each_variable_sets_its_field() {
        let config = from(&[
            ("AZURE_COSMOS_MAX_STREAMS_PER_CLIENT", "8"),
            ("AZURE_COSMOS_MAX_CLIENTS_PER_ENDPOINT", "3"),
            ("AZURE_COSMOS_SHARD_IDLE_TIMEOUT_SECS", "7"),
            ("AZURE_COSMOS_HEDGING_THRESHOLD_MS", "120"),
        ])
        .expect("all valid");
        assert_eq!(config.sharding.streams_target, 8);
        assert_eq!(config.sharding.connections_max, 3);
        assert_eq!(config.sharding.idle_timeout, Duration::from_secs(7));
        assert_eq!(config.hedging.mode, HedgingMode::After(Duration::from_millis(120)));
        let off = from(&[("AZURE_COSMOS_HEDGING_THRESHOLD_MS", "0")]).expect("valid");
        assert_eq!(off.hedging.mode, HedgingMode::Off);
    }

    #[test]
    fn what_the_code_sets_stays_and_a_wrong_variable_is_an_error_all_the_same() {
        let mut config = Config::default();
        config.sharding.idle_timeout = Duration::from_secs(7);
        let all = |value: &str| {
            let value = value.to_owned();
            move |_: &str| Some(value.clone())
        };
        let filled = config.clone().filled(all("9")).expect("usable");
        assert_eq!(filled.sharding.idle_timeout, Duration::from_secs(7), "set in code");
        assert_eq!(filled.sharding.connections_max, 9, "left to the environment");
        let over = config.clone().with_lookup(all("9"), |_, _| true).expect("usable");
        assert_eq!(over.sharding.idle_timeout, Duration::from_secs(9));
        assert!(config.clone().filled(all("some")).is_err());
        config.environment = Environment::Ignore;
        assert_eq!(config.clone().filled(all("some")).expect("not looked at"), config);
    }

    #[test]
    fn nonsense_is_refused_and_named() {
        for (name, value) in [
            ("AZURE_COSMOS_MAX_STREAMS_PER_CLIENT", "many"),
            ("AZURE_COSMOS_MAX_STREAMS_PER_CLIENT", "0"),
            ("AZURE_COSMOS_MAX_CLIENTS_PER_ENDPOINT", "-1"),
            ("AZURE_COSMOS_SHARD_IDLE_TIMEOUT_SECS", ""),
            ("AZURE_COSMOS_HEDGING_THRESHOLD_MS", "1e9"),
        ] {
            let error = from(&[(name, value)]).expect_err(name);
            assert!(error.to_string().contains(name), "{error}");
        }
    }

    #[test]
    fn broken_rules_are_named() {
        let mut config = Config::default();
        config.sharding.streams_target = 0;
        assert!(config.validate().expect_err("invalid").to_string().contains("streams_target"));
    }
}
