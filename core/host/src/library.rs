//! Opens a plugin file and checks its description before it reads or calls anything else in it.

use std::ffi::c_void;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use nestor_plugin::ffi;
use nestor_plugin::files;
use nestor_recipe::input_error;
use sha2::{Digest, Sha256};

use crate::calls::{Call, Function, Name, recorded};
use crate::file_kind::foreign;
use crate::trust;

/// Most components of one file.
const MOST_COMPONENTS: u64 = 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    Environment,
    Estimator,
    Loss,
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Kind::Environment => "environment",
            Kind::Estimator => "estimator",
            Kind::Loss => "loss",
        })
    }
}

impl Kind {
    /// All kinds, in the order of listings.
    pub const ALL: [Kind; 3] = [Kind::Environment, Kind::Estimator, Kind::Loss];

    /// The section of a recipe that chooses a plugin of this kind.
    pub fn section(self) -> &'static str {
        match self {
            Kind::Environment => "env",
            Kind::Estimator => "estimator",
            Kind::Loss => "loss",
        }
    }

    /// Its name with an article.
    pub fn article(self) -> &'static str {
        match self {
            Kind::Environment => "an environment",
            Kind::Estimator => "an estimator",
            Kind::Loss => "a loss",
        }
    }
}

/// Description of a component.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub struct Found {
    /// The component's name in recipes.
    pub id: String,
    pub kind: Kind,
    /// Its purpose, in one line.
    pub doc: String,
    /// JSON schema of its config.
    pub schema: serde_json::Value,
    /// The plugin file.
    pub path: PathBuf,
    /// The least version of the plugin border that the file needs, such as `1.0`.
    pub border: String,
    /// Ids of the extensions that the component has.
    pub extensions: Vec<String>,
}

/// The plugin file behind a component, as a run records it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct PluginFile {
    /// The component's name in recipes.
    pub id: String,
    /// Absolute, without links.
    pub path: PathBuf,
    /// Hexadecimal.
    pub sha256: String,
    /// The least version of the plugin border that it needs, such as `1.0`.
    pub border: String,
}

/// The abilities of a component, and the version of the border that its file was built for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Abilities {
    pub border: (u32, u32),
    pub expert: bool,
    pub snapshots: bool,
    pub respond: bool,
    pub parts: bool,
    pub columns: bool,
    pub state: bool,
}

/// A component of a plugin file, checked.
#[derive(Clone)]
pub struct Component {
    pub id: &'static str,
    /// The least version of the border that the file needs, major and minor.
    pub border: (u32, u32),
    pub doc: &'static str,
    pub schema: serde_json::Value,
    pub functions: Functions,
    pub path: PathBuf,
}

/// The function tables of an environment.
#[derive(Clone, Copy)]
pub struct EnvironmentTables {
    pub functions: &'static ffi::Environment,
    pub expert: Option<&'static ffi::Expert>,
    pub snapshot: Option<&'static ffi::State>,
    pub respond: Option<&'static ffi::Respond>,
}

/// The function tables of an estimator.
#[derive(Clone, Copy)]
pub struct EstimatorTables {
    pub functions: &'static ffi::Estimator,
    pub parts: Option<&'static ffi::Parts>,
    pub columns: Option<&'static ffi::Columns>,
    pub state: Option<&'static ffi::State>,
}

/// The function tables of a component.
#[derive(Clone, Copy)]
pub enum Functions {
    Environment(EnvironmentTables),
    Estimator(EstimatorTables),
    Loss(&'static ffi::Loss),
}

impl Component {
    pub fn kind(&self) -> Kind {
        match self.functions {
            Functions::Environment(_) => Kind::Environment,
            Functions::Estimator(_) => Kind::Estimator,
            Functions::Loss(_) => Kind::Loss,
        }
    }

    pub fn found(&self) -> Found {
        Found {
            id: self.id.into(),
            kind: self.kind(),
            doc: self.doc.into(),
            schema: self.schema.clone(),
            path: self.path.clone(),
            border: self.border(),
            extensions: self.extensions(),
        }
    }

    fn border(&self) -> String {
        let (major, minor) = self.border;
        format!("{major}.{minor}")
    }

    fn extensions(&self) -> Vec<String> {
        let can = self.abilities();
        let all = [
            (ffi::EXPERT, can.expert),
            (ffi::SNAPSHOT, can.snapshots),
            (ffi::RESPOND, can.respond),
            (ffi::PARTS, can.parts),
            (ffi::COLUMNS, can.columns),
            (ffi::ESTIMATOR_STATE, can.state),
        ];
        all.into_iter().filter(|(_, has)| *has).map(|(id, _)| id.to_string()).collect()
    }

    /// Its abilities.
    pub fn abilities(&self) -> Abilities {
        let none = Abilities { border: self.border, ..Abilities::default() };
        match self.functions {
            Functions::Environment(tables) => Abilities {
                expert: tables.expert.is_some(),
                snapshots: tables.snapshot.is_some(),
                respond: tables.respond.is_some(),
                ..none
            },
            Functions::Estimator(tables) => Abilities {
                parts: tables.parts.is_some(),
                columns: tables.columns.is_some(),
                state: tables.state.is_some(),
                ..none
            },
            Functions::Loss(_) => none,
        }
    }
}

impl PluginFile {
    /// The record of a file. With a pin, refuses a file that has another hash.
    pub fn read(id: &str, path: &Path, pin: Option<&str>) -> Result<Self> {
        let context = || format!("reading {}", path.display());
        let path = path.canonicalize().with_context(context)?;
        let sha256 = sha256(&path).with_context(context)?;
        match pin {
            Some(pin) if pin != sha256 => Err(input_error!(
                "plugin file {} has the SHA-256 {sha256}, and the recipe asks for {pin} (key `sha256`); take the file that the \
                 recipe means, or change the key",
                path.display()
            )),
            _ => Ok(Self { id: id.into(), sha256, path, border: String::new() }),
        }
    }

    /// The same record with the version of the border.
    pub fn with_border(self, (major, minor): (u32, u32)) -> Self {
        Self { border: format!("{major}.{minor}"), ..self }
    }
}

/// The SHA-256 of a file, in hexadecimal.
pub fn sha256(path: &Path) -> Result<String> {
    let (mut file, mut hasher, mut buffer) = (files::open(path)?, Sha256::new(), vec![0; 1 << 20]);
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect()),
            read => hasher.update(&buffer[..read]),
        }
    }
}

/// Opens a plugin file. The library stays loaded until the process ends: its functions and threads may be in use.
pub fn load(path: &Path) -> Result<Vec<Component>> {
    check_file(path)?;
    // The initialisers and the entry are code of the plugin too.
    recorded(&Call { plugin: Name::of(&path.to_string_lossy()), function: Function::Entry, position: None }, || {
        open(path)
    })
}

/// Refuses a path that is no readable, complete file.
pub fn check_file(path: &Path) -> Result<()> {
    let shown = path.display();
    if !path.is_file() {
        return Err(input_error!("there is no plugin file {shown}"));
    }
    match foreign(path).map_err(|e| input_error!("plugin file {shown} cannot be read: {e}"))? {
        None => trust::check(path),
        Some(why) => Err(input_error!("plugin file {shown} {why}")),
    }
}

/// [`load`] of a checked file, without a record of the call.
pub fn open(path: &Path) -> Result<Vec<Component>> {
    let shown = path.display();
    // A bare name would be looked up in the system's directories.
    let whole = std::path::absolute(path)?;
    // All symbols are looked up now, so that a missing one is found here and not in the middle of a run.
    // SAFETY: the file's initialisers run; the user put it there as a plugin, that is, as code to run.
    let library = unsafe { Library::open(Some(whole), RTLD_NOW | RTLD_LOCAL) }
        .map_err(|e| input_error!("plugin file {shown} cannot be loaded as a shared library: {}", cause(&e)))?;
    // SAFETY: nestor_plugin.h gives the symbol this type.
    let entry = *unsafe { library.get::<unsafe extern "C" fn() -> *const ffi::Plugin>(ffi::ENTRY) }
        .map_err(|_| input_error!("{shown} is not a Nestor plugin: it does not export {}", ffi::ENTRY))?;
    std::mem::forget(library);
    // SAFETY: the entry takes nothing and returns a pointer to a static description.
    let plugin = unsafe { entry() };
    // SAFETY: the description starts with a head in every version of the border.
    let border = check_head(unsafe { plugin.cast::<ffi::Head>().as_ref() }, path)?;
    // SAFETY: magic, version and sizes are ours, so the description has our layout and is static.
    let plugin = unsafe { &*plugin };
    let count = plugin.component_count;
    if count > MOST_COMPONENTS || (count > 0 && plugin.components.is_null()) {
        return Err(input_error!(
            "plugin file {shown} has a faulty description: {count} components at {:?}; there may be {MOST_COMPONENTS}",
            plugin.components
        ));
    }
    // SAFETY: as above; the count is the description's own.
    let components = unsafe { ffi::slice(plugin.components, count as usize) };
    // SAFETY: as above.
    let components: Vec<Component> =
        components.iter().map(|one| unsafe { read(one, border, path) }).collect::<Result<_>>()?;
    for (at, one) in components.iter().enumerate() {
        if components[..at].iter().any(|other| (other.kind(), other.id) == (one.kind(), one.id)) {
            return Err(input_error!(
                "plugin file {shown} has a faulty description: it holds two {}s with the id `{}`",
                one.kind(),
                one.id
            ));
        }
    }
    Ok(components)
}

/// The text of the system's loader, which names the library or the symbol that is missing.
fn cause(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

/// Checks that this program can read the description; returns its version.
fn check_head(head: Option<&ffi::Head>, path: &Path) -> Result<(u32, u32)> {
    let (shown, ours) = (path.display(), ffi::Head::OURS);
    let head = head.ok_or_else(|| input_error!("{shown} is not a Nestor plugin: its description is null"))?;
    if head.magic != ours.magic {
        return Err(input_error!("{shown} is not a Nestor plugin: its description starts with {:#x}", head.magic));
    }
    if head.abi_major != ours.abi_major || head.abi_minor > ours.abi_minor {
        return Err(input_error!(
            "plugin file {shown} needs version {}.{} of the plugin border, this program has {}.{}; build both from the \
             same nestor_plugin.h",
            head.abi_major,
            head.abi_minor,
            ours.abi_major,
            ours.abi_minor
        ));
    }
    if *head != (ffi::Head { abi_minor: head.abi_minor, ..ours }) {
        return Err(input_error!(
            "plugin file {shown} has structs of other sizes than version {}.{} of the plugin border ({}); build it again for this machine from the same nestor_plugin.h",
            ours.abi_major,
            ours.abi_minor,
            differing_sizes(head, &ours)
        ));
    }
    Ok((head.abi_major, head.abi_minor))
}

/// The sizes of structs that differ, such as "size_rows is 160, not 168".
fn differing_sizes(head: &ffi::Head, ours: &ffi::Head) -> String {
    let sizes = |head: &ffi::Head| {
        [
            ("size_plugin", head.size_plugin),
            ("size_component", head.size_component),
            ("size_str", head.size_str),
            ("size_sink", head.size_sink),
            ("size_step", head.size_step),
            ("size_environment", head.size_environment),
            ("size_rows", head.size_rows),
            ("size_estimator", head.size_estimator),
        ]
    };
    let differing = sizes(head).into_iter().zip(sizes(ours)).filter(|(theirs, own)| theirs != own);
    differing.map(|((name, theirs), (_, own))| format!("{name} is {theirs}, not {own}")).collect::<Vec<_>>().join(", ")
}

/// # Safety
/// `component` is part of a static description of our version.
unsafe fn read(component: &ffi::Component, border: (u32, u32), path: &Path) -> Result<Component> {
    let wrong = |what: &str| input_error!("plugin file {} has a faulty description: {what}", path.display());
    let text = |text: ffi::Str, what: &str| {
        // SAFETY: static text, by the header.
        std::str::from_utf8(unsafe { text.bytes() }).map_err(|_| wrong(&format!("{what} is not UTF-8")))
    };
    let id = text(component.id, "an id")?;
    if id.is_empty() || !id.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_') {
        return Err(wrong(&format!("the id `{id}` may hold lower case letters, digits and underscores only")));
    }
    let schema = serde_json::from_str(text(component.config_schema, "a config schema")?)
        .map_err(|e| wrong(&format!("the config schema of {id} is not JSON: {e}")))?;
    let missing = || wrong(&format!("a function of {id} is missing"));
    let extension = |name: &str| {
        // SAFETY: a function of the description; the text is borrowed for the call.
        let found = unsafe { component.get_extension?(ffi::Str::new(name.as_bytes())) };
        (!found.is_null()).then_some(found)
    };
    // SAFETY: the kind says which table `functions` points at; the extension's id says the same for its table.
    let functions = unsafe {
        match component.kind {
            ffi::ENVIRONMENT => Functions::Environment(EnvironmentTables {
                functions: table(component.functions, 0).ok_or_else(missing)?,
                expert: extension(ffi::EXPERT).map(|found| table(found, 0).ok_or_else(missing)).transpose()?,
                snapshot: extension(ffi::SNAPSHOT).map(|found| table(found, 0).ok_or_else(missing)).transpose()?,
                respond: extension(ffi::RESPOND).map(|found| table(found, 0).ok_or_else(missing)).transpose()?,
            }),
            ffi::ESTIMATOR => Functions::Estimator(EstimatorTables {
                functions: table(component.functions, 0).ok_or_else(missing)?,
                parts: extension(ffi::PARTS).map(|found| table(found, 0).ok_or_else(missing)).transpose()?,
                // Its last function may be missing.
                columns: extension(ffi::COLUMNS).map(|found| table(found, 1).ok_or_else(missing)).transpose()?,
                state: extension(ffi::ESTIMATOR_STATE).map(|found| table(found, 0).ok_or_else(missing)).transpose()?,
            }),
            ffi::LOSS => Functions::Loss(table(component.functions, 0).ok_or_else(missing)?),
            kind => return Err(wrong(&format!("{id} has the unknown kind {kind}"))),
        }
    };
    Ok(Component { id, border, doc: text(component.doc, "a doc line")?, schema, functions, path: path.to_path_buf() })
}

/// A table of functions. None if it or one of its entries is null, but for `optional` ones at its end.
///
/// # Safety
/// `functions` is null or points at a static table of type `T`, which holds function pointers alone.
unsafe fn table<T>(functions: *const c_void, optional: usize) -> Option<&'static T> {
    let entries = size_of::<T>() / size_of::<*const c_void>() - optional;
    // SAFETY: a function pointer has the size of a pointer and, being perhaps null, is read as one first.
    unsafe {
        let whole = !functions.is_null()
            && ffi::slice(functions.cast::<*const c_void>(), entries).iter().all(|entry| !entry.is_null());
        whole.then(|| &*functions.cast::<T>())
    }
}
