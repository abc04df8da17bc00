//! The engine's journal files (`store/<number>.jnl`), flushed and emptied from outside.
//!
//! The engine flushes a journal while it holds the lock that every commit needs, so commits would wait for the
//! disk. Flushing the same files here lets them go on, and the next group is larger.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::PathBuf;

/// The journals of one store.
#[derive(Debug)]
pub(super) struct Journals {
    store: PathBuf,
    /// Everything in them is in tables too: they are emptied when this is dropped, so that the next start has
    /// nothing to replay.
    pub(super) is_redundant: bool,
}

impl Journals {
    pub(super) fn of(store: PathBuf) -> Self {
        Self { store, is_redundant: false }
    }

    /// Flushes what the operating system has of them. The engine flushes a journal before it starts the next one,
    /// and deletes it only when its rows are in tables that are flushed, so it does not matter when it does so.
    pub(super) fn flush(&self) -> io::Result<()> {
        for file in self.files()? {
            match open(file) {
                Ok(file) => file.sync_data()?,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Their length together.
    pub(super) fn bytes(&self) -> io::Result<u64> {
        self.files()?.into_iter().try_fold(0, |bytes, file| Ok(bytes + fs::metadata(file)?.len()))
    }

    fn files(&self) -> io::Result<Vec<PathBuf>> {
        let paths = fs::read_dir(&self.store)?.map(|entry| entry.map(|entry| entry.path()));
        paths
            .filter(|path| !matches!(path, Ok(path) if path.extension().is_none_or(|end| end != "jnl")))
            .collect()
    }
}

impl Drop for Journals {
    fn drop(&mut self) {
        if self.is_redundant {
            for file in self.files().unwrap_or_default() {
                // A journal that stays is replayed over the same rows: slower, and not wrong. The file itself stays
                // in any case, because the engine takes its numbering from the last one.
                let _ = open(file).and_then(|file| file.set_len(0).and_then(|()| file.sync_data()));
            }
        }
    }
}

fn open(path: PathBuf) -> io::Result<File> {
    OpenOptions::new().write(true).open(path)
}
