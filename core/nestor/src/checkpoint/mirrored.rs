//! The knowledge of checkpoints that the mirror of a run uses.

use std::path::{Path, PathBuf};

use anyhow::Result;
use nestor_mirror::{Format, Sum, Sums};

use super::manifest::Manifest;
use super::moment::{Moment, REFERENCE};
use super::{Checkpoints, is_checkpoint};

/// This format of checkpoints.
pub const FORMAT: Format = Format { list, order, sums };

fn list(folder: &Path) -> Result<Vec<PathBuf>> {
    let reference = folder.join(REFERENCE);
    let all = Checkpoints { dir: folder.into() }.list()?.into_iter().map(|(_, path)| path);
    Ok([reference].into_iter().chain(all).filter(|path| is_checkpoint(path)).collect())
}

fn order(names: Vec<String>) -> Vec<String> {
    let mut moments: Vec<Moment> = names.iter().filter_map(|name| Moment::of_name(name)).collect();
    moments.sort();
    moments.iter().map(Moment::to_string).collect()
}

fn sums(folder: &Path) -> Result<Sums> {
    let files = Manifest::read(folder)?.files.into_iter();
    Ok(files.map(|(name, sum)| (name, Sum { bytes: sum.bytes, sha256: sum.sha256 })).collect())
}
