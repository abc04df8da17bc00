//! What an emulator is started with.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::blueprint::Blueprint;
use crate::server::Limits;

/// Everything an [`Emulator`](crate::Emulator) can be told. The default suits tests: in memory, any free port of the
/// loopback interface, the well-known key, signatures checked.
#[derive(Clone)]
pub struct Config {
    /// Interface to listen on; loopback.
    pub bind: IpAddr,
    /// Port of the account; 0 lets the system choose.
    pub port: u16,
    /// Port of the management API; none serves none, 0 lets the system choose.
    pub management_port: Option<u16>,
    /// Where the data is.
    pub store: Store,
    /// A folder to fill an empty store from before the account is served; see
    /// [`Emulator::snapshot`](crate::Emulator::snapshot).
    pub restore_from: Option<PathBuf>,
    /// The master key, base64; the well-known key of all Cosmos DB emulators.
    pub key: String,
    /// A key that may only read, base64.
    pub read_only_key: Option<String>,
    /// Whether requests must be signed.
    pub auth: Auth,
    /// What the account document calls the account. By default `localhost`, which keeps the JavaScript SDK on the
    /// endpoint it was given; an account of several regions is `emulator` then, because that SDK would not look for
    /// them otherwise.
    pub account_id: String,
    /// Names of the regions, the write region first. A folder remembers its regions; names it has never had are
    /// added. None means those the folder has, and one called `Local` for a new account. Where `port` is given, the
    /// others listen ten ports apart.
    pub regions: Vec<String>,
    /// Which regions take writes.
    pub write_mode: WriteMode,
    /// How long writes take from region to region; the last rule that fits two regions counts, none means at once.
    pub replication_delays: Vec<ReplicationDelay>,
    /// Consistency the account promises.
    pub consistency: Consistency,
    /// Physical partitions of each new container; none takes as many as the service makes for its throughput.
    pub partitions: Option<u32>,
    /// Whether requests are refused with 429/3200 once a physical partition's share of the throughput is used up; off,
    /// because a laptop should not be slower than it is.
    pub throttling: bool,
    /// Whether the account is serverless: it has no offers and refuses throughput. Together with `throttling`, each
    /// physical partition serves 5 000 RU/s; alone, nothing is limited.
    pub serverless: bool,
    /// Whether the account has a continuous backup: then every container has a change feed of all versions and deletes,
    /// for seven days where its policy does not say how long.
    pub continuous_backup: bool,
    /// Which cross-partition queries are answered.
    pub gateway: Gateway,
    /// Whether each region has an endpoint of Gateway 2.0 beside its other one. Clients that ask for it are told, and the
    /// SDKs that do so use it: off, because a test should say so when it means that.
    pub gateway2: bool,
    /// Threads that serve sockets; 1 suits tests.
    pub threads: usize,
    /// What a connection may cost.
    pub limits: Limits,
    /// Whether the account is served through TLS, and with which certificate.
    pub tls: Tls,
    /// Which Entra tokens are let in; none refuses them all.
    pub entra: Option<Entra>,
    /// Databases, containers and items to make where they are missing; see
    /// [`with_blueprint`](Config::with_blueprint).
    pub blueprint: Option<Blueprint>,
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // By name, so that a field that is added is thought of here. Keys stay out of logs.
        let Self {
            bind,
            port,
            management_port,
            store,
            restore_from,
            key: _,
            read_only_key,
            auth,
            account_id,
            regions,
            write_mode,
            replication_delays,
            consistency,
            partitions,
            throttling,
            serverless,
            continuous_backup,
            gateway,
            gateway2,
            threads,
            limits,
            tls,
            entra,
            blueprint,
        } = self;
        f.debug_struct("Config")
            .field("bind", bind)
            .field("port", port)
            .field("management_port", management_port)
            .field("store", store)
            .field("restore_from", restore_from)
            .field("key", &"<hidden>")
            .field("read_only_key", &read_only_key.as_ref().map(|_| "<hidden>"))
            .field("auth", auth)
            .field("account_id", account_id)
            .field("regions", regions)
            .field("write_mode", write_mode)
            .field("replication_delays", replication_delays)
            .field("consistency", consistency)
            .field("partitions", partitions)
            .field("throttling", throttling)
            .field("serverless", serverless)
            .field("continuous_backup", continuous_backup)
            .field("gateway", gateway)
            .field("gateway2", gateway2)
            .field("threads", threads)
            .field("limits", limits)
            .field("tls", tls)
            .field("entra", entra)
            .field("blueprint", blueprint)
            .finish()
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            bind: IpAddr::V4(Ipv4Addr::LOCALHOST),
            port: 0,
            management_port: None,
            store: Store::Memory,
            restore_from: None,
            key: cosmos_wire::EMULATOR_KEY.to_owned(),
            read_only_key: None,
            auth: Auth::Required,
            account_id: "localhost".to_owned(),
            regions: Vec::new(),
            write_mode: WriteMode::Single,
            replication_delays: Vec::new(),
            consistency: Consistency::Session,
            partitions: None,
            throttling: false,
            serverless: false,
            continuous_backup: false,
            gateway: Gateway::AsService,
            gateway2: false,
            threads: 1,
            limits: Limits::default(),
            tls: Tls::Off,
            entra: None,
            blueprint: None,
        }
    }
}

impl Config {
    /// Keeps the data in a folder, which is made if it is missing.
    #[must_use]
    pub fn with_folder(mut self, path: impl Into<PathBuf>, fsync: Fsync) -> Self {
        self.store = Store::Folder { path: path.into(), fsync };
        self
    }

    /// Gives each container this many physical partitions.
    #[must_use]
    pub fn with_partitions(mut self, partitions: u32) -> Self {
        self.partitions = Some(partitions);
        self
    }

    /// Gives the account these regions, the write region first.
    #[must_use]
    pub fn with_regions(mut self, regions: &[&str]) -> Self {
        self.regions = regions.iter().map(|region| (*region).to_owned()).collect();
        self
    }

    /// Gives each region an endpoint of Gateway 2.0.
    #[must_use]
    pub fn with_gateway2(mut self) -> Self {
        self.gateway2 = true;
        self
    }

    /// Lets one or all regions take writes.
    #[must_use]
    pub fn with_write_mode(mut self, write_mode: WriteMode) -> Self {
        self.write_mode = write_mode;
        self
    }

    /// Promises another consistency.
    #[must_use]
    pub fn with_consistency(mut self, consistency: Consistency) -> Self {
        self.consistency = consistency;
        self
    }

    /// Makes writes take time from region to region.
    #[must_use]
    pub fn with_replication_delay(mut self, delay: ReplicationDelay) -> Self {
        self.replication_delays.push(delay);
        self
    }

    /// Refuses requests with 429/3200 once a physical partition's throughput is used up.
    #[must_use]
    pub fn with_throttling(mut self) -> Self {
        self.throttling = true;
        self
    }

    /// Gives the account a continuous backup.
    #[must_use]
    pub fn with_continuous_backup(mut self) -> Self {
        self.continuous_backup = true;
        self
    }

    /// Makes the account serverless.
    #[must_use]
    pub fn with_serverless(mut self) -> Self {
        self.serverless = true;
        self
    }

    /// Serves the management API as well, on a free port.
    #[must_use]
    pub fn with_management(mut self) -> Self {
        self.management_port = Some(0);
        self
    }

    /// Serves the account through TLS with a certificate of its own making, for this machine's names and addresses.
    #[must_use]
    pub fn with_tls(mut self) -> Self {
        self.tls = Tls::Generated { names: Vec::new() };
        self
    }

    /// Makes the account as a blueprint describes it; what it leaves open stays as it is here.
    #[must_use]
    pub fn with_blueprint(mut self, blueprint: Blueprint) -> Self {
        blueprint.lay_over(&mut self);
        self.blueprint = Some(blueprint);
        self
    }

    /// Lets Entra tokens in, by their structure.
    #[must_use]
    pub fn with_entra(mut self, entra: Entra) -> Self {
        self.entra = Some(entra);
        self
    }

    /// Checks or ignores signatures.
    #[must_use]
    pub fn with_auth(mut self, auth: Auth) -> Self {
        self.auth = auth;
        self
    }
}

/// Which regions take writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum WriteMode {
    /// One, the write region; the others answer 403/3.
    #[default]
    Single,
    /// All; the last writer wins where they disagree.
    Multiple,
}

/// How long writes take from one region to another, by the emulator's clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicationDelay {
    /// Where writes come from; none means everywhere.
    pub from: Option<String>,
    /// Where they go; none means everywhere.
    pub to: Option<String>,
    /// How long they take.
    pub delay: Duration,
}

impl ReplicationDelay {
    /// Between all regions.
    pub fn everywhere(delay: Duration) -> Self {
        Self { from: None, to: None, delay }
    }

    /// From everywhere to one region.
    pub fn to(region: impl Into<String>, delay: Duration) -> Self {
        Self { from: None, to: Some(region.into()), delay }
    }

    /// From one region to another.
    pub fn between(from: impl Into<String>, to: impl Into<String>, delay: Duration) -> Self {
        Self { from: Some(from.into()), to: Some(to.into()), delay }
    }

    /// Whether it is about these two.
    pub(crate) fn fits(&self, from: &str, to: &str) -> bool {
        let fits = |rule: &Option<String>, name: &str| {
            rule.as_ref().is_none_or(|rule| rule.eq_ignore_ascii_case(name))
        };
        fits(&self.from, from) && fits(&self.to, to)
    }
}

/// Where the data is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Store {
    /// In memory; gone when the emulator stops.
    Memory,
    /// In a folder.
    Folder {
        /// The folder; made if it is missing.
        path: PathBuf,
        /// What an acknowledged write survives.
        fsync: Fsync,
    },
}

/// What an acknowledged write survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fsync {
    /// A power cut: answers wait for the disk.
    On,
    /// A killed process, but not a power cut.
    Off,
}

/// Whether requests must be signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Auth {
    /// Unsigned or wrongly signed requests are refused, as the service does.
    Required,
    /// Everything is let in.
    Open,
}

/// Whether the account is served through TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tls {
    /// Plain HTTP.
    Off,
    /// HTTPS with a certificate made at the first start. It is kept in the data folder, or in memory.
    Generated {
        /// Names and addresses besides `localhost`, `127.0.0.1` and `::1`.
        names: Vec<String>,
    },
    /// HTTPS with a certificate of yours.
    Files {
        /// PEM: the certificate and those it depends on, in that order.
        certificate: PathBuf,
        /// PEM: its private key.
        key: PathBuf,
    },
}

/// Which Entra tokens are let in. Their structure, issuer, audience and times are checked; their signature is not,
/// because only Entra's own keys could.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Entra {
    /// Issuers that are trusted, as the `iss` claim has them; none trusts those of Entra and of the emulators' test
    /// tokens.
    pub issuers: Vec<String>,
    /// Audiences besides those of Cosmos DB and of this account, as the `aud` claim has them.
    pub audiences: Vec<String>,
}

/// Consistency the account promises; stronger requests are refused as the service refuses them.
///
/// With several regions, strong means that a write is in every region that is online before it is acknowledged;
/// bounded staleness, that a region is never behind by more than the service's bound (100 000 commits or 300 seconds)
/// unless it is cut off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Consistency {
    /// Weakest.
    Eventual,
    /// Writes are seen in order.
    ConsistentPrefix,
    /// A session reads its writes.
    Session,
    /// Reads lag by a bound.
    BoundedStaleness,
    /// Strongest.
    Strong,
}

impl Consistency {
    /// The level as headers and documents spell it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Eventual => "Eventual",
            Self::ConsistentPrefix => "ConsistentPrefix",
            Self::Session => "Session",
            Self::BoundedStaleness => "BoundedStaleness",
            Self::Strong => "Strong",
        }
    }

    /// Reads a level as headers spell it, whatever the case.
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Eventual, Self::ConsistentPrefix, Self::Session, Self::BoundedStaleness, Self::Strong]
            .into_iter()
            .find(|level| level.name().eq_ignore_ascii_case(text.trim()))
    }
}

/// Which cross-partition queries are answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gateway {
    /// What needs a client to merge is refused with 400/1004 and its plan, as the service does.
    AsService,
    /// Every query is answered in full. Handy for `curl`; programs that rely on it fail against the service.
    ServeAll,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_not_printed() {
        let config = Config {
            key: "bWFzdGVyIHNlY3JldA==".to_owned(),
            read_only_key: Some("cmVhZGVyIHNlY3JldA==".to_owned()),
            ..Config::default()
        };
        let emulator = crate::Emulator::open(config.clone()).expect("it opens");
        for text in [format!("{config:?}"), format!("{emulator:?}")] {
            assert!(text.contains("<hidden>"), "{text}");
            assert!(!text.contains("bWFzdGVy") && !text.contains("cmVhZGVy"), "{text}");
        }
    }
}
