//! Settings of the provider.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use cosmos_wire::endpoint::{has_user, without_user};
use cosmos_wire::{EMULATOR_KEY, EMULATOR_PORT};
use duroxide::providers::ProviderError;

use crate::slot_leases::LeaseProvider;

/// Configuration of [`CosmosDBProvider`](crate::CosmosDBProvider).
///
/// The first eight fields are those of the public crate up to 0.1.10. `Default` leaves endpoint and key empty;
/// construction refuses that with a sentence that says so.
#[derive(Clone)]
pub struct CosmosDBProviderConfig {
    /// Account endpoint, for example `https://my-account.documents.azure.com`.
    pub endpoint: String,
    /// Account key. Never printed.
    pub key: String,
    /// Database; created if missing. Default `duroxide`.
    pub database: String,
    /// Container; created if missing. Default `duroxide`.
    pub container: String,
    /// Kept for compatibility: dispatchers share one finder, so their number need not be known, and it is set in duroxide's
    /// `RuntimeOptions`. Any other number than the default is told in the log, once. Default 1.
    pub orch_concurrency: u32,
    /// Kept for compatibility, as `orch_concurrency`. Default 1.
    pub worker_concurrency: u32,
    /// How often unfinished work is looked for (undelivered messages, half-done deletions). Default 2 s; backs off
    /// to four times that while there is nothing, and to eight times in a fleet of eight and more.
    pub reconciler_interval: Duration,
    /// How old unfinished work must be before another process picks it up. Default 2 s.
    pub reconciler_age_threshold: Duration,
    /// Shortest pause between two searches of a queue for work of other processes. Default 20 ms.
    pub poll_interval_min: Duration,
    /// Longest pause between two searches, reached when idle. Default 1.25 s: an idle runtime stays under two
    /// requests a second per physical partition.
    pub poll_interval_max: Duration,
    /// How long one operation outside a lock may take, retries included. Default 30 s.
    pub operation_timeout: Duration,
    /// How long a consumed message's tombstone guards against a late second delivery. A message may be delivered again as
    /// long as its sender has not noted that it arrived: seconds while any process runs, else until one runs again. So
    /// this should be longer than all processes may be stopped at once. Default 7 days.
    pub tombstone_ttl: Duration,
    /// How long messages to an instance that has not begun wait for its start before they become dead letters, unless a
    /// start that waits for its time is in the queue already. Default 24 hours.
    pub early_mail_retention: Duration,
    /// How long instances are kept after they have ended. A policy that is stored in the container, by
    /// [`set_retention`](crate::CosmosDBProvider::set_retention) or `cdb retention set`, goes before this one. All
    /// processes of a container should have the same. Default: none, everything is kept.
    pub retention: Option<crate::Retention>,
    /// How often one process of the fleet looks for what retention cannot leave to the service. Default 1 hour.
    pub retention_interval: Duration,
    /// What payloads are sealed with before they are stored, and opened with: for example
    /// an `AesGcmCodec`, with the feature `aes-gcm`. Default: none, they are stored as they are.
    pub codec: Option<Arc<dyn crate::PayloadCodec>>,
    /// Whether payloads that are sealed with a key which the codec does not have are handed out as they are stored, instead
    /// of being refused: for tools that look, never for runtimes. Default false.
    pub shows_sealed: bool,
    /// Bytes of history and values kept in memory for instances this process works on. Default 64 MiB.
    pub cache_bytes_max: usize,
    /// Name of this process in lock documents. Default: a random one.
    pub owner: String,
    /// What has to be added to this machine's clock to get the server's, in milliseconds: the first guess, which the
    /// dates of the server's answers put right if they do not allow it. Default 0.
    pub clock_offset_ms: i64,
    /// Who divides the work among the processes that share a container. Default: a
    /// [`CosmosLeaseProvider`](crate::CosmosLeaseProvider), by documents in the container. With
    /// [`NoLeases`](crate::NoLeases) every process looks everywhere.
    pub leases: Option<Arc<dyn LeaseProvider>>,
    /// How long work is left to those who look after it before others may take it. It is also the time within which a lock
    /// is written that is at first only in memory, so it has to be some times as long as a request takes. Default 5 s.
    pub steal_after: Duration,
    /// How long the others leave a process its part of the work when they hear nothing of it. It says that it is there three
    /// times in this time: shorter leases find a dead process sooner and cost more requests. Default 10 s.
    pub lease_duration: Duration,
    /// How often the fleet as a whole looks whether another process has written something for it, while such things
    /// happen: half of it is what a start by another process waits on average. Each look costs one request unit.
    /// Default 80 ms.
    pub bell_interval: Duration,
    /// After so much silence the fleet looks once a second, which costs a tenth and makes the next start by another
    /// process wait half a second on average. Default 5 minutes: who works by the minute is never asleep, and a night costs
    /// little.
    pub bell_rests_after: Duration,
    /// Who this process is, where it has no key: tokens of Microsoft Entra ID, with the feature `entra`, or a resource
    /// token. They cannot create a container: it must be there. Default: none, the key is used.
    pub credential: Option<cosmos_driver::Credential>,
    /// How the account is reached: regions, certificates, time limits, retries. Default: the driver's own defaults.
    pub driver: cosmos_driver::Config,
}

impl CosmosDBProviderConfig {
    /// The settings a connection cannot do without; everything else has its default.
    pub fn new(endpoint: impl Into<String>, key: impl Into<String>) -> Self {
        Self { endpoint: endpoint.into(), key: key.into(), ..Self::default() }
    }

    /// Reads `COSMOS_ENDPOINT`, `COSMOS_KEY`, `COSMOS_DATABASE` and `COSMOS_CONTAINER` (or the same names with
    /// `COSMOSDB_`). Where neither endpoint nor key is set, they are those of an emulator on this machine,
    /// `http://localhost:8081` and the key that everybody knows; an endpoint on this machine needs no key either.
    ///
    /// With the feature `identity`, `COSMOS_ENTRA` (`auto`, `environment`, `workload`, `managed` or `developer`) signs in with
    /// Microsoft Entra in place of a key.
    ///
    /// # Errors
    /// When a key is missing, or an endpoint, or what the identity needs.
    pub fn from_env() -> Result<Self, ProviderError> {
        Self::from_lookup(|name| std::env::var(name).ok())
    }

    /// As [`from_env`](Self::from_env), reading from any source of variables.
    ///
    /// # Errors
    /// As there.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, ProviderError> {
        let find = |suffix: &str| {
            ["COSMOS", "COSMOSDB"]
                .into_iter()
                .find_map(|prefix| lookup(&format!("{prefix}_{suffix}")).filter(|value| !value.is_empty()))
        };
        let missing = |sentence: &str| Err(ProviderError::permanent("from_env", sentence));
        let identity = find("ENTRA");
        let (endpoint, key) = match (find("ENDPOINT"), find("KEY")) {
            (Some(endpoint), Some(key)) => (endpoint, key),
            (None, None) if identity.is_none() => {
                (format!("http://localhost:{EMULATOR_PORT}"), EMULATOR_KEY.to_owned())
            }
            (Some(endpoint), None) if identity.is_some() => (endpoint, String::new()),
            (Some(endpoint), None) if is_local(&endpoint) => (endpoint, EMULATOR_KEY.to_owned()),
            (Some(_), None) => return missing("Set the environment variable COSMOS_KEY, or COSMOS_ENTRA."),
            (None, Some(_) | None) => return missing("Set the environment variable COSMOS_ENDPOINT."),
        };
        let mut config = Self::new(endpoint, key);
        if let Some(identity) = identity {
            config.credential = Some(of_identity(&identity)?);
        }
        if let Some(database) = find("DATABASE") {
            config.database = database;
        }
        if let Some(container) = find("CONTAINER") {
            config.container = container;
        }
        Ok(config)
    }

    /// The same settings with another database.
    #[must_use]
    pub fn with_database(mut self, database: impl Into<String>) -> Self {
        self.database = database.into();
        self
    }

    /// The same settings with another container.
    #[must_use]
    pub fn with_container(mut self, container: impl Into<String>) -> Self {
        self.container = container.into();
        self
    }

    /// The same settings with a credential in place of the key.
    #[must_use]
    pub fn with_credential(mut self, credential: cosmos_driver::Credential) -> Self {
        self.credential = Some(credential);
        self
    }

    /// The same settings with a codec for payloads.
    #[must_use]
    pub fn with_codec(mut self, codec: impl crate::PayloadCodec + 'static) -> Self {
        self.codec = Some(Arc::new(codec));
        self
    }

    /// What to say of settings that other crates of this name have and that do nothing here.
    pub(crate) fn without_effect(&self) -> Option<&'static str> {
        (self.orch_concurrency != 1 || self.worker_concurrency != 1).then_some(
            "orch_concurrency and worker_concurrency do nothing: how many dispatchers there are is set in duroxide's \
             RuntimeOptions, and they share what one search finds",
        )
    }

    pub(crate) fn validate(&self) -> Result<(), ProviderError> {
        let refuse = |sentence: String| Err(ProviderError::permanent("new", sentence));
        if self.endpoint.trim().is_empty() {
            return refuse("The endpoint is empty: set it to the account's URL.".to_owned());
        }
        if !self.endpoint.starts_with("http://") && !self.endpoint.starts_with("https://") {
            return refuse(format!(
                "The endpoint {:?} is not a URL: it must begin with https://.",
                without_user(&self.endpoint)
            ));
        }
        if has_user(&self.endpoint) {
            return refuse(format!(
                "The endpoint {:?} has a user name or password, which Cosmos DB does not know: leave that out.",
                without_user(&self.endpoint)
            ));
        }
        if self.credential.is_none() && self.key.trim().is_empty() {
            return refuse(
                "The key is empty: set it to one of the account's keys, or set a credential.".to_owned(),
            );
        }
        for (what, name) in [("database", &self.database), ("container", &self.container)] {
            if name.is_empty()
                || name.len() > 255
                || name.contains(['/', '\\', '?', '#'])
                || name.ends_with(' ')
            {
                return refuse(format!(
                    "The {what} name {name:?} is not allowed: use 1 to 255 characters without / \\ ? #."
                ));
            }
        }
        if self.poll_interval_min > self.poll_interval_max {
            return refuse(format!(
                "poll_interval_min ({:?}) is longer than poll_interval_max ({:?}): raise the maximum, too.",
                self.poll_interval_min, self.poll_interval_max
            ));
        }
        for (what, time, least) in [
            ("steal_after", self.steal_after, STEAL_AFTER_MIN),
            ("lease_duration", self.lease_duration, LEASE_MIN),
            ("bell_interval", self.bell_interval, BELL_INTERVAL_MIN),
            ("retention_interval", self.retention_interval, RETENTION_INTERVAL_MIN),
        ] {
            if time < least {
                return refuse(format!("{what} ({time:?}) is too short: use {least:?} or more."));
            }
        }
        if !(1..=TTL_SECONDS_MAX).contains(&self.tombstone_ttl.as_secs()) {
            return refuse(format!(
                "tombstone_ttl ({:?}) is not allowed: use one second to 68 years, and more than a process may be down.",
                self.tombstone_ttl
            ));
        }
        Ok(())
    }
}

const STEAL_AFTER_MIN: Duration = Duration::from_millis(200);
const LEASE_MIN: Duration = Duration::from_secs(1);
const RETENTION_INTERVAL_MIN: Duration = Duration::from_millis(10);
const BELL_INTERVAL_MIN: Duration = Duration::from_millis(10);
/// The service's limit for the time to live of an item.
const TTL_SECONDS_MAX: u64 = i32::MAX as u64;

impl Default for CosmosDBProviderConfig {
    fn default() -> Self {
        Self {
            endpoint: String::new(),
            key: String::new(),
            database: "duroxide".to_owned(),
            container: "duroxide".to_owned(),
            orch_concurrency: 1,
            worker_concurrency: 1,
            reconciler_interval: Duration::from_secs(2),
            reconciler_age_threshold: Duration::from_secs(2),
            poll_interval_min: Duration::from_millis(20),
            poll_interval_max: Duration::from_millis(1250),
            operation_timeout: Duration::from_secs(30),
            tombstone_ttl: Duration::from_secs(7 * 24 * 3600),
            early_mail_retention: Duration::from_secs(24 * 60 * 60),
            retention: None,
            retention_interval: Duration::from_secs(3600),
            codec: None,
            shows_sealed: false,
            cache_bytes_max: 64 << 20,
            owner: String::new(),
            clock_offset_ms: 0,
            leases: None,
            steal_after: Duration::from_secs(5),
            lease_duration: Duration::from_secs(10),
            bell_interval: Duration::from_millis(80),
            bell_rests_after: Duration::from_secs(300),
            credential: None,
            driver: cosmos_driver::Config::default(),
        }
    }
}

impl fmt::Debug for CosmosDBProviderConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CosmosDBProviderConfig")
            .field("endpoint", &without_user(&self.endpoint))
            .field("key", &"<hidden>")
            .field("database", &self.database)
            .field("container", &self.container)
            .field("orch_concurrency", &self.orch_concurrency)
            .field("worker_concurrency", &self.worker_concurrency)
            .field("reconciler_interval", &self.reconciler_interval)
            .field("reconciler_age_threshold", &self.reconciler_age_threshold)
            .field("poll_interval_min", &self.poll_interval_min)
            .field("poll_interval_max", &self.poll_interval_max)
            .field("operation_timeout", &self.operation_timeout)
            .field("tombstone_ttl", &self.tombstone_ttl)
            .field("retention", &self.retention.as_ref().map(ToString::to_string))
            .field("retention_interval", &self.retention_interval)
            .field("codec", &self.codec)
            .field("shows_sealed", &self.shows_sealed)
            .field("cache_bytes_max", &self.cache_bytes_max)
            .field("owner", &self.owner)
            .field("clock_offset_ms", &self.clock_offset_ms)
            .field("leases", &self.leases.is_some())
            .field("steal_after", &self.steal_after)
            .field("lease_duration", &self.lease_duration)
            .field("bell_interval", &self.bell_interval)
            .field("bell_rests_after", &self.bell_rests_after)
            .field("credential", &self.credential)
            .field("driver", &self.driver)
            .finish()
    }
}

/// Whether only this machine answers there: emulators, whose key everybody knows.
fn is_local(endpoint: &str) -> bool {
    let Some((_, host)) = endpoint.split_once("://") else { return false };
    ["localhost", "127.0.0.1", "[::1]"].iter().any(|name| {
        host.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with([':', '/']))
    })
}

#[cfg(feature = "identity")]
fn of_identity(text: &str) -> Result<cosmos_driver::Credential, ProviderError> {
    let refused = |error: cosmos_driver::Error| {
        ProviderError::permanent("from_env", format!("COSMOS_ENTRA: {}", error.message()))
    };
    cosmos_driver::Credential::identity(text.parse().map_err(refused)?).map_err(refused)
}

#[cfg(not(feature = "identity"))]
fn of_identity(_: &str) -> Result<cosmos_driver::Credential, ProviderError> {
    let text = "COSMOS_ENTRA is set, and duroxide-cdb was built without its feature `identity`.";
    Err(ProviderError::permanent("from_env", text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_never_appears_in_debug_output() {
        let config = CosmosDBProviderConfig::new("https://example.test", "c2VjcmV0LWtleQ==");
        assert!(!format!("{config:?}").contains("c2VjcmV0"));
    }

    #[test]
    fn a_password_in_the_endpoint_is_refused_and_never_printed() {
        for endpoint in ["https://me:secret@a.test", "me:secret@a.test"] {
            let config = CosmosDBProviderConfig::new(endpoint, "a2V5");
            let error = config.validate().unwrap_err();
            assert!(!error.message.contains("secret") && error.message.contains("a.test"), "{error}");
            assert!(!format!("{config:?}").contains("secret"));
        }
    }

    #[test]
    fn both_spellings_of_the_environment_are_read() {
        let lookup = |name: &str| match name {
            "COSMOSDB_ENDPOINT" => Some("https://a.test".to_owned()),
            "COSMOS_KEY" => Some("a2V5".to_owned()),
            "COSMOS_CONTAINER" => Some("flows".to_owned()),
            _ => None,
        };
        let config = CosmosDBProviderConfig::from_lookup(lookup).unwrap();
        assert_eq!((config.endpoint.as_str(), config.container.as_str()), ("https://a.test", "flows"));
        assert_eq!(config.database, "duroxide");
    }

    #[test]
    fn a_missing_variable_is_named() {
        for (set, missing) in [("COSMOS_KEY", "COSMOS_ENDPOINT"), ("COSMOS_ENDPOINT", "COSMOS_KEY")] {
            let lookup = |name: &str| (name == set).then(|| "x".to_owned());
            let error = CosmosDBProviderConfig::from_lookup(lookup).unwrap_err();
            assert!(error.message.contains(missing), "{error:?}");
        }
    }

    #[test]
    fn an_endpoint_on_this_machine_needs_no_key_and_an_identity_needs_an_endpoint() {
        let with = |pairs: &'static [(&str, &str)]| {
            CosmosDBProviderConfig::from_lookup(|name| {
                pairs.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
            })
        };
        let local = with(&[("COSMOS_ENDPOINT", "http://127.0.0.1:9000")]).unwrap();
        assert_eq!((local.endpoint.as_str(), local.key.as_str()), ("http://127.0.0.1:9000", EMULATOR_KEY));
        assert!(with(&[("COSMOS_ENDPOINT", "https://localhost.example.com")]).is_err());
        let error = with(&[("COSMOS_ENTRA", "auto")]).unwrap_err();
        assert!(error.message.contains("COSMOS_ENDPOINT"), "{error:?}");
        let error = with(&[("COSMOS_ENDPOINT", "https://a.test"), ("COSMOS_ENTRA", "me")]).unwrap_err();
        assert!(error.message.contains("COSMOS_ENTRA"), "{error:?}");
    }

    #[test]
    fn with_no_variable_at_all_it_is_an_emulator_on_this_machine() {
        let config = CosmosDBProviderConfig::from_lookup(|_| None).unwrap();
        assert_eq!(config.endpoint, "http://localhost:8081");
        assert_eq!(config.key, EMULATOR_KEY);
        assert!(config.validate().is_ok());
    }

    #[test]
    fn numbers_that_mean_nothing_here_are_noticed() {
        let config = CosmosDBProviderConfig::new("https://a.test", "a2V5");
        assert_eq!(config.without_effect(), None);
        let config = CosmosDBProviderConfig { orch_concurrency: 4, ..config };
        assert!(config.without_effect().is_some_and(|sentence| sentence.contains("RuntimeOptions")));
    }

    #[test]
    fn settings_that_cannot_work_are_refused_in_one_sentence() {
        let good = CosmosDBProviderConfig::new("https://a.test", "a2V5");
        assert!(good.validate().is_ok());
        for bad in [
            CosmosDBProviderConfig::default(),
            CosmosDBProviderConfig::new("a.test", "a2V5"),
            CosmosDBProviderConfig::new("https://a.test", " "),
            good.clone().with_container("a/b"),
            good.clone().with_database(""),
            CosmosDBProviderConfig { poll_interval_min: Duration::from_secs(2), ..good.clone() },
            CosmosDBProviderConfig { tombstone_ttl: Duration::from_millis(999), ..good.clone() },
            CosmosDBProviderConfig { tombstone_ttl: Duration::MAX, ..good },
        ] {
            let error = bad.validate().unwrap_err();
            assert!(!error.retryable && error.message.ends_with('.'), "{error}");
        }
    }
}
