//! Every key the engine writes, in one place.
//!
//! Items, unique keys and the index by logical partition stand in order of effective partition key, so a range of
//! keys is a range of the store. The index by value, the change order and the expiry order belong to one physical
//! partition (a [`Segment`]), where ties are decided by resource id as the service does.
//!
//! A container's number in the keys of data is the number of its replica: the first region's is the container's own.

use bytes::Bytes;

use super::index::encode;

const META: u8 = 0x01;
const DATABASE: u8 = 0x02;
const CONTAINER: u8 = 0x03;
const PARTITION: u8 = 0x04;
const PURGE: u8 = 0x05;
const USER: u8 = 0x06;
const TOPOLOGY: u8 = 0x07;
const OPERATION: u8 = 0x08;
const RETIRED: u8 = 0x09;
const COMMON_PATHS: u8 = 0x0a;
const ENCRYPTION_KEY: u8 = 0x0b;
const ITEM: u8 = 0x10;
const BY_VALUE: u8 = 0x11;
const BY_PARTITION: u8 = 0x12;
const CHANGE: u8 = 0x13;
const EXPIRY: u8 = 0x14;
const UNIQUE: u8 = 0x15;
const VERSION: u8 = 0x16;
const LOG: u8 = 0x20;
const REACH: u8 = 0x21;
const RANK: u8 = 0x22;
const TURNS: u8 = 0x23;
const CONFLICT: u8 = 0x24;

/// One physical partition of one container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Segment {
    /// Number of the container's replica; never used twice.
    pub(crate) container: u32,
    /// Id of the partition-key range.
    pub(crate) range: u32,
}

/// An effective partition key as it stands inside keys: escaped and ended.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct EpkKey(Vec<u8>);

impl EpkKey {
    /// From the key's bytes.
    pub(crate) fn new(epk: &[u8]) -> Self {
        let mut out = Vec::with_capacity(epk.len() + 4);
        encode::push_escaped(&mut out, epk);
        encode::push_end(&mut out);
        Self(out)
    }

    /// The bytes of the effective partition key itself.
    pub(crate) fn unescaped(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.0.len());
        let mut bytes = self.0.iter().copied();
        while let Some(byte) = bytes.next() {
            if byte == 0 && bytes.next() != Some(0xff) {
                break;
            }
            out.push(byte);
        }
        out
    }

    /// The bytes that stand in keys.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// A bound between effective partition keys: what [`EpkKey`]s at or above it compare greater or equal to.
pub(crate) fn epk_bound(epk: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(epk.len() + 2);
    encode::push_escaped(&mut out, epk);
    out
}

/// The counters and the format of the whole store.
pub(crate) fn meta() -> Bytes {
    Bytes::from_static(&[META])
}

/// The regions of the account.
pub(crate) fn topology() -> Bytes {
    Bytes::from_static(&[TOPOLOGY])
}

/// A database's record.
pub(crate) fn database(number: u32) -> Bytes {
    join(DATABASE, &[&number.to_be_bytes()])
}

/// All databases.
pub(crate) fn databases() -> Vec<u8> {
    vec![DATABASE]
}

/// A container's record.
pub(crate) fn container(number: u32) -> Bytes {
    join(CONTAINER, &[&number.to_be_bytes()])
}

/// All containers.
pub(crate) fn containers() -> Vec<u8> {
    vec![CONTAINER]
}

/// The record of a user, with its permissions.
pub(crate) fn user(database: u32, number: u32) -> Bytes {
    join(USER, &[&database.to_be_bytes(), &number.to_be_bytes()])
}

/// All users of all databases.
pub(crate) fn users() -> Vec<u8> {
    vec![USER]
}

/// The record of a client encryption key.
pub(crate) fn encryption_key(database: u32, number: u32) -> Bytes {
    join(ENCRYPTION_KEY, &[&database.to_be_bytes(), &number.to_be_bytes()])
}

/// All client encryption keys of all databases.
pub(crate) fn encryption_keys() -> Vec<u8> {
    vec![ENCRYPTION_KEY]
}

/// The database and the number in a key of [`users`] or of [`encryption_keys`].
pub(crate) fn user_of(key: &[u8]) -> Option<(u32, u32)> {
    let number = |bytes: &[u8]| bytes.try_into().ok().map(u32::from_be_bytes);
    Some((number(key.get(1..5)?)?, number(key.get(5..9)?)?))
}

/// The counters of a physical partition.
pub(crate) fn partition(segment: Segment) -> Bytes {
    join(PARTITION, &[&segment.container.to_be_bytes(), &segment.range.to_be_bytes()])
}

/// Paths that all documents of a physical partition have.
pub(crate) fn common_paths(segment: Segment) -> Bytes {
    join(COMMON_PATHS, &[&segment.container.to_be_bytes(), &segment.range.to_be_bytes()])
}

/// Says that the data of a deleted container is still to be removed.
pub(crate) fn purge(number: u32) -> Bytes {
    join(PURGE, &[&number.to_be_bytes()])
}

/// All containers whose data is still to be removed.
pub(crate) fn purges() -> Vec<u8> {
    vec![PURGE]
}

/// The number in a key of [`purges`].
pub(crate) fn purged_container(key: &[u8]) -> Option<u32> {
    key.get(1..5)?.try_into().ok().map(u32::from_be_bytes)
}

/// Prefixes of everything a container keeps besides its record.
pub(crate) fn container_data(number: u32) -> impl Iterator<Item = Vec<u8>> {
    [
        PARTITION,
        COMMON_PATHS,
        ITEM,
        BY_VALUE,
        BY_PARTITION,
        CHANGE,
        EXPIRY,
        UNIQUE,
        VERSION,
        LOG,
        REACH,
        RANK,
        TURNS,
        CONFLICT,
    ]
    .into_iter()
    .map(move |tag| [&[tag][..], &number.to_be_bytes()].concat())
}

/// A split or a merge.
pub(crate) fn operation(id: u64) -> Bytes {
    join(OPERATION, &[&id.to_be_bytes()])
}

/// All splits and merges.
pub(crate) fn operations() -> Vec<u8> {
    vec![OPERATION]
}

/// Says that what a physical partition kept is still to be removed, because others took its place.
pub(crate) fn retired(segment: Segment) -> Bytes {
    join(RETIRED, &[&segment.container.to_be_bytes(), &segment.range.to_be_bytes()])
}

/// All physical partitions whose data is still to be removed.
pub(crate) fn retirees() -> Vec<u8> {
    vec![RETIRED]
}

/// The partition in a key of [`retirees`].
pub(crate) fn retired_segment(key: &[u8]) -> Option<Segment> {
    let number = |bytes: &[u8]| bytes.try_into().ok().map(u32::from_be_bytes);
    Some(Segment { container: number(key.get(1..5)?)?, range: number(key.get(5..9)?)? })
}

/// Prefixes of the orders that belong to one physical partition, by how their values name the item.
pub(crate) fn segment_orders(segment: Segment) -> impl Iterator<Item = Vec<u8>> {
    [BY_VALUE, CHANGE, EXPIRY, VERSION]
        .into_iter()
        .map(move |tag| [&[tag][..], &segment.container.to_be_bytes(), &segment.range.to_be_bytes()].concat())
}

/// Everything else that belongs to one physical partition.
pub(crate) fn segment_state(segment: Segment) -> impl Iterator<Item = Vec<u8>> {
    [PARTITION, COMMON_PATHS, LOG, REACH, TURNS]
        .into_iter()
        .map(move |tag| [&[tag][..], &segment.container.to_be_bytes(), &segment.range.to_be_bytes()].concat())
}

/// Whether an entry of [`segment_orders`] is a version; the values of all others are places.
pub(crate) fn is_version(key: &[u8]) -> bool {
    key.first() == Some(&VERSION)
}

/// The same entry of [`segment_orders`] in another physical partition.
pub(crate) fn moved(key: &[u8], range: u32) -> Bytes {
    let mut out = key.to_vec();
    if let Some(place) = out.get_mut(5..9) {
        place.copy_from_slice(&range.to_be_bytes());
    }
    Bytes::from(out)
}

/// Prefixes of what the replicas of a container have in common.
pub(crate) fn replica_data(number: u32) -> impl Iterator<Item = Vec<u8>> {
    [ITEM, BY_VALUE, BY_PARTITION, CHANGE, EXPIRY, UNIQUE, VERSION, RANK]
        .into_iter()
        .map(move |tag| [&[tag][..], &number.to_be_bytes()].concat())
}

/// The same key in another replica.
pub(crate) fn in_replica(key: &[u8], number: u32) -> Bytes {
    let (tag, rest) = (key.get(..1).unwrap_or_default(), key.get(5..).unwrap_or_default());
    Bytes::from([tag, &number.to_be_bytes(), rest].concat())
}

/// Prefixes of what is built from a container's items and can be built again.
pub(crate) fn container_indexes(number: u32) -> impl Iterator<Item = Vec<u8>> {
    [BY_VALUE, BY_PARTITION, EXPIRY].into_iter().map(move |tag| [&[tag][..], &number.to_be_bytes()].concat())
}

/// Where an item is stored.
pub(crate) fn item(container: u32, epk: &EpkKey, id: &str) -> Bytes {
    join(ITEM, &[&container.to_be_bytes(), &epk.0, id.as_bytes()])
}

/// All items of a container.
pub(crate) fn items(container: u32) -> Vec<u8> {
    [&[ITEM][..], &container.to_be_bytes()].concat()
}

/// Epk and id of an item key.
pub(crate) fn split_item(key: &[u8]) -> Option<(EpkKey, &str)> {
    split_place(key.get(5..)?)
}

/// Where an item stands, as index entries keep it: the tail of its key.
pub(crate) fn place(epk: &EpkKey, id: &str) -> Bytes {
    Bytes::from([epk.0.as_slice(), id.as_bytes()].concat())
}

/// The item an index entry points to.
pub(crate) fn item_at(container: u32, place: &[u8]) -> Vec<u8> {
    [&[ITEM][..], &container.to_be_bytes(), place].concat()
}

/// Epk and id of a place.
pub(crate) fn split_place(place: &[u8]) -> Option<(EpkKey, &str)> {
    let (epk, id) = place.split_at(epk_bytes(place)?);
    Some((EpkKey(epk.to_vec()), std::str::from_utf8(id).ok()?))
}

/// How much of a place is the key of its logical partition.
pub(crate) fn epk_bytes(place: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        let zero = at + place.get(at..)?.iter().position(|b| *b == 0)?;
        at = zero + 2;
        if *place.get(zero + 1)? != 0xff {
            return Some(at);
        }
    }
}

/// All entries of one path in the index by value.
pub(crate) fn by_value(segment: Segment, path: u64) -> Vec<u8> {
    [&[BY_VALUE][..], &segment.container.to_be_bytes(), &segment.range.to_be_bytes(), &path.to_be_bytes()]
        .concat()
}

/// One entry of the index by value.
pub(crate) fn value_entry(segment: Segment, path: u64, value: &[u8], rid: u64) -> Bytes {
    join(
        BY_VALUE,
        &[
            &segment.container.to_be_bytes(),
            &segment.range.to_be_bytes(),
            &path.to_be_bytes(),
            value,
            &rid.to_be_bytes(),
        ],
    )
}

/// All entries of one path in the index by logical partition.
pub(crate) fn by_partition(container: u32, path: u64) -> Vec<u8> {
    [&[BY_PARTITION][..], &container.to_be_bytes(), &path.to_be_bytes()].concat()
}

/// All entries of one path and one logical partition.
pub(crate) fn by_partition_of(container: u32, path: u64, epk: &EpkKey) -> Vec<u8> {
    [&[BY_PARTITION][..], &container.to_be_bytes(), &path.to_be_bytes(), &epk.0].concat()
}

/// One entry of the index by logical partition.
pub(crate) fn partition_entry(container: u32, path: u64, epk: &EpkKey, value: &[u8], rid: u64) -> Bytes {
    join(BY_PARTITION, &[&container.to_be_bytes(), &path.to_be_bytes(), &epk.0, value, &rid.to_be_bytes()])
}

/// Entries that are looked at together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Group {
    /// Those of [`by_value`].
    ByValue(Segment, u64),
    /// Those of [`by_partition`].
    ByPartition(u32, u64),
    /// Those of [`changes`].
    Changes(Segment),
}

impl Group {
    /// From the start that their keys share.
    pub(crate) fn of(start: &[u8]) -> Option<Self> {
        let (tag, rest) = start.split_first()?;
        let (container, rest) = rest.split_first_chunk()?;
        let container = u32::from_be_bytes(*container);
        let segment = || {
            let (range, rest) = rest.split_first_chunk()?;
            Some((Segment { container, range: u32::from_be_bytes(*range) }, rest))
        };
        let path = |rest: &[u8]| rest.try_into().ok().map(u64::from_be_bytes);
        match *tag {
            BY_VALUE => segment().and_then(|(segment, rest)| Some(Self::ByValue(segment, path(rest)?))),
            BY_PARTITION => Some(Self::ByPartition(container, path(rest)?)),
            CHANGE => {
                segment().filter(|(_, rest)| rest.is_empty()).map(|(segment, _)| Self::Changes(segment))
            }
            _ => None,
        }
    }
}

/// All changes of a physical partition.
pub(crate) fn changes(segment: Segment) -> Vec<u8> {
    [&[CHANGE][..], &segment.container.to_be_bytes(), &segment.range.to_be_bytes()].concat()
}

/// The last change of one item.
pub(crate) fn change(segment: Segment, lsn: u64, rid: u64) -> Bytes {
    join(
        CHANGE,
        &[
            &segment.container.to_be_bytes(),
            &segment.range.to_be_bytes(),
            &lsn.to_be_bytes(),
            &rid.to_be_bytes(),
        ],
    )
}

/// The LSN in a key of [`change`].
pub(crate) fn change_lsn(key: &[u8]) -> Option<u64> {
    key.get(9..17)?.try_into().ok().map(u64::from_be_bytes)
}

/// All versions of a physical partition.
pub(crate) fn versions(segment: Segment) -> Vec<u8> {
    [&[VERSION][..], &segment.container.to_be_bytes(), &segment.range.to_be_bytes()].concat()
}

/// One version of an item; the number orders those of one commit, and the resource id tells those of merged partitions
/// apart. [`change_lsn`] finds the LSN.
pub(crate) fn version(segment: Segment, lsn: u64, number: u32, rid: u64) -> Bytes {
    join(
        VERSION,
        &[
            &segment.container.to_be_bytes(),
            &segment.range.to_be_bytes(),
            &lsn.to_be_bytes(),
            &number.to_be_bytes(),
            &rid.to_be_bytes(),
        ],
    )
}

/// All expiries of a physical partition.
pub(crate) fn expiries(segment: Segment) -> Vec<u8> {
    [&[EXPIRY][..], &segment.container.to_be_bytes(), &segment.range.to_be_bytes()].concat()
}

/// When one item expires.
pub(crate) fn expiry(segment: Segment, deadline_seconds: u64, rid: u64) -> Bytes {
    join(
        EXPIRY,
        &[
            &segment.container.to_be_bytes(),
            &segment.range.to_be_bytes(),
            &deadline_seconds.to_be_bytes(),
            &rid.to_be_bytes(),
        ],
    )
}

/// The holder of one value of a unique key in a logical partition.
pub(crate) fn unique(container: u32, epk: &EpkKey, constraint: u8, values: &[u8]) -> Bytes {
    join(UNIQUE, &[&container.to_be_bytes(), &epk.0, &[constraint], values])
}

/// All values of unique keys in a replica from a bound of effective partition keys on.
pub(crate) fn uniques(container: u32, bound: &[u8]) -> Bytes {
    join(UNIQUE, &[&container.to_be_bytes(), bound])
}

/// The effective partition key in a key of [`unique`].
pub(crate) fn epk_of_unique(key: &[u8]) -> Option<EpkKey> {
    let tail = key.get(5..)?;
    let mut at = 0;
    loop {
        let zero = at + tail.get(at..)?.iter().position(|byte| *byte == 0)?;
        if *tail.get(zero + 1)? != 0xff {
            return Some(EpkKey(tail.get(..zero + 2)?.to_vec()));
        }
        at = zero + 2;
    }
}

/// An entry of the log that carries writes to other regions.
pub(crate) fn log(segment: Segment, lsn: u64) -> Bytes {
    join(LOG, &[&segment.container.to_be_bytes(), &segment.range.to_be_bytes(), &lsn.to_be_bytes()])
}

/// The LSN in a key of [`log`].
pub(crate) fn log_lsn(key: &[u8]) -> Option<u64> {
    key.last_chunk::<8>().map(|lsn| u64::from_be_bytes(*lsn))
}

/// How far a replica has followed the logs of the others.
pub(crate) fn reach(segment: Segment) -> Bytes {
    join(REACH, &[&segment.container.to_be_bytes(), &segment.range.to_be_bytes()])
}

/// A write that lost against another, under the number of what all regions share.
pub(crate) fn conflict(shared: u32, number: u64) -> Bytes {
    join(CONFLICT, &[&shared.to_be_bytes(), &number.to_be_bytes()])
}

/// All conflicts of a container.
pub(crate) fn conflicts(shared: u32) -> Vec<u8> {
    [&[CONFLICT][..], &shared.to_be_bytes()].concat()
}

/// Versions of the regions that ended beyond a replica.
pub(crate) fn turns(segment: Segment) -> Bytes {
    join(TURNS, &[&segment.container.to_be_bytes(), &segment.range.to_be_bytes()])
}

/// The rank of an item's last write, where several regions write.
pub(crate) fn rank(replica: u32, place: &[u8]) -> Bytes {
    join(RANK, &[&replica.to_be_bytes(), place])
}

/// All ranks of a replica between two bounds of effective partition keys.
pub(crate) fn ranks(replica: u32, bound: &[u8]) -> Bytes {
    join(RANK, &[&replica.to_be_bytes(), bound])
}

/// Where an item stands, if this is the key of an item.
pub(crate) fn place_of_item(key: &Bytes) -> Option<Bytes> {
    (key.first() == Some(&ITEM) && key.len() > 5).then(|| key.slice(5..))
}

/// The resource id at the end of an index, change or expiry key.
pub(crate) fn rid_at_end(key: &[u8]) -> Option<u64> {
    key.last_chunk::<8>().map(|rid| u64::from_be_bytes(*rid))
}

/// The smallest key beyond everything with this prefix.
pub(crate) fn beyond(mut prefix: Vec<u8>) -> Vec<u8> {
    while let Some(last) = prefix.pop() {
        if last < 0xff {
            prefix.push(last + 1);
            return prefix;
        }
    }
    vec![0xff; 9]
}

fn join(tag: u8, parts: &[&[u8]]) -> Bytes {
    let mut out = Vec::with_capacity(1 + parts.iter().map(|part| part.len()).sum::<usize>());
    out.push(tag);
    for part in parts {
        out.extend_from_slice(part);
    }
    Bytes::from(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::{INDEX_TAGS, group_bytes};

    #[test]
    fn the_store_knows_which_keys_are_entries() {
        for entry in [BY_VALUE, BY_PARTITION, CHANGE, EXPIRY] {
            assert!(INDEX_TAGS.contains(&entry));
        }
        for record in [META, DATABASE, CONTAINER, PARTITION, PURGE, USER, TOPOLOGY, ITEM, UNIQUE, LOG] {
            assert!(!INDEX_TAGS.contains(&record));
        }
    }

    #[test]
    fn the_store_knows_which_entries_are_looked_at_together() {
        let segment = Segment { container: 1, range: 2 };
        for prefix in [by_value(segment, 3), by_partition(1, 3), changes(segment), expiries(segment)] {
            assert_eq!(group_bytes(&prefix), prefix.len(), "{prefix:?}");
        }
    }

    #[test]
    fn items_stand_in_order_of_their_effective_partition_key() {
        let epks: [&[u8]; 6] = [&[], &[0], &[0, 0], &[0, 1], &[1], &[1, 255]];
        for pair in epks.windows(2) {
            let (low, high) = (EpkKey::new(pair[0]), EpkKey::new(pair[1]));
            assert!(item(1, &low, "zz") < item(1, &high, "a"), "{pair:?}");
            assert!(epk_bound(pair[1]).as_slice() <= high.as_bytes(), "{pair:?}");
            assert!(
                low.as_bytes() < epk_bound(pair[1]).as_slice() || pair[1].starts_with(pair[0]),
                "{pair:?}"
            );
        }
    }

    #[test]
    fn a_place_leads_back_to_its_item() {
        let epk = EpkKey::new(&[3, 0, 7, 0]);
        let place = place(&epk, "an id");
        assert_eq!(item_at(9, &place), item(9, &epk, "an id"));
        assert_eq!(epk.unescaped(), [3, 0, 7, 0]);
        assert_eq!(split_place(&place), Some((epk, "an id")));
    }

    #[test]
    fn beyond_a_prefix_lies_nothing_that_has_it() {
        assert_eq!(beyond(vec![1, 255]), vec![2]);
        assert_eq!(beyond(vec![1, 2]), vec![1, 3]);
    }
}
