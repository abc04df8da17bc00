//! A journal that is cut off or damaged: a killed process may have left a batch in part, and nothing else is taken for
//! that. Whatever else happened to it, everything acknowledged is there, or the store refuses to open.

use std::fs::{self, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use cosmos_emulator::storage::{DiskStorage, Storage, salvage};

use super::random::Random;
use super::{QUICK, batch, open_disk, put, rows};

const BATCHES: usize = 40;
const ROWS: usize = 6;

#[test]
fn a_journal_cut_off_anywhere_keeps_the_whole_batches_before_the_cut() {
    let journal = Journal::written();
    let mut random = Random(1);
    let mut kept_before = 0;
    let mut cuts: Vec<u64> = (0..40).map(|_| random.next() % journal.len).chain([0, journal.len]).collect();
    cuts.sort_unstable();
    for cut in cuts {
        let copy = journal.copy();
        copy.forget_closing();
        copy.cut(cut);
        let kept = copy.whole_batches().expect("a cut is not damage");
        assert!(kept >= kept_before, "a later cut at {cut} keeps less");
        kept_before = kept;
    }
    assert_eq!(kept_before, BATCHES);
}

#[test]
fn a_journal_that_became_shorter_after_a_clean_close_is_refused_until_the_mark_is_removed() {
    let journal = Journal::written();
    for cut in [0, journal.len / 2, journal.len - 1] {
        let copy = journal.copy();
        copy.cut(cut);
        let refusal = copy.whole_batches().expect_err("a shorter journal");
        assert!(refusal.contains("is damaged") && refusal.contains("emulator.closed"), "{refusal}");
        assert_eq!(fs::metadata(copy.journal()).unwrap().len(), cut, "nothing was changed");
        copy.forget_closing();
        assert!(copy.whole_batches().expect("as after a kill") < BATCHES);
    }
    let copy = journal.copy();
    fs::write(copy.folder.path().join("emulator.closed"), "nonsense").unwrap();
    assert!(copy.whole_batches().expect_err("an unreadable mark").contains("emulator.closed"));
}

#[test]
fn a_damaged_byte_is_told_with_its_place_and_the_way_out() {
    let journal = Journal::written();
    let before = fs::read(journal.journal()).unwrap();
    // The first byte of the second batch: the engine takes it for the end.
    let at = before.windows(4).position(|bytes| bytes == b"FJL\x03").unwrap() + 4;
    journal.overwrite(at as u64, &[before[at] ^ 0x40]);
    let refusal = journal.whole_batches().expect_err("damage");
    assert!(refusal.contains(&format!("behind byte {at},")) && refusal.contains("--salvage"), "{refusal}");
    assert_eq!(fs::read(journal.journal()).unwrap().len(), before.len(), "nothing was cut");
    let new = tempfile::tempdir().unwrap();
    let salvaged = salvage(journal.folder.path(), new.path()).expect("what is before the damage");
    let [cut] = salvaged.cuts.as_slice() else { panic!("{salvaged:?}") };
    assert_eq!((cut.at_byte, cut.bytes_lost), (at as u64, journal.len - at as u64));
    assert_eq!((salvaged.rows, cut.writes_lost), (ROWS as u64, BATCHES as u64 - 1));
    assert_eq!(fs::read(journal.journal()).unwrap().len(), before.len(), "still nothing was cut");
    let copy = Journal { folder: new, len: at as u64 };
    assert_eq!(copy.whole_batches(), Ok(1));
    let refusal = salvage(journal.folder.path(), copy.folder.path()).expect_err("not over another store");
    assert!(refusal.0.contains("is not empty"), "{refusal}");
}

#[test]
fn a_folder_that_is_whole_is_salvaged_whole_and_another_folder_not_at_all() {
    let journal = Journal::written();
    let new = tempfile::tempdir().unwrap();
    let salvaged = salvage(journal.folder.path(), &new.path().join("copy")).expect("a copy");
    assert_eq!((salvaged.rows, salvaged.cuts.len()), ((BATCHES * ROWS) as u64, 0));
    assert_eq!(journal.whole_batches(), Ok(BATCHES), "the first one is as it was");
    let nothing = tempfile::tempdir().unwrap();
    assert!(salvage(nothing.path(), &new.path().join("other")).is_err());
    assert!(!new.path().join("other").exists(), "nothing was made");
}

#[test]
fn no_flipped_bit_in_a_table_is_read_as_something_else() {
    let folder = tempfile::tempdir().unwrap();
    let storage = open_disk(folder.path());
    for number in 0..BATCHES {
        // More than a journal keeps when the store is closed, so that the rows are in tables.
        let rows = (0..8).map(|row| put(format!("{number:03}/{row}"), value(number, 0)));
        storage.commit(batch(rows)).unwrap();
    }
    drop(storage);
    let files: Vec<(PathBuf, u64)> = files(folder.path()).into_iter().filter(|file| file.1 > 0).collect();
    assert!(
        files.iter().any(|(path, length)| path.to_string_lossy().contains("tables") && *length > 1 << 20)
    );
    let mut random = Random(5);
    let mut refused = 0;
    for round in 0..60 {
        let (path, length) = &files[round % files.len()];
        let copy = tempfile::tempdir().unwrap();
        copy_folder(folder.path(), copy.path());
        let path = copy.path().join(path.strip_prefix(folder.path()).unwrap());
        let (at, bit) = (random.next() % length, random.next() % 8);
        let mut bytes = fs::read(&path).unwrap();
        bytes[usize::try_from(at).unwrap()] ^= 1 << bit;
        fs::write(&path, bytes).unwrap();
        let found = DiskStorage::open(copy.path(), QUICK).and_then(|storage| rows(&storage));
        match found {
            Ok(found) => {
                assert_eq!(found.len(), BATCHES * 8, "bit {bit} of byte {at} in {}", path.display());
                let is_right = |(at, (_, bytes)): (usize, &(_, _))| *bytes == value(at / 8, 0);
                assert!(
                    found.iter().enumerate().all(is_right),
                    "bit {bit} of byte {at} in {}",
                    path.display()
                );
            }
            Err(_) => refused += 1,
        }
    }
    assert!(refused > 0);
}

#[test]
fn no_flipped_bit_anywhere_in_a_folder_loses_what_was_acknowledged() {
    let journal = Journal::written();
    let files: Vec<(PathBuf, u64)> = files(journal.folder.path())
        .into_iter()
        .map(|(path, length)| if path == journal.journal() { (path, journal.len) } else { (path, length) })
        .filter(|(_, length)| *length > 0)
        .collect();
    let mut random = Random(4);
    let (mut refused, mut whole) = (0, 0);
    for round in 0..120 {
        // Every other flip hits the journal; the rest goes round the files.
        let (path, length) = if round % 2 == 0 {
            files.iter().find(|(path, _)| *path == journal.journal()).unwrap()
        } else {
            &files[round / 2 % files.len()]
        };
        let copy = journal.copy();
        let path = copy.folder.path().join(path.strip_prefix(journal.folder.path()).unwrap());
        let (at, bit) = (random.next() % length, random.next() % 8);
        let mut bytes = fs::read(&path).unwrap();
        bytes[usize::try_from(at).unwrap()] ^= 1 << bit;
        fs::write(&path, bytes).unwrap();
        match copy.whole_batches() {
            Ok(kept) => {
                assert_eq!(kept, BATCHES, "bit {bit} of byte {at} in {}", path.display());
                whole += 1;
            }
            Err(_) => refused += 1,
        }
    }
    assert!(refused > 60, "{whole} were opened");
}

#[test]
fn junk_behind_the_journal_is_dropped() {
    let journal = Journal::written();
    let mut random = Random(2);
    for len in [1, 7, 100, 5_000, 100_000] {
        for first in [None, Some(0), Some(1), Some(2), Some(3), Some(4)] {
            let copy = journal.copy();
            let mut junk = random.bytes(len);
            if let Some(first) = first {
                junk[0] = first;
            }
            copy.overwrite(journal.len, &junk);
            match copy.whole_batches() {
                Ok(kept) => assert_eq!(kept, BATCHES, "{len} bytes of junk that begin with {first:?}"),
                Err(refusal) => assert!(refusal.contains("is damaged"), "{refusal}"),
            }
        }
    }
}

#[test]
fn a_damaged_journal_gives_all_batches_or_a_clear_refusal() {
    let journal = Journal::written();
    let mut random = Random(3);
    let mut refused = 0;
    for _ in 0..60 {
        let copy = journal.copy();
        let at = random.next() % (journal.len - 4);
        let junk = random.bytes(4);
        copy.overwrite(at, &junk);
        match copy.whole_batches() {
            Ok(kept) => assert_eq!(kept, BATCHES, "{junk:?} at {at}"),
            Err(refusal) => {
                assert!(refusal.contains("is damaged"), "{refusal}");
                refused += 1;
            }
        }
    }
    assert!(refused > 0, "damaged journals were all accepted");
}

/// A closed store whose batches are all in its journal.
struct Journal {
    folder: tempfile::TempDir,
    /// Where the last batch ends.
    len: u64,
}

impl Journal {
    fn written() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let storage = open_disk(folder.path());
        for number in 0..BATCHES {
            let rows = (0..ROWS).map(|row| put(format!("{number:03}/{row}"), value(number, row)));
            storage.commit(batch(rows)).unwrap();
        }
        drop(storage);
        let path = journal(folder.path());
        let bytes = fs::read(&path).unwrap();
        let len = bytes.iter().rposition(|byte| *byte != 0).unwrap() as u64 + 1;
        // The file is laid out larger than its content; keep a little of that.
        OpenOptions::new().write(true).open(path).unwrap().set_len(len + 300_000).unwrap();
        Self { folder, len }
    }

    fn copy(&self) -> Self {
        let folder = tempfile::tempdir().unwrap();
        copy_folder(self.folder.path(), folder.path());
        Self { folder, len: self.len }
    }

    fn journal(&self) -> PathBuf {
        journal(self.folder.path())
    }

    /// As if the process had been killed instead of closing the store.
    fn forget_closing(&self) {
        fs::remove_file(self.folder.path().join("emulator.closed")).unwrap();
    }

    fn cut(&self, length: u64) {
        OpenOptions::new().write(true).open(self.journal()).unwrap().set_len(length).unwrap();
    }

    fn overwrite(&self, at: u64, bytes: &[u8]) {
        let mut file = OpenOptions::new().write(true).open(self.journal()).unwrap();
        file.seek(SeekFrom::Start(at)).and_then(|_| file.write_all(bytes)).unwrap();
    }

    /// Opens the store and counts its batches; all are whole and none is missing in between. Then it must take new
    /// batches and keep them.
    fn whole_batches(&self) -> Result<usize, String> {
        let storage = DiskStorage::open(self.folder.path(), QUICK).map_err(|error| error.to_string())?;
        let found = rows(&storage).map_err(|error| error.to_string())?;
        let kept = found.len() / ROWS;
        assert_eq!(found.len() % ROWS, 0, "a batch is there in part");
        for (position, (key, bytes)) in found.iter().enumerate() {
            let (number, row) = (position / ROWS, position % ROWS);
            assert_eq!(*key, format!("{number:03}/{row}"));
            assert_eq!(*bytes, value(number, row));
        }
        storage.commit(batch([put("after", "still works")])).unwrap();
        drop(storage);
        let storage = DiskStorage::open(self.folder.path(), QUICK).map_err(|error| error.to_string())?;
        assert_eq!(storage.get(b"after").unwrap().unwrap(), "still works");
        assert_eq!(rows(&storage).unwrap().len(), found.len() + 1);
        Ok(kept)
    }
}

fn journal(folder: &Path) -> PathBuf {
    let files = fs::read_dir(folder.join("store")).unwrap().map(|entry| entry.unwrap().path());
    let mut journals = files.filter(|path| path.extension().is_some_and(|end| end == "jnl"));
    let journal = journals.next().unwrap();
    assert_eq!(journals.next(), None, "the batches fit in one journal");
    journal
}

/// Every file under a folder with its length.
fn files(folder: &Path) -> Vec<(PathBuf, u64)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let kind = entry.metadata().unwrap();
        if kind.is_dir() {
            found.extend(files(&entry.path()));
        } else {
            found.push((entry.path(), kind.len()));
        }
    }
    found.sort();
    found
}

fn value(number: usize, row: usize) -> Vec<u8> {
    let len = if row == 0 { 6_000 } else { 30 };
    // No zero byte at the end: the end of the journal is found by its last byte that is not zero.
    Random((number * ROWS + row) as u64).bytes(len)
}

fn copy_folder(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            fs::create_dir(&target).unwrap();
            copy_folder(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}
