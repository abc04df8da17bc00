//! `cdb`: durable workflows on Cosmos DB from the command line.
//!
//! Data goes to standard output, everything else to standard error. [`exit`] has the exit codes.

mod archive;
mod args;
mod bulk;
mod census;
mod clock;
mod commands;
mod context;
mod dashboard;
mod demo;
mod diagnosis;
mod documents;
mod ending;
mod entra;
mod exit;
mod exposition;
mod files;
mod fleet;
mod fsck;
mod interrupt;
mod ledger;
mod listing;
mod many;
mod meters;
mod model;
mod order;
mod output;
mod places;
mod progress;
mod sealed;
mod secret;
mod stress;
mod timeline;
mod watch;

use std::process::ExitCode;

use clap::Parser;

use crate::args::{Args, Command};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let args = Args::parse_from(order::arrange(std::env::args_os().collect()));
    output::set_colours(args.color);
    files::keep_private();
    output::clean_panics();
    start_logs(&args.log);
    match sealed::set_keys(args.codec_key.as_ref()).map_err(Into::into).and_then(|()| run(&args.command)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => exit::report(&error),
    }
}

fn run(command: &Command) -> anyhow::Result<()> {
    // The emulator and the completions need no runtime of ours.
    match command {
        Command::Emulator(args) => return commands::emulator::run(args),
        Command::Completions(args) => return commands::completions::run(args),
        _ => {}
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(THREADS).enable_all().build()?;
    let outcome = runtime.block_on(async { Box::pin(dispatch(command)).await });
    // A read of a name or of standard input that still blocks must not keep us.
    runtime.shutdown_background();
    outcome
}

async fn dispatch(command: &Command) -> anyhow::Result<()> {
    match command {
        Command::Emulator(_) | Command::Completions(_) => Ok(()),
        Command::Demo(args) => commands::demo::run(args).await,
        Command::Dashboard(args) => commands::dashboard::run(args).await,
        Command::Instances(args) => commands::instances::run(args).await,
        Command::Show(args) => commands::show::run(args).await,
        Command::History(args) => commands::history::run(args).await,
        Command::Tree(args) => commands::tree::run(args).await,
        Command::Why(args) => commands::why::run(args).await,
        Command::Queues(args) => commands::queues::run(args).await,
        Command::Runtimes(args) => commands::runtimes::run(args).await,
        Command::Top(args) => commands::top::run(args).await,
        Command::Metrics(args) => Box::pin(commands::metrics::run(args)).await,
        Command::Start(args) => commands::send::start(args).await,
        Command::Raise(args) => commands::send::raise(args).await,
        Command::Enqueue(args) => commands::send::enqueue(args).await,
        Command::Cancel(args) => commands::send::cancel(args).await,
        Command::Wait(args) => commands::wait::run(args).await,
        Command::Rerun(args) => commands::rerun::run(args).await,
        Command::Sql(args) => commands::sql::run(args).await,
        Command::Context(args) => commands::contexts::run(args),
        Command::Rewind(args) => commands::rerun::rewind(args),
        Command::Version => commands::version(),
        Command::Delete(args) => commands::delete::run(args).await,
        Command::Prune(args) => commands::prune::run(args).await,
        Command::Retention(args) => Box::pin(commands::retention::run(args)).await,
        Command::DeadLetters(args) => commands::dead_letters::run(args).await,
        Command::Export(args) => commands::export::run(args).await,
        Command::Import(args) => commands::import::run(args).await,
        Command::Fsck(args) => Box::pin(commands::fsck::run(args)).await,
        Command::Stress(args) => commands::stress::run(args).await,
    }
}

/// Logs of the libraries, by the usual filter syntax. Without colours: an event comes as one text, in which those of the
/// log could not be told from those of the data.
fn start_logs(filter: &str) {
    let filter = tracing_subscriber::EnvFilter::new(filter);
    tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false).with_writer(output::Logs).init();
}

/// The demo's activities sleep; two threads are plenty.
const THREADS: usize = 2;
