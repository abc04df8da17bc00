//! The other candidate behind the same trait.
//!
//! redb keeps a commit only with a flush (a commit without one lives in the process and dies with it), so the
//! group forms before the commit: batches queue, and the first caller writes all that wait as one transaction.
//! Without fsync the flush goes to a file that ignores it, so a commit still leaves the process.

use std::fs::OpenOptions;
use std::io;
use std::ops::Bound;
use std::path::Path;
use std::sync::{Condvar, Mutex};

use bytes::Bytes;
use cosmos_emulator::storage::{
    Batch, Change, Durability, Options, Order, Scan, Storage, StorageError, Ticket, View,
};
use redb::backends::FileBackend;
use redb::{Database, ReadOnlyTable, ReadableDatabase, StorageBackend, TableDefinition};

const ROWS: TableDefinition<'static, &[u8], &[u8]> = TableDefinition::new("rows");

pub(crate) struct RedbStorage {
    database: Database,
    queue: Mutex<Queue>,
    done: Condvar,
}

#[derive(Default)]
struct Queue {
    waiting: Vec<Batch>,
    taken: u64,
    committed: u64,
    has_leader: bool,
}

impl RedbStorage {
    pub(crate) fn open(folder: &Path, options: Options) -> Self {
        let mut builder = Database::builder();
        builder.set_cache_size(usize::try_from(options.cache_bytes).expect("a small number"));
        let path = folder.join("rows.redb");
        let database = match options.durability {
            Durability::Fsync => builder.create(path),
            Durability::OsBuffered => {
                let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
                let file = FileBackend::new(file.expect("a file")).expect("a file that nobody uses");
                builder.create_with_backend(Unflushed(file))
            }
        };
        let database = database.expect("redb opens");
        let write = database.begin_write().expect("no other writer");
        write.open_table(ROWS).expect("a table");
        write.commit().expect("a commit");
        Self { database, queue: Mutex::default(), done: Condvar::new() }
    }

    fn table(&self) -> Table {
        let open = || Ok(self.database.begin_read()?.open_table(ROWS)?);
        Table(open().map_err(explain::<redb::Error>))
    }

    fn write(&self, batches: Vec<Batch>) -> Result<(), redb::Error> {
        let write = self.database.begin_write()?;
        {
            let mut rows = write.open_table(ROWS)?;
            for change in batches.into_iter().flat_map(|batch| batch.changes) {
                match change {
                    Change::Put(key, value) => drop(rows.insert(key.as_ref(), value.as_ref())?),
                    Change::Delete(key) => drop(rows.remove(key.as_ref())?),
                }
            }
        }
        write.commit()?;
        Ok(())
    }
}

/// The rows at one moment, or why they cannot be read.
struct Table(Result<ReadOnlyTable<&'static [u8], &'static [u8]>, StorageError>);

impl Table {
    fn rows<'a>(&self, lower: Bound<&[u8]>, upper: Bound<&[u8]>, order: Order) -> Scan<'a> {
        let range = self.0.as_ref().map_err(Clone::clone);
        let range = match range.and_then(|rows| rows.range::<&[u8]>((lower, upper)).map_err(explain)) {
            Ok(range) => range,
            Err(error) => return Box::new(std::iter::once(Err(error))),
        };
        let row = |row: Result<_, redb::StorageError>| match row {
            Ok((key, value)) => Ok(copy(&key, &value)),
            Err(error) => Err(explain(error)),
        };
        match order {
            Order::Forward => Box::new(range.map(row)),
            Order::Reverse => Box::new(range.rev().map(row)),
        }
    }
}

impl View for Table {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StorageError> {
        let found = self.0.as_ref().map_err(Clone::clone)?.get(key).map_err(explain)?;
        Ok(found.map(|value| Bytes::copy_from_slice(value.value())))
    }

    fn scan(&self, lower: Bound<&[u8]>, upper: Bound<&[u8]>, order: Order) -> Scan<'_> {
        self.rows(lower, upper, order)
    }
}

impl Storage for RedbStorage {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StorageError> {
        self.table().get(key)
    }

    fn scan(&self, lower: Bound<&[u8]>, upper: Bound<&[u8]>, order: Order) -> Scan<'_> {
        self.table().rows(lower, upper, order)
    }

    fn view(&self) -> Box<dyn View + '_> {
        Box::new(self.table())
    }

    fn commit(&self, batch: Batch) -> Result<Ticket, StorageError> {
        let mut queue = self.queue.lock().expect("no writer panics");
        queue.waiting.push(batch);
        queue.taken += 1;
        let mine = queue.taken;
        while queue.committed < mine {
            if queue.has_leader {
                queue = self.done.wait(queue).expect("no writer panics");
                continue;
            }
            queue.has_leader = true;
            let (batches, last) = (std::mem::take(&mut queue.waiting), queue.taken);
            drop(queue);
            self.write(batches).map_err(explain)?;
            queue = self.queue.lock().expect("no writer panics");
            queue.committed = last;
            queue.has_leader = false;
            self.done.notify_all();
        }
        Ok(Ticket(mine))
    }

    fn wait_durable(&self, _ticket: Ticket) -> Result<(), StorageError> {
        Ok(())
    }

    fn is_slow_to_sync(&self) -> bool {
        true
    }
}

fn copy(
    key: &redb::AccessGuard<'_, &'static [u8]>,
    value: &redb::AccessGuard<'_, &'static [u8]>,
) -> (Bytes, Bytes) {
    (Bytes::copy_from_slice(key.value()), Bytes::copy_from_slice(value.value()))
}

fn explain<E: Into<redb::Error>>(error: E) -> StorageError {
    StorageError(error.into().to_string())
}

/// A file whose flushes do nothing.
#[derive(Debug)]
struct Unflushed(FileBackend);

impl StorageBackend for Unflushed {
    fn len(&self) -> Result<u64, io::Error> {
        self.0.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), io::Error> {
        self.0.read(offset, out)
    }

    fn set_len(&self, len: u64) -> Result<(), io::Error> {
        self.0.set_len(len)
    }

    fn sync_data(&self) -> Result<(), io::Error> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), io::Error> {
        self.0.write(offset, data)
    }

    fn close(&self) -> Result<(), io::Error> {
        self.0.close()
    }
}
