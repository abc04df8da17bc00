//! What a damaged data folder still holds, in a new one.
//!
//! The journals of the copy end where the first of them cannot be read, so that the copy is what the store was at one
//! moment: batches behind the damage may build on one that is gone. The damaged folder stays as it is.

use std::fs::{self, OpenOptions};
use std::io;
use std::ops::Bound;
use std::path::{Path, PathBuf};

use super::disk::DiskStorage;
use super::folder::{Folder, explain_io};
use super::inspect::{batches_behind, inspect};
use super::journal::{Journals, MARK_FILE};
use super::{Options, Order, Storage, StorageError};

/// What came of a damaged folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Salvaged {
    /// Rows of the new store, all of which could be read.
    pub rows: u64,
    /// What is lost, journal by journal; nothing if none was damaged.
    pub cuts: Vec<Cut>,
}

/// The end of a journal that is not in the copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cut {
    /// The file in the damaged folder.
    pub journal: PathBuf,
    /// Where it was cut.
    pub at_byte: u64,
    /// Bytes behind that place.
    pub bytes_lost: u64,
    /// Writes behind it that have an end: at least so many are lost.
    pub writes_lost: u64,
}

/// Copies a folder that may be damaged to a new one that can be opened.
pub fn salvage(from: &Path, to: &Path) -> Result<Salvaged, StorageError> {
    if !from.is_dir() {
        return Err(StorageError(format!("There is no data folder {}.", from.display())));
    }
    let is_empty = |path: &Path| fs::read_dir(path).map(|mut entries| entries.next().is_none());
    match is_empty(to) {
        Ok(true) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Ok(false) => {
            return Err(StorageError(format!("{} is not empty. Salvage into a new folder.", to.display())));
        }
        Err(error) => return Err(explain_io(to, &error)),
    }
    // Held, so that nobody writes while it is copied.
    let folder = Folder::claim_existing(from)?;
    copy(from, to).map_err(|error| explain_io(to, &error))?;
    let cuts = cut(&Journals::of(folder.store()), to).map_err(|error| explain_io(to, &error))?;
    let storage = DiskStorage::open(to, Options::default())?;
    let mut rows = 0;
    for row in storage.scan(Bound::Unbounded, Bound::Unbounded, Order::Forward) {
        row.map_err(|error| {
            StorageError(format!("Its tables are damaged, too, and only a copy of the folder helps. {error}"))
        })?;
        rows += 1;
    }
    Ok(Salvaged { rows, cuts })
}

/// Cuts the journals of the copy where the first of them cannot be read.
fn cut(journals: &Journals, to: &Path) -> io::Result<Vec<Cut>> {
    let files = journals.in_order()?;
    let (mut cuts, mut last, mut is_behind) = (Vec::new(), None, false);
    for (index, file) in files.iter().enumerate() {
        let is_sealed = index + 1 < files.len();
        let end = match inspect(file, last)? {
            _ if is_behind => Some(0),
            Ok(content) => {
                last = content.last.or(last);
                (content.is_torn() && is_sealed).then_some(content.end)
            }
            Err(damage) => Some(damage.end),
        };
        let Some(at_byte) = end else { continue };
        is_behind = true;
        let behind = batches_behind(file, at_byte)?;
        if behind.bytes > 0 {
            let (bytes_lost, writes_lost) = (behind.bytes, behind.batches);
            cuts.push(Cut { journal: file.clone(), at_byte, bytes_lost, writes_lost });
        }
        let copy = to.join("store").join(file.file_name().unwrap_or_default());
        OpenOptions::new().write(true).open(copy)?.set_len(at_byte)?;
    }
    Ok(cuts)
}

/// Copies all files but those that say who uses the folder and how it was left.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    crate::private::make_folder(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (name, kind) = (entry.file_name(), entry.file_type()?);
        if kind.is_dir() {
            copy(&entry.path(), &to.join(name))?;
        } else if kind.is_file() && name != MARK_FILE && name != super::folder::LOCK_FILE {
            let mut file = crate::private::create(&to.join(name))?;
            io::copy(&mut fs::File::open(entry.path())?, &mut file)?;
            file.sync_all()?;
        }
    }
    Ok(())
}
