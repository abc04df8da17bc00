//! The files this command writes: for their owner alone, where they seem to be, and whole or not at all.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// From now on this process makes files and folders for its owner alone, also through libraries: what is stored in a
/// data folder may be anybody's business.
pub(crate) fn keep_private() {
    #[cfg(unix)]
    rustix::process::umask(rustix::fs::Mode::RWXG | rustix::fs::Mode::RWXO);
}

/// The file a path means. Links are followed, so that they stay, unless another user laid them: in a folder that several
/// users write to, such a link would let this process overwrite a file of its own user.
pub(crate) fn resolve(path: &Path) -> io::Result<PathBuf> {
    #[cfg(unix)]
    if let Ok(found) = fs::symlink_metadata(path)
        && found.is_symlink()
        && is_foreign(std::os::unix::fs::MetadataExt::uid(&found), rustix::process::geteuid().as_raw())
    {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "it is a link of another user, and is not followed: name the file itself",
        ));
    }
    Ok(path.canonicalize().unwrap_or_else(|_| path.to_owned()))
}

/// Whether the owner of a link is neither this user nor the system.
#[cfg(unix)]
fn is_foreign(owner: u32, user: u32) -> bool {
    owner != user && owner != 0
}

/// Whether a path leads to something that is written as it is: a device, or a pipe.
pub(crate) fn is_device(path: &Path) -> bool {
    path.metadata().is_ok_and(|found| !found.is_file())
}

/// The name under which a file is written until it is whole.
pub(crate) fn part_of(path: &Path) -> PathBuf {
    let mut part = OsString::from(path);
    part.push(".part");
    part.into()
}

/// Makes a new file; what had its name, be it a link, is removed.
pub(crate) fn create(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let mut options = OpenOptions::new();
    // This follows no link: it fails where the name is taken again.
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

/// Writes a whole text in the place of what was there.
pub(crate) fn write(path: &Path, text: &str) -> io::Result<()> {
    let path = resolve(path)?;
    if is_device(&path) {
        return OpenOptions::new().write(true).open(path)?.write_all(text.as_bytes());
    }
    let part = part_of(&path);
    create(&part)?.write_all(text.as_bytes())?;
    fs::rename(part, path)
}

/// Lets everyone read a file that is no secret.
pub(crate) fn publish(path: &Path) -> io::Result<()> {
    #[cfg(unix)]
    if !is_device(path) {
        return fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o644));
    }
    #[cfg(not(unix))]
    let _ = path;
    Ok(())
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt as _, symlink};

    #[test]
    fn links_of_other_users_are_foreign_and_those_of_the_system_are_not() {
        assert!(is_foreign(1001, 1000) && is_foreign(1001, 0));
        assert!(!is_foreign(1000, 1000) && !is_foreign(0, 1000) && !is_foreign(0, 0));
    }

    #[test]
    fn a_file_is_made_closed_and_a_link_in_the_place_of_its_part_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let (path, victim) = (folder.path().join("file"), folder.path().join("victim"));
        fs::write(&victim, "precious").unwrap();
        symlink(&victim, part_of(&path)).unwrap();
        write(&path, "new").unwrap();
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        publish(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o644);
    }

    #[test]
    fn a_link_of_ones_own_stays_and_leads_to_what_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let (link, file) = (folder.path().join("latest"), folder.path().join("file"));
        fs::write(&file, "old").unwrap();
        symlink(&file, &link).unwrap();
        write(&link, "new").unwrap();
        assert!(link.is_symlink());
        assert_eq!(fs::read_to_string(&file).unwrap(), "new");
    }
}
