//! `cdb metrics`: figures for Prometheus and for scalers.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use tokio::net::TcpListener;

use crate::context::{Connection, ConnectionArgs};
use crate::exposition::{Rule, Source, Watcher, serve};
use crate::interrupt::Interrupt;
use crate::output::{Output, parse_span};

/// Serve figures about a container: /metrics for Prometheus, /scale for KEDA.
///
/// Backlog and its age by queue, dead letters, members, and how many processes the work needs. A look takes two requests and
/// one for each further physical partition; between looks everybody gets the last one. Ctrl-C stops it.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct MetricsArgs {
    /// Address and port to listen on; port 0 takes any free one.
    #[arg(long, default_value = "127.0.0.1:9464", value_name = "ADDRESS")]
    listen: SocketAddr,

    /// Look at the container at most this often.
    #[arg(long, default_value = "10s", value_name = "SPAN", value_parser = parse_span)]
    every: Duration,

    /// Request units per second that looking may take.
    #[arg(long, default_value_t = 5.0, value_name = "RU")]
    budget: f64,

    /// Turns and activities that one process runs at once [default: what the runtimes were seen to run].
    #[arg(long, value_name = "N")]
    per_process: Option<u64>,

    #[command(flatten)]
    connection: ConnectionArgs,
}

const EXAMPLES: &str = "Examples:
  cdb metrics --data cdb-demo
  cdb metrics --listen 0.0.0.0:9464 --endpoint https://NAME.documents.azure.com:443/
  curl http://127.0.0.1:9464/scale";

/// Serves figures until told to stop.
pub(crate) async fn run(args: &MetricsArgs) -> anyhow::Result<()> {
    let mut interrupt = Interrupt::listen().context("cannot listen for signals")?;
    Connection::during(&args.connection, async |connection| {
        let listener = TcpListener::bind(args.listen)
            .await
            .with_context(|| format!("figures cannot be served at {}: name another port", args.listen))?;
        let address = listener.local_addr()?;
        let rule = Rule { per_process: args.per_process };
        let watcher = Watcher::new(connection.documents()?, args.every, args.budget, rule);
        Output::new(false).line(format!("Figures at http://{address}/metrics  (Ctrl-C stops it)"))?;
        tokio::select! {
            () = serve(listener, Source::Container(Box::new(watcher))) => Ok(()),
            () = interrupt.wait() => Ok(()),
        }
    })
    .await
}
