//! The options of `cdb emulator`.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args, ValueEnum};

use crate::dashboard::SideArgs;
use crate::secret::Secret;

/// Run a Cosmos DB account on this machine.
///
/// Speaks the NoSQL REST protocol over HTTP/1.1 and HTTP/2, so the official SDKs work against it. When it is ready
/// it writes one line of JSON to standard output, with the addresses it listens on, and a line for people to standard
/// error; on a terminal the key and the connection string instead of JSON. Ctrl-C or SIGTERM stops it after the requests in flight.
///
/// Exit codes: 0 stopped as asked, 1 failed, 2 wrong usage, 3 the port is taken, 4 the data folder cannot be used.
#[derive(Debug, Args)]
#[command(
    after_help = EXAMPLES,
    group(ArgGroup::new("secure").args(["tls", "tls_certificate", "like_docker"]).multiple(true))
)]
pub(crate) struct EmulatorArgs {
    /// Port of the account; 0 takes any free one. Further regions listen ten ports apart.
    #[arg(long, short, default_value_t = 8081, env = "CDB_EMULATOR_PORT")]
    pub(crate) port: u16,

    /// Address to listen on. The default is reachable from this machine only.
    #[arg(long, default_value = "127.0.0.1", value_name = "ADDRESS")]
    pub(crate) bind: IpAddr,

    /// Port of the management API (regions, splits, faults, clock, ledger, snapshots, metrics); 0 takes any free one.
    ///
    /// `GET /` on it lists what it offers. It is not signed: bind it where only you can reach it.
    #[arg(long, default_value_t = 0, value_name = "PORT")]
    pub(crate) management_port: u16,

    /// Serve pages: a data explorer, the emulator's own switches, and the workflows of duroxide if there are any.
    #[arg(long, conflicts_with = "no_management")]
    pub(crate) explorer: bool,

    #[command(flatten)]
    pub(crate) pages: SideArgs,

    /// Serve no management API.
    #[arg(long, conflicts_with = "management_port")]
    pub(crate) no_management: bool,

    /// Threads that serve requests [default: one per processor, at most 4].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) threads: Option<u16>,

    /// Describe the account in a JSON file: regions, writeMode, consistency, throttling, replicationDelays, databases,
    /// seedItems. Options given here win over it.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// Be what SDKs' own tests and samples assume of an emulator: HTTPS on port 8081 with a certificate written to
    /// cdb-emulator.pem, one region called South Central US, the well-known key. Options given here win over it.
    #[arg(long)]
    pub(crate) like_docker: bool,

    #[command(flatten)]
    pub(crate) data: DataArgs,

    #[command(flatten)]
    pub(crate) access: AccessArgs,

    #[command(flatten)]
    pub(crate) tls: TlsArgs,

    #[command(flatten)]
    pub(crate) account: AccountArgs,
}

/// Where the data is.
#[derive(Debug, Args)]
#[command(next_help_heading = "Data")]
pub(crate) struct DataArgs {
    /// Folder that keeps the data; it is made if it is missing, and one process uses it at a time.
    #[arg(long, short, default_value = "cdb-data", value_name = "DIR", env = "CDB_EMULATOR_DATA")]
    pub(crate) data: PathBuf,

    /// Keep everything in memory; it is gone when the process ends.
    #[arg(long)]
    pub(crate) memory: bool,

    /// Whether an acknowledged write survives a power cut (on) or only a killed process (off).
    #[arg(long, value_enum, default_value_t = Switch::On, value_name = "on|off")]
    pub(crate) fsync: Switch,

    /// Begin with the data of a snapshot (`POST /snapshot` on the management port). The data folder must be empty.
    #[arg(long, value_name = "DIR")]
    pub(crate) restore: Option<PathBuf>,

    /// Copy what can be read of a damaged data folder to this new one, say what is lost, and end. Nothing is served.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["memory", "restore"])]
    pub(crate) salvage: Option<PathBuf>,
}

/// Who is let in.
#[derive(Debug, Args)]
#[command(next_help_heading = "Access")]
pub(crate) struct AccessArgs {
    /// The account key, base64 [default: the well-known key of all Cosmos DB emulators].
    #[arg(long, env = "CDB_EMULATOR_KEY", hide_env_values = true, value_name = "KEY")]
    pub(crate) key: Option<Secret>,

    /// A second key that may only read, base64.
    #[arg(long, env = "CDB_EMULATOR_READ_ONLY_KEY", hide_env_values = true, value_name = "KEY")]
    pub(crate) read_only_key: Option<Secret>,

    /// Let unsigned and wrongly signed requests in.
    #[arg(long)]
    pub(crate) no_auth: bool,

    /// Let Entra tokens in for items and queries, as the service does.
    ///
    /// Issuer, audience and times are checked; the signature is not, so this keeps nobody out.
    #[arg(long)]
    pub(crate) entra: bool,

    /// Trust tokens of this issuer (the claim `iss`) instead of Entra's own; may be repeated.
    #[arg(long, value_name = "URL", requires = "entra")]
    pub(crate) entra_issuer: Vec<String>,

    /// Let tokens in that are for this audience (the claim `aud`), besides those for Cosmos DB; may be repeated.
    #[arg(long, value_name = "AUDIENCE", requires = "entra")]
    pub(crate) entra_audience: Vec<String>,
}

/// HTTPS.
#[derive(Debug, Args)]
#[command(next_help_heading = "TLS and connections")]
pub(crate) struct TlsArgs {
    /// Serve HTTPS with a certificate made at the first start and kept in the data folder.
    #[arg(long)]
    pub(crate) tls: bool,

    /// A name or address the made certificate is for, besides localhost, 127.0.0.1 and ::1; may be repeated.
    #[arg(long, value_name = "NAME", requires = "secure")]
    pub(crate) tls_name: Vec<String>,

    /// Write the certificate that clients have to trust to a file, as PEM.
    #[arg(long, value_name = "FILE", requires = "secure")]
    pub(crate) export_certificate: Option<PathBuf>,

    /// Serve HTTPS with a certificate of yours: a PEM file, the intermediate ones after it.
    #[arg(long, value_name = "FILE", requires = "tls_key", conflicts_with = "tls_name")]
    pub(crate) tls_certificate: Option<PathBuf>,

    /// The private key of that certificate: a PEM file without a password.
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    pub(crate) tls_key: Option<PathBuf>,

    /// Tell connections to leave (GOAWAY, or `connection: close`) once they are this old, for example 90s or 500ms.
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) connection_age: Option<Duration>,
}

/// What the account is like.
#[derive(Debug, Args)]
#[command(next_help_heading = "Account")]
pub(crate) struct AccountArgs {
    /// A region, with an endpoint of its own; may be repeated, the write region first [default: one].
    #[arg(long, value_name = "NAME")]
    pub(crate) region: Vec<String>,

    /// Let every region take writes; the last writer wins.
    #[arg(long)]
    pub(crate) multi_write: bool,

    /// How long a write takes to reach the other regions, in milliseconds.
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(0..=3_600_000))]
    pub(crate) replication_delay_ms: Option<u64>,

    /// Consistency level the account promises [default: session].
    #[arg(long, value_enum, value_name = "LEVEL")]
    pub(crate) consistency: Option<Level>,

    /// Physical partitions of each new container [default: as the service makes them for its throughput].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) partitions: Option<u32>,

    /// Refuse requests with 429 once a physical partition's share of the throughput is used up.
    #[arg(long)]
    pub(crate) throttle: bool,

    /// Be a serverless account: no offers; with --throttle each physical partition serves 5 000 RU/s.
    #[arg(long)]
    pub(crate) serverless: bool,

    /// Keep all versions of all items for seven days: every container has a change feed of all versions and deletes.
    #[arg(long)]
    pub(crate) continuous_backup: bool,

    /// Name of the account in its own document. `localhost` keeps the JavaScript SDK on the address it was given.
    #[arg(long, default_value = "localhost", value_name = "NAME")]
    pub(crate) account: String,

    /// Give each region an endpoint of Gateway 2.0 as well, five ports above its other one, for the SDKs that use it.
    #[arg(long)]
    pub(crate) gateway2: bool,

    /// Answer cross-partition queries that the service leaves to the client's SDK.
    ///
    /// Handy with curl. Programs that rely on it fail against the service.
    #[arg(long)]
    pub(crate) serve_all_queries: bool,
}

const EXAMPLES: &str = "Examples:
  cdb emulator                               port 8081, data in ./cdb-data
  cdb emulator --memory --port 0             for tests: any free port, nothing on disk
  cdb emulator --data /tmp/shop --fsync off  quick, survives a restart but not a power cut
  cdb emulator --partitions 5                five physical partitions in each new container
  cdb emulator --tls --export-certificate cosmos.pem
                                             HTTPS; clients trust cosmos.pem
  cdb emulator --region 'East US' --region 'West US' --replication-delay-ms 50
                                             two regions, the second one a little behind
  cdb emulator --like-docker --memory        https://localhost:8081, as SDK samples expect it
  cdb emulator --explorer                    with pages to look into it
  cdb emulator --config shop.json            an account with databases, containers and items";

/// On or off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Switch {
    On,
    Off,
}

/// Consistency levels, weakest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Level {
    Eventual,
    ConsistentPrefix,
    Session,
    BoundedStaleness,
    Strong,
}

/// A time such as `500ms`, `90s` or `5m`; a number alone counts seconds.
fn time(text: &str) -> Result<Duration, String> {
    let units = [("ms", 1), ("s", 1_000), ("m", 60_000)];
    let (number, milliseconds) = units
        .into_iter()
        .find_map(|(unit, milliseconds)| Some((text.strip_suffix(unit)?, milliseconds)))
        .unwrap_or((text, 1_000));
    let number: u64 = number.trim().parse().map_err(|_| "write it as 500ms, 90s or 5m".to_owned())?;
    match number.checked_mul(milliseconds) {
        Some(0) => Err("it must be more than nothing".to_owned()),
        Some(milliseconds) => Ok(Duration::from_millis(milliseconds)),
        None => Err("that is too long".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_with_their_units() {
        for (text, milliseconds) in [("500ms", 500), ("90s", 90_000), ("5m", 300_000), ("7", 7_000)] {
            assert_eq!(time(text), Ok(Duration::from_millis(milliseconds)), "{text}");
        }
        for wrong in ["", "s", "-1s", "0", "1h", "1.5s", "5ss", "5mm", "5msms", "99999999999999999999"] {
            assert!(time(wrong).is_err(), "{wrong}");
        }
    }
}
