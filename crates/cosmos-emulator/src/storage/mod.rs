//! Ordered, transactional bytes: the engine's only way to keep anything.

mod disk;
mod folder;
mod group;
mod inspect;
mod journal;
mod memory;
#[doc(hidden)]
pub mod mirror;
mod salvage;
pub(crate) mod snapshot;

use std::ops::Bound;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::watch;

pub use disk::DiskStorage;
pub use folder::running_at;
pub(crate) use folder::tell_address;
pub use memory::MemoryStorage;
pub use salvage::{Cut, Salvaged, salvage};

/// Direction of a scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Smallest key first.
    Forward,
    /// Largest key first.
    Reverse,
}

/// One change inside a [`Batch`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Sets a key.
    Put(Bytes, Bytes),
    /// Removes a key; an absent key is fine.
    Delete(Bytes),
}

impl Change {
    /// The key it changes.
    pub fn key(&self) -> &Bytes {
        match self {
            Self::Put(key, _) | Self::Delete(key) => key,
        }
    }
}

/// Changes that become visible, and survive, together or not at all. Later changes of one key win.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Batch {
    /// In order.
    pub changes: Vec<Change>,
}

impl Batch {
    /// The size of its keys and values.
    fn bytes(&self) -> u64 {
        let len = |change: &Change| match change {
            Change::Put(key, value) => key.len() + value.len(),
            Change::Delete(key) => key.len(),
        };
        self.changes.iter().map(len).sum::<usize>() as u64
    }

    /// Refuses keys that no store can keep, so that all stores refuse the same.
    fn check(&self) -> Result<(), StorageError> {
        match self
            .changes
            .iter()
            .map(|change| change.key().len())
            .find(|len| !(1..=KEY_BYTES_MAX).contains(len))
        {
            Some(len) => {
                Err(StorageError(format!("A key has {len} bytes; it must have 1 to {KEY_BYTES_MAX}.")))
            }
            None => Ok(()),
        }
    }
}

/// The index entries of an item that is new, in less room than their keys take. Nobody has changed one of them before.
pub trait NewEntries: Send + Sync {
    /// Whose groups they are in: of one container.
    fn family(&self) -> u32;

    /// How many they are.
    fn count(&self) -> usize;

    /// The same number for all that are in the same groups.
    fn form(&self) -> u64;

    /// The starts that the keys of entries share that are looked at together.
    fn groups(&self) -> Vec<Vec<u8>>;

    /// Key and value of each.
    fn each(&self, put: &mut dyn FnMut(Bytes, Bytes));

    /// Those whose keys begin like this, always in the same order: the rest of the key, in pieces, and the value.
    fn of_group(&self, group: &[u8], put: &mut dyn FnMut([&[u8]; 3], &Bytes));
}

/// Whether a key is one of the many that a document leaves in the index. A store may keep those back until somebody
/// looks.
fn is_index_entry(key: &[u8]) -> bool {
    key.first().is_some_and(|tag| INDEX_TAGS.contains(tag))
}

/// First bytes of the keys of index entries.
pub(crate) const INDEX_TAGS: std::ops::RangeInclusive<u8> = 0x11..=0x14;

/// As many entries as a usual document leaves.
const ENTRIES_USUAL: usize = 40;

/// How much of the keys of entries that are looked at together is the same: the container, mostly the partition, and the
/// path.
pub(crate) fn group_bytes(entry: &[u8]) -> usize {
    match entry.first() {
        Some(0x11) => 17,
        Some(0x12) => 13,
        Some(_) | None => 9,
    }
}

/// The key that is there while a store is being filled with a copy of another one. No key of the engine begins with
/// zero.
const FILLING: &[u8] = b"\0being filled with a copy";

/// The longest key; keys are not empty either.
pub const KEY_BYTES_MAX: usize = 65_535;

/// A number that grows with each commit; hand it to [`Storage::wait_durable`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// The disk failed, is full, or holds something we cannot read.
#[derive(Debug, Clone)]
pub struct StorageError(pub String);

impl std::fmt::Display for StorageError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for StorageError {}

/// A scan's rows: key and value.
pub type Scan<'a> = Box<dyn Iterator<Item = Result<(Bytes, Bytes), StorageError>> + Send + 'a>;

/// An ordered map of bytes with atomic batches.
///
/// Writers of one key are serialised by the engine (one writer per physical partition); readers run at any time.
pub trait Storage: Send + Sync + 'static {
    /// The value of a key.
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StorageError>;

    /// Rows between two bounds as they were when the scan began, whatever is committed meanwhile.
    fn scan(&self, lower: Bound<&[u8]>, upper: Bound<&[u8]>, order: Order) -> Scan<'_>;

    /// Everything as it is now, whatever is committed meanwhile.
    fn view(&self) -> Box<dyn View + '_>;

    /// Applies a batch atomically. When this returns the batch is visible to every reader and would survive a
    /// killed process; it survives a power cut once [`Storage::wait_durable`] of its ticket returned.
    fn commit(&self, batch: Batch) -> Result<Ticket, StorageError>;

    /// The same with the entries of new items, which come before the other changes. A store may keep them as they are
    /// until somebody looks.
    fn commit_with(
        &self,
        entries: Vec<Arc<dyn NewEntries>>,
        mut batch: Batch,
    ) -> Result<Ticket, StorageError> {
        let mut changes = Vec::with_capacity(ENTRIES_USUAL * entries.len() + batch.changes.len());
        for entries in entries {
            entries.each(&mut |key, value| changes.push(Change::Put(key, value)));
        }
        changes.append(&mut batch.changes);
        self.commit(Batch { changes })
    }

    /// Lets go of all index entries whose keys begin like this, where that takes no time, and returns how many groups of
    /// them there were. Nobody may look at them any more, not even in views that are in use.
    fn forget_entries(&self, _prefix: &[u8]) -> usize {
        0
    }

    /// Does what commits put off, where enough of it has come together. Whoever holds locks lets go of them first.
    fn let_in_waiting(&self) {}

    /// Blocks until everything up to `ticket` is on disk. Many waiters share one flush.
    fn wait_durable(&self, ticket: Ticket) -> Result<(), StorageError>;

    /// Whether `wait_durable` may block for a disk (so that async callers move it off their threads).
    fn is_slow_to_sync(&self) -> bool;

    /// Tells why no more writes are taken, once one has failed (a full disk), while reads go on. A store that cannot
    /// fail has none.
    fn failures(&self) -> Option<watch::Receiver<Option<StorageError>>> {
        None
    }

    /// Why no more writes are taken.
    fn failure(&self) -> Option<StorageError> {
        self.failures()?.borrow().clone()
    }
}

/// A store at one moment. It keeps what is deleted meanwhile from being cleaned up, so nobody holds it for long.
pub trait View: Send + Sync {
    /// The value of a key.
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StorageError>;

    /// Rows between two bounds.
    fn scan(&self, lower: Bound<&[u8]>, upper: Bound<&[u8]>, order: Order) -> Scan<'_>;
}

/// Where a store keeps its data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// In memory, gone when the store is dropped.
    Memory,
    /// In a folder that nobody else uses meanwhile; it is made if it is not there.
    Folder(PathBuf),
}

/// How far an acknowledged commit has gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// `wait_durable` returns when the disk has the data: nothing is lost by a power cut.
    #[default]
    Fsync,
    /// `wait_durable` returns at once: a killed process loses nothing, a power cut may lose the last seconds.
    OsBuffered,
}

/// Settings of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// What `wait_durable` waits for.
    pub durability: Durability,
    /// Memory for blocks read from disk. 32 MiB keeps the hot part of a development data set.
    pub cache_bytes: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self { durability: Durability::default(), cache_bytes: 32 << 20 }
    }
}

/// Opens a store, creating it if there is none yet.
///
/// A folder is refused, with a message that says what to do, when another process uses it, when it was written by
/// a newer emulator, when it is a file, and when its data cannot be read.
pub fn open(place: &Place, options: Options) -> Result<Arc<dyn Storage>, StorageError> {
    Ok(match place {
        Place::Memory => Arc::new(MemoryStorage::new()),
        Place::Folder(path) => Arc::new(DiskStorage::open(path, options)?),
    })
}
