//! The emulator as a value: started, asked, stopped.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::blueprint::BlueprintError;
use crate::clock::Clock;
use crate::config::{Config, Fsync, Store};
use crate::engine::{Engine, EngineOptions};
use crate::fault::Faults;
use crate::flusher::Flusher;
use crate::guard::Guard;
use crate::http::{Account, Entrance, Gateway2Entrance, Place};
use crate::lanes::{self, Lanes};
use crate::ledger::Ledger;
use crate::management::Management;
use crate::regions::{Door, DoorKind, Regions, Sockets, url};
use crate::server::{self, Gate, Limits, Reset};
use crate::storage::{self, StorageError};
use crate::tls::{TlsError, TlsIdentity};

/// A Cosmos DB account in this process.
///
/// [`Emulator::start`] serves it on a socket; [`Emulator::open`] does not, and is asked through [`Emulator::handle`]
/// alone. Dropping it stops the server and closes the store.
#[derive(Debug)]
pub struct Emulator {
    // Dropped first, so that no request runs when the store closes.
    serving: Option<Serving>,
    pub(crate) account: Arc<Account>,
    config: Config,
    tls: Option<TlsIdentity>,
}

impl Emulator {
    /// Opens the store and serves the account on `config.bind`, by default on a free port of the loopback interface.
    ///
    /// The server runs on threads of its own, so it works under any runtime or none.
    ///
    /// # Errors
    /// When the port is taken, the folder cannot be used, or a key is not base64.
    pub fn start(config: Config) -> Result<Self, StartError> {
        Self::start_with_clock(config, Clock::real())
    }

    /// Like [`Emulator::start`], on a clock of your own: a manual one makes expiry testable without waiting.
    ///
    /// # Errors
    /// When the port is taken, the folder cannot be used, or a key is not base64.
    pub fn start_with_clock(config: Config, clock: Clock) -> Result<Self, StartError> {
        let management = config.management_port.map(|port| bind(&config, port)).transpose()?;
        let mut emulator = Self::open_with_clock(config, clock)?;
        emulator.serving = Some(Serving::start(&emulator, management)?);
        if let Store::Folder { path, .. } = &emulator.config.store {
            storage::tell_address(path, &emulator.endpoint());
        }
        Ok(emulator)
    }

    /// Opens the store without any socket.
    ///
    /// # Errors
    /// When the folder cannot be used, or a key is not base64.
    pub fn open(config: Config) -> Result<Self, StartError> {
        Self::open_with_clock(config, Clock::real())
    }

    /// Like [`Emulator::open`], on a clock of your own.
    ///
    /// # Errors
    /// When the folder cannot be used, or a key is not base64.
    pub fn open_with_clock(config: Config, clock: Clock) -> Result<Self, StartError> {
        let (place, fsync) = match &config.store {
            Store::Memory => (storage::Place::Memory, Fsync::Off),
            Store::Folder { path, fsync } => (storage::Place::Folder(path.clone()), *fsync),
        };
        let durability = match fsync {
            Fsync::On => storage::Durability::Fsync,
            Fsync::Off => storage::Durability::OsBuffered,
        };
        let tls = TlsIdentity::of(&config).map_err(StartError::Certificate)?;
        let options = storage::Options { durability, ..storage::Options::default() };
        let storage = storage::open(&place, options).map_err(StartError::Store)?;
        if let Some(folder) = &config.restore_from {
            storage::snapshot::restore(folder, storage.as_ref()).map_err(StartError::Store)?;
        }
        let flusher = Flusher::new(storage.clone()).map_err(StartError::Thread)?;
        let options = EngineOptions {
            partitions: config.partitions,
            regions: config.regions.clone(),
            write_mode: config.write_mode,
            consistency: config.consistency,
            replication_delays: config.replication_delays.clone(),
            throttling: config.throttling,
            serverless: config.serverless,
            continuous_backup: config.continuous_backup,
        };
        let engine = Engine::open(storage, clock.clone(), options).map_err(StartError::Store)?;
        if let Some(blueprint) = &config.blueprint {
            blueprint.plant(&engine).map_err(StartError::Blueprint)?;
        }
        let account = Account::new(&config, engine, clock, flusher).map_err(StartError::Key)?;
        Ok(Self { serving: None, account: Arc::new(account), config, tls })
    }

    /// Where the account is, for example `http://127.0.0.1:8081/`; empty when no socket is served. With several
    /// regions this is the first one's endpoint; see [`Regions::endpoint_of`].
    pub fn endpoint(&self) -> String {
        let socket = self.account.regions.first_door();
        socket.socket().map(|socket| url(socket.address, self.scheme())).unwrap_or_default()
    }

    /// Where the management API is, if it is served.
    pub fn management_endpoint(&self) -> Option<String> {
        self.serving.as_ref()?.management.map(|address| url(address, "http"))
    }

    /// The certificate that clients have to trust, as PEM, when the account is served through TLS.
    pub fn certificate(&self) -> Option<&str> {
        self.tls.as_ref().map(TlsIdentity::certificate)
    }

    /// Tells every open connection to leave: GOAWAY on HTTP/2, `connection: close` on HTTP/1.1. Requests in flight are
    /// answered. Says how many were told.
    pub fn goaway(&self) -> u64 {
        self.account.regions.gates().iter().map(|gate| gate.goaway()).sum()
    }

    /// Drops every open connection in mid-request.
    pub fn cut_connections(&self) {
        self.account.regions.gates().iter().for_each(|gate| gate.cut());
    }

    /// How old connections may become before they are told to leave, those that are open included; none lets them
    /// live.
    pub fn limit_connection_age(&self, age_max: Option<Duration>) {
        self.account.regions.gates().iter().for_each(|gate| gate.limit_age(age_max));
    }

    fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "https" } else { "http" }
    }

    /// Copies the data as it is now into a new folder, while the account is in use. The copy is a data folder: start
    /// an emulator on it, or restore it into another.
    ///
    /// # Errors
    /// When the folder is not empty or cannot be written.
    pub fn snapshot(&self, folder: &Path) -> Result<(), StorageError> {
        storage::snapshot::save(self.account.engine.storage().as_ref(), folder).map(drop)
    }

    /// Why no more writes are taken: the data folder failed, or its disk is full. Reads go on.
    pub fn failure(&self) -> Option<StorageError> {
        self.account.engine.storage().failure()
    }

    /// Waits until no more writes are taken, and says why; for ever where that cannot happen.
    pub async fn failed(&self) -> StorageError {
        if let Some(mut failures) = self.account.engine.storage().failures() {
            let failure = failures.wait_for(Option::is_some).await.ok().and_then(|failure| failure.clone());
            if let Some(failure) = failure {
                return failure;
            }
        }
        std::future::pending().await
    }

    /// The master key, base64.
    pub fn key(&self) -> &str {
        &self.config.key
    }

    /// What it was started with.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Answers one request without a socket, as the first region does.
    ///
    /// # Errors
    /// [`Reset`] where a fault rule closes the connection instead of answering.
    pub async fn handle(&self, request: Request<Bytes>) -> Result<Response<Bytes>, Reset> {
        let door = self.account.regions.first_door();
        self.account.answer(&door, server::received(request), Place::Here).await
    }

    /// Answers one request without a socket, as this region does.
    ///
    /// # Errors
    /// [`Reset`] where a fault rule closes the connection instead of answering, or the region is not there or refuses
    /// connections.
    pub async fn handle_at(&self, region: &str, request: Request<Bytes>) -> Result<Response<Bytes>, Reset> {
        let door = self.account.regions.named(region).map_err(|_| Reset)?;
        self.account.answer(&door, server::received(request), Place::Here).await
    }

    /// The regions of the account.
    pub fn regions(&self) -> &Regions {
        &self.account.regions
    }

    /// The clock of the account; put it forward to see things expire.
    pub fn clock(&self) -> &Clock {
        &self.account.clock
    }

    /// What clients asked for and what it cost.
    pub fn ledger(&self) -> &Ledger {
        &self.account.ledger
    }

    /// The fault rules.
    pub fn faults(&self) -> &Faults {
        &self.account.faults
    }

    /// Stops accepting, lets requests in flight finish for a bounded time, and closes the store.
    pub async fn shutdown(mut self) {
        let Some(mut serving) = self.serving.take() else { return };
        serving.stop.send_replace(Stop::Gracefully);
        let Some(thread) = serving.thread.take() else { return };
        let (done, told) = tokio::sync::oneshot::channel();
        let waiting = thread::Builder::new().name("cosmos-stop".to_owned()).spawn(move || {
            join(thread);
            // The caller may have stopped listening.
            let _ = done.send(());
        });
        if waiting.is_ok() {
            // An error would mean that the thread is gone, which is what we wait for.
            let _ = told.await;
        }
    }
}

/// The thread that serves sockets, and how to stop it.
#[derive(Debug)]
struct Serving {
    management: Option<SocketAddr>,
    stop: watch::Sender<Stop>,
    thread: Option<thread::JoinHandle<()>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stop {
    /// Go on serving.
    No,
    /// Finish what is in flight, for a bounded time.
    Gracefully,
    /// Now.
    AtOnce,
}

impl Serving {
    fn start(emulator: &Emulator, management: Option<TcpListener>) -> Result<Self, StartError> {
        let management_address =
            management.as_ref().map(TcpListener::local_addr).transpose().map_err(StartError::Thread)?;
        let config = &emulator.config;
        let lanes = Arc::new(Lanes::start(config.threads).map_err(StartError::Thread)?);
        let (stop, stopped) = watch::channel(Stop::No);
        let account = emulator.account.clone();
        let sockets = Sockets {
            bind: config.bind,
            port: config.port,
            scheme: emulator.scheme(),
            limits: config.limits.clone(),
            tls: emulator.tls.as_ref().map(TlsIdentity::server),
            lanes: lanes.clone(),
        };
        account.regions.listen(sockets).map_err(|(address, error)| StartError::Listen { address, error })?;
        // Last of what can fail: a runtime must not be dropped where the caller runs one.
        let runtime = lanes::runtime().map_err(StartError::Thread)?;
        let limits = Limits { connection_age_max: None, ..config.limits.clone() };
        let management = management.zip(management_address).map(|(listener, address)| {
            let certificate = emulator.certificate().map(str::to_owned);
            let guard = Guard::new(address);
            (listener, Management::new(account.clone(), emulator.endpoint(), certificate, guard))
        });
        let gate = Arc::new(Gate::new(limits, None, lanes.clone()));
        let serving = async move {
            let doors = serve_doors(account, stopped.clone());
            let management = async {
                if let Some((listener, manager)) = management {
                    serve(listener, manager, gate, stopped).await;
                }
            };
            tokio::join!(doors, management);
        };
        let thread = thread::Builder::new()
            .name("cosmos-emulator".to_owned())
            .spawn(move || {
                runtime.block_on(serving);
                lanes.stop();
                runtime.shutdown_timeout(lanes::LAST_CALLS);
            })
            .map_err(StartError::Thread)?;
        Ok(Self { management: management_address, stop, thread: Some(thread) })
    }
}

/// Serves the door of every region, also of those that join later, until told to stop.
async fn serve_doors(account: Arc<Account>, stopped: watch::Receiver<Stop>) {
    let mut doors = account.regions.watch_doors();
    let mut serving = JoinSet::new();
    let mut stop = stopped.clone();
    let mut served = 0;
    loop {
        let new: Vec<_> = doors.borrow_and_update().iter().skip(served).map(Arc::clone).collect();
        served += new.len();
        for door in new {
            serving.spawn(serve_door(account.clone(), door, stopped.clone()));
        }
        // A closed channel means that the emulator is gone: stop then, too.
        tokio::select! {
            _ = stop.wait_for(|stop| *stop != Stop::No) => break,
            _ = doors.changed() => {}
        }
    }
    while serving.join_next().await.is_some() {}
}

async fn serve_door(account: Arc<Account>, door: Arc<Door>, mut stopped: watch::Receiver<Stop>) {
    let mut at_once = stopped.clone();
    let stop = async move {
        let _ = stopped.wait_for(|stop| *stop != Stop::No).await;
    };
    let entrance = Entrance { account, door: door.clone() };
    let serving = async {
        match door.kind {
            DoorKind::Gateway => door.serve(Arc::new(entrance), stop).await,
            DoorKind::Gateway2 => door.serve(Arc::new(Gateway2Entrance(entrance)), stop).await,
        }
    };
    tokio::select! {
        ended = serving => {
            if let Err(error) = ended {
                tracing::error!(%error, region = door.name, "the region can no longer be served");
            }
        }
        _ = at_once.wait_for(|stop| *stop == Stop::AtOnce) => {}
    }
}

/// Serves one listener until told to stop.
async fn serve<H: server::Handler>(
    listener: TcpListener,
    handler: H,
    gate: Arc<Gate>,
    mut stopped: watch::Receiver<Stop>,
) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "cannot serve the socket"),
    };
    let mut at_once = stopped.clone();
    // A closed channel means that the emulator is gone: stop then, too.
    let stop = async move {
        let _ = stopped.wait_for(|stop| *stop != Stop::No).await;
    };
    let server = server::run(listener, Arc::new(handler), gate, stop);
    tokio::select! {
        () = server => {}
        _ = at_once.wait_for(|stop| *stop == Stop::AtOnce) => {}
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.stop.send_replace(Stop::AtOnce);
        if let Some(thread) = self.thread.take() {
            join(thread);
        }
    }
}

fn join(thread: thread::JoinHandle<()>) {
    // The server's thread only panics on a bug, which it reported when it happened.
    let _ = thread.join();
}

fn bind(config: &Config, port: u16) -> Result<TcpListener, StartError> {
    let address = SocketAddr::new(config.bind, port);
    let refused = |error| StartError::Listen { address, error };
    let listener = TcpListener::bind(address).map_err(refused)?;
    listener.set_nonblocking(true).map_err(refused)?;
    Ok(listener)
}

/// Why an emulator did not start.
#[derive(Debug)]
#[non_exhaustive]
pub enum StartError {
    /// The address cannot be listened on.
    Listen {
        /// Where.
        address: SocketAddr,
        /// What the system says.
        error: io::Error,
    },
    /// The store cannot be opened.
    Store(StorageError),
    /// A key is not base64.
    Key(cosmos_wire::signature::InvalidKey),
    /// What a blueprint describes cannot be made.
    Blueprint(BlueprintError),
    /// The certificate cannot be used or made.
    Certificate(TlsError),
    /// The system gave us no thread or socket.
    Thread(io::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Listen { address, error } if error.kind() == io::ErrorKind::AddrInUse => {
                write!(
                    f,
                    "port {} of {} is taken: stop what uses it, or choose another port (0 takes any free one)",
                    address.port(),
                    address.ip()
                )
            }
            Self::Listen { address, error } => write!(f, "cannot listen on {address}: {error}"),
            Self::Store(error) => error.fmt(f),
            Self::Key(error) => error.fmt(f),
            Self::Blueprint(error) => write!(f, "the described account cannot be made: {error}"),
            Self::Certificate(error) => error.fmt(f),
            Self::Thread(error) => write!(f, "the system refused a thread or a socket: {error}"),
        }
    }
}

impl std::error::Error for StartError {}
