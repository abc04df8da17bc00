//! `cdb dashboard`: the pages.

use std::net::IpAddr;
use std::process::{Command, Stdio};
use std::sync::Arc;

use anyhow::Context as _;
use clap::Args;

use crate::context::{Connection, ConnectionArgs, IfMissing, Target, no_place, refuse_user};
use crate::dashboard::{BUDGET, Dashboard, Options, PORT, TOKEN_VARIABLE};
use crate::interrupt::Interrupt;
use crate::output::{Output, say};
use crate::secret::Secret;

/// Look at workflows in a browser, find out why they wait, and act.
///
/// Serves pages on this machine and prints their address, which has the token in it that opens them. They read within a
/// budget and only while somebody looks. Ctrl-C stops it.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DashboardArgs {
    /// Port of the pages; 0 takes any free one.
    #[arg(long, short, default_value_t = PORT)]
    port: u16,

    /// Address to listen on. Any but this machine's own needs a token of yours.
    #[arg(long, default_value = "127.0.0.1", value_name = "ADDRESS")]
    bind: IpAddr,

    /// What opens the pages, at least 16 characters [default: made at each start].
    #[arg(long, env = TOKEN_VARIABLE, hide_env_values = true, value_name = "TEXT")]
    token: Option<Secret>,

    /// Only look: nothing that changes something is served.
    #[arg(long)]
    read_only: bool,

    /// Request units per second that looking for changes may take.
    #[arg(long, default_value_t = BUDGET, value_name = "RU", value_parser = budget)]
    budget: f64,

    /// Open the browser.
    #[arg(long)]
    open: bool,

    /// Management endpoint of a running emulator, as its ready line says: adds a page for it.
    #[arg(long, value_name = "URL")]
    management: Option<String>,

    #[command(flatten)]
    connection: ConnectionArgs,
}

const EXAMPLES: &str = "Examples:
  cdb dashboard --data cdb-demo --open
  cdb dashboard --endpoint http://localhost:8081 --management http://localhost:8082
  cdb dashboard --endpoint https://NAME.documents.azure.com:443/ --read-only";

/// Serves the pages until told to stop.
pub(crate) async fn run(args: &DashboardArgs) -> anyhow::Result<()> {
    args.management.as_deref().map_or(Ok(()), refuse_user)?;
    let target = Target::resolve(&args.connection, |name| std::env::var(name).ok(), || Err(no_place()))?;
    let mut interrupt = Interrupt::listen().context("cannot listen for signals")?;
    let connection = Arc::new(Connection::open_managed(target, IfMissing::Refuse).await?);
    let options = Options {
        bind: args.bind,
        port: args.port,
        token: args.token.clone(),
        is_read_only: args.read_only,
        budget: args.budget,
    };
    let outcome = match Dashboard::open(connection.clone(), &options, args.management.clone()).await {
        Ok(dashboard) => {
            let outcome = serve(&dashboard, args.open, &connection, &mut interrupt).await;
            dashboard.close().await;
            outcome
        }
        Err(error) => Err(error),
    };
    if let Some(connection) = Arc::into_inner(connection) {
        connection.close().await;
    }
    outcome
}

async fn serve(
    dashboard: &Dashboard,
    is_opened: bool,
    connection: &Connection,
    interrupt: &mut Interrupt,
) -> anyhow::Result<()> {
    Output::new(false).line(announcement(dashboard))?;
    if is_opened && !open(dashboard.url()) {
        say("no browser could be opened: copy the address into one");
    }
    tokio::select! {
        outcome = connection.guard(std::future::pending()) => outcome,
        () = interrupt.wait() => Ok(()),
    }
}

/// The one line that says where the pages are.
pub(crate) fn announcement(dashboard: &Dashboard) -> String {
    format!("Dashboard at {}  (Ctrl-C stops it)", dashboard.url())
}

/// Lets the system open an address, by the first of its programs that is there.
fn open(url: &str) -> bool {
    ["xdg-open", "open", "explorer"].iter().any(|program| {
        let mut command = Command::new(program);
        command.arg(url).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().is_ok()
    })
}

fn budget(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(units) if (1.0..=1_000_000.0).contains(&units) => Ok(units),
        _ => Err("it must be a number of at least 1".to_owned()),
    }
}
