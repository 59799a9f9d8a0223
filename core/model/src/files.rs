//! Reads small files with clear errors, writes files atomically, computes checksums.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result, anyhow};
use nestor_images::{KeyedImage, read_image};
use nestor_plugin::files::{self, LARGE, SMALL};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use crate::input_error;

/// The recipe of a run directory. A directory without it holds no run.
pub const RECIPE: &str = "recipe.yaml";

/// Reads the object in a JSON file; none where the file does not exist.
pub fn read_object(path: &Path) -> Result<Option<Map<String, Value>>> {
    let text = match files::read_to_string(path, SMALL) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) if error.kind() == ErrorKind::InvalidData => {
            return Err(input_error!("{}: not UTF-8 text; fetch the file again", path.display()));
        }
        Err(error)
            if [ErrorKind::InvalidInput, ErrorKind::IsADirectory, ErrorKind::FileTooLarge].contains(&error.kind()) =>
        {
            return Err(input_error!("{}: {error}; fetch the file again", path.display()));
        }
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
    };
    match serde_json::from_str(&text) {
        Ok(Value::Object(object)) => Ok(Some(object)),
        Ok(_) => Err(input_error!("{}: holds no JSON object; fetch the file again", path.display())),
        Err(error) => Err(input_error!("{}: not valid JSON ({error}); fetch the file again", path.display())),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Tokens {
    rows: Vec<Vec<u32>>,
    #[serde(default)]
    images: Option<Vec<Vec<PathBuf>>>,
}

/// A row of a tokens file.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TokenRow {
    pub tokens: Vec<u32>,
    /// The images among the tokens, in their order.
    pub images: Vec<KeyedImage>,
}

/// Reads the rows of a tokens file, `{"rows": [[ids…], …]}`. For a model that reads images, `"images": [[file…], …]` beside
/// them names those of each row, from the folder of the file on.
pub fn read_tokens(path: &Path) -> Result<Vec<TokenRow>> {
    let text = files::read_to_string(path, LARGE).map_err(|error| input_error!("{}: {error}", path.display()))?;
    let tokens: Tokens = serde_json::from_str(&text)
        .map_err(|error| input_error!("{}: {error}; tokens are {{\"rows\": [[id, …], …]}}", path.display()))?;
    let Some(images) = tokens.images else {
        return Ok(tokens.rows.into_iter().map(|tokens| TokenRow { tokens, images: Vec::new() }).collect());
    };
    let (rows, named) = (tokens.rows.len(), images.len());
    if rows != named {
        return Err(input_error!("{}: {rows} rows, but images of {named}; give a list for each row", path.display()));
    }
    let folder = path.parent().unwrap_or(Path::new(""));
    let mut read = Vec::with_capacity(rows);
    for (tokens, files) in tokens.rows.into_iter().zip(images) {
        let images = files.iter().map(|file| read_image(&folder.join(file))).collect::<Result<_>>()?;
        read.push(TokenRow { tokens, images });
    }
    Ok(read)
}

/// Writes a JSON file atomically.
pub fn write_json(path: &Path, value: &Value) -> Result<()> {
    write_whole(path, serde_json::to_string_pretty(value)? + "\n")
}

/// Writes one JSON value per line, atomically, in a folder that is made if it is missing.
pub fn write_lines(path: &Path, mut lines: impl Iterator<Item = Value>) -> Result<()> {
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
    }
    let partial = partial(path);
    let mut write = || {
        let mut file = BufWriter::new(create_new(&partial)?);
        lines.try_for_each(|line| writeln!(file, "{line}"))?;
        file.flush()?;
        std::fs::rename(&partial, path)
    };
    let written = write();
    if written.is_err() {
        // Frees the room on a full disk. The first error is the one to report.
        let _ = std::fs::remove_file(&partial);
    }
    written.with_context(|| format!("cannot write {}", path.display()))
}

/// The name of a file that is being written.
fn partial(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".partial");
    name.into()
}

/// Replaces a file atomically: neither a reader nor a killed run sees half of it. As an editor does, it follows symbolic
/// links and writes into what is no regular file, such as a pipe, instead of replacing it.
pub fn write_whole(path: &Path, content: impl AsRef<[u8]>) -> Result<()> {
    let context = || format!("cannot write {}", path.display());
    let target = match std::fs::metadata(path) {
        Ok(found) if found.is_file() => path.canonicalize().with_context(context)?,
        Ok(found) if found.is_dir() => return Err(input_error!("{}: it is a directory", context())),
        Ok(_) => {
            let written = OpenOptions::new().write(true).open(path).and_then(|mut f| f.write_all(content.as_ref()));
            return written.with_context(context);
        }
        Err(_) if path.is_symlink() => return Err(input_error!("{}: its link leads nowhere", context())),
        Err(_) => path.into(),
    };
    let partial = partial(&target);
    let mut file = create_new(&partial).with_context(context)?;
    let written = file.write_all(content.as_ref()).and_then(|()| std::fs::rename(&partial, &target));
    if written.is_err() {
        // Frees the room on a full disk. The first error is the one to report.
        let _ = std::fs::remove_file(&partial);
    }
    written.with_context(context)
}

/// Creates a file where there was none. A regular file that a killed run left makes room.
fn create_new(path: &Path) -> io::Result<File> {
    if std::fs::symlink_metadata(path).is_ok_and(|found| found.is_file()) {
        std::fs::remove_file(path)?;
    }
    OpenOptions::new().write(true).create_new(true).open(path)
}

/// Size and SHA-256 of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sum {
    pub bytes: u64,
    /// Hexadecimal.
    pub sha256: String,
}

/// Computes the sum of a file.
pub fn sum(path: &Path) -> Result<Sum> {
    let context = || format!("reading {}", path.display());
    let mut file = files::open(path).with_context(context)?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0u8; 1 << 20];
    let mut bytes = 0;
    loop {
        let n = file.read(&mut buffer).with_context(context)?;
        if n == 0 {
            return Ok(Sum { bytes, sha256: hex(hasher) });
        }
        hasher.update(&buffer[..n]);
        bytes += n as u64;
    }
}

/// The checksum in hexadecimal.
pub fn hex(hasher: Sha256) -> String {
    hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A new file that computes its sum while it is written. A thread of its own does that, since it takes as long as writing.
#[derive(Debug)]
pub struct SummedFile {
    path: PathBuf,
    file: File,
    bytes: u64,
    pieces: SyncSender<Vec<u8>>,
    /// Pieces that are summed, to be filled again.
    spare: Receiver<Vec<u8>>,
    hasher: JoinHandle<Sha256>,
}

impl SummedFile {
    /// Creates or truncates the file.
    pub fn create(path: &Path) -> Result<Self> {
        let file = File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
        let (pieces, taken) = sync_channel::<Vec<u8>>(1);
        let (give_back, spare) = channel();
        let hasher = thread::spawn(move || {
            let mut hasher = Sha256::new();
            for piece in taken {
                hasher.update(&piece);
                let _ = give_back.send(piece); // nobody may want it any more
            }
            hasher
        });
        Ok(Self { path: path.into(), file, bytes: 0, pieces, spare, hasher })
    }

    /// Room for the next piece.
    pub fn room(&self) -> Vec<u8> {
        self.spare.try_recv().unwrap_or_default()
    }

    /// Appends bytes.
    pub fn write(&mut self, bytes: Vec<u8>) -> Result<()> {
        self.file.write_all(&bytes).with_context(|| format!("cannot write {}", self.path.display()))?;
        self.bytes += bytes.len() as u64;
        self.pieces.send(bytes).context("the thread that computes a file's sum has ended")
    }

    /// Flushes the file to disk and returns its sum.
    pub fn finish(self) -> Result<Sum> {
        self.file.sync_all().with_context(|| format!("flushing {}", self.path.display()))?;
        drop(self.pieces);
        let hasher = self.hasher.join().map_err(|_| anyhow!("the thread that computes a file's sum has ended"))?;
        Ok(Sum { bytes: self.bytes, sha256: hex(hasher) })
    }
}

/// Flushes a file or a directory to disk. Some file systems, such as shares of other systems, have no flush of a directory.
pub fn flush(path: &Path) -> Result<()> {
    let flushed = File::open(path).and_then(|file| file.sync_all());
    let has_none =
        flushed.as_ref().is_err_and(|error| matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::Unsupported));
    if has_none && path.is_dir() {
        return Ok(());
    }
    flushed.with_context(|| format!("flushing {}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;

    #[test]
    fn nothing_but_regular_files_is_replaced() -> Result<()> {
        let dir = tempfile::tempdir()?;
        let [file, link, fifo, lost] = ["file", "link", "fifo", "lost"].map(|name| dir.path().join(name));
        write_whole(&file, "one")?;
        symlink(&file, &link)?;
        write_whole(&link, "two")?;
        assert!(link.is_symlink());
        assert_eq!(std::fs::read_to_string(&file)?, "two");

        mkfifo(&fifo, Mode::S_IRWXU)?;
        let reader = thread::spawn({
            let fifo = fifo.clone();
            move || std::fs::read_to_string(fifo)
        });
        write_whole(&fifo, "three")?;
        assert_eq!(reader.join().expect("a reader")?, "three");
        assert!(!std::fs::symlink_metadata(&fifo)?.is_file());

        symlink(dir.path().join("nothing"), &lost)?;
        // A link where the temporary file would be: its target is not written to.
        symlink(&file, dir.path().join("new.partial"))?;
        for refused in [&lost, &dir.path().join("new"), &dir.path().to_path_buf()] {
            assert!(write_whole(refused, "four").is_err());
        }
        assert_eq!(std::fs::read_to_string(&file)?, "two");
        assert!(lost.is_symlink() && !dir.path().join("nothing").exists());
        // A killed run's temporary file is no obstacle.
        std::fs::write(dir.path().join("file.partial"), "half")?;
        write_whole(&file, "five")?;
        assert_eq!(std::fs::read_to_string(&file)?, "five");
        Ok(())
    }
}
