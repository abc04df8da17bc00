//! The store on disk: fjall, a log-structured tree with a write-ahead journal.
//!
//! A commit is one journal entry with a checksum, handed to the operating system before `commit` returns, so a
//! killed process loses nothing. `wait_durable` flushes the journal once for everybody who waits. A store that is
//! closed writes its journal out, so that the next start need not replay it.

use std::collections::HashSet;
use std::error::Error;
use std::io;
use std::ops::Bound;
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use fjall::{
    CompressionType, Database, Guard, Keyspace, KeyspaceCreateOptions, OwnedWriteBatch, PersistMode,
    Readable, Snapshot,
};
use tokio::sync::watch;

use super::folder::{Folder, corrupt, explain_io};
use super::group::Group;
use super::journal::Journals;
use super::memory::is_empty;
use super::{Batch, Change, Durability, FILLING, Options, Order, Scan, Storage, StorageError, Ticket, View};

/// Keeps everything in a folder.
pub struct DiskStorage {
    rows: Keyspace,
    database: Database,
    group: Group,
    durability: Durability,
    /// The first failed write. The engine takes no more after it, and says only that there was one.
    failure: watch::Sender<Option<StorageError>>,
    /// Bytes a start would replay now, about.
    journal_bytes: AtomicU64,
    /// Bytes in the rows that are not being written out yet, as the engine counts them.
    fresh_bytes: AtomicU64,
    // From here on the order matters: fields are dropped in it, and the engine above is closed by then.
    journals: Journals,
    folder: Folder,
}

impl DiskStorage {
    /// Opens the store in a folder, making both if they are not there.
    pub fn open(path: &Path, options: Options) -> Result<Self, StorageError> {
        let mut folder = Folder::claim(path)?;
        // Files that were changed by something else can break the engine's own assertions.
        let opened = panic::catch_unwind(AssertUnwindSafe(|| open_engine(&folder, options)));
        let (database, rows) = match opened {
            Ok(opened) => opened?,
            Err(_) => return Err(corrupt(path, "its files contradict each other")),
        };
        let journals = Journals::of(folder.store());
        // A new journal has no rows yet, only room for them.
        let journal_bytes = if folder.is_new { Ok(0) } else { journals.bytes() };
        let journal_bytes = journal_bytes.map_err(|error| explain_io(path, &error))?;
        folder.stamp()?;
        let storage = Self {
            rows,
            database,
            group: Group::default(),
            durability: options.durability,
            failure: watch::Sender::new(None),
            journal_bytes: AtomicU64::new(journal_bytes),
            // Whatever was replayed, the next commit finds that it is enough.
            fresh_bytes: AtomicU64::new(journal_bytes.min(MEMTABLE_BYTES - 1)),
            journals,
            folder,
        };
        if storage.get(FILLING)?.is_some() {
            return Err(StorageError(format!(
                "{} holds half a copy of a store: what copied it was ended. Remove the folder and copy again.",
                path.display()
            )));
        }
        Ok(storage)
    }

    /// Writes all rows into tables; says whether that is done.
    fn write_out(&self) -> bool {
        if self.rows.rotate_memtable().is_err() {
            return false;
        }
        let is_done = || self.database.outstanding_flushes() == 0 && self.rows.sealed_memtable_count() == 0;
        // The engine's thread may have died of a full disk, so the wait has an end.
        for _ in 0..CLOSE_WAITS_MAX {
            if is_done() {
                return true;
            }
            thread::sleep(CLOSE_WAIT);
        }
        false
    }

    /// Holds a writer up while too much waits to be written out. The engine has a limit of its own, one higher, at which
    /// a writer waits for ever if the thread that writes out has died of a full disk meanwhile; here it is asked whether it
    /// still works, and the writer whose batch is not in the journal yet can be refused.
    fn hold_back(&self) -> Result<(), StorageError> {
        while self.rows.sealed_memtable_count() >= MEMTABLES_WAITING_MAX {
            self.database.persist(PersistMode::Buffer).map_err(|error| self.fail(&error))?;
            thread::sleep(HOLD_BACK);
        }
        Ok(())
    }

    /// Has rows written out once enough have come together. The engine would do so when one of its threads finds the
    /// time, and until then take rows without a limit; done here, the limit for what waits holds writers up.
    fn count_fresh(&self, bytes: u64) {
        let before = self.fresh_bytes.fetch_add(bytes, Ordering::Relaxed);
        if before >= MEMTABLE_BYTES || before + bytes < MEMTABLE_BYTES {
            return;
        }
        self.fresh_bytes.store(0, Ordering::Relaxed);
        if let Err(error) = self.rows.rotate_memtable() {
            // The rows are committed; the engine tries again by itself.
            tracing::warn!(%error, "cannot begin to write rows out");
        }
    }

    fn fail(&self, error: &fjall::Error) -> StorageError {
        self.first_failure(explain(self.folder.path(), error))
    }

    /// Keeps this failure and tells it to all who listen, unless there was one before; says which is kept.
    ///
    /// The engine says only that it failed earlier (poisoned) where one of its own threads could not write, which no
    /// commit has seen: then that is all there is to tell. Where a commit has seen the cause and another one came before
    /// it with this, the cause takes its place.
    fn first_failure(&self, failure: StorageError) -> StorageError {
        let without_cause = explain(self.folder.path(), &fjall::Error::Poisoned);
        let mut first = failure.clone();
        self.failure.send_if_modified(|kept| match kept {
            Some(kept) if kept.0 != without_cause.0 || failure.0 == without_cause.0 => {
                first.clone_from(kept);
                false
            }
            _ => {
                *kept = Some(failure);
                true
            }
        });
        first
    }

    fn read_failed(&self, error: &fjall::Error) -> StorageError {
        explain(self.folder.path(), error)
    }

    // Through a snapshot: the keyspace itself would show rows of a batch that is still being applied.
    fn get_in(&self, snapshot: &Snapshot, key: &[u8]) -> Result<Option<Bytes>, StorageError> {
        if key.is_empty() {
            return Ok(None);
        }
        match snapshot.get(&self.rows, key) {
            Ok(value) => Ok(value.map(Bytes::from)),
            Err(error) => Err(self.read_failed(&error)),
        }
    }

    fn scan_in(
        &self,
        snapshot: &Snapshot,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        order: Order,
    ) -> Scan<'_> {
        if is_empty((lower, upper)) {
            return Box::new(std::iter::empty());
        }
        let rows = snapshot.range::<&[u8], _>(&self.rows, (lower, upper));
        match order {
            Order::Forward => Box::new(rows.map(|guard| self.row(guard))),
            Order::Reverse => Box::new(rows.rev().map(|guard| self.row(guard))),
        }
    }

    fn row(&self, guard: Guard) -> Result<(Bytes, Bytes), StorageError> {
        let (key, value) = guard.into_inner().map_err(|error| self.read_failed(&error))?;
        Ok((key.into(), value.into()))
    }
}

impl std::fmt::Debug for DiskStorage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DiskStorage")
            .field("folder", &self.folder)
            .field("durability", &self.durability)
            .finish_non_exhaustive()
    }
}

impl Storage for DiskStorage {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StorageError> {
        self.get_in(&self.database.snapshot(), key)
    }

    fn scan(&self, lower: Bound<&[u8]>, upper: Bound<&[u8]>, order: Order) -> Scan<'_> {
        self.scan_in(&self.database.snapshot(), lower, upper, order)
    }

    fn view(&self) -> Box<dyn View + '_> {
        Box::new(DiskView { storage: self, snapshot: self.database.snapshot() })
    }

    fn commit(&self, batch: Batch) -> Result<Ticket, StorageError> {
        batch.check()?;
        if let Some(failure) = &*self.failure.borrow() {
            return Err(failure.clone());
        }
        self.hold_back()?;
        let bytes = batch.bytes();
        self.journal_bytes.fetch_add(bytes, Ordering::Relaxed);
        let fresh_bytes = bytes + batch.changes.len() as u64 * ROW_BYTES;
        let mut entry = OwnedWriteBatch::with_capacity(self.database.clone(), batch.changes.len())
            .durability(Some(PersistMode::Buffer));
        for change in last_changes(batch.changes) {
            match change {
                Change::Put(key, value) => entry.insert(&self.rows, key, value),
                Change::Delete(key) => entry.remove(&self.rows, key),
            }
        }
        entry.commit().map_err(|error| self.fail(&error))?;
        self.count_fresh(fresh_bytes);
        Ok(self.group.committed())
    }

    fn wait_durable(&self, ticket: Ticket) -> Result<(), StorageError> {
        match self.durability {
            Durability::OsBuffered => Ok(()),
            Durability::Fsync => self.group.wait(ticket, || {
                let flushed = self.journals.flush();
                flushed.map_err(|error| self.first_failure(explain_io(self.folder.path(), &error)))
            }),
        }
    }

    fn is_slow_to_sync(&self) -> bool {
        self.durability == Durability::Fsync
    }

    fn failures(&self) -> Option<watch::Receiver<Option<StorageError>>> {
        Some(self.failure.subscribe())
    }
}

struct DiskView<'a> {
    storage: &'a DiskStorage,
    snapshot: Snapshot,
}

impl View for DiskView<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StorageError> {
        self.storage.get_in(&self.snapshot, key)
    }

    fn scan(&self, lower: Bound<&[u8]>, upper: Bound<&[u8]>, order: Order) -> Scan<'_> {
        self.storage.scan_in(&self.snapshot, lower, upper, order)
    }
}

impl Drop for DiskStorage {
    fn drop(&mut self) {
        if self.failure.borrow().is_some() {
            return;
        }
        self.journals.is_closing = true;
        if self.journal_bytes.load(Ordering::Relaxed) > JOURNAL_BYTES_KEPT {
            self.journals.is_redundant = self.write_out();
        }
    }
}

/// The engine's name for the one tree we keep.
const ROWS: &str = "rows";
/// So many of these may wait to be written out at once; the engine's own limit is one more.
const MEMTABLES_WAITING_MAX: usize = 3;
const HOLD_BACK: Duration = Duration::from_millis(2);
/// Memory that new rows take before they are written out as a sorted file.
const MEMTABLE_BYTES: u64 = 16 << 20;
/// What the engine counts for a row besides its bytes, about.
const ROW_BYTES: u64 = 64;
/// The least the engine takes; beyond it old journals are written out.
const JOURNAL_BYTES_MAX: u64 = 64 << 20;
/// One thread writes out, the other compacts. With one for both, writers wait for compactions.
const WORKERS: usize = 2;
/// A journal up to this size is left to be replayed: that takes milliseconds, as writing it out does.
const JOURNAL_BYTES_KEPT: u64 = 1 << 20;
/// How long closing waits for rows to be written out: five seconds, looking every millisecond.
const CLOSE_WAIT: Duration = Duration::from_millis(1);
const CLOSE_WAITS_MAX: u32 = 5_000;

fn open_engine(folder: &Folder, options: Options) -> Result<(Database, Keyspace), StorageError> {
    if !folder.is_new && !folder.store().join("version").exists() {
        // The engine would take this for an empty place and start anew.
        return Err(corrupt(folder.path(), "its store has lost the file `version`"));
    }
    if !folder.is_new {
        Journals::of(folder.store()).check()?;
    }
    let explain = |error: fjall::Error| explain(folder.path(), &error);
    let database = Database::builder(folder.store())
        .cache_size(options.cache_bytes)
        .max_journaling_size(JOURNAL_BYTES_MAX)
        // A torn entry of compressed bytes is harder to tell from a damaged one, and time matters more than space.
        .journal_compression(CompressionType::None)
        .worker_threads(WORKERS)
        .open()
        .map_err(explain)?;
    if !folder.is_new && !database.keyspace_exists(ROWS) {
        return Err(corrupt(folder.path(), "its store has lost its rows"));
    }
    let rows = database
        .keyspace(ROWS, || KeyspaceCreateOptions::default().max_memtable_size(2 * MEMTABLE_BYTES))
        .map_err(explain)?;
    Ok((database, rows))
}

/// The engine keeps one change per key and batch, so only the last of each is handed to it.
fn last_changes(mut changes: Vec<Change>) -> Vec<Change> {
    let mut seen = HashSet::with_capacity(changes.len());
    let is_last: Vec<bool> = changes.iter().rev().map(|change| seen.insert(change.key().clone())).collect();
    let mut is_last = is_last.into_iter().rev();
    changes.retain(|_| is_last.next().unwrap_or(true));
    changes
}

fn explain(path: &Path, error: &fjall::Error) -> StorageError {
    if let Some(error) = io_cause(error) {
        return explain_io(path, error);
    }
    match error {
        fjall::Error::Locked => StorageError(format!(
            "The data folder {} is in use by another program. Stop it, or name another folder.",
            path.display()
        )),
        fjall::Error::Poisoned => StorageError(format!(
            "An earlier write to the data folder {} failed, so no more are taken. Check that its disk is well and has \
             space, and start the emulator again; every acknowledged write is kept.",
            path.display()
        )),
        fjall::Error::InvalidVersion(found) => corrupt(
            path,
            &format!("its store has the engine version {found:?}, which this emulator cannot read"),
        ),
        other => corrupt(path, &format!("{other:?}")),
    }
}

fn io_cause(error: &fjall::Error) -> Option<&io::Error> {
    let mut cause = error.source();
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            return Some(error);
        }
        cause = error.source();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_wait_in_bounded_memory_however_fast_they_come() {
        let folder = tempfile::tempdir().expect("a folder");
        let options = Options { durability: Durability::OsBuffered, ..Options::default() };
        let storage = DiskStorage::open(folder.path(), options).expect("opens");
        let most = AtomicU64::new(0);
        thread::scope(|scope| {
            for writer in 0..4_u64 {
                let (storage, most) = (&storage, &most);
                scope.spawn(move || {
                    let value = Bytes::from(vec![7; 256 << 10]);
                    for n in 0..40_u64 {
                        let key = |i: u64| Bytes::from(format!("{writer}-{n}-{i}"));
                        let changes = (0..4).map(|i| Change::Put(key(i), value.clone())).collect();
                        storage.commit(Batch { changes }).expect("commits");
                        most.fetch_max(storage.database.write_buffer_size(), Ordering::Relaxed);
                    }
                });
            }
        });
        // Those that wait, one that fills, one that is written and not yet given back, and a batch of each writer on top.
        let bound = (MEMTABLES_WAITING_MAX as u64 + 2) * MEMTABLE_BYTES + (8 << 20);
        assert!(most.load(Ordering::Relaxed) <= bound, "{} MB", most.load(Ordering::Relaxed) >> 20);
    }

    #[test]
    fn rows_that_cannot_be_written_out_are_a_failure_that_is_kept_and_told() {
        let folder = tempfile::tempdir().expect("a folder");
        let options = Options { durability: Durability::OsBuffered, ..Options::default() };
        let storage = DiskStorage::open(folder.path(), options).expect("opens");
        let mut failures = storage.failures().expect("it can fail");
        // The journal can be written and tables cannot, as on a disk that fills while they are made.
        for entry in std::fs::read_dir(folder.path().join("store/keyspaces")).expect("keyspaces").flatten() {
            let tables = entry.path().join("tables");
            std::fs::remove_dir_all(&tables).expect("removed");
            std::fs::write(tables, "in the way").expect("written");
        }
        let value = Bytes::from(vec![7; 1 << 20]);
        let refused = (0..2_000_u32).find_map(|n| {
            let changes = vec![Change::Put(Bytes::from(n.to_string()), value.clone())];
            storage.commit(Batch { changes }).err()
        });
        let refused = refused.expect("memory for what cannot be written out has an end");
        assert!(refused.0.contains("every acknowledged write is kept"), "{refused}");
        let kept = storage.failure().map(|failure| failure.0);
        let told = failures.borrow_and_update().clone().map(|failure| failure.0);
        assert_eq!(
            (kept.as_ref(), told.as_ref()),
            (Some(&refused.0), Some(&refused.0)),
            "it is kept and told"
        );
        assert_eq!(storage.get(b"0").expect("reads go on").map(|value| value.len()), Some(1 << 20));
    }

    #[test]
    fn a_cause_takes_the_place_of_a_failure_without_one_and_stays() {
        let folder = tempfile::tempdir().expect("a folder");
        let storage = DiskStorage::open(folder.path(), Options::default()).expect("opens");
        let kept = || storage.failure().expect("it is kept").0;
        storage.fail(&fjall::Error::Poisoned);
        assert!(kept().contains("An earlier write"), "{}", kept());
        storage.fail(&fjall::Error::Io(io::ErrorKind::StorageFull.into()));
        assert!(kept().contains("is full"), "{}", kept());
        for later in [fjall::Error::Poisoned, fjall::Error::Io(io::ErrorKind::PermissionDenied.into())] {
            assert!(storage.fail(&later).0.contains("is full"));
        }
    }

    #[test]
    fn of_several_changes_to_a_key_the_last_is_kept_in_its_place() {
        let put = |key: &'static str, value: &'static str| Change::Put(key.into(), value.into());
        let changes =
            vec![put("a", "1"), put("b", "1"), Change::Delete("a".into()), put("b", "2"), put("c", "1")];
        assert_eq!(last_changes(changes), vec![Change::Delete("a".into()), put("b", "2"), put("c", "1")]);
    }
}
