//! A store copied into a folder, and back. The copy is a data folder like any other.

use std::fs;
use std::io;
use std::ops::Bound;
use std::path::Path;

use bytes::Bytes;

use super::{Batch, Change, DiskStorage, Durability, FILLING, Options, Order, Storage, StorageError};

/// What was copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Copied {
    pub(crate) rows: u64,
    pub(crate) bytes: u64,
}

/// Bytes of one commit of a copy.
const BATCH_BYTES: u64 = 4 << 20;

/// Copies everything as it is now into a new folder, while the store is in use. A copy that does not succeed is
/// removed.
pub(crate) fn save(from: &dyn Storage, folder: &Path) -> Result<Copied, StorageError> {
    check_vacant(folder)?;
    let was_there = folder.exists();
    let copy = || {
        let to = DiskStorage::open(folder, Options { durability: Durability::Fsync, ..Options::default() })?;
        copy(from, &to)
    };
    copy().inspect_err(|_| {
        // Half a copy must not be taken for one. What cannot be removed was said by the error before.
        if !was_there {
            let _ = fs::remove_dir_all(folder);
        }
    })
}

/// Fills an empty store from a folder that [`save`] made, or that an emulator used and left.
pub(crate) fn restore(folder: &Path, to: &dyn Storage) -> Result<Copied, StorageError> {
    if to.scan(Bound::Unbounded, Bound::Unbounded, Order::Forward).next().transpose()?.is_some() {
        return Err(StorageError(format!(
            "The data folder is not empty, so {} is not restored into it. Name a new data folder, or start without \
             restoring.",
            folder.display()
        )));
    }
    if !folder.is_dir() {
        return Err(StorageError(format!(
            "There is no folder {} to restore from. Name a folder that a snapshot was taken into.",
            folder.display()
        )));
    }
    let from =
        DiskStorage::open(folder, Options { durability: Durability::OsBuffered, ..Options::default() })?;
    copy(&from, to)
}

fn copy(from: &dyn Storage, to: &dyn Storage) -> Result<Copied, StorageError> {
    let mut copied = Copied::default();
    let mut batch = Batch::default();
    let mut pending = 0;
    // A copy that is ended on the way must not be taken for a whole one.
    let filling = Bytes::from_static(FILLING);
    to.commit(Batch { changes: vec![Change::Put(filling.clone(), Bytes::new())] })?;
    for row in from.scan(Bound::Unbounded, Bound::Unbounded, Order::Forward) {
        let (key, value) = row?;
        let bytes = (key.len() + value.len()) as u64;
        copied = Copied { rows: copied.rows + 1, bytes: copied.bytes + bytes };
        pending += bytes;
        batch.changes.push(Change::Put(key, value));
        if pending >= BATCH_BYTES {
            to.commit(std::mem::take(&mut batch))?;
            pending = 0;
        }
    }
    batch.changes.push(Change::Delete(filling));
    let last = to.commit(batch)?;
    to.wait_durable(last)?;
    Ok(copied)
}

fn check_vacant(folder: &Path) -> Result<(), StorageError> {
    if folder.is_symlink() {
        return Err(StorageError(format!(
            "{} is a link. A snapshot goes into a new folder: name one.",
            folder.display()
        )));
    }
    match fs::read_dir(folder).map(|mut entries| entries.next().is_some()) {
        Ok(false) => Ok(()),
        Ok(true) => Err(StorageError(format!(
            "{} is not empty. A snapshot goes into a new folder, so that nothing is overwritten.",
            folder.display()
        ))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(StorageError(format!("{} cannot be used: {error}.", folder.display()))),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{MemoryStorage, Scan, Ticket, View};
    use super::*;

    fn store(rows: &[(&'static str, &'static str)]) -> MemoryStorage {
        let store = MemoryStorage::new();
        let put = |(key, value): &(&'static str, &'static str)| {
            Change::Put(Bytes::from_static(key.as_bytes()), Bytes::from_static(value.as_bytes()))
        };
        store.commit(Batch { changes: rows.iter().map(put).collect() }).unwrap();
        store
    }

    fn rows(store: &dyn Storage) -> Vec<(Bytes, Bytes)> {
        store.scan(Bound::Unbounded, Bound::Unbounded, Order::Forward).map(Result::unwrap).collect()
    }

    #[test]
    fn what_was_saved_is_what_is_restored() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("copy");
        let store = store(&[("a", "1"), ("b", "2")]);
        assert_eq!(save(&store, &folder).unwrap(), Copied { rows: 2, bytes: 4 });
        let again = MemoryStorage::new();
        restore(&folder, &again).unwrap();
        assert_eq!(rows(&again), rows(&store));
    }

    #[test]
    fn nothing_is_overwritten() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("copy");
        let store = store(&[("a", "1")]);
        save(&store, &folder).unwrap();
        assert!(save(&store, &folder).unwrap_err().0.contains("is not empty"));
        assert!(restore(&folder, &store).unwrap_err().0.contains("is not empty"));
        let absent = restore(&place.path().join("absent"), &MemoryStorage::new());
        assert!(absent.unwrap_err().0.contains("There is no folder"));
    }

    /// A store that can be read in part only.
    struct Torn(MemoryStorage);

    impl Storage for Torn {
        fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StorageError> {
            self.0.get(key)
        }

        fn scan(&self, lower: Bound<&[u8]>, upper: Bound<&[u8]>, order: Order) -> Scan<'_> {
            let torn = std::iter::once(Err(StorageError("torn".to_owned())));
            Box::new(self.0.scan(lower, upper, order).chain(torn))
        }

        fn view(&self) -> Box<dyn View + '_> {
            self.0.view()
        }

        fn commit(&self, batch: Batch) -> Result<Ticket, StorageError> {
            self.0.commit(batch)
        }

        fn wait_durable(&self, ticket: Ticket) -> Result<(), StorageError> {
            self.0.wait_durable(ticket)
        }

        fn is_slow_to_sync(&self) -> bool {
            self.0.is_slow_to_sync()
        }
    }

    #[test]
    fn half_a_copy_is_not_opened_as_a_store() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("copy");
        let large = Bytes::from(vec![b'x'; 5 << 20]);
        let store = MemoryStorage::new();
        store.commit(Batch { changes: vec![Change::Put("a".into(), large)] }).unwrap();
        let disk = DiskStorage::open(&folder, Options::default()).unwrap();
        assert!(copy(&Torn(store), &disk).is_err());
        drop(disk);
        let opened = DiskStorage::open(&folder, Options::default()).map(drop);
        assert!(opened.unwrap_err().0.contains("half a copy"));
        assert!(restore(&folder, &MemoryStorage::new()).unwrap_err().0.contains("half a copy"));
    }
}
