//! A physical partition: a range of effective partition keys with one writer at a time and its own LSN.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use arc_swap::ArcSwap;
use bytes::Bytes;
use cosmos_wire::epk::EpkRange;
use cosmos_wire::session_token::{Progress, SessionToken, Vector};
use cosmos_wire::status::Status;

use super::index::common::CommonPaths;
use super::key::{self, Segment};
use super::region::{Reach, RegionId, Topology};
use super::request::Standing;
use super::throughput::Meter;
use crate::Failure;
use crate::config::WriteMode;
use crate::storage::Change;

/// One physical partition of one container.
#[derive(Debug)]
pub(crate) struct Partition {
    /// Where its entries stand in the store.
    pub(crate) segment: Segment,
    /// Which keys it holds.
    pub(crate) range: EpkRange,
    /// Where it comes from.
    pub(crate) lineage: Lineage,
    /// Whether it serves; see [`Gate`].
    gate: AtomicU8,
    /// What it consumed.
    pub(crate) meter: Meter,
    writer: Mutex<Counters>,
    /// How far it has followed the logs of other regions, where several write.
    reach: Mutex<Reach>,
    /// The LSN readers may rely on.
    lsn: AtomicU64,
    /// Versions of the regions that began beyond it, where one region writes.
    turns: Mutex<Vec<Turn>>,
    /// Where the last of them began.
    last_turn: AtomicU64,
    /// Paths that all its documents have.
    common: ArcSwap<CommonPaths>,
    /// Whether the store has yet to be told of them.
    is_common_untold: AtomicBool,
}

/// A version of the regions began while replicas were behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Turn {
    /// LSN of the last write of the version before.
    pub(crate) lsn: u64,
    /// The version before.
    pub(crate) before: i64,
}

/// Where a partition comes from.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Lineage {
    /// The ranges it was made from by splits and merges, oldest first.
    pub(crate) parents: Vec<String>,
    /// The version of the container's ranges in which it appeared.
    pub(crate) born: u64,
    /// How many merges there are among its ancestors: added to the version of its session tokens.
    pub(crate) merges: i64,
    /// Session tokens count from here, because a merge lets them begin again.
    pub(crate) base: u64,
    /// The version its session tokens had when the last of those merges was done. Older tokens speak of writes that
    /// every region had by then.
    pub(crate) since: i64,
}

/// Whether a partition serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gate {
    /// It does.
    Open = 0,
    /// It is being split or merged; it will serve no more.
    Swapping = 1,
    /// Others have taken its place.
    Retired = 2,
}

/// What each commit of a partition moves on; kept in the store with every commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counters {
    /// LSN of the last commit.
    pub(crate) lsn: u64,
    /// Resource-id counter of the last new item.
    pub(crate) rid: u64,
    /// Sequence number of the last etag.
    pub(crate) etag: u32,
}

impl Counters {
    /// Of a new partition. Resource ids of different partitions of one container never meet: the upper bits are
    /// the range's id.
    pub(crate) fn new(range: u32) -> Self {
        Self { lsn: 1, rid: u64::from(range) << RID_PREFIX_SHIFT, etag: 0 }
    }

    /// Of a new partition in a region. Where several regions write, neither their resource ids nor their etags meet.
    pub(crate) fn of_replica(segment: Segment) -> Self {
        let region = RegionId::of_replica(segment.container).byte();
        let counters = Self::new(segment.range);
        Self {
            rid: counters.rid | u64::from(region) << RID_REGION_SHIFT,
            etag: u32::from(region) << ETAG_REGION_SHIFT,
            ..counters
        }
    }

    /// The higher of each.
    pub(crate) fn max(self, other: Self) -> Self {
        Self { lsn: self.lsn.max(other.lsn), rid: self.rid.max(other.rid), etag: self.etag.max(other.etag) }
    }

    /// As kept in the store.
    pub(crate) fn to_bytes(self) -> Bytes {
        let mut out = Vec::with_capacity(20);
        out.extend_from_slice(&self.lsn.to_be_bytes());
        out.extend_from_slice(&self.rid.to_be_bytes());
        out.extend_from_slice(&self.etag.to_be_bytes());
        Bytes::from(out)
    }

    /// From the store.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        Some(Self {
            lsn: u64::from_be_bytes(bytes.get(..8)?.try_into().ok()?),
            rid: u64::from_be_bytes(bytes.get(8..16)?.try_into().ok()?),
            etag: u32::from_be_bytes(bytes.get(16..20)?.try_into().ok()?),
        })
    }
}

/// Room for a session token of one region.
const SIMPLE_TOKEN_BYTES: usize = 32;

/// A range's part of a resource-id counter begins here.
const RID_PREFIX_SHIFT: u32 = 40;
/// A region's part of it begins here.
const RID_REGION_SHIFT: u32 = 32;
/// A region's part of the sequence number of an etag begins here.
const ETAG_REGION_SHIFT: u32 = 24;

impl Partition {
    /// A partition that stands where its counters say.
    pub(crate) fn new(segment: Segment, range: EpkRange, lineage: Lineage, counters: Counters) -> Self {
        Self {
            segment,
            range,
            lineage,
            gate: AtomicU8::new(Gate::Open as u8),
            meter: Meter::default(),
            writer: Mutex::new(counters),
            reach: Mutex::default(),
            lsn: AtomicU64::new(counters.lsn),
            turns: Mutex::default(),
            last_turn: AtomicU64::new(0),
            common: ArcSwap::default(),
            is_common_untold: AtomicBool::new(false),
        }
    }

    /// Its id.
    pub(crate) fn id(&self) -> u32 {
        self.segment.range
    }

    /// Makes the caller the only writer.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Counters> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same, unless there is a writer already.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, Counters>> {
        match self.writer.try_lock() {
            Ok(held) => Some(held),
            Err(TryLockError::Poisoned(held)) => Some(held.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Opens or closes it for requests.
    pub(crate) fn set_gate(&self, gate: Gate) {
        self.gate.store(gate as u8, Ordering::SeqCst);
    }

    /// Whether other partitions have taken its place.
    pub(crate) fn is_retired(&self) -> bool {
        self.gate.load(Ordering::SeqCst) == Gate::Retired as u8
    }

    /// Refuses a request to a partition that is being replaced by others.
    pub(crate) fn check_gate(&self) -> Result<(), Failure> {
        if self.gate.load(Ordering::SeqCst) == Gate::Open as u8 {
            return Ok(());
        }
        Err(Self::replaced())
    }

    /// Others take its place, or have.
    pub(crate) fn replaced() -> Failure {
        Failure::of(
            Status::COMPLETING_SPLIT_OR_MERGE,
            "The partition key range is completing a split or a merge; retry later.",
        )
    }

    /// Tells readers how far the partition is.
    pub(crate) fn publish(&self, lsn: u64) {
        self.lsn.fetch_max(lsn, Ordering::SeqCst);
    }

    /// LSN of the last commit readers can rely on.
    pub(crate) fn lsn(&self) -> u64 {
        self.lsn.load(Ordering::SeqCst)
    }

    /// Paths that all its documents have.
    pub(crate) fn common(&self) -> Arc<CommonPaths> {
        self.common.load_full()
    }

    /// Says which paths all its documents have. Readers must know before they see a document that lacks one.
    pub(crate) fn set_common(&self, common: CommonPaths) {
        self.common.store(Arc::new(common));
    }

    /// Those that a commit leaves, and what the store has to be told with it. A commit may fail: then it is told with
    /// the next one.
    pub(crate) fn leave_common(&self, fewer: Option<CommonPaths>) -> Option<Change> {
        if let Some(fewer) = fewer {
            self.set_common(fewer);
            self.is_common_untold.store(true, Ordering::SeqCst);
        }
        if !self.is_common_untold.load(Ordering::SeqCst) {
            return None;
        }
        self.common.load().row(self.segment)
    }

    /// Notes that the commit was made.
    pub(crate) fn note_common_told(&self) {
        if self.is_common_untold.load(Ordering::SeqCst) {
            self.is_common_untold.store(false, Ordering::SeqCst);
        }
    }

    /// The region that has it.
    pub(crate) fn region(&self) -> RegionId {
        RegionId::of_replica(self.segment.container)
    }

    /// Notes that a version of the regions ended with this LSN. A replica that has not come as far belongs to that
    /// version still: who merges session tokens lets the newer version win, so it must not claim the next.
    pub(crate) fn note_turn(&self, lsn: u64, before: i64) {
        let mut turns = self.turns();
        turns.push(Turn { lsn, before });
        self.set_turns(turns);
    }

    /// Versions of the regions that ended beyond it.
    pub(crate) fn turns(&self) -> Vec<Turn> {
        let turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        turns.iter().filter(|turn| turn.lsn > self.lsn()).copied().collect()
    }

    /// Says which versions of the regions ended beyond it; none when writes were taken back.
    pub(crate) fn set_turns(&self, turns: Vec<Turn>) {
        let last = turns.iter().map(|turn| turn.lsn).max().unwrap_or(0);
        *self.turns.lock().unwrap_or_else(PoisonError::into_inner) = turns;
        self.last_turn.store(last, Ordering::SeqCst);
    }

    /// The version of the regions that a replica at this LSN belongs to.
    fn version_at(&self, topology: &Topology, lsn: u64) -> i64 {
        if lsn >= self.last_turn.load(Ordering::SeqCst) {
            return topology.version;
        }
        let turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        let ahead = turns.iter().filter(|turn| turn.lsn > lsn).map(|turn| turn.before);
        ahead.chain([topology.version]).min().unwrap_or(topology.version)
    }

    /// How far it has followed the logs of other regions.
    pub(crate) fn reach(&self) -> MutexGuard<'_, Reach> {
        self.reach.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// LSN of the last write of a region that is here. Where several write, each counts its own.
    pub(crate) fn reached(&self, topology: &Topology, region: RegionId) -> u64 {
        match topology.mode {
            WriteMode::Single => self.lsn(),
            WriteMode::Multiple => self.reach().get(&region).copied().unwrap_or(0),
        }
    }

    /// Where it stands, if it just saw this LSN.
    pub(crate) fn standing(&self, topology: &Topology, seen: u64) -> Standing {
        let lsn = self.lsn().max(seen);
        let session_token = if topology.version == 0 {
            let mut token = String::with_capacity(SIMPLE_TOKEN_BYTES);
            let mut push = |digits: &str| token.push_str(digits);
            push(itoa::Buffer::new().format(self.id()));
            push(":");
            push(itoa::Buffer::new().format(self.lineage.merges - 1));
            push("#");
            push(itoa::Buffer::new().format(lsn - self.lineage.base));
            token
        } else {
            format!("{}:{}", self.id(), Progress::Vector(self.progress(topology, lsn)))
        };
        Standing { range_id: self.id(), lsn, session_token }
    }

    /// What a session that was here has seen. Regions that take no writes of their own stand at -1.
    fn progress(&self, topology: &Topology, lsn: u64) -> Vector {
        let Lineage { merges, base, .. } = self.lineage;
        let signed = |lsn: u64| i64::try_from(lsn.saturating_sub(base)).unwrap_or(i64::MAX);
        let of = |region: RegionId| self.reached(topology, region);
        let version = self.version_at(topology, lsn);
        let hub = if version == topology.version { topology.hub } else { topology.hub_of(version) };
        let satellites = topology.live().filter(|region| region.id != hub);
        let (global_lsn, regions) = match topology.mode {
            WriteMode::Single => (lsn, satellites.map(|region| (region.id.in_token(), -1)).collect()),
            WriteMode::Multiple => {
                let regions = satellites.map(|region| (region.id.in_token(), signed(of(region.id))));
                (of(hub), regions.collect())
            }
        };
        Vector { version: version + merges, global_lsn: signed(global_lsn), regions }
    }

    /// Refuses a session that has seen more than this partition holds.
    pub(crate) fn check_session(&self, topology: &Topology, token: Option<&str>) -> Result<(), Failure> {
        let Some(token) = token else { return Ok(()) };
        let token: SessionToken = token.parse().map_err(|_| {
            Failure::bad_request(format!("The session token '{token}' provided in the request is not valid."))
        })?;
        let own_id = self.id().to_string();
        let ancestors = self.lineage.parents.iter().map(String::as_str);
        let mut wanted =
            std::iter::once(own_id.as_str()).chain(ancestors).filter_map(|id| token.progress(id));
        if wanted.all(|wanted| self.has_seen(topology, wanted)) {
            return Ok(());
        }
        Err(Failure::of(
            Status::READ_SESSION_NOT_AVAILABLE,
            "The read session is not available for the input session token.",
        ))
    }

    /// Whether everything a session has seen is here. Numbers are comparable until a forced failover.
    fn has_seen(&self, topology: &Topology, wanted: &Progress) -> bool {
        let own = self.progress(topology, self.lsn());
        if topology.version == 0 {
            return wanted.version() < self.lineage.merges - 1 || wanted.lsn() <= own.global_lsn;
        }
        let comparable_from = topology.comparable_from + self.lineage.merges;
        match wanted {
            Progress::Vector(wanted) if wanted.version > topology.version + self.lineage.merges => false,
            Progress::Vector(wanted) if wanted.version < comparable_from.max(self.lineage.since) => true,
            Progress::Vector(wanted) => {
                let hub = topology.hub_of(wanted.version - self.lineage.merges).in_token();
                wanted.global_lsn <= self.reached_in_token(topology, hub)
                    && wanted
                        .regions
                        .iter()
                        .all(|(region, lsn)| *lsn <= self.reached_in_token(topology, *region))
            }
            Progress::Simple(lsn) => *lsn <= own.global_lsn,
        }
    }

    /// How far it has followed a region, in the numbers of tokens. A region that left is followed no further.
    fn reached_in_token(&self, topology: &Topology, region: u64) -> i64 {
        match topology.live().find(|known| known.id.in_token() == region) {
            Some(known) => {
                let reached = self.reached(topology, known.id).saturating_sub(self.lineage.base);
                i64::try_from(reached).unwrap_or(i64::MAX)
            }
            None => i64::MAX,
        }
    }

    /// First key byte string of its range among escaped effective partition keys.
    pub(crate) fn lower(&self) -> Vec<u8> {
        key::epk_bound(self.range.min.significant_bytes())
    }

    /// First byte string beyond its range.
    pub(crate) fn upper(&self) -> Vec<u8> {
        key::epk_bound(self.range.max.significant_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_survive_their_bytes() {
        let counters = Counters { lsn: 7, rid: (3 << 40) + 9, etag: 11 };
        assert_eq!(Counters::from_bytes(&counters.to_bytes()), Some(counters));
        assert_eq!(Counters::from_bytes(b"short"), None);
    }

    #[test]
    fn the_first_number_of_a_token_counts_the_hub_of_its_version() {
        let segment = Segment { container: 1, range: 0 };
        let counters = Counters { lsn: 9, rid: 0, etag: 0 };
        let partition = Partition::new(segment, EpkRange::full(), Lineage::default(), counters);
        let names = ["A".to_owned(), "B".to_owned()];
        let mut topology = Topology::new(&names, WriteMode::Multiple);
        let second = topology.live().nth(1).expect("B").id;
        *partition.reach() = [(RegionId::FIRST, 9), (second, 3)].into();
        assert_eq!(partition.check_session(&topology, Some("0:1#9#2=3")), Ok(()));
        assert!(partition.check_session(&topology, Some("0:1#9#2=4")).is_err());
        topology.set_hub(second);
        assert_eq!(
            partition.check_session(&topology, Some("0:1#9#2=3")),
            Ok(()),
            "9 of A, though B is the hub now"
        );
        assert!(partition.check_session(&topology, Some("0:1#9#2=4")).is_err());
        assert!(partition.check_session(&topology, Some("0:2#4#1=9")).is_err());
        assert_eq!(partition.check_session(&topology, Some("0:2#3#1=9")), Ok(()));
    }

    #[test]
    fn a_session_ahead_of_the_partition_is_refused_with_1002() {
        let segment = Segment { container: 1, range: 0 };
        let partition = Partition::new(
            segment,
            EpkRange::full(),
            Lineage::default(),
            Counters { lsn: 5, rid: 0, etag: 0 },
        );
        let alone = Topology::new(&["Local".to_owned()], WriteMode::Single);
        assert_eq!(partition.check_session(&alone, Some("0:-1#5")), Ok(()));
        assert_eq!(partition.check_session(&alone, Some("1:-1#9")), Ok(()));
        let refused = partition.check_session(&alone, Some("1:-1#2,0:-1#6")).expect_err("ahead");
        assert_eq!((refused.status, refused.sub_status), (404, 1002));
        assert_eq!(partition.check_session(&alone, Some("nonsense")).expect_err("no token").status, 400);
    }

    #[test]
    fn sessions_of_ancestors_are_honoured_and_a_merge_counts_anew() {
        let alone = Topology::new(&["Local".to_owned()], WriteMode::Single);
        let partition = |merges, base| {
            let lineage = Lineage { parents: vec!["0".into(), "1".into()], born: 2, merges, base, since: 0 };
            let counters = Counters { lsn: 31, rid: 0, etag: 0 };
            Partition::new(Segment { container: 1, range: 2 }, EpkRange::full(), lineage, counters)
        };
        let split = partition(0, 0);
        assert_eq!(split.standing(&alone, 0).session_token, "2:-1#31");
        assert_eq!(split.check_session(&alone, Some("0:-1#30")), Ok(()));
        assert!(split.check_session(&alone, Some("0:-1#32")).is_err());
        let merged = partition(1, 30);
        assert_eq!(merged.standing(&alone, 0).session_token, "2:0#1");
        assert_eq!(merged.check_session(&alone, Some("0:-1#900,1:-1#700,2:0#1")), Ok(()));
        assert!(merged.check_session(&alone, Some("2:0#2")).is_err());
        merged.set_gate(Gate::Swapping);
        assert_eq!(merged.check_gate().map_err(|failure| failure.sub_status), Err(1007));
    }
}
