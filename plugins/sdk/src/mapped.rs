//! Files that are read in place, through a memory map.

use std::ops::Deref;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use memmap2::Mmap;

use crate::files;

/// The bytes of a file, read-only. Processes that map one file share its memory.
///
/// The file must stay as it is while it is open. Programs that write a new version put it beside the old one and rename it.
#[derive(Debug)]
pub struct Mapped(Mmap);

impl Mapped {
    /// Maps the file at `path`.
    ///
    /// # Errors
    /// A file that cannot be opened, or that is empty.
    pub fn open(path: &Path) -> Result<Self> {
        let file = files::open(path).with_context(|| format!("{}: cannot open", path.display()))?;
        let length = file.metadata().with_context(|| format!("{}: cannot read its size", path.display()))?.len();
        ensure!(length > 0, "{}: the file is empty", path.display());
        // SAFETY: the map is read-only. Nobody may cut or change the file while it is open, as the type's description says.
        let map = unsafe { Mmap::map(&file) };
        Ok(Self(map.with_context(|| format!("{}: cannot map into memory", path.display()))?))
    }
}

impl Deref for Mapped {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}
