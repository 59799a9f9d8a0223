//! Files that somebody names: regular files alone, and none larger than its reader expects.
//!
//! A named pipe would block its reader for good, and a device or a file of endless length would take all memory. A directory stays
//! what it is to the functions of `std::fs`: an error of its kind.

use std::fs::{File, Metadata};
use std::io::{Error, ErrorKind, Read, Result};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

/// Most bytes of a file that people write or that describes a model: a recipe, a prompt, a chat, a configuration.
pub const SMALL: u64 = 64 << 20;
/// Most bytes of a file that is read whole: metrics, the episodes of an iteration, recorded rows.
pub const LARGE: u64 = 2 << 30;

/// O_NONBLOCK on x86-64 and aarch64.
const NONBLOCK: i32 = 0o4000;

/// Opens a regular file to read it.
///
/// # Errors
/// Those of `File::open`; a file of another kind.
pub fn open(path: &Path) -> Result<File> {
    // Before it is opened, because opening a pipe waits for its writer; after it, because another file may have taken its name.
    check(&path.metadata()?)?;
    // Without a wait, should a pipe have taken the name just now; reads of a regular file never wait so.
    let file = File::options().read(true).custom_flags(NONBLOCK).open(path)?;
    check(&file.metadata()?)?;
    Ok(file)
}

/// Opens a regular file of at most `most` bytes.
///
/// # Errors
/// Those of [`open`]; a larger file.
pub fn open_within(path: &Path, most: u64) -> Result<File> {
    let file = open(path)?;
    let found = file.metadata()?;
    if found.is_file() {
        check_length(found.len(), most)?;
    }
    Ok(file)
}

/// Reads a regular file of at most `most` bytes.
///
/// # Errors
/// Those of [`open_within`] and of reading.
pub fn read(path: &Path, most: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    // The file may grow, and those of /proc name no length.
    open_within(path, most)?.take(most + 1).read_to_end(&mut bytes)?;
    check_length(bytes.len() as u64, most)?;
    Ok(bytes)
}

/// [`read`] of text.
///
/// # Errors
/// Those of [`read`]; bytes that are not UTF-8.
pub fn read_to_string(path: &Path, most: u64) -> Result<String> {
    String::from_utf8(read(path, most)?)
        .map_err(|_| Error::new(ErrorKind::InvalidData, "stream did not contain valid UTF-8"))
}

fn check_length(length: u64, most: u64) -> Result<()> {
    if length > most {
        return Err(Error::new(ErrorKind::FileTooLarge, format!("{length} bytes; at most {most} are read")));
    }
    Ok(())
}

fn check(found: &Metadata) -> Result<()> {
    let kind = found.file_type();
    let kind = match () {
        () if kind.is_fifo() => "a named pipe",
        () if kind.is_socket() => "a socket",
        () if kind.is_char_device() || kind.is_block_device() => "a device",
        () => return Ok(()),
    };
    Err(Error::new(ErrorKind::InvalidInput, format!("{kind}, not a regular file")))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::process::Command;

    use super::*;

    #[test]
    fn only_regular_files_within_a_limit_are_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let (pipe, socket, file) =
            (folder.path().join("pipe"), folder.path().join("socket"), folder.path().join("file"));
        assert!(Command::new("mkfifo").arg(&pipe).status().expect("mkfifo").success());
        let _listener = UnixListener::bind(&socket).expect("a socket");
        std::fs::write(&file, "text").expect("a file");
        for (path, why) in [
            (&*pipe, "a named pipe, not a regular file"),
            (&*socket, "a socket, not a regular file"),
            (Path::new("/dev/zero"), "a device, not a regular file"),
            (&*file, "4 bytes; at most 3 are read"),
        ] {
            assert_eq!(read(path, 3).expect_err("refused").to_string(), why);
        }
        assert_eq!(read(folder.path(), 3).expect_err("a folder").kind(), ErrorKind::IsADirectory);
        assert_eq!(read_to_string(&file, 4).expect("the text"), "text");
        assert!(!read_to_string(Path::new("/proc/self/status"), SMALL).expect("a file without a length").is_empty());
        // Sparse: it has no end that memory could hold.
        File::options().write(true).open(&file).and_then(|file| file.set_len(LARGE + 1)).expect("a longer file");
        assert_eq!(read(&file, LARGE).expect_err("too large").kind(), ErrorKind::FileTooLarge);
    }
}
