//! The command line. The arguments of each command are beside its code.

use std::sync::LazyLock;

use clap::{Parser, Subcommand};

use crate::commands::completions::CompletionsArgs;
use crate::commands::contexts::ContextArgs;
use crate::commands::dashboard::DashboardArgs;
use crate::commands::dead_letters::DeadLettersArgs;
use crate::commands::delete::DeleteArgs;
use crate::commands::demo::DemoArgs;
use crate::commands::emulator::EmulatorArgs;
use crate::commands::export::ExportArgs;
use crate::commands::fsck::FsckArgs;
use crate::commands::history::HistoryArgs;
use crate::commands::import::ImportArgs;
use crate::commands::instances::InstancesArgs;
use crate::commands::metrics::MetricsArgs;
use crate::commands::prune::PruneArgs;
use crate::commands::queues::QueuesArgs;
use crate::commands::rerun::{RerunArgs, RewindArgs};
use crate::commands::retention::RetentionArgs;
use crate::commands::runtimes::RuntimesArgs;
use crate::commands::send::{CancelArgs, EnqueueArgs, RaiseArgs, StartArgs};
use crate::commands::show::ShowArgs;
use crate::commands::sql::SqlArgs;
use crate::commands::stress::StressArgs;
use crate::commands::top::TopArgs;
use crate::commands::tree::TreeArgs;
use crate::commands::wait::WaitArgs;
use crate::commands::why::WhyArgs;
use crate::exit::CODES;
use crate::output::Colours;
use crate::secret::Secret;

/// Durable workflows on Azure Cosmos DB: try them, look after them, and develop against a local emulator.
#[derive(Debug, Parser)]
#[command(name = "cdb", version, max_term_width = 100, after_help = AFTER_HELP.as_str())]
pub(crate) struct Args {
    /// What to log to standard error, as `level` or `module=level` separated by commas [env: CDB_LOG] [default:
    /// warnings].
    #[arg(
        long,
        global = true,
        env = "CDB_LOG",
        hide_env = true,
        default_value = DEFAULT_LOG,
        hide_default_value = true,
        value_name = "FILTER",
        help_heading = "Logging"
    )]
    pub(crate) log: String,

    /// When to use colours [env: NO_COLOR, CLICOLOR_FORCE, FORCE_COLOR].
    #[arg(long, global = true, value_enum, default_value_t = Colours::Auto, hide_default_value = true, value_name = "WHEN", help_heading = "Logging")]
    pub(crate) color: Colours,

    /// Keys to look at sealed payloads with: ID=BASE64, several with commas between them, or @FILE with one on each line
    /// [env: CDB_CODEC_KEY]. What is stored is sealed with the first.
    ///
    /// The environment or a file is the better place: command lines are visible to others.
    #[arg(
        long,
        global = true,
        env = "CDB_CODEC_KEY",
        hide_env = true,
        hide_env_values = true,
        value_name = "KEYS",
        help_heading = "Connection"
    )]
    pub(crate) codec_key: Option<Secret>,

    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What stands below the list of commands.
static AFTER_HELP: LazyLock<String> = LazyLock::new(|| format!("{FIRST_STEPS}\n\n{CODES}"));

const FIRST_STEPS: &str = "\
First steps:
  cdb demo                         eight workflows on an embedded emulator, data in ./cdb-demo
  cdb instances --data cdb-demo    what they left
  cdb dashboard --data cdb-demo    the same as pages for a browser
  cdb emulator                     a Cosmos DB account on this machine, for programs of yours";

/// The store's own words are left out: what matters of them is said in ours.
const DEFAULT_LOG: &str = "warn,duroxide=error,fjall=off";

/// One command.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Demo(DemoArgs),
    Dashboard(DashboardArgs),
    Instances(InstancesArgs),
    Show(ShowArgs),
    History(HistoryArgs),
    Tree(TreeArgs),
    Why(WhyArgs),
    Queues(QueuesArgs),
    Runtimes(RuntimesArgs),
    Top(TopArgs),
    Metrics(MetricsArgs),
    Start(StartArgs),
    Raise(RaiseArgs),
    Enqueue(EnqueueArgs),
    Cancel(CancelArgs),
    Wait(WaitArgs),
    Rerun(RerunArgs),
    Delete(DeleteArgs),
    Prune(PruneArgs),
    Retention(RetentionArgs),
    DeadLetters(DeadLettersArgs),
    Export(ExportArgs),
    Import(ImportArgs),
    Fsck(FsckArgs),
    Sql(SqlArgs),
    Context(ContextArgs),
    Stress(StressArgs),
    Emulator(EmulatorArgs),
    Completions(CompletionsArgs),
    /// There is no rewind: says what to do instead.
    #[command(hide = true, alias = "reset")]
    Rewind(RewindArgs),
    /// Print the version.
    #[command(hide = true)]
    Version,
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
    fn keys_are_not_printed() {
        for line in [
            &["cdb", "instances", "--endpoint", "https://a.example", "--key", "c2VjcmV0"][..],
            &["cdb", "emulator", "--key", "c2VjcmV0", "--read-only-key", "c2VjcmV0"],
            &["cdb", "instances", "--codec-key", "k=c2VjcmV0"],
        ] {
            let text = format!("{:?}", Args::try_parse_from(line).expect("it is well formed"));
            assert!(text.contains("<hidden>") && !text.contains("c2VjcmV0"), "{text}");
        }
    }

    #[test]
    fn wrong_values_are_refused() {
        for wrong in [
            &["cdb", "emulator", "--port", "70000"][..],
            &["cdb", "emulator", "--partitions", "0"],
            &["cdb", "emulator", "--fsync", "maybe"],
            &["cdb", "emulator", "--no-management", "--management-port", "5"],
            &["cdb", "emulator", "--tls-name", "x"],
            &["cdb", "emulator", "--tls-key", "x"],
            &["cdb", "emulator", "--export-certificate", "x"],
            &["cdb", "emulator", "--entra-issuer", "x"],
            &["cdb", "emulator", "--connection-age", "0"],
            &["cdb"],
        ] {
            assert!(Args::try_parse_from(wrong).is_err(), "{wrong:?}");
        }
    }
}
