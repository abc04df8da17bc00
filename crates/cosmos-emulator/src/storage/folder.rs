//! The data folder: who may use it, and which format it holds.
//!
//! ```text
//! emulator.lock         held by the process that uses the folder, and names it
//! emulator.format       one line: the version of everything below; it is there once the store is complete
//! emulator.format.new   the same line while the store is being made
//! emulator.address      where the process that uses the folder serves it, and which process that is
//! emulator.closed       how long each journal was when the store was closed; gone while it is open
//! store/                the engine's files
//! ```
//!
//! What is made here is for its owner alone, and no link that lies in the folder is followed to make it.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use super::StorageError;
use crate::private;

/// The format this program writes, and the newest it reads.
pub(super) const FORMAT_VERSION: u32 = 1;

pub(super) const LOCK_FILE: &str = "emulator.lock";
const FORMAT_FILE: &str = "emulator.format";
const ADDRESS_FILE: &str = "emulator.address";
const DRAFT_FILE: &str = "emulator.format.new";
const FORMAT_NAME: &str = "cosmos-emulator data format";
const STORE_FOLDER: &str = "store";

/// A data folder that nobody else uses while this value lives.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    /// Whether the store in it is still to be made.
    pub(super) is_new: bool,
    lock: File,
}

impl Folder {
    /// Takes the folder for this process and checks its format; makes the folder if there is none.
    pub(super) fn claim(path: &Path) -> Result<Self, StorageError> {
        make(path)?;
        let lock = lock(path)?;
        let folder = Self { path: path.to_owned(), is_new: read_format(path)?.is_none(), lock };
        if folder.is_new {
            folder.prepare()?;
        } else if !folder.store().exists() {
            return Err(corrupt(path, &format!("its folder `{STORE_FOLDER}` is missing")));
        }
        Ok(folder)
    }

    /// Takes a folder that holds a store, and makes nothing.
    pub(super) fn claim_existing(path: &Path) -> Result<Self, StorageError> {
        let lock = lock(path)?;
        if read_format(path)?.is_none() {
            return Err(StorageError(format!("{} is no data folder of the emulator.", path.display())));
        }
        Ok(Self { path: path.to_owned(), is_new: false, lock })
    }

    /// Makes way for a new store.
    fn prepare(&self) -> Result<(), StorageError> {
        let explain = |error: io::Error| explain_io(&self.path, &error);
        let store = self.store();
        match (self.path.join(DRAFT_FILE).exists(), store.exists()) {
            (_, false) => {}
            // The process that made it was killed before the store was complete, so nothing in it was acknowledged.
            (true, true) => fs::remove_dir_all(&store).map_err(explain)?,
            (false, true) => {
                return Err(StorageError(format!(
                    "{} holds a folder `{STORE_FOLDER}` that this emulator did not make. Name a new or empty data \
                     folder.",
                    self.path.display()
                )));
            }
        }
        write_draft(&self.path).map_err(explain)?;
        private::make_folder_here(&store).map_err(explain)
    }

    /// Where the engine's files are.
    pub(super) fn store(&self) -> PathBuf {
        self.path.join(STORE_FOLDER)
    }

    /// The folder itself.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Stamps the format, after which the folder counts as complete.
    pub(super) fn stamp(&mut self) -> Result<(), StorageError> {
        if self.is_new {
            fs::rename(self.path.join(DRAFT_FILE), self.path.join(FORMAT_FILE))
                .and_then(|()| sync_folder(&self.path))
                .map_err(|error| explain_io(&self.path, &error))?;
            self.is_new = false;
        }
        Ok(())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Closing the file is not enough: a process that is just being started by another thread holds it too.
        // A lock that cannot be given back ends with this process.
        let _ = self.lock.unlock();
    }
}

/// Writes down where this process serves the folder, for [`running_at`].
pub(crate) fn tell_address(path: &Path, endpoint: &str) {
    let text = format!("{} {endpoint}", std::process::id());
    // A courtesy: on a full disk the folder is still served, and is found by its endpoint.
    let _ = private::write(&path.join(ADDRESS_FILE), &text);
}

/// Where the emulator is that uses this folder now, if one does and serves it.
///
/// A process that was killed leaves its address behind: it counts only while the process that wrote it holds the folder.
#[must_use]
pub fn running_at(path: &Path) -> Option<String> {
    let mut lock = File::open(path.join(LOCK_FILE)).ok()?;
    if lock.try_lock_shared().is_ok() {
        // Nobody has it. A lock that cannot be given back ends with the file.
        let _ = lock.unlock();
        return None;
    }
    let mut holder = String::new();
    lock.read_to_string(&mut holder).ok()?;
    let text = fs::read_to_string(path.join(ADDRESS_FILE)).ok()?;
    let (writer, endpoint) = text.split_once(' ')?;
    (writer == holder.trim()).then(|| endpoint.to_owned())
}

/// The message for a file system error in a data folder.
pub(super) fn explain_io(path: &Path, error: &io::Error) -> StorageError {
    let path = path.display();
    StorageError(match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => format!(
            "The disk that holds the data folder {path} is full. Free some space and start the emulator again; every \
             acknowledged write is kept."
        ),
        io::ErrorKind::FileTooLarge => format!(
            "A file in the data folder {path} reached the size limit of this process or disk. Raise the limit and \
             start the emulator again; every acknowledged write is kept."
        ),
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => format!(
            "The data folder {path} cannot be written ({error}). Change its permissions or name another folder."
        ),
        _ => format!("The data folder {path} failed: {error}."),
    })
}

/// The message for data that cannot be read.
pub(super) fn corrupt(path: &Path, detail: &str) -> StorageError {
    StorageError(format!(
        "The data folder {} is damaged: {detail}. Restore it from a copy, or name a new folder to start empty.",
        path.display()
    ))
}

fn make(path: &Path) -> Result<(), StorageError> {
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => Ok(()),
        Ok(_) => Err(StorageError(format!(
            "{} is a file, but the emulator keeps its data in a folder. Name a folder.",
            path.display()
        ))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            private::make_folder(path).map_err(|error| explain_io(path, &error))
        }
        Err(error) => Err(explain_io(path, &error)),
    }
}

fn lock(path: &Path) -> Result<File, StorageError> {
    let explain = |error: &io::Error| explain_io(path, error);
    let mut file = private::open_or_create(&path.join(LOCK_FILE)).map_err(|error| explain(&error))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(in_use(path, &mut file)),
        Err(TryLockError::Error(error)) => return Err(explain(&error)),
    }
    file.set_len(0).and_then(|()| write!(file, "{}", std::process::id())).map_err(|error| explain(&error))?;
    Ok(file)
}

fn in_use(path: &Path, file: &mut File) -> StorageError {
    let mut holder = String::new();
    // The name of the holder is a courtesy: without it the message is still right.
    let by = match file.read_to_string(&mut holder) {
        Ok(_) if !holder.is_empty() => format!("another emulator (process {holder})"),
        _ => "another emulator".to_owned(),
    };
    StorageError(format!(
        "The data folder {} is in use by {by}. Stop it, or name another folder.",
        path.display()
    ))
}

fn read_format(path: &Path) -> Result<Option<u32>, StorageError> {
    let text = match fs::read_to_string(path.join(FORMAT_FILE)) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            return Err(corrupt(path, &format!("its file `{FORMAT_FILE}` is not text")));
        }
        Err(error) => return Err(explain_io(path, &error)),
    };
    match parse_format(&text) {
        Some(version) if version <= FORMAT_VERSION => Ok(Some(version)),
        Some(version) => Err(StorageError(format!(
            "The data folder {} has format {version}, but this emulator reads formats up to {FORMAT_VERSION}. It was \
             written by a newer emulator: use that one, or name another folder.",
            path.display()
        ))),
        None => Err(corrupt(path, &format!("its file `{FORMAT_FILE}` does not name a format"))),
    }
}

fn parse_format(text: &str) -> Option<u32> {
    text.trim_end().strip_prefix(FORMAT_NAME)?.trim_start().parse().ok().filter(|version| *version > 0)
}

/// The stamp appears whole or not at all: it is written beside its place and renamed when the store is complete.
fn write_draft(path: &Path) -> io::Result<()> {
    let mut file = private::create(&path.join(DRAFT_FILE))?;
    writeln!(file, "{FORMAT_NAME} {FORMAT_VERSION}")?;
    file.sync_all()
}

#[cfg(unix)]
pub(super) fn sync_folder(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Folders cannot be flushed here; the rename is kept by the file system's own journal.
#[cfg(not(unix))]
pub(super) fn sync_folder(_path: &Path) -> io::Result<()> {
    Ok(())
}
