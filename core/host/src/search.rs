//! Finds plugin files in directories without loading them.

use std::env::consts::{DLL_PREFIX, DLL_SUFFIX};
use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nestor_plugin::ffi;
use object::read::elf::{FileHeader, Sym as _};
use object::{ReadCache, elf};

/// A directory to look for plugins in.
#[derive(Debug, Clone)]
pub struct PluginDir {
    pub path: PathBuf,
    /// The program's own directory: other libraries may be in it, so only files named as plugins count.
    pub bundled: bool,
}

/// A file that says it is a plugin.
#[derive(Debug, Clone)]
pub struct Candidate {
    pub path: PathBuf,
    pub bundled: bool,
    /// Files of the same name in later directories, which are not used.
    pub shadowed: Vec<PathBuf>,
}

impl Candidate {
    /// The file's name without the usual beginnings and the ending: `toy` for `libnestor_toy.so` and for `libtoy.so`.
    pub fn stem(&self) -> String {
        let name = file_name(&self.path);
        let bare = name.strip_prefix(DLL_PREFIX).unwrap_or(&name);
        let bare = bare.strip_prefix("nestor_").unwrap_or(bare);
        bare.strip_suffix(DLL_SUFFIX).unwrap_or(bare).to_string()
    }

    /// True if the file's name says that it may hold a component: `libnestor_toy.so` for `toy` and `toy_permuted`.
    pub fn is_named_for(&self, id: &str) -> bool {
        let stem = self.stem();
        id.strip_prefix(&stem).is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
    }
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The files of directories that say they are plugins: by their name, or by the symbol that they export. Of two files with
/// one name the first counts.
pub fn candidates(dirs: &[PluginDir]) -> Result<Vec<Candidate>> {
    let named = format!("{DLL_PREFIX}nestor_");
    let mut found: Vec<Candidate> = Vec::new();
    for dir in dirs {
        let context = || format!("looking for plugins in {}", dir.path.display());
        let mut files = Vec::new();
        for entry in std::fs::read_dir(&dir.path).with_context(context)? {
            let path = entry.with_context(context)?.path();
            let name = file_name(&path);
            if name.ends_with(DLL_SUFFIX) && (name.starts_with(&named) || (!dir.bundled && exports_entry(&path))) {
                files.push(path);
            }
        }
        files.sort();
        for path in files {
            match found.iter_mut().find(|other| file_name(&other.path) == file_name(&path)) {
                None => found.push(Candidate { path, bundled: dir.bundled, shadowed: Vec::new() }),
                Some(first) => first.shadowed.push(path),
            }
        }
    }
    Ok(found)
}

/// True for a plugin that came with the program: it is named as one and in the program's directory, or one above. The path is
/// without links.
pub fn is_bundled(path: &Path) -> bool {
    let Ok(own) = std::env::current_exe().and_then(|own| own.canonicalize()) else { return false };
    let named = file_name(path).starts_with(&format!("{DLL_PREFIX}nestor_"));
    named && own.ancestors().skip(1).take(2).any(|dir| path.parent() == Some(dir))
}

/// True if a file is a library that exports the entry of a plugin.
fn exports_entry(path: &Path) -> bool {
    path.is_file() && dynamic_symbols_hold(path, ffi::ENTRY.as_bytes()).unwrap_or(false)
}

/// Reads the dynamic symbols of a 64-bit ELF file. None for any other file.
fn dynamic_symbols_hold(path: &Path, wanted: &[u8]) -> Option<bool> {
    let cache = ReadCache::new(File::open(path).ok()?);
    let header = elf::FileHeader64::<object::Endianness>::parse(&cache).ok()?;
    let endian = header.endian().ok()?;
    let sections = header.sections(endian, &cache).ok()?;
    let symbols = sections.symbols(endian, &cache, elf::SHT_DYNSYM).ok()?;
    let holds = symbols.iter().any(|symbol| {
        !symbol.is_undefined(endian) && symbol.name(endian, symbols.strings()).is_ok_and(|name| name == wanted)
    });
    Some(holds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_which_components_a_file_may_hold() {
        let named = |file: &str, id: &str| {
            Candidate { path: Path::new("/plugins").join(file), bundled: false, shadowed: Vec::new() }.is_named_for(id)
        };
        for file in ["libnestor_toy.so", "libtoy.so", "toy.so"] {
            assert!(named(file, "toy") && named(file, "toy_permuted"), "{file}");
            assert!(!named(file, "toys") && !named(file, "to"), "{file}");
        }
    }
}
