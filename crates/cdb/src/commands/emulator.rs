//! `cdb emulator`: serve an account until told to stop.

use std::io::{self, Write};
use std::thread::available_parallelism;

use anyhow::Context as _;
use cosmos_emulator::{Auth, Config, Consistency, Emulator, Fsync, Gateway, Store};
use serde_json::json;

use crate::args::{EmulatorArgs, Level, Switch};

/// Threads that serve requests unless told otherwise: more do not help one developer's machine.
const THREADS_MAX: usize = 4;

/// Starts the emulator, says where it is, and waits for the end.
pub(crate) fn run(args: &EmulatorArgs) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    runtime.block_on(async {
        // Listening for signals before anyone can know that we are here, so that none is missed.
        let mut signals = Signals::new().context("cannot listen for signals")?;
        let emulator = Emulator::start(config(args))?;
        announce(&emulator).context("cannot write the ready line")?;
        signals.wait().await;
        // The reader of our messages may be gone by now.
        let _ = writeln!(io::stderr(), "stopping");
        emulator.shutdown().await;
        Ok(())
    })
}

fn config(args: &EmulatorArgs) -> Config {
    let defaults = Config::default();
    let fsync = match args.fsync {
        Switch::On => Fsync::On,
        Switch::Off => Fsync::Off,
    };
    let store = if args.memory { Store::Memory } else { Store::Folder { path: args.data.clone(), fsync } };
    let processors = available_parallelism().map_or(1, usize::from);
    Config {
        bind: args.bind,
        port: args.port,
        management_port: (!args.no_management).then_some(args.management_port),
        store,
        key: args.key.clone().unwrap_or(defaults.key),
        read_only_key: args.read_only_key.clone(),
        auth: if args.no_auth { Auth::Open } else { Auth::Required },
        account_id: args.account.clone(),
        consistency: match args.consistency {
            Level::Eventual => Consistency::Eventual,
            Level::ConsistentPrefix => Consistency::ConsistentPrefix,
            Level::Session => Consistency::Session,
            Level::BoundedStaleness => Consistency::BoundedStaleness,
            Level::Strong => Consistency::Strong,
        },
        partitions: args.partitions,
        throttling: args.throttle,
        serverless: args.serverless,
        gateway: if args.serve_all_queries { Gateway::ServeAll } else { Gateway::AsService },
        threads: args.threads.map_or(processors.min(THREADS_MAX), usize::from),
        ..defaults
    }
}

/// One line for programs on standard output, one for people on standard error.
fn announce(emulator: &Emulator) -> io::Result<()> {
    let endpoint = emulator.endpoint();
    let mut ready = json!({
        "event": "ready",
        "accountEndpoint": endpoint,
        "regions": emulator.regions().list().into_iter().map(|region| json!({"name": region.name, "gatewayEndpoint": region.endpoint})).collect::<Vec<_>>(),
    });
    if let Some(management) = emulator.management_endpoint() {
        ready["managementEndpoint"] = management.into();
    }
    let mut out = io::stdout().lock();
    writeln!(out, "{ready}")?;
    out.flush()?;
    let place = match &emulator.config().store {
        Store::Memory => "in memory".to_owned(),
        Store::Folder { path, .. } => format!("in {}", path.display()),
    };
    let auth = match emulator.config().auth {
        Auth::Required => "",
        Auth::Open => "; signatures are not checked",
    };
    writeln!(io::stderr(), "Cosmos DB account at {endpoint}, data {place}{auth}. Ctrl-C stops it.")
}

/// The signals that mean stop.
struct Signals {
    #[cfg(unix)]
    terminate: tokio::signal::unix::Signal,
    #[cfg(unix)]
    interrupt: tokio::signal::unix::Signal,
}

impl Signals {
    #[cfg(unix)]
    fn new() -> io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    #[cfg(unix)]
    async fn wait(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }

    #[cfg(not(unix))]
    fn new() -> io::Result<Self> {
        Ok(Self {})
    }

    #[cfg(not(unix))]
    async fn wait(&mut self) {
        // Without a console there is nothing to wait for but the end of the process.
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
