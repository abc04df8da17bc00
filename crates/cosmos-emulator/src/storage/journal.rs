//! The engine's journal files (`store/<number>.jnl`), checked, flushed and emptied from outside.
//!
//! The engine flushes a journal while it holds the lock that every commit needs, so commits would wait for the
//! disk. Flushing the same files here lets them go on, and the next group is larger.
//!
//! A store that is closed leaves a mark: the journals with how long they are. The next start refuses journals that have
//! changed since. A process that was killed leaves none, and its last batch may be there in part.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::StorageError;
use super::folder::{explain_io, sync_folder};
use super::inspect::{Content, inspect};

/// The journals of one store.
#[derive(Debug)]
pub(super) struct Journals {
    store: PathBuf,
    /// Everything in them is in tables too: they are emptied when this is dropped, so that the next start has
    /// nothing to replay.
    pub(super) is_redundant: bool,
    /// The store is being closed, and nothing failed: a mark is left.
    pub(super) is_closing: bool,
}

impl Journals {
    pub(super) fn of(store: PathBuf) -> Self {
        Self { store, is_redundant: false, is_closing: false }
    }

    /// Refuses journals that the engine would cut although something was written behind the place, and those that are not
    /// as they were when the store was closed. Takes the mark of that away: from here on it says nothing.
    pub(super) fn check(&self) -> Result<(), StorageError> {
        let folder = self.folder();
        let explain = |error: io::Error| explain_io(folder, &error);
        let files = self.in_order().map_err(explain)?;
        let (mut last, mut found) = (None, Vec::new());
        for (index, file) in files.iter().enumerate() {
            let is_sealed = index + 1 < files.len();
            match inspect(file, last).map_err(explain)? {
                // The engine ends a journal with a whole batch before it begins the next one.
                Ok(content) if content.is_torn() && is_sealed => {
                    return Err(damaged(folder, file, content.end));
                }
                Ok(content) => {
                    if content.is_torn() {
                        // The engine cuts it off when it opens the journal.
                        let (journal, at_byte, bytes) = (name(file), content.end, content.torn_bytes);
                        tracing::warn!(
                            journal,
                            at_byte,
                            bytes,
                            "the last write of a killed process is there in part and is dropped; it was not acknowledged"
                        );
                    }
                    last = content.last.or(last);
                    found.push((name(file), content));
                }
                Err(damage) => return Err(damaged(folder, file, damage.end)),
            }
        }
        let Some(mark) = read_mark(folder)? else { return Ok(()) };
        for (name, numbers) in &mark {
            let is_same = |content: &Content| numbers_of(content) == *numbers;
            if !found.iter().any(|(known, content)| known == name && is_same(content)) {
                return Err(changed(folder, name));
            }
        }
        fs::remove_file(folder.join(MARK_FILE)).and_then(|()| sync_folder(folder)).map_err(explain)
    }

    /// Says how long each journal is, for the next start. Without a mark it cannot tell a journal that lost its end from
    /// one of a killed process, so a mark that cannot be written is only a pity.
    fn leave_mark(&self) -> io::Result<()> {
        let mut text = String::new();
        for file in self.files()? {
            if let Ok(content) = inspect(&file, None)? {
                let [end, first, last] = numbers_of(&content);
                text.push_str(&format!("{} {end} {first} {last}\n", name(&file)));
            }
        }
        let folder = self.folder();
        let draft = folder.join(MARK_DRAFT_FILE);
        let mut file = crate::private::create(&draft)?;
        file.write_all(text.as_bytes()).and_then(|()| file.sync_all())?;
        fs::rename(draft, folder.join(MARK_FILE))
    }

    /// The data folder.
    fn folder(&self) -> &Path {
        self.store.parent().unwrap_or(&self.store)
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

    /// The files, first written first.
    pub(super) fn in_order(&self) -> io::Result<Vec<PathBuf>> {
        let mut files = self.files()?;
        files.sort_by_key(|file| number(file));
        Ok(files)
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
        if self.is_closing
            && let Err(error) = self.leave_mark()
        {
            tracing::warn!(%error, "cannot note how long the journal is");
        }
    }
}

/// Written when a store is closed: a line for each of its journals, with its name and [`numbers_of`] it.
pub(super) const MARK_FILE: &str = "emulator.closed";
const MARK_DRAFT_FILE: &str = "emulator.closed.new";

/// How long a journal is, and the numbers of its first and last batch, which no checksum covers.
fn numbers_of(content: &Content) -> [u64; 3] {
    [content.end, content.first.unwrap_or(0), content.last.unwrap_or(0)]
}

type Mark = Vec<(String, [u64; 3])>;

fn read_mark(folder: &Path) -> Result<Option<Mark>, StorageError> {
    let text = match fs::read_to_string(folder.join(MARK_FILE)) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => return Err(unreadable(folder)),
        Err(error) => return Err(explain_io(folder, &error)),
    };
    let line = |line: &str| {
        let [name, end, first, last] = line.split(' ').collect::<Vec<_>>().try_into().ok()?;
        Some((name.to_owned(), [end.parse().ok()?, first.parse().ok()?, last.parse().ok()?]))
    };
    text.lines().map(line).collect::<Option<_>>().map(Some).ok_or_else(|| unreadable(folder))
}

fn damaged(folder: &Path, file: &Path, end: u64) -> StorageError {
    let (folder, file) = (folder.display(), file.display());
    StorageError(format!(
        "The data folder {folder} is damaged: its journal {file} cannot be read behind byte {end}, and there are writes \
         behind it. Nothing was changed. Restore the folder from a copy, or have everything before that byte copied to a \
         new folder, and be told what is lost: `cdb emulator --data {folder} --salvage NEW-FOLDER`."
    ))
}

fn changed(folder: &Path, name: &str) -> StorageError {
    let folder = folder.display();
    StorageError(format!(
        "The data folder {folder} is damaged: its journal {name} is not as long as it was when the emulator was stopped, \
         or has been changed. Nothing was done to it. Restore the folder from a copy, or have what is left copied to a \
         new folder: `cdb emulator --data {folder} --salvage NEW-FOLDER`. (Its file `{MARK_FILE}` says how long it was.)"
    ))
}

fn unreadable(folder: &Path) -> StorageError {
    let folder = folder.display();
    StorageError(format!(
        "The data folder {folder} is damaged: its file `{MARK_FILE}`, which says what the journal was like, cannot be \
         read. Remove that file to start without the check."
    ))
}

fn name(file: &Path) -> String {
    file.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The number in a journal's name; journals are written in this order.
fn number(file: &Path) -> u64 {
    file.file_stem().and_then(|stem| stem.to_str()).and_then(|stem| stem.parse().ok()).unwrap_or(u64::MAX)
}

fn open(path: PathBuf) -> io::Result<File> {
    OpenOptions::new().write(true).open(path)
}
