//! Files and folders that are for their owner alone, and that are made where they seem to be: a link that another user
//! laid in a folder must not lead what is written somewhere else.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

/// Makes a folder and those above it, where they are missing. One that is there stays as it is.
pub(crate) fn make_folder(path: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)
}

/// Makes a folder within one that may have been prepared: a link in its place is refused.
pub(crate) fn make_folder_here(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => Ok(()),
        Ok(_) => Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            format!("{} is a link or a file where a folder is to be made", path.display()),
        )),
        Err(error) if error.kind() == io::ErrorKind::NotFound => make_folder(path),
        Err(error) => Err(error),
    }
}

/// Makes a new file; what had its name, be it a link, is removed.
pub(crate) fn create(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    // This follows no link: it fails where the name is taken again.
    options().create_new(true).open(path)
}

/// Writes a new file.
pub(crate) fn write(path: &Path, text: &str) -> io::Result<()> {
    create(path)?.write_all(text.as_bytes())
}

/// Opens a file as it is, or makes it. A link is refused.
pub(crate) fn open_or_create(path: &Path) -> io::Result<File> {
    let mut options = options();
    options.read(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(
        &mut options,
        rustix::fs::OFlags::NOFOLLOW.bits().cast_signed(),
    );
    options.open(path).map_err(|error| match fs::symlink_metadata(path) {
        Ok(found) if found.is_symlink() => io::Error::new(
            io::ErrorKind::AlreadyExists,
            format!("{} is a link, and is not followed: remove it", path.display()),
        ),
        _ => error,
    })
}

fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}
