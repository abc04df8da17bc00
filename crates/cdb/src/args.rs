//! The command line. The arguments of each command are beside its code; those of the emulator are here.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};

use crate::commands::completions::CompletionsArgs;
use crate::commands::dead_letters::DeadLettersArgs;
use crate::commands::delete::DeleteArgs;
use crate::commands::demo::DemoArgs;
use crate::commands::export::ExportArgs;
use crate::commands::fsck::FsckArgs;
use crate::commands::history::HistoryArgs;
use crate::commands::import::ImportArgs;
use crate::commands::instances::InstancesArgs;
use crate::commands::prune::PruneArgs;
use crate::commands::queues::QueuesArgs;
use crate::commands::send::{CancelArgs, EnqueueArgs, RaiseArgs, StartArgs};
use crate::commands::show::ShowArgs;
use crate::commands::stress::StressArgs;
use crate::commands::top::TopArgs;
use crate::commands::tree::TreeArgs;
use crate::commands::why::WhyArgs;
use crate::exit::CODES;

/// Durable workflows on Azure Cosmos DB: see them run, operate them, and a local server to develop against.
#[derive(Debug, Parser)]
#[command(name = "cdb", version, max_term_width = 100, after_help = CODES)]
pub(crate) struct Args {
    /// What to log to standard error, as `level` or `module=level` separated by commas.
    #[arg(
        long,
        global = true,
        env = "CDB_LOG",
        default_value = DEFAULT_LOG,
        value_name = "FILTER"
    )]
    pub(crate) log: String,

    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The store's own words are left out: what matters of them is said in ours.
const DEFAULT_LOG: &str = "warn,duroxide=error,fjall=off";

/// One command.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Demo(DemoArgs),
    Instances(InstancesArgs),
    Show(ShowArgs),
    History(HistoryArgs),
    Tree(TreeArgs),
    Why(WhyArgs),
    Queues(QueuesArgs),
    Top(TopArgs),
    Start(StartArgs),
    Raise(RaiseArgs),
    Enqueue(EnqueueArgs),
    Cancel(CancelArgs),
    Delete(DeleteArgs),
    Prune(PruneArgs),
    DeadLetters(DeadLettersArgs),
    Export(ExportArgs),
    Import(ImportArgs),
    Fsck(FsckArgs),
    Stress(StressArgs),
    Emulator(EmulatorArgs),
    Completions(CompletionsArgs),
}

/// Run a Cosmos DB account on this machine.
///
/// Speaks the NoSQL REST protocol over HTTP/1.1 and HTTP/2, so the official SDKs work against it. When it is ready
/// it writes one line of JSON to standard output, with the addresses it listens on, and a line for people to standard
/// error. Ctrl-C or SIGTERM stops it after the requests in flight.
///
/// Exit codes: 0 stopped as asked, 1 failed, 2 wrong usage, 3 the port is taken, 4 the data folder cannot be used.
#[derive(Debug, ClapArgs)]
#[command(after_help = EXAMPLES)]
pub(crate) struct EmulatorArgs {
    /// Port of the account; 0 takes any free one.
    #[arg(long, short, default_value_t = 8081, env = "CDB_EMULATOR_PORT")]
    pub(crate) port: u16,

    /// Address to listen on. The default is reachable from this machine only.
    #[arg(long, default_value = "127.0.0.1", value_name = "ADDRESS")]
    pub(crate) bind: IpAddr,

    /// Port of the management API (health, ledger, faults, metrics); 0 takes any free one.
    ///
    /// It is not signed: bind it where only you can reach it.
    #[arg(long, default_value_t = 0, value_name = "PORT")]
    pub(crate) management_port: u16,

    /// Serve no management API.
    #[arg(long, conflicts_with = "management_port")]
    pub(crate) no_management: bool,

    /// Folder that keeps the data; it is made if it is missing, and one process uses it at a time.
    #[arg(long, short, default_value = "cdb-data", value_name = "DIR", env = "CDB_EMULATOR_DATA")]
    pub(crate) data: PathBuf,

    /// Keep everything in memory; it is gone when the process ends.
    #[arg(long)]
    pub(crate) memory: bool,

    /// Whether an acknowledged write survives a power cut (on) or only a killed process (off).
    #[arg(long, value_enum, default_value_t = Switch::On, value_name = "on|off")]
    pub(crate) fsync: Switch,

    /// The account key, base64 [default: the well-known key of all Cosmos DB emulators].
    #[arg(long, env = "CDB_EMULATOR_KEY", hide_env_values = true, value_name = "KEY")]
    pub(crate) key: Option<String>,

    /// A second key that may only read, base64.
    #[arg(long, env = "CDB_EMULATOR_READ_ONLY_KEY", hide_env_values = true, value_name = "KEY")]
    pub(crate) read_only_key: Option<String>,

    /// Let unsigned and wrongly signed requests in.
    #[arg(long)]
    pub(crate) no_auth: bool,

    /// Physical partitions of each new container [default: one for each 10 000 RU/s of its throughput].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) partitions: Option<u32>,

    /// Refuse requests with 429 once a physical partition's share of the throughput is used up.
    #[arg(long)]
    pub(crate) throttle: bool,

    /// Be a serverless account: no offers; with --throttle each physical partition serves 5 000 RU/s.
    #[arg(long)]
    pub(crate) serverless: bool,

    /// Consistency level the account advertises.
    #[arg(long, value_enum, default_value_t = Level::Session, value_name = "LEVEL")]
    pub(crate) consistency: Level,

    /// Name of the account in its own document. `localhost` keeps the JavaScript SDK on the address it was given.
    #[arg(long, default_value = "localhost", value_name = "NAME")]
    pub(crate) account: String,

    /// Answer cross-partition queries that the service leaves to the client's SDK.
    ///
    /// Handy with curl. Programs that rely on it fail against the service.
    #[arg(long)]
    pub(crate) serve_all_queries: bool,

    /// Threads that serve requests [default: one per processor, at most 4].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) threads: Option<u16>,
}

const EXAMPLES: &str = "Examples:
  cdb emulator                               port 8081, data in ./cdb-data
  cdb emulator --memory --port 0             for tests: any free port, nothing on disk
  cdb emulator --data /tmp/shop --fsync off  quick, survives a restart but not a power cut
  cdb emulator --partitions 5                five physical partitions in each new container";

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

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Args::command().debug_assert();
    }

    #[test]
    fn wrong_values_are_refused() {
        for wrong in [
            &["cdb", "emulator", "--port", "70000"][..],
            &["cdb", "emulator", "--partitions", "0"],
            &["cdb", "emulator", "--fsync", "maybe"],
            &["cdb", "emulator", "--no-management", "--management-port", "5"],
            &["cdb"],
        ] {
            assert!(Args::try_parse_from(wrong).is_err(), "{wrong:?}");
        }
    }
}
