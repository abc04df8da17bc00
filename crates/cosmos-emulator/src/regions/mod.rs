//! The regions of an account as its operator sees them: one endpoint each, taken offline and brought back, cut off
//! from the others, added, removed, and made the write region.

mod door;

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Serialize};
use tokio::sync::watch;

pub(crate) use self::door::{Door, DoorState};
use crate::config::ReplicationDelay;
use crate::engine::{Engine, RegionId};
pub use crate::engine::{Failover, RegionError, ReplicationLag};
use crate::lanes::Lanes;
use crate::server::{Gate, Limits};

/// The regions of an account; see [`Emulator::regions`](crate::Emulator::regions).
#[derive(Debug)]
pub struct Regions {
    engine: Arc<Engine>,
    /// One per region that ever was, in the order they joined.
    doors: watch::Sender<Vec<Arc<Door>>>,
    sockets: OnceLock<Sockets>,
}

/// One region at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RegionState {
    /// Its name.
    pub name: String,
    /// Where it is served; none when no socket is.
    pub endpoint: Option<String>,
    /// Whether it takes writes.
    pub is_writable: bool,
    /// Whether it is the write region of a single-write account, or the arbiter of a multi-write one.
    pub is_hub: bool,
    /// How it is offline; none when it is reachable.
    pub offline: Option<Offline>,
    /// Whether it is cut off from the other regions.
    pub is_replication_paused: bool,
}

/// What clients of a region that is offline see.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Offline {
    /// Connections are refused; those that were open are cut.
    Refuse,
    /// Every request is answered with 503.
    Unavailable,
    /// Requests wait until the region is back.
    Hang,
}

/// How regions get sockets.
pub(crate) struct Sockets {
    pub(crate) bind: IpAddr,
    /// Port of the first region; 0 lets the system choose for all of them.
    pub(crate) port: u16,
    pub(crate) scheme: &'static str,
    pub(crate) limits: Limits,
    pub(crate) tls: Option<Arc<rustls::ServerConfig>>,
    pub(crate) lanes: Arc<Lanes>,
}

impl fmt::Debug for Sockets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sockets").field("bind", &self.bind).field("port", &self.port).finish_non_exhaustive()
    }
}

impl Regions {
    pub(crate) fn new(engine: Arc<Engine>) -> Self {
        let topology = engine.topology().clone();
        let doors = topology
            .regions
            .iter()
            .map(|region| Arc::new(Door::new(region.id, region.name.clone(), region.is_removed)))
            .collect();
        let doors = watch::Sender::new(doors);
        Self { engine, doors, sockets: OnceLock::new() }
    }

    /// The regions of the account, in the order they joined.
    pub fn list(&self) -> Vec<RegionState> {
        let topology = self.engine.topology();
        let state = |door: &Arc<Door>| {
            let region = topology.region(door.id).filter(|region| !region.is_removed)?;
            Some(RegionState {
                name: region.name.clone(),
                endpoint: self.endpoint(door),
                is_writable: topology.check_write(region.id).is_ok(),
                is_hub: topology.hub == region.id,
                offline: door.offline(),
                is_replication_paused: region.is_paused,
            })
        };
        self.doors.borrow().iter().filter_map(state).collect()
    }

    /// Where a region is, for example `http://127.0.0.1:8091/`; none for an unknown name or without sockets.
    pub fn endpoint_of(&self, region: &str) -> Option<String> {
        let door = self.named(region).ok()?;
        self.endpoint(&door)
    }

    /// Name of the write region, or of the arbiter of a multi-write account.
    pub fn write_region(&self) -> String {
        let topology = self.engine.topology();
        topology.region(topology.hub).map(|region| region.name.clone()).unwrap_or_default()
    }

    /// Makes a region unreachable, for clients and for the other regions. When this returns, it is.
    ///
    /// # Errors
    /// When there is no such region.
    pub fn take_offline(&self, region: &str, manner: Offline) -> Result<(), RegionError> {
        let door = self.named(region)?;
        self.engine.set_offline(door.id, true)?;
        door.close(manner);
        Ok(())
    }

    /// Makes a region reachable again. When this returns, it is.
    ///
    /// # Errors
    /// When there is no such region.
    pub fn bring_online(&self, region: &str) -> Result<(), RegionError> {
        let door = self.named(region)?;
        self.engine.set_offline(door.id, false)?;
        door.open();
        Ok(())
    }

    /// Moves the write region. In a multi-write account the arbiter moves, and nothing is lost either way.
    ///
    /// # Errors
    /// When there is no such region, or a planned failover cannot reach both regions.
    pub fn fail_over(&self, to: &str, kind: Failover) -> Result<(), RegionError> {
        self.engine.fail_over(self.named(to)?.id, kind)
    }

    /// Cuts a region off from the others: it neither sends nor receives. Clients still reach it.
    ///
    /// # Errors
    /// When there is no such region, or the account promises strong consistency.
    pub fn pause_replication(&self, region: &str) -> Result<(), RegionError> {
        self.engine.set_paused(self.named(region)?.id, true)
    }

    /// Connects a region with the others again.
    ///
    /// # Errors
    /// When there is no such region.
    pub fn resume_replication(&self, region: &str) -> Result<(), RegionError> {
        self.engine.set_paused(self.named(region)?.id, false)
    }

    /// How far a region is behind the others.
    ///
    /// # Errors
    /// When there is no such region, or the store fails.
    pub fn replication_lag(&self, region: &str) -> Result<ReplicationLag, RegionError> {
        self.engine.replication_lag(self.named(region)?.id)
    }

    /// How long writes take between regions from now on. The last rule that fits two regions counts.
    pub fn set_replication_delay(&self, delay: ReplicationDelay) {
        self.engine.set_replication_delay(delay);
    }

    /// Adds a region, with everything the account holds; says where it is, if sockets are served.
    ///
    /// # Errors
    /// When the name is taken, or its port, or the store fails.
    pub fn add_region(&self, name: &str) -> Result<Option<String>, RegionError> {
        let id = self.engine.add_region(name)?;
        let door = Arc::new(Door::new(id, name.to_owned(), false));
        if let Some(sockets) = self.sockets.get() {
            door.listen(sockets).map_err(|(address, error)| {
                RegionError(format!("the new region cannot be served on {address}: {error}"))
            })?;
        }
        self.doors.send_modify(|doors| doors.push(Arc::clone(&door)));
        Ok(self.endpoint(&door))
    }

    /// Removes a region, with its data. Its endpoint answers 403/1008 from now on.
    ///
    /// # Errors
    /// When there is no such region, or it is the only one, or the write region.
    pub fn remove_region(&self, region: &str) -> Result<(), RegionError> {
        let door = self.named(region)?;
        self.engine.remove_region(door.id)?;
        door.remove();
        Ok(())
    }

    /// Whether the account tells clients to fail over partition by partition.
    pub fn has_per_partition_failover(&self) -> bool {
        self.engine.has_per_partition_failover()
    }

    /// Tells clients to fail over partition by partition, or not to.
    pub fn set_per_partition_failover(&self, is_enabled: bool) {
        self.engine.set_per_partition_failover(is_enabled);
    }

    /// The door of a region of the account.
    fn named(&self, name: &str) -> Result<Arc<Door>, RegionError> {
        let topology = self.engine.topology();
        let found = topology.named(name).and_then(|region| self.door(region.id));
        found.ok_or_else(|| {
            let names: Vec<_> = topology.live().map(|region| region.name.as_str()).collect();
            RegionError(format!("there is no region '{name}'; the account has {}", names.join(", ")))
        })
    }

    pub(crate) fn door(&self, id: RegionId) -> Option<Arc<Door>> {
        self.doors.borrow().iter().find(|door| door.id == id).map(Arc::clone)
    }

    /// The door that is meant when nobody names one: the first region's that is still there.
    pub(crate) fn first_door(&self) -> Arc<Door> {
        let doors = self.doors.borrow();
        Arc::clone(doors.iter().find(|door| !door.is_removed()).unwrap_or(&doors[0]))
    }

    /// Gives every region a socket; later ones get theirs when they join.
    pub(crate) fn listen(&self, sockets: Sockets) -> Result<(), (SocketAddr, io::Error)> {
        let sockets = self.sockets.get_or_init(|| sockets);
        self.doors.borrow().iter().try_for_each(|door| door.listen(sockets))
    }

    /// Doors as they come.
    pub(crate) fn watch_doors(&self) -> watch::Receiver<Vec<Arc<Door>>> {
        self.doors.subscribe()
    }

    /// What the connections of all regions listen to.
    pub(crate) fn gates(&self) -> Vec<Arc<Gate>> {
        self.doors.borrow().iter().filter_map(|door| Some(Arc::clone(&door.socket()?.gate))).collect()
    }

    /// What the connections of one region listen to.
    pub(crate) fn gate_of(&self, region: &str) -> Option<Arc<Gate>> {
        Some(Arc::clone(&self.named(region).ok()?.socket()?.gate))
    }

    fn endpoint(&self, door: &Door) -> Option<String> {
        let scheme = self.sockets.get()?.scheme;
        door.socket().map(|socket| url(socket.address, scheme))
    }
}

impl Sockets {
    /// A listener for a region: ten ports apart when the first one's was chosen, so that they can be guessed.
    fn bind(&self, region: RegionId) -> Result<(TcpListener, SocketAddr), (SocketAddr, io::Error)> {
        let apart = u16::from(region.byte()).saturating_mul(PORTS_APART);
        let port = if self.port == 0 { 0 } else { self.port.saturating_add(apart) };
        let address = SocketAddr::new(self.bind, port);
        let listen = || {
            let listener = TcpListener::bind(address)?;
            listener.set_nonblocking(true)?;
            let address = listener.local_addr()?;
            Ok((listener, address))
        };
        listen().map_err(|error| (address, error))
    }
}

/// Distance between the ports of regions.
const PORTS_APART: u16 = 10;

/// A URL to reach a bound address; one bound to every interface is reached through loopback.
pub(crate) fn url(address: SocketAddr, scheme: &str) -> String {
    let ip = match address.ip() {
        ip if !ip.is_unspecified() => ip,
        IpAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
    };
    format!("{scheme}://{}/", SocketAddr::new(ip, address.port()))
}
