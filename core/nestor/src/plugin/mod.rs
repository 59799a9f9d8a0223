//! The host's side of the plugin border: it finds plugin files, checks their description and guards every call.
//!
//! [`Plugins`] finds components by id or file, [`SharedEnv`] and [`Env`] play an environment, [`Estimator`] scores rows,
//! [`advantage`] scores recorded ones. `plugins/sdk/nestor_plugin.h` defines the border. Only `library`, `call`,
//! `shared_env` and `estimator` use `unsafe`.

pub mod advantage;
mod call;
mod estimator;
mod library;
mod shared_env;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
pub use nestor_plugin::{Needs, Observation};
use serde_json::Value;

pub use estimator::{Estimator, Parts};
pub use library::{Found, Kind};
pub use shared_env::{Env, SharedEnv};

pub use crate::data::PluginFile;
use crate::input_error;
use crate::recipe::PluginChoice;
use library::{Component, Functions};

/// Directories to look for plugins in before all others, separated as in PATH.
pub const PATH_VARIABLE: &str = "NESTOR_PLUGIN_PATH";

/// A plugin file that cannot be used.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Refused {
    pub path: PathBuf,
    /// One message with cause and remedy.
    pub why: String,
}

/// The plugins found.
#[derive(Default)]
pub struct Plugins {
    components: Vec<Component>,
    refused: Vec<Refused>,
    dirs: Vec<PathBuf>,
    /// Files that were passed over, since an earlier directory has a file of that name.
    shadowed: Vec<PathBuf>,
}

impl Plugins {
    /// Looks in the directories of `NESTOR_PLUGIN_PATH`, then beside the executable and one directory above (there cargo
    /// puts the plugins that it builds with a test). Of two files with one name the first counts.
    pub fn discover() -> Result<Self> {
        let mut plugins = Self::default();
        for dir in std::env::split_paths(&std::env::var_os(PATH_VARIABLE).unwrap_or_default()) {
            if dir.as_os_str().is_empty() {
                continue;
            }
            if !dir.is_dir() {
                return Err(input_error!("{PATH_VARIABLE} names {}, which is not a directory", dir.display()));
            }
            plugins.add_dir(&dir, "")?;
        }
        let executable = std::env::current_exe().context("finding the program's directory")?;
        // Other libraries may be beside the program, so only those named as plugins count there.
        let prefix = format!("{}nestor_", std::env::consts::DLL_PREFIX);
        for dir in executable.ancestors().skip(1).take(2) {
            plugins.add_dir(dir, &prefix)?;
        }
        Ok(plugins)
    }

    /// The plugins of one directory.
    pub fn in_dir(dir: &Path) -> Result<Self> {
        let mut plugins = Self::default();
        plugins.add_dir(dir, "")?;
        Ok(plugins)
    }

    fn add_dir(&mut self, dir: &Path, prefix: &str) -> Result<()> {
        let entries = std::fs::read_dir(dir).with_context(|| format!("looking for plugins in {}", dir.display()))?;
        let mut files = Vec::new();
        for entry in entries {
            let path = entry.with_context(|| format!("looking for plugins in {}", dir.display()))?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if !(name.starts_with(prefix) && name.ends_with(std::env::consts::DLL_SUFFIX)) {
                continue;
            }
            let list = if self.knows(&name) { &mut self.shadowed } else { &mut files };
            list.push(path);
        }
        files.sort();
        for path in files {
            match library::load(&path) {
                Ok(components) => self.components.extend(components),
                Err(error) => self.refused.push(Refused { path, why: format!("{error:#}") }),
            }
        }
        self.dirs.push(dir.to_path_buf());
        Ok(())
    }

    fn knows(&self, file_name: &str) -> bool {
        let paths = self.components.iter().map(|c| &c.path).chain(self.refused.iter().map(|r| &r.path));
        paths.into_iter().any(|path| path.file_name().is_some_and(|name| name == file_name))
    }

    /// All components, in the order found.
    pub fn list(&self) -> Vec<Found> {
        self.components.iter().map(Component::found).collect()
    }

    /// Plugin files that cannot be used.
    pub fn refused(&self) -> &[Refused] {
        &self.refused
    }

    /// The files of the same name as this one that are not used.
    pub fn shadowed_by(&self, file: &PluginFile) -> impl Iterator<Item = &Path> {
        let same = |path: &&PathBuf| path.file_name() == file.path.file_name();
        let other = |path: &&PathBuf| path.canonicalize().is_ok_and(|path| path != file.path);
        self.shadowed.iter().filter(same).filter(other).map(PathBuf::as_path)
    }

    /// The choice of a plugin with the defaults of its config, as far as the plugin's schema names them.
    pub fn with_defaults(&self, kind: Kind, choice: &PluginChoice) -> Result<PluginChoice> {
        let mut filled = choice.clone();
        fill_defaults(&mut filled.config, &self.component(kind, &choice.plugin)?.schema);
        Ok(filled)
    }

    /// Opens an environment.
    pub fn environment(&self, choice: &PluginChoice) -> Result<SharedEnv> {
        let component = self.component(Kind::Environment, &choice.plugin)?;
        match component.functions {
            Functions::Environment { functions, expert } => {
                SharedEnv::open((component.id, component.file()?), functions, expert, &choice.config)
            }
            Functions::Estimator { .. } => bail!("plugin {} is an estimator", component.id),
        }
    }

    /// Opens an estimator.
    pub fn estimator(&self, choice: &PluginChoice) -> Result<Estimator> {
        let component = self.component(Kind::Estimator, &choice.plugin)?;
        match component.functions {
            Functions::Estimator { functions, parts } => {
                Estimator::open((component.id, component.file()?), functions, parts, &choice.config)
            }
            Functions::Environment { .. } => bail!("plugin {} is an environment", component.id),
        }
    }

    /// Describes a component, named by id or file.
    pub fn find(&self, kind: Kind, plugin: &str) -> Result<Found> {
        Ok(self.component(kind, plugin)?.found())
    }

    /// The one component of a kind with an id, or in a file.
    fn component(&self, kind: Kind, plugin: &str) -> Result<Component> {
        if plugin.contains('/') || plugin.ends_with(std::env::consts::DLL_SUFFIX) {
            return in_file(kind, Path::new(plugin));
        }
        let same: Vec<&Component> = self.components.iter().filter(|c| c.kind() == kind && c.id == plugin).collect();
        match same[..] {
            [one] => Ok(one.clone()),
            [] => Err(self.missing(kind, plugin)),
            [a, b, ..] => Err(input_error!(
                "two plugins have the id `{plugin}`: {} and {}; remove one, or name a file instead of the id",
                a.path.display(),
                b.path.display()
            )),
        }
    }

    fn missing(&self, kind: Kind, plugin: &str) -> anyhow::Error {
        let file = format!("{}nestor_{plugin}{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
        if let Some(refused) = self.refused.iter().find(|r| r.path.file_name().is_some_and(|name| name == &*file)) {
            return input_error!("{}", refused.why);
        }
        let known: Vec<&str> = self.components.iter().filter(|c| c.kind() == kind).map(|c| c.id).collect();
        let dirs: Vec<String> = self.dirs.iter().map(|p| p.display().to_string()).collect();
        let refused: Vec<String> = self.refused.iter().map(|r| format!("; not usable: {}", r.why)).collect();
        input_error!(
            "there is no {kind} plugin `{plugin}`{}; looked for {file} and others in {} (more directories: {PATH_VARIABLE}){}",
            nestor_plugin::suggest(plugin, &known),
            dirs.join(", "),
            refused.concat()
        )
    }
}

/// Adds the defaults of a JSON schema's properties that an object lacks.
fn fill_defaults(config: &mut Value, schema: &Value) {
    let (Some(config), Some(properties)) = (config.as_object_mut(), schema["properties"].as_object()) else { return };
    for (name, property) in properties {
        let default = &property["default"];
        if !default.is_null() && !config.contains_key(name) {
            config.insert(name.clone(), default.clone());
        }
    }
}

fn in_file(kind: Kind, path: &Path) -> Result<Component> {
    let components = library::load(path)?;
    let ids: Vec<&str> = components.iter().map(|c| c.id).collect();
    let holds = format!("plugin file {} holds {}", path.display(), ids.join(", "));
    let mut fitting = components.into_iter().filter(|c| c.kind() == kind);
    match (fitting.next(), fitting.next()) {
        (Some(one), None) => Ok(one),
        (None, _) => Err(input_error!("{holds}, and none of these is an {kind}")),
        _ => Err(input_error!("{holds}: put its directory into {PATH_VARIABLE} and choose one by id")),
    }
}
