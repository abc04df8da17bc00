//! The regions of an account as its operator sees them: one endpoint each, taken offline and brought back, cut off
//! from the others, added, removed, and made the write region.

mod door;

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Serialize};
use tokio::sync::watch;

pub(crate) use self::door::{Door, DoorKind, DoorState};
use crate::config::{ReplicationDelay, WriteMode};
use crate::engine::{Engine, MovedPartition, RegionId};
pub use crate::engine::{Failover, RegionError, ReplicationLag};
use crate::lanes::Lanes;
use crate::server::{Gate, Limits};

/// The regions of an account; see [`Emulator::regions`](crate::Emulator::regions).
#[derive(Debug)]
pub struct Regions {
    engine: Arc<Engine>,
    /// Those of each region that ever was, in the order they joined.
    doors: watch::Sender<Vec<Arc<Door>>>,
    sockets: OnceLock<Sockets>,
    has_gateway2: bool,
}

/// One region at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RegionState {
    /// Its name.
    pub name: String,
    /// Where it is served; none when no socket is.
    pub endpoint: Option<String>,
    /// Where its endpoint of Gateway 2.0 is, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gateway2_endpoint: Option<String>,
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
    pub(crate) fn new(engine: Arc<Engine>, has_gateway2: bool) -> Self {
        let topology = engine.topology().clone();
        let doors = topology
            .regions
            .iter()
            .flat_map(|region| doors_of(region.id, &region.name, region.is_removed, has_gateway2))
            .collect();
        let doors = watch::Sender::new(doors);
        Self { engine, doors, sockets: OnceLock::new(), has_gateway2 }
    }

    /// The regions of the account, in the order they joined.
    pub fn list(&self) -> Vec<RegionState> {
        let topology = self.engine.topology();
        let state = |door: &Arc<Door>| {
            let region = topology.region(door.id).filter(|region| !region.is_removed)?;
            Some(RegionState {
                name: region.name.clone(),
                endpoint: self.endpoint(door),
                gateway2_endpoint: self.gateway2_door(door.id).and_then(|door| self.endpoint(&door)),
                is_writable: topology.check_write(region.id).is_ok(),
                is_hub: topology.hub == region.id,
                offline: door.offline(),
                is_replication_paused: region.is_paused,
            })
        };
        let doors = self.doors.borrow();
        doors.iter().filter(|door| door.kind == DoorKind::Gateway).filter_map(state).collect()
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
        if let Some(door) = self.gateway2_door(door.id) {
            door.close(manner);
        }
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
        if let Some(door) = self.gateway2_door(door.id) {
            door.open();
        }
        Ok(())
    }

    /// Makes the endpoint of Gateway 2.0 of a region unreachable, and leaves its other one as it is. When this returns, it
    /// is.
    ///
    /// # Errors
    /// When there is no such region, or it has no such endpoint.
    pub fn take_gateway2_offline(&self, region: &str, manner: Offline) -> Result<(), RegionError> {
        self.named_gateway2(region)?.close(manner);
        Ok(())
    }

    /// Makes the endpoint of Gateway 2.0 of a region reachable again. When this returns, it is.
    ///
    /// # Errors
    /// When there is no such region, or it has no such endpoint.
    pub fn bring_gateway2_online(&self, region: &str) -> Result<(), RegionError> {
        self.named_gateway2(region)?.open();
        Ok(())
    }

    /// Requests that came to the endpoint of Gateway 2.0 of a region so far, without probes.
    ///
    /// # Errors
    /// When there is no such region, or it has no such endpoint.
    pub fn gateway2_requests(&self, region: &str) -> Result<u64, RegionError> {
        Ok(self.named_gateway2(region)?.frames())
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
        let fresh = doors_of(id, name, false, self.has_gateway2);
        if let Some(sockets) = self.sockets.get() {
            fresh.iter().try_for_each(|door| door.listen(sockets)).map_err(|(address, error)| {
                RegionError(format!("the new region cannot be served on {address}: {error}"))
            })?;
        }
        self.doors.send_modify(|doors| doors.extend(fresh.iter().map(Arc::clone)));
        Ok(self.endpoint_of(name))
    }

    /// Removes a region, with its data. Its endpoint answers 403/1008 from now on.
    ///
    /// # Errors
    /// When there is no such region, or it is the only one, or the write region.
    pub fn remove_region(&self, region: &str) -> Result<(), RegionError> {
        let door = self.named(region)?;
        self.engine.remove_region(door.id)?;
        door.remove();
        if let Some(door) = self.gateway2_door(door.id) {
            door.remove();
        }
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

    /// Takes the write region's copy of a partition down, and lets another region take its writes. Nothing is lost, and
    /// nothing changes for other partitions.
    ///
    /// # Errors
    /// When there is no such region, or it is the write region, or the account writes in several.
    pub fn fail_over_partition(
        &self,
        database: &str,
        container: &str,
        range: u32,
        to: &str,
    ) -> Result<(), RegionError> {
        let to = self.named(to)?.id;
        let topology = self.engine.topology();
        if topology.mode == WriteMode::Multiple {
            return Err(RegionError(
                "the account writes in several regions: no partition has a write region".into(),
            ));
        }
        if topology.hub == to {
            return Err(RegionError("this is the write region, which the partition is to leave".into()));
        }
        let container = format!("dbs/{database}/colls/{container}");
        self.engine.move_partition(MovedPartition { container, range, to });
        Ok(())
    }

    /// Brings the write region's copy of a partition back; its writes return there.
    pub fn return_partition(&self, database: &str, container: &str, range: u32) {
        self.engine.return_partition(&format!("dbs/{database}/colls/{container}"), range);
    }

    /// Says where clients reach a region, where that is not its socket: behind a proxy, or by a transport that needs no
    /// sockets. The account document names it from now on; the first name stays.
    ///
    /// # Errors
    /// When there is no such region.
    pub fn announce(&self, region: &str, endpoint: impl Into<String>) -> Result<(), RegionError> {
        self.named(region)?.announce(endpoint.into());
        Ok(())
    }

    /// The door of a region of the account.
    pub(crate) fn named(&self, name: &str) -> Result<Arc<Door>, RegionError> {
        let topology = self.engine.topology();
        let found = topology.named(name).and_then(|region| self.door(region.id));
        found.ok_or_else(|| {
            let names: Vec<_> = topology.live().map(|region| region.name.as_str()).collect();
            RegionError(format!("there is no region '{name}'; the account has {}", names.join(", ")))
        })
    }

    pub(crate) fn door(&self, id: RegionId) -> Option<Arc<Door>> {
        self.door_of_kind(id, DoorKind::Gateway)
    }

    /// The door of a region that takes frames, if the account has such.
    pub(crate) fn gateway2_door(&self, id: RegionId) -> Option<Arc<Door>> {
        self.door_of_kind(id, DoorKind::Gateway2)
    }

    fn door_of_kind(&self, id: RegionId, kind: DoorKind) -> Option<Arc<Door>> {
        self.doors.borrow().iter().find(|door| door.id == id && door.kind == kind).map(Arc::clone)
    }

    fn named_gateway2(&self, region: &str) -> Result<Arc<Door>, RegionError> {
        let door = self.named(region)?;
        self.gateway2_door(door.id).ok_or_else(|| {
            RegionError("the account has no endpoints of Gateway 2.0; start it with them".to_owned())
        })
    }

    /// The door that is meant when nobody names one: the first region's that is still there.
    pub(crate) fn first_door(&self) -> Arc<Door> {
        let doors = self.doors.borrow();
        let is_there = |door: &&Arc<Door>| door.kind == DoorKind::Gateway && !door.is_removed();
        Arc::clone(doors.iter().find(is_there).unwrap_or(&doors[0]))
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
    fn bind(
        &self,
        region: RegionId,
        kind: DoorKind,
    ) -> Result<(TcpListener, SocketAddr), (SocketAddr, io::Error)> {
        let beside = match kind {
            DoorKind::Gateway => 0,
            DoorKind::Gateway2 => PORTS_BESIDE,
        };
        let apart = u16::from(region.byte()).saturating_mul(PORTS_APART).saturating_add(beside);
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
/// Distance between the two ports of a region.
const PORTS_BESIDE: u16 = 5;

/// The doors of a region.
fn doors_of(id: RegionId, name: &str, is_removed: bool, has_gateway2: bool) -> Vec<Arc<Door>> {
    let kinds: &[DoorKind] =
        if has_gateway2 { &[DoorKind::Gateway, DoorKind::Gateway2] } else { &[DoorKind::Gateway] };
    kinds.iter().map(|kind| Arc::new(Door::new(id, name.to_owned(), *kind, is_removed))).collect()
}

/// A URL to reach a bound address; one bound to every interface is reached through loopback.
pub(crate) fn url(address: SocketAddr, scheme: &str) -> String {
    let ip = match address.ip() {
        ip if !ip.is_unspecified() => ip,
        IpAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
    };
    format!("{scheme}://{}/", SocketAddr::new(ip, address.port()))
}
