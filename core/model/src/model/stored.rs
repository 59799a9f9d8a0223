//! Tensors in safetensors files: whole, or in pieces in the files of several ranks.
//!
//! A piece is a tensor of one axis, named `NAME[first..end]` after the elements of the flattened tensor that it holds. So
//! any number of ranks can read the files that any other number wrote: each rank reads only the elements of its shards.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use nestor_plugin::files;
use safetensors::Dtype;
use tch::{Device, Kind, Tensor, no_grad};

use super::header::{self, TensorEntry};
use super::{Model, StoredType};
use crate::files::{Sum, SummedFile};
use crate::input_error;
use crate::ranks::Comm;
use crate::shard::{Layout, LowRank, Owned};

/// Elements read, converted and written at once, so that a large tensor never exists twice.
pub const SLICE: i64 = 1 << 23;

/// The bytes of a file. Files are read, not mapped: pages of a map would count as this process's memory.
trait ByteSource {
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;
}

impl ByteSource for File {
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        FileExt::read_exact_at(self, buffer, offset)
    }
}

impl ByteSource for &[u8] {
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let begin = usize::try_from(offset).unwrap_or(usize::MAX);
        let bytes = self.get(begin..).and_then(|rest| rest.get(..buffer.len()));
        buffer.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

/// Tensors in a set of files.
pub struct TensorFiles<'a> {
    files: Vec<(PathBuf, Box<dyn ByteSource + 'a>)>,
    tensors: BTreeMap<String, Vec<Held>>,
}

/// A tensor, or a piece of it, in one file.
struct Held {
    /// Index of the file.
    file: usize,
    entry: TensorEntry,
    /// Elements of the flattened tensor; none if the tensor is whole.
    piece: Option<Range<i64>>,
}

impl Held {
    fn range(&self) -> Range<i64> {
        self.piece.clone().unwrap_or_else(|| 0..self.entry.shape.iter().product::<u64>() as i64)
    }
}

/// The expected contents of a set of files.
#[derive(Debug, Clone, Copy, Default)]
pub struct Expected<'a> {
    /// The parameters; all must be present.
    pub layouts: &'a [Layout],
    /// The only allowed type; any readable type if none.
    pub kind: Option<Kind>,
    /// A head may be present, but is not needed.
    pub tied: bool,
}

impl<'a> TensorFiles<'a> {
    /// Opens files and reads their headers.
    pub fn open(paths: Vec<PathBuf>) -> Result<Self> {
        let mut all = Self { files: Vec::new(), tensors: BTreeMap::new() };
        for path in paths {
            let file = files::open(&path).map_err(|error| match error.kind() {
                io::ErrorKind::NotFound => input_error!(
                    "{}: no such file; a model folder holds model.safetensors, or model.safetensors.index.json and \
                     every file it names (a pytorch_model.bin must be converted to safetensors first)",
                    path.display()
                ),
                io::ErrorKind::InvalidInput => input_error!("{}: {error}; fetch the file again", path.display()),
                _ => anyhow::Error::new(error).context(format!("cannot open {}", path.display())),
            })?;
            let size = file.metadata().with_context(|| format!("cannot read {}", path.display()))?.len();
            let entries = header::read(&mut &file, size);
            all.add(path, size, Box::new(file), entries)?;
        }
        Ok(all)
    }

    /// Opens one file in memory; `path` names it in errors.
    pub fn of_bytes(path: &Path, bytes: &'a [u8]) -> Result<Self> {
        let mut all = Self { files: Vec::new(), tensors: BTreeMap::new() };
        let size = bytes.len() as u64;
        all.add(path.into(), size, Box::new(bytes), header::read(&mut &*bytes, size))?;
        Ok(all)
    }

    fn add(
        &mut self,
        path: PathBuf,
        size: u64,
        source: Box<dyn ByteSource + 'a>,
        entries: Result<BTreeMap<String, TensorEntry>, String>,
    ) -> Result<()> {
        let entries = entries.map_err(|why| {
            input_error!("{}: truncated or damaged ({size} bytes; {why}); fetch the file again", path.display())
        })?;
        let file = self.files.len();
        for (stored_name, entry) in entries {
            let (name, piece) = match split_name(&stored_name) {
                Some((name, range)) => (name.to_string(), Some(range)),
                None => (stored_name, None),
            };
            let held = self.tensors.entry(name).or_default();
            held.push(Held { file, entry, piece });
            held.sort_by_key(|held| held.range().start);
        }
        self.files.push((path, source));
        Ok(())
    }

    /// The same tensors under other names, without those that get none.
    pub fn renamed(mut self, name: impl Fn(&str) -> Option<String>) -> Self {
        for (old, mut held) in std::mem::take(&mut self.tensors) {
            if let Some(new) = name(&old) {
                self.tensors.entry(new).or_default().append(&mut held);
            }
        }
        self
    }

    /// The file that holds a tensor, or its first piece.
    pub fn file_of(&self, name: &str) -> Option<&Path> {
        self.tensors.get(name)?.first().map(|held| self.path(held))
    }

    /// The tensors' names, and their elements as far as the files hold them.
    pub fn sizes(&self) -> BTreeMap<&str, i64> {
        let size = |held: &Vec<Held>| held.iter().map(|held| held.range().end).max().unwrap_or(0);
        self.tensors.iter().map(|(name, held)| (name.as_str(), size(held))).collect()
    }

    /// True if the files hold both tensors whole, of one type and shape, with the same bytes.
    pub fn same(&self, a: &str, b: &str) -> Result<bool> {
        let whole = |name: &str| match self.tensors.get(name).map(Vec::as_slice) {
            Some([held]) if held.piece.is_none() => Some(held),
            _ => None,
        };
        let (Some(a), Some(b)) = (whole(a), whole(b)) else { return Ok(false) };
        let width = element_kind(a.entry.dtype).map_or(0, Kind::elt_size_in_bytes);
        if a.entry.dtype != b.entry.dtype || a.entry.shape != b.entry.shape || width == 0 {
            return Ok(false);
        }
        let (size, step) = (a.range().end as usize * width, SLICE as usize);
        let mut buffers = [vec![0; step], vec![0; step]];
        for at in (0..size).step_by(step) {
            let count = step.min(size - at);
            for (held, buffer) in [a, b].into_iter().zip(&mut buffers) {
                let (path, source) = &self.files[held.file];
                let read = source.read_exact_at(&mut buffer[..count], held.entry.begin + at as u64);
                read.with_context(|| format!("cannot read {}", path.display()))?;
            }
            if buffers[0][..count] != buffers[1][..count] {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// A range of a flattened tensor's elements, float32. Elements that no file holds are left out.
    pub fn values(&self, name: &str, range: Range<i64>) -> Result<Vec<f32>> {
        let mut values = Vec::with_capacity((range.end - range.start).max(0) as usize);
        self.read(name, range, |_, slice| {
            values.extend(Vec::<f32>::try_from(slice.to_kind(Kind::Float))?);
            Ok(())
        })?;
        Ok(values)
    }

    fn path(&self, held: &Held) -> &Path {
        &self.files[held.file].0
    }

    /// Checks that the files hold exactly the expected parameters, every element once; `place` names the files' folder.
    pub fn check(&self, place: &Path, expected: &Expected) -> Result<()> {
        let params = || expected.layouts.iter().flat_map(|l| &l.params);
        let wanted: HashMap<&str, &[i64]> = params().map(|p| (p.name.as_str(), p.shape.as_slice())).collect();
        for (name, held) in &self.tensors {
            // Old files carry the rotary frequencies, and tied models may carry the head as a copy of the embedding.
            if (expected.tied && name == "lm_head.weight") || name.ends_with(".rotary_emb.inv_freq") {
                continue;
            }
            let Some(shape) = wanted.get(name.as_str()) else {
                return Err(input_error!(
                    "{}: unexpected tensor {name} (shape {:?}); config.json describes another network: take both from one model",
                    self.path(&held[0]).display(),
                    held[0].entry.shape
                ));
            };
            self.check_tensor(name, shape, held, expected.kind)?;
        }
        // In the order of the layouts, so that the first missing tensor is named.
        for param in params() {
            if !self.tensors.contains_key(&param.name) {
                let tie = if param.name == "lm_head.weight" { " (or set tie_word_embeddings to true)" } else { "" };
                return Err(input_error!(
                    "{}: tensor {} of shape {:?} is missing; take it and config.json from one whole model{tie}",
                    place.display(),
                    param.name,
                    param.shape
                ));
            }
        }
        Ok(())
    }

    /// Checks that the entries are one whole tensor of this shape, or pieces that are contiguous.
    fn check_tensor(&self, name: &str, shape: &[i64], all: &[Held], only: Option<Kind>) -> Result<()> {
        let numel: i64 = shape.iter().product();
        let mut filled = 0;
        for held in all {
            let (path, range, TensorEntry { dtype, shape: found, .. }) = (self.path(held), held.range(), &held.entry);
            let right = match &held.piece {
                None => found.iter().map(|&n| n as i64).eq(shape.iter().copied()),
                Some(piece) => range.end <= numel && found[..] == [(piece.end - piece.start) as u64],
            };
            if !right {
                return Err(input_error!(
                    "{}: tensor {} has shape {found:?}, but config.json wants {shape:?}; take both from one model",
                    path.display(),
                    stored_name(name, held.piece.as_ref())
                ));
            }
            if element_kind(*dtype).is_none_or(|kind| only.is_some_and(|only| only != kind)) {
                let only = only.and_then(|kind| StoredType::of(kind).ok());
                let readable = only.map_or("F32, F16 and BF16".into(), |stored| stored.dtype.to_string());
                return Err(input_error!(
                    "{}: tensor {name} is stored as {dtype}; only {readable} can be read",
                    path.display()
                ));
            }
            if range.start < filled {
                return Err(input_error!(
                    "{}: tensor {name} is in {} too; fetch index and files of one model again",
                    path.display(),
                    self.path(&all[0]).display()
                ));
            }
            if range.start > filled {
                return Err(hole(path, name, filled, range.start));
            }
            filled = range.end;
        }
        if filled < numel {
            return Err(hole(self.path(&all[all.len() - 1]), name, filled, numel));
        }
        Ok(())
    }

    /// Fills this rank's shards of all units from checked files; padding stays unchanged.
    pub fn fill(&self, layouts: &[Layout], comm: &dyn Comm, shards: &[Tensor]) -> Result<()> {
        ensure!(layouts.len() == shards.len(), "{} units, but {} shards", layouts.len(), shards.len());
        for (layout, shard) in layouts.iter().zip(shards) {
            ensure!(
                shard.size() == [layout.held_numel(comm.rank(), comm.world())],
                "{}: a shard has the size {:?}",
                layout.name,
                shard.size()
            );
            for Owned { param, piece, start } in layout.owned(comm.rank(), comm.world()) {
                let first = piece.start - param.offset;
                self.read(&param.name, first..first + piece.length, |at, values| {
                    let place = start + at - first;
                    no_grad(|| shard.f_narrow(0, place, values.numel() as i64)?.f_copy_(values))?;
                    Ok(())
                })?;
            }
        }
        Ok(())
    }

    /// Passes a range of a flattened tensor's elements to `give` in order: the first one's number, and tensors (n) of the
    /// stored type.
    fn read(&self, name: &str, range: Range<i64>, mut give: impl FnMut(i64, &Tensor) -> Result<()>) -> Result<()> {
        let mut buffer = Vec::new();
        for held in self.tensors.get(name).into_iter().flatten() {
            let (path, source) = &self.files[held.file];
            let context = || format!("cannot read {name} from {}", path.display());
            let kind = element_kind(held.entry.dtype).with_context(context)?;
            let (own, width) = (held.range(), kind.elt_size_in_bytes());
            let end = own.end.min(range.end);
            let mut at = own.start.max(range.start);
            while at < end {
                let count = SLICE.min(end - at);
                buffer.resize(count as usize * width, 0);
                let offset = held.entry.begin + (at - own.start) as u64 * width as u64;
                source.read_exact_at(&mut buffer, offset).with_context(context)?;
                give(at, &Tensor::f_from_data_size(&buffer, &[count], kind)?)?;
                at += count;
            }
        }
        Ok(())
    }
}

fn hole(path: &Path, name: &str, begin: i64, end: i64) -> anyhow::Error {
    input_error!(
        "{}: the elements {begin} to {end} of tensor {name} are missing; take all files of one checkpoint",
        path.display()
    )
}

fn stored_name(name: &str, piece: Option<&Range<i64>>) -> String {
    piece.map_or(name.to_string(), |range| format!("{name}[{}..{}]", range.start, range.end))
}

/// A tensor's name and elements, if a stored name is that of a piece.
fn split_name(stored: &str) -> Option<(&str, Range<i64>)> {
    let (name, range) = stored.strip_suffix(']')?.rsplit_once('[')?;
    let (first, end) = range.split_once("..")?;
    let range = first.parse().ok()?..end.parse().ok()?;
    // Only one spelling, so that no two names mean the same piece.
    (0 <= range.start && range.start < range.end && stored_name(name, Some(&range)) == stored).then_some((name, range))
}

fn element_kind(dtype: Dtype) -> Option<Kind> {
    StoredType::ALL.iter().find(|stored| stored.dtype == dtype).map(|stored| stored.kind)
}

/// A tensor to be written to a file; its bytes exist only while they are written, a slice at a time.
pub struct Outgoing<'a> {
    /// Name in the file.
    pub name: String,
    /// Shape in the file.
    pub shape: Vec<i64>,
    values: Values<'a>,
}

enum Values<'a> {
    /// In memory (n).
    Flat(Tensor),
    /// In other files, under the same name; rounded to the type, if any.
    Stored(&'a TensorFiles<'a>, Option<Kind>),
    /// The same plus `scale` times B A, in float32.
    Merged { base: &'a TensorFiles<'a>, rounded: Option<Kind>, adapter: LowRank, scale: f64 },
}

impl Outgoing<'_> {
    /// The same with an adapter merged into it, where it is in files.
    pub fn merge(self, adapter: LowRank, scale: f64) -> Self {
        let values = match self.values {
            Values::Stored(base, rounded) => Values::Merged { base, rounded, adapter, scale },
            other => other,
        };
        Self { values, ..self }
    }

    /// The same rounded to a type, where it is in files.
    pub fn rounded(self, kind: Kind) -> Self {
        let values = match self.values {
            Values::Stored(base, _) => Values::Stored(base, Some(kind)),
            other => other,
        };
        Self { values, ..self }
    }

    /// Number of elements.
    pub fn numel(&self) -> i64 {
        self.shape.iter().product()
    }

    /// Passes the elements to `give` in order, as tensors (n).
    pub fn slices(&self, mut give: impl FnMut(&Tensor) -> Result<()>) -> Result<()> {
        match &self.values {
            Values::Flat(flat) => flat.split(SLICE, 0).iter().try_for_each(give),
            Values::Stored(files, kind) => {
                files.read(&self.name, 0..self.numel(), |_, values| give(&round(values, *kind)))
            }
            Values::Merged { base, rounded, adapter: LowRank { a, b }, scale } => {
                let change = (b.matmul(a) * *scale).view([-1]);
                base.read(&self.name, 0..self.numel(), |start, values| {
                    let change = change.narrow(0, start, values.numel() as i64);
                    give(&(round(values, *rounded).to_kind(Kind::Float) + change))
                })
            }
        }
    }
}

fn round(values: &Tensor, kind: Option<Kind>) -> Tensor {
    kind.map_or_else(|| values.shallow_clone(), |kind| values.to_kind(kind))
}

/// The parameters of a model that is whole in memory.
pub fn of_model(model: &Model) -> Result<Vec<Outgoing<'static>>> {
    let outgoing = |(name, tensor): (String, Tensor)| {
        let shape = tensor.size();
        Outgoing { name, shape, values: Values::Flat(tensor.flatten(0, -1)) }
    };
    Ok(model.named_parameters()?.into_iter().map(outgoing).collect())
}

/// The parameters of these layouts in files, whole or in pieces.
pub fn of_files<'a>(files: &'a TensorFiles<'a>, layouts: &[Layout]) -> Vec<Outgoing<'a>> {
    let params = layouts.iter().flat_map(|layout| &layout.params);
    let stored = |param: &crate::shard::Param| Outgoing {
        name: param.name.clone(),
        shape: param.shape.clone(),
        values: Values::Stored(files, None),
    };
    params.map(stored).collect()
}

/// The contents of the shards of a rank among `world`: whole parameters, and pieces of others.
pub fn of_shards(layouts: &[Layout], (rank, world): (usize, usize), shards: &[Tensor]) -> Vec<Outgoing<'static>> {
    let mut all = Vec::new();
    for (layout, shard) in layouts.iter().zip(shards) {
        for Owned { param, piece, start } in layout.owned(rank, world) {
            let first = piece.start - param.offset;
            let whole = piece.length == param.numel();
            let range = (!whole).then_some(first..first + piece.length);
            all.push(Outgoing {
                name: stored_name(&param.name, range.as_ref()),
                shape: if whole { param.shape.clone() } else { vec![piece.length] },
                values: Values::Flat(shard.detach().narrow(0, start, piece.length)),
            });
        }
    }
    all
}

/// Writes tensors as one safetensors file in the given type, and flushes it to disk.
pub fn write_file(path: &Path, mut tensors: Vec<Outgoing>, kind: Kind) -> Result<Sum> {
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    let named: Vec<_> = tensors.iter().map(|tensor| (tensor.name.as_str(), &tensor.shape[..])).collect();
    let header = header::write(&named, StoredType::of(kind)?.dtype);
    let header = header.map_err(|why| anyhow::anyhow!("cannot write {}: {why}", path.display()))?;
    let mut file = SummedFile::create(path)?;
    file.write(header)?;
    for tensor in &tensors {
        tensor.slices(|slice| {
            let mut bytes = file.room();
            to_bytes(slice, kind, &mut bytes);
            file.write(bytes)
        })?;
    }
    file.finish()
}

/// The elements of a tensor (n) in the given type.
pub fn to_bytes(tensor: &Tensor, kind: Kind, bytes: &mut Vec<u8>) {
    let tensor = tensor.detach().to_kind(kind).to_device(Device::Cpu).contiguous();
    bytes.resize(tensor.numel() * kind.elt_size_in_bytes(), 0);
    tensor.copy_data_u8(bytes, tensor.numel());
}
