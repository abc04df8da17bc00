//! `cdb emulator`: serve an account until told to stop.

mod args;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Duration;

use anyhow::Context as _;
use cosmos_emulator::{
    Auth, Blueprint, Config, Consistency, Emulator, Entra, Fsync, Gateway, Limits, ReplicationDelay, Store,
    Tls, WriteMode,
};
use serde_json::{Value, json};

pub(crate) use self::args::EmulatorArgs;
use self::args::{AccountArgs, DataArgs, Level, Switch, TlsArgs};
use crate::commands::dashboard::announcement;
use crate::context::{Access, Connection, IfMissing, Place, Target};
use crate::dashboard::Dashboard;
use crate::exit::Problem;
use crate::files;
use crate::output::{Output, is_terminal, say};

/// Threads that serve requests unless told otherwise: more do not help one developer's machine.
const THREADS_MAX: usize = 4;

/// Starts the emulator, says where it is, and waits for the end.
pub(crate) fn run(args: &EmulatorArgs) -> anyhow::Result<()> {
    if let Some(folder) = &args.data.salvage {
        return salvage(&args.data.data, folder);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        // Listening for signals before anyone can know that we are here, so that none is missed.
        let mut signals = Signals::new().context("cannot listen for signals")?;
        let emulator = Emulator::start(config(args)?)?;
        export(&emulator, args)?;
        if args.like_docker && args.bind.is_loopback() {
            // Tests with two addresses for one account rely on the one it names itself by.
            for region in emulator.regions().list() {
                if let Some(endpoint) = region.endpoint {
                    emulator.regions().announce(&region.name, endpoint)?;
                }
            }
        }
        announce(&emulator).context("cannot write the ready line")?;
        for warning in exposures(emulator.config()) {
            say(format!("WARNING: {warning}"));
        }
        let pages = match args.explorer {
            true => Some(explorer(&emulator, args).await?),
            false => None,
        };
        tokio::select! {
            () = signals.wait() => {}
            failure = emulator.failed() => {
                // Reads go on, so the server does.
                say(format!("cdb: {failure} Until then only reads are served."));
                signals.wait().await;
            }
        }
        say("stopping");
        if let Some(pages) = pages {
            pages.close().await;
        }
        emulator.shutdown().await;
        Ok(())
    })
}

/// Copies what can be read of a damaged folder and says what cannot.
fn salvage(from: &Path, to: &Path) -> anyhow::Result<()> {
    let salvaged = cosmos_emulator::storage::salvage(from, to)?;
    for cut in &salvaged.cuts {
        say(format!(
            "lost: {} bytes of {} from byte {} on, with at least {} writes",
            cut.bytes_lost,
            cut.journal.display(),
            cut.at_byte,
            cut.writes_lost
        ));
    }
    if salvaged.cuts.is_empty() {
        say("nothing is lost");
    }
    say(format!("{} holds {} rows; {} is as it was", to.display(), salvaged.rows, from.display()));
    Ok(())
}

/// Serves pages about the account. It may have no workflows: nothing is made for them.
async fn explorer(emulator: &Emulator, args: &EmulatorArgs) -> anyhow::Result<Dashboard> {
    let place =
        Place::Account { endpoint: emulator.endpoint(), access: Access::Key(emulator.key().to_owned()) };
    let target = Target { place, database: "duroxide".to_owned(), container: "duroxide".to_owned() };
    let connection = Arc::new(Connection::open_target(target, IfMissing::Create).await?);
    let dashboard =
        Dashboard::open(connection, &args.pages.options(), emulator.management_endpoint()).await?;
    say(announcement(&dashboard));
    Ok(dashboard)
}

fn config(args: &EmulatorArgs) -> anyhow::Result<Config> {
    let EmulatorArgs { data, access, tls, account, .. } = args;
    let processors = available_parallelism().map_or(1, usize::from);
    let mut config = Config {
        bind: args.bind,
        port: args.port,
        management_port: (!args.no_management).then_some(args.management_port),
        store: store(data),
        restore_from: data.restore.clone(),
        read_only_key: access.read_only_key.as_ref().map(|key| key.reveal().to_owned()),
        auth: if access.no_auth { Auth::Open } else { Auth::Required },
        entra: access.entra.then(|| Entra {
            issuers: access.entra_issuer.clone(),
            audiences: access.entra_audience.clone(),
        }),
        tls: security(tls, args.like_docker),
        account_id: account.account.clone(),
        gateway2: account.gateway2,
        gateway: if account.serve_all_queries { Gateway::ServeAll } else { Gateway::AsService },
        threads: args.threads.map_or(processors.min(THREADS_MAX), usize::from),
        limits: Limits { connection_age_max: tls.connection_age, ..Limits::default() },
        ..Config::default()
    };
    if let Some(key) = &access.key {
        config.key = key.reveal().to_owned();
    }
    if let Some(file) = &args.config {
        config = config.with_blueprint(blueprint(file)?);
    }
    if args.like_docker && config.regions.is_empty() {
        config.regions.push(DOCKER_REGION.to_owned());
    }
    describe(account, &mut config);
    Ok(config)
}

/// What the options say of the account, over what a file says.
fn describe(account: &AccountArgs, config: &mut Config) {
    if !account.region.is_empty() {
        config.regions.clone_from(&account.region);
    }
    if account.multi_write {
        config.write_mode = WriteMode::Multiple;
    }
    if let Some(delay) = account.replication_delay_ms {
        config.replication_delays.push(ReplicationDelay::everywhere(Duration::from_millis(delay)));
    }
    if let Some(level) = account.consistency {
        config.consistency = match level {
            Level::Eventual => Consistency::Eventual,
            Level::ConsistentPrefix => Consistency::ConsistentPrefix,
            Level::Session => Consistency::Session,
            Level::BoundedStaleness => Consistency::BoundedStaleness,
            Level::Strong => Consistency::Strong,
        };
    }
    config.partitions = account.partitions.or(config.partitions);
    config.throttling |= account.throttle;
    config.serverless |= account.serverless;
    config.continuous_backup |= account.continuous_backup;
}

/// Where the certificate goes that clients of `--like-docker` trust, and what its region is called.
const DOCKER_CERTIFICATE: &str = "cdb-emulator.pem";
const DOCKER_REGION: &str = "South Central US";

fn blueprint(file: &Path) -> anyhow::Result<Blueprint> {
    let usage = |reason: String| Problem::Usage(format!("--config {}: {reason}", file.display()));
    let text = fs::read_to_string(file).map_err(|error| usage(format!("it cannot be read: {error}")))?;
    Ok(Blueprint::parse(&text).map_err(|error| usage(error.to_string()))?)
}

fn store(data: &DataArgs) -> Store {
    let fsync = match data.fsync {
        Switch::On => Fsync::On,
        Switch::Off => Fsync::Off,
    };
    if data.memory { Store::Memory } else { Store::Folder { path: data.data.clone(), fsync } }
}

fn security(args: &TlsArgs, like_docker: bool) -> Tls {
    match (&args.tls_certificate, &args.tls_key) {
        (Some(certificate), Some(key)) => Tls::Files { certificate: certificate.clone(), key: key.clone() },
        // The command line takes both or none.
        _ if args.tls || like_docker => Tls::Generated { names: args.tls_name.clone() },
        _ => Tls::Off,
    }
}

/// Writes the certificate where clients find it.
fn export(emulator: &Emulator, args: &EmulatorArgs) -> anyhow::Result<()> {
    let usual = args.like_docker.then(|| PathBuf::from(DOCKER_CERTIFICATE));
    let file = args.tls.export_certificate.as_ref().or(usual.as_ref());
    if let (Some(file), Some(pem)) = (file, emulator.certificate()) {
        files::write(file, pem)
            .and_then(|()| files::publish(file))
            .with_context(|| format!("the certificate cannot be written to {}", file.display()))?;
    }
    Ok(())
}

/// One line for programs on standard output, one for people on standard error.
fn announce(emulator: &Emulator) -> io::Result<()> {
    let endpoint = emulator.endpoint();
    let regions: Vec<Value> = emulator
        .regions()
        .list()
        .into_iter()
        .map(|region| {
            let mut line = json!({"name": region.name, "gatewayEndpoint": region.endpoint});
            if let Some(endpoint) = region.gateway2_endpoint {
                line["gateway2Endpoint"] = endpoint.into();
            }
            line
        })
        .collect();
    let mut ready = json!({"event": "ready", "accountEndpoint": endpoint, "regions": regions});
    if let Some(management) = emulator.management_endpoint() {
        ready["managementEndpoint"] = management.into();
    }
    if !is_terminal() {
        Output::new(true).json_line(&ready)?;
    }
    let place = match &emulator.config().store {
        Store::Memory => "in memory".to_owned(),
        Store::Folder { path, .. } => format!("in {}", path.display()),
    };
    let auth = match emulator.config().auth {
        Auth::Required => "",
        Auth::Open => "; signatures are not checked",
    };
    let others = match regions.len() {
        0 | 1 => String::new(),
        count => format!(" ({count} regions)"),
    };
    say(format!("Cosmos DB account at {endpoint}{others}, data {place}{auth}. Ctrl-C stops it."));
    if is_terminal() {
        for line in welcome(&endpoint, emulator.key(), emulator.management_endpoint().as_deref()) {
            say(line);
        }
    }
    Ok(())
}

/// What somebody who looks at a terminal wants to copy. A key of the user's own is not shown: it may be a real secret.
fn welcome(endpoint: &str, key: &str, management: Option<&str>) -> Vec<String> {
    let mut lines = Vec::new();
    if key == cosmos_wire::EMULATOR_KEY {
        lines.push(format!("  key (of all emulators)  {key}"));
        lines.push(format!("  connection string       AccountEndpoint={endpoint};AccountKey={key};"));
    }
    if let Some(management) = management {
        lines.push(format!("  management              {management} (GET / lists what it offers)"));
    }
    lines.push(format!("  workflows               cdb instances --endpoint {endpoint}"));
    lines.push("  pages for a browser     cdb emulator --explorer".to_owned());
    lines
}

/// What other machines can do that they should not, by where the ports listen.
fn exposures(config: &Config) -> Vec<String> {
    let address = config.bind;
    let mut exposures = Vec::new();
    if address.to_canonical().is_loopback() {
        return exposures;
    }
    let open = match (config.auth, &config.entra) {
        (Auth::Open, _) => Some("without a signature"),
        (Auth::Required, _) if config.key == cosmos_wire::EMULATOR_KEY => {
            Some("with the key that all emulators share (--key sets another)")
        }
        (Auth::Required, Some(_)) => {
            Some("with Entra tokens of their own making (--entra checks no signature)")
        }
        (Auth::Required, None) => None,
    };
    if let Some(how) = open {
        exposures.push(format!("other machines can reach {address} and read and change all data {how}."));
    }
    if config.management_port.is_some() {
        exposures.push(format!(
            "the management port listens on {address} and asks for no key: other machines can make faults, copy the data \
             into folders of this machine, and put its clock forward. --no-management closes it."
        ));
    }
    exposures
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_other_machines_can_do_is_said_once_for_each_port() {
        let about = |config: &Config| -> Vec<bool> {
            exposures(config).iter().map(|warning| warning.contains("management")).collect()
        };
        let here = Config::default().with_management();
        assert!(about(&here).is_empty());
        assert!(about(&Config { bind: "::1".parse().unwrap(), ..here.clone() }).is_empty());
        for address in ["0.0.0.0", "::", "10.0.0.1"] {
            let open = Config { bind: address.parse().unwrap(), ..here.clone() };
            assert_eq!(about(&open), [false, true], "{address}");
            let own_key = Config { key: "b3du".to_owned(), ..open.clone() };
            assert_eq!(about(&own_key), [true], "{address}");
            assert!(about(&Config { management_port: None, ..own_key.clone() }).is_empty(), "{address}");
            let tokens = own_key.clone().with_entra(Entra::default());
            assert_eq!(about(&tokens), [false, true], "{address}");
            assert_eq!(about(&own_key.with_auth(Auth::Open)), [false, true], "{address}");
        }
    }
}
