//! What a data folder may hold, and what is said when it may not.

use std::fs;
use std::path::Path;

use cosmos_emulator::storage::{Options, Place, Storage, open};
use cosmos_emulator::{Config, Emulator, Fsync};

use super::{QUICK, batch, open_disk, put};

#[test]
fn data_is_there_after_reopening() {
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("made/on/demand");
    let place = Place::Folder(path.clone());
    let storage = open(&place, Options::default()).unwrap();
    assert!(storage.is_slow_to_sync());
    let ticket = storage.commit(batch([put("key", "value")])).unwrap();
    storage.wait_durable(ticket).unwrap();
    drop(storage);
    let storage = open(&place, QUICK).unwrap();
    assert!(!storage.is_slow_to_sync());
    assert_eq!(storage.get(b"key").unwrap().unwrap(), "value");
}

#[test]
fn a_folder_in_use_is_refused_and_free_again_when_the_store_is_closed() {
    let folder = tempfile::tempdir().unwrap();
    let storage = open_disk(folder.path());
    let refusal = refusal(folder.path());
    assert!(refusal.contains("is in use by another emulator"), "{refusal}");
    assert!(refusal.contains(&format!("process {}", std::process::id())), "{refusal}");
    drop(storage);
    open_disk(folder.path());
}

#[test]
fn a_newer_format_is_refused_with_both_versions() {
    let folder = tempfile::tempdir().unwrap();
    drop(open_disk(folder.path()));
    let stamp = folder.path().join("emulator.format");
    assert_eq!(fs::read_to_string(&stamp).unwrap(), "cosmos-emulator data format 1\n");
    fs::write(&stamp, "cosmos-emulator data format 7\n").unwrap();
    let newer = refusal(folder.path());
    assert!(newer.contains("has format 7") && newer.contains("up to 1"), "{newer}");
    fs::write(&stamp, "cosmos-emulator data format 1\n").unwrap();
    open_disk(folder.path());
}

#[test]
fn a_stamp_that_names_no_format_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    drop(open_disk(folder.path()));
    for stamp in [b"".as_slice(), b"something else", b"cosmos-emulator data format 0", b"\xff\xfe"] {
        fs::write(folder.path().join("emulator.format"), stamp).unwrap();
        let damaged = refusal(folder.path());
        assert!(damaged.contains("is damaged") && damaged.contains("emulator.format"), "{damaged}");
    }
}

#[test]
fn a_file_is_refused_as_a_data_folder() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    fs::write(&path, "").unwrap();
    let refused = refusal(&path);
    assert!(refused.contains("is a file") && refused.contains("Name a folder"), "{refused}");
}

#[test]
fn a_foreign_folder_named_store_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("store")).unwrap();
    fs::write(folder.path().join("store/precious"), "mine").unwrap();
    for _ in 0..2 {
        let refused = refusal(folder.path());
        assert!(refused.contains("did not make"), "{refused}");
    }
    assert_eq!(fs::read_to_string(folder.path().join("store/precious")).unwrap(), "mine");
}

#[test]
fn a_store_whose_making_was_cut_short_is_made_anew() {
    let folder = tempfile::tempdir().unwrap();
    drop(open_disk(folder.path()));
    fs::rename(folder.path().join("emulator.format"), folder.path().join("emulator.format.new")).unwrap();
    fs::remove_file(folder.path().join("store/version")).unwrap();
    let storage = open_disk(folder.path());
    storage.commit(batch([put("key", "value")])).unwrap();
}

#[test]
fn a_store_with_missing_parts_is_refused_rather_than_started_empty() {
    for part in ["store", "store/version", "store/keyspaces"] {
        let folder = tempfile::tempdir().unwrap();
        let storage = open_disk(folder.path());
        storage.commit(batch([put("key", "value")])).unwrap();
        drop(storage);
        let part = folder.path().join(part);
        if part.is_dir() {
            fs::remove_dir_all(&part).unwrap();
        } else {
            fs::remove_file(&part).unwrap();
        }
        let refused = refusal(folder.path());
        assert!(refused.contains(&folder.path().display().to_string()), "{refused}");
    }
}

fn refusal(path: &Path) -> String {
    match open(&Place::Folder(path.to_owned()), QUICK) {
        Ok(_) => panic!("{} was accepted", path.display()),
        Err(error) => error.to_string(),
    }
}

/// Permissions of everything below a folder, and of itself.
#[cfg(unix)]
fn modes(path: &Path) -> Vec<(std::path::PathBuf, u32)> {
    use std::os::unix::fs::PermissionsExt as _;
    let mut found = vec![(path.to_owned(), fs::metadata(path).unwrap().permissions().mode() & 0o777)];
    if path.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            found.extend(modes(&entry.unwrap().path()));
        }
    }
    found
}

#[cfg(unix)]
#[test]
fn what_is_made_is_for_its_owner_alone() {
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("made");
    let secure = Config::default().with_tls().with_folder(&path, Fsync::Off);
    let emulator = Emulator::open(secure).unwrap();
    let copy = parent.path().join("copy");
    emulator.snapshot(&copy).unwrap();
    drop(emulator);
    for folder in [&path, &copy] {
        for (file, mode) in modes(folder) {
            // The engine makes its files as its process does; they are in a folder that is closed to others.
            if file.parent() != Some(&folder.join("store"))
                && !file.starts_with(folder.join("store/keyspaces"))
            {
                assert_eq!(mode, if file.is_dir() { 0o700 } else { 0o600 }, "{}", file.display());
            }
        }
    }
    assert!(path.join("tls/key.pem").exists() && path.join("store").exists() && copy.join("store").exists());
}

#[cfg(unix)]
#[test]
fn a_looser_folder_goes_on_and_what_is_made_in_it_is_closed() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    drop(open_disk(folder.path()));
    let modes = modes(folder.path());
    assert_eq!(modes[0].1, 0o755, "it is its owner's");
    assert!(modes.iter().any(|(path, mode)| *path == folder.path().join("store") && *mode == 0o700));
    fs::set_permissions(folder.path().join("store"), fs::Permissions::from_mode(0o755)).unwrap();
    drop(open_disk(folder.path()));
}

#[cfg(unix)]
#[test]
fn no_link_in_a_prepared_folder_leads_what_is_written_elsewhere() {
    use std::os::unix::fs::symlink;
    let parent = tempfile::tempdir().unwrap();
    let victim = parent.path().join("victim");
    let elsewhere = parent.path().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    let links = [
        "emulator.format.new",
        "emulator.lock",
        "tls/key.pem",
        "tls/authority.pem",
        "tls/certificate.pem",
        "tls/names.txt",
    ];
    for (number, link) in links.iter().enumerate() {
        fs::write(&victim, "precious").unwrap();
        let folder = parent.path().join(number.to_string());
        fs::create_dir_all(folder.join("tls")).unwrap();
        symlink(&victim, folder.join(link)).unwrap();
        let _ = Emulator::open(Config::default().with_tls().with_folder(&folder, Fsync::Off)).map(drop);
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious", "{link}");
    }
    for (number, link) in ["tls", "store"].iter().enumerate() {
        for target in [&elsewhere, &parent.path().join("nowhere")] {
            let folder = parent.path().join(format!("f{number}"));
            let _ = fs::remove_dir_all(&folder);
            fs::create_dir_all(&folder).unwrap();
            symlink(target, folder.join(link)).unwrap();
            let opened =
                Emulator::open(Config::default().with_tls().with_folder(&folder, Fsync::Off)).map(drop);
            assert!(opened.is_err(), "{link}");
            assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0, "{link}");
            assert!(!parent.path().join("nowhere").exists(), "{link}");
        }
    }
    let link = parent.path().join("link");
    symlink(&elsewhere, &link).unwrap();
    let refused = Emulator::open(Config::default()).unwrap().snapshot(&link).unwrap_err().to_string();
    assert!(refused.contains("is a link"), "{refused}");
    assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0);
}
