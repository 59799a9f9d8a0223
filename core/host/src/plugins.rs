//! Finds components in plugin files, and opens them here or in processes of their own.

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use nestor_recipe::{Isolation, PluginChoice, input_error};
use serde_json::Value;

use crate::calls::Name;
use crate::estimator::Estimator;
use crate::isolate::{Bounds, Process, Start, World};
use crate::library::{self, Component, Found, Functions, Kind, PluginFile};
use crate::loss::Loss;
use crate::search::{self, Candidate, PluginDir, candidates};
use crate::shared_env::{Extensions, SharedEnv};
use crate::supervise::Limits;
use crate::{leave, probe};

/// Directories to look for plugins in before all others, separated as in PATH.
pub const PATH_VARIABLE: &str = "NESTOR_PLUGIN_PATH";

/// Time that a file has to describe itself which nobody named: a file that hangs must not hold others up.
const GLANCE: Duration = Duration::from_secs(10);

/// A plugin file that is not used, and the one that is used in its place.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Hidden {
    pub path: PathBuf,
    pub by: PathBuf,
}

/// A plugin file that cannot be used.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Refused {
    pub path: PathBuf,
    /// One message with cause and remedy.
    pub why: String,
}

/// Descriptions by file; an error is one message.
type Descriptions = HashMap<PathBuf, Result<Vec<Found>, String>>;

/// The directories to look for plugins in, and the limits of calls into those that are opened.
#[derive(Default)]
pub struct Plugins {
    pub(super) dirs: Vec<PluginDir>,
    limits: Limits,
    described: RefCell<Descriptions>,
}

impl Plugins {
    /// Looks in the directories of `NESTOR_PLUGIN_PATH`, then beside the executable and one directory above (there cargo
    /// puts the plugins that it builds with a test). Of two files with one name the first counts. Loads no file.
    pub fn discover() -> Result<Self> {
        let mut dirs = Vec::new();
        for path in std::env::split_paths(&std::env::var_os(PATH_VARIABLE).unwrap_or_default()) {
            if path.as_os_str().is_empty() {
                continue;
            }
            if !path.is_dir() {
                return Err(input_error!("{PATH_VARIABLE} names {}, which is not a directory", path.display()));
            }
            dirs.push(PluginDir { path, bundled: false });
        }
        let executable = std::env::current_exe().context("finding the program's directory")?;
        let own = executable.ancestors().skip(1).take(2);
        dirs.extend(own.map(|path| PluginDir { path: path.to_path_buf(), bundled: true }));
        Ok(Self { dirs, ..Self::default() })
    }

    /// The plugins of one directory.
    pub fn in_dir(dir: &Path) -> Result<Self> {
        Ok(Self::in_dirs([dir]))
    }

    /// The plugins of some directories; of two files with one name the first counts.
    pub fn in_dirs<'a>(dirs: impl IntoIterator<Item = &'a Path>) -> Self {
        let dirs = dirs.into_iter().map(|dir| PluginDir { path: dir.to_path_buf(), bundled: false }).collect();
        Self { dirs, ..Self::default() }
    }

    /// Sets the limits of calls into the plugins that are opened from here on.
    pub fn with_limits(self, limits: Limits) -> Self {
        Self { limits, ..self }
    }

    /// All components, in the order found.
    pub fn list(&self) -> Result<Vec<Found>> {
        let mut all = Vec::new();
        for file in candidates(&self.dirs)? {
            all.extend(self.described(&file.path, false)?.into_iter().flatten());
        }
        Ok(all)
    }

    /// Plugin files that cannot be used.
    pub fn refused(&self) -> Result<Vec<Refused>> {
        let mut all = Vec::new();
        for file in candidates(&self.dirs)? {
            all.extend(self.described(&file.path, false)?.err().map(|why| Refused { path: file.path, why }));
        }
        Ok(all)
    }

    /// Opens an environment.
    pub fn environment(&self, choice: &PluginChoice) -> Result<SharedEnv> {
        let (path, file, isolation) = self.chosen(Kind::Environment, choice)?;
        let limits = self.limits_of(Kind::Environment, choice);
        if isolation == Isolation::Process {
            let start = start(Kind::Environment, (path, &file), choice, &limits);
            let name = start.name;
            let (world, can) = World::open(start).with_context(|| format!("plugin {}", file.id))?;
            let file = file.with_border(can.border);
            return Ok(SharedEnv::elsewhere(
                (name.text(), file),
                Extensions { expert: can.expert, snapshots: can.snapshots, respond: can.respond },
                world,
                &limits,
            ));
        }
        let component = loaded(Kind::Environment, &path, &file.id)?;
        match component.functions {
            Functions::Environment(tables) => {
                SharedEnv::open((component.id, file.with_border(component.border)), tables, &choice.config, &limits)
            }
            Functions::Estimator(_) | Functions::Loss(_) => unreachable!("looked up by its kind"),
        }
    }

    /// Opens an estimator.
    pub fn estimator(&self, choice: &PluginChoice) -> Result<Estimator> {
        let (path, file, isolation) = self.chosen(Kind::Estimator, choice)?;
        let limits = self.limits_of(Kind::Estimator, choice);
        if isolation == Isolation::Process {
            let start = start(Kind::Estimator, (path, &file), choice, &limits);
            let context = || format!("plugin {}", file.id);
            let (process, can) = Process::start(&start).with_context(context)?;
            process.open(&start).with_context(context)?;
            let file = file.with_border(can.border);
            return Estimator::elsewhere((start.name.text(), file), [can.parts, can.columns, can.state], process);
        }
        let component = loaded(Kind::Estimator, &path, &file.id)?;
        match component.functions {
            Functions::Estimator(tables) => {
                Estimator::open((component.id, file.with_border(component.border)), tables, &choice.config, &limits)
            }
            Functions::Environment(_) | Functions::Loss(_) => unreachable!("looked up by its kind"),
        }
    }

    /// Opens a policy loss.
    pub fn loss(&self, choice: &PluginChoice) -> Result<Loss> {
        let (path, file, isolation) = self.chosen(Kind::Loss, choice)?;
        let limits = self.limits_of(Kind::Loss, choice);
        if isolation == Isolation::Process {
            let start = start(Kind::Loss, (path, &file), choice, &limits);
            let context = || format!("plugin {}", file.id);
            let (process, can) = Process::start(&start).with_context(context)?;
            process.open(&start).with_context(context)?;
            return Loss::elsewhere((start.name.text(), file.with_border(can.border)), process);
        }
        let component = loaded(Kind::Loss, &path, &file.id)?;
        match component.functions {
            Functions::Loss(table) => {
                Loss::open((component.id, file.with_border(component.border)), table, &choice.config, &limits)
            }
            Functions::Environment(_) | Functions::Estimator(_) => unreachable!("looked up by its kind"),
        }
    }

    /// The file that a choice names, its record, and where it runs.
    fn chosen(&self, kind: Kind, choice: &PluginChoice) -> Result<(PathBuf, PluginFile, Isolation)> {
        let pin = choice.sha256.as_deref();
        if let (Some((path, _)), Some(_)) = (file_and_id(&choice.plugin), pin) {
            library::check_file(&path)?;
            PluginFile::read("", &path, pin)?; // before any of its code runs
        }
        let Found { path, id, .. } = self.find(kind, &choice.plugin)?;
        let file = PluginFile::read(&id, &path, pin)?;
        let default = || if search::is_bundled(&file.path) { Isolation::None } else { Isolation::Process };
        let isolation = choice.isolate.unwrap_or_else(default);
        Ok((path, file, isolation))
    }

    /// The limits of the calls of a choice.
    fn limits_of(&self, kind: Kind, choice: &PluginChoice) -> Limits {
        let key = match (kind, choice.timeout_s) {
            (Kind::Estimator, Some(_)) => "estimator.timeout_s",
            (Kind::Loss, Some(_)) => "loss.timeout_s",
            _ => self.limits.key,
        };
        let timeout = choice.timeout_s.map_or(self.limits.timeout, Duration::from_secs);
        Limits { timeout, key, ..self.limits.clone() }
    }

    /// The choice of a plugin with the defaults of its config, as far as the plugin's schema names them.
    pub fn with_defaults(&self, kind: Kind, choice: &PluginChoice) -> Result<PluginChoice> {
        let mut filled = choice.clone();
        fill_defaults(&mut filled.config, &self.find(kind, &choice.plugin)?.schema);
        Ok(filled)
    }

    /// Warnings of files that have the name of one of these and are not used.
    pub fn shadow_warnings<'a>(&self, files: impl IntoIterator<Item = &'a PluginFile>) -> Result<Vec<String>> {
        let candidates = candidates(&self.dirs)?;
        let mut warnings = Vec::new();
        for file in files {
            let is_used = |path: &Path| path.canonicalize().is_ok_and(|path| path == file.path);
            let used = candidates.iter().find(|candidate| is_used(&candidate.path));
            for other in used.into_iter().flat_map(|used| &used.shadowed).filter(|other| !is_used(other)) {
                warnings.push(format!(
                    "plugin {} is {}; {} has the same name and is not used",
                    file.id,
                    file.path.display(),
                    other.display()
                ));
            }
        }
        Ok(warnings)
    }

    /// Files that are not used, each with the one of the same name in an earlier directory.
    pub fn hidden(&self) -> Result<Vec<Hidden>> {
        let hidden = |used: Candidate| {
            let by = used.path.clone();
            used.shadowed.into_iter().map(move |path| Hidden { path, by: by.clone() })
        };
        Ok(candidates(&self.dirs)?.into_iter().flat_map(hidden).collect())
    }

    /// Describes a component, named by id or file.
    pub fn find(&self, kind: Kind, plugin: &str) -> Result<Found> {
        match file_and_id(plugin) {
            Some((path, id)) => self.in_file(kind, &path, id),
            None => self.by_id(kind, plugin),
        }
    }

    pub(super) fn described(&self, path: &Path, is_named: bool) -> Result<Result<Vec<Found>, String>> {
        if let Some(known) = self.described.borrow().get(path) {
            return Ok(known.clone());
        }
        let timeout = if is_named { self.limits.timeout } else { self.limits.timeout.min(GLANCE) };
        let described = probe::describe(path, &Limits { timeout, ..self.limits.clone() })?;
        self.described.borrow_mut().insert(path.to_path_buf(), described.clone());
        Ok(described)
    }

    /// The component of a file that is named by its path.
    fn in_file(&self, kind: Kind, path: &Path, id: Option<&str>) -> Result<Found> {
        let shown = path.display();
        let all = self.described(path, true)?.map_err(|why| input_error!("{why}"))?;
        if all.is_empty() {
            return Err(input_error!("plugin file {shown} holds no components"));
        }
        let ids: Vec<&str> = all.iter().map(|c| c.id.as_str()).collect();
        let holds = format!("plugin file {shown} holds {}", ids.join(", "));
        let mut fitting = all.iter().filter(|c| c.kind == kind && id.is_none_or(|id| c.id == id));
        match (fitting.next(), fitting.next(), id) {
            (Some(one), None, _) => Ok(one.clone()),
            (None, _, None) => Err(input_error!("{holds}, and none of these is {}", kind.article())),
            (None, _, Some(id)) => Err(input_error!("{holds}, and none of these is {} `{id}`", kind.article())),
            _ => Err(input_error!("{holds}: choose one by `{shown}#ID`")),
        }
    }

    /// The one component of a kind with an id. Files that are not named for the id are looked at in the user's directories
    /// only, unless nothing else is found.
    pub(super) fn by_id(&self, kind: Kind, id: &str) -> Result<Found> {
        let files = candidates(&self.dirs)?;
        let (likely, others): (Vec<_>, Vec<_>) = files.iter().partition(|file| !file.bundled || file.is_named_for(id));
        for files in [likely, others] {
            let mut matching: Vec<Found> = Vec::new();
            for file in files {
                let components = self.described(&file.path, file.is_named_for(id))?.into_iter().flatten();
                matching.extend(components.filter(|c| c.kind == kind && c.id == id));
            }
            match &matching[..] {
                [found] => return Ok(found.clone()),
                [] => {}
                [a, b, ..] => {
                    return Err(input_error!(
                        "two plugins have the id `{id}`: {} and {}; remove one, or name a file instead of the id",
                        a.path.display(),
                        b.path.display()
                    ));
                }
            }
        }
        self.missing(kind, id, &files)
    }

    fn missing(&self, kind: Kind, plugin: &str, files: &[Candidate]) -> Result<Found> {
        let named = format!("{}nestor_{plugin}{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
        let (mut all, mut refused) = (Vec::new(), String::new());
        for file in files {
            match self.described(&file.path, false)? {
                Ok(components) => all.extend(components),
                Err(why) if file.path.file_name().is_some_and(|name| name == &*named) => {
                    return Err(input_error!("{why}"));
                }
                Err(why) => refused += &format!("; not usable: {why}"),
            }
        }
        if let Some(other) = all.iter().find(|c| c.id == plugin) {
            return Err(input_error!(
                "`{plugin}` is {}, not {} ({})",
                other.kind.article(),
                kind.article(),
                other.path.display()
            ));
        }
        let known: Vec<&str> = all.iter().filter(|c| c.kind == kind).map(|c| c.id.as_str()).collect();
        let dirs: Vec<String> = self.dirs.iter().map(|dir| dir.path.display().to_string()).collect();
        Err(input_error!(
            "there is no {kind} plugin `{plugin}`{}; looked for {named} and others in {} (more directories: {PATH_VARIABLE}){refused}",
            nestor_plugin::suggest(plugin, &known),
            dirs.join(", "),
        ))
    }
}

/// Loads a component into this process.
fn loaded(kind: Kind, path: &Path, id: &str) -> Result<Component> {
    let components = library::load(path)?;
    leave::watch();
    let mut fitting = components.into_iter().filter(|c| c.kind() == kind && c.id == id);
    fitting.next().with_context(|| format!("plugin file {} changed while it was read", path.display()))
}

/// A component to run in processes of its own.
fn start(kind: Kind, (path, file): (PathBuf, &PluginFile), choice: &PluginChoice, limits: &Limits) -> Start {
    let bounds = Bounds { section: kind.section(), memory: choice.memory_bytes(), cpu: choice.cpu_s };
    Start { name: Name::of(&file.id), path, kind, config: choice.config.to_string(), bounds, limits: limits.clone() }
}

/// Adds the defaults of a JSON schema's properties that an object lacks.
pub fn fill_defaults(config: &mut Value, schema: &Value) {
    let (Some(config), Some(properties)) = (config.as_object_mut(), schema["properties"].as_object()) else { return };
    for (name, property) in properties {
        let default = &property["default"];
        if !default.is_null() && !config.contains_key(name) {
            config.insert(name.clone(), default.clone());
        }
    }
}

/// The file and perhaps the id of a plugin that is named by its file: `path/to/file.so`, `file.so#id`.
pub fn file_and_id(plugin: &str) -> Option<(PathBuf, Option<&str>)> {
    let ending = std::env::consts::DLL_SUFFIX;
    match plugin.rsplit_once('#') {
        Some((file, id)) if file.ends_with(ending) => Some((file.into(), Some(id))),
        _ if plugin.contains('/') || plugin.ends_with(ending) => Some((plugin.into(), None)),
        _ => None,
    }
}
