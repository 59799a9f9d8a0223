//! Describes the components of plugins for their users and authors: file, config keys, extensions, columns.

use std::fmt::{self, Display, Formatter};
use std::path::PathBuf;

use anyhow::{Context, Result};
use nestor_plugin::{ffi, suggest};
use nestor_recipe::{Key, PluginChoice, input_error, keys_of};
use serde::Serialize;
use serde_json::json;

use crate::library::{Found, Kind, sha256};
use crate::plugins::{Plugins, file_and_id};
use crate::search::candidates;

/// A component with all that can be known of it without a run.
#[derive(Debug, Clone, Serialize)]
pub struct Shown {
    #[serde(flatten)]
    pub found: Found,
    /// SHA-256 of the file, in hexadecimal.
    pub sha256: String,
    /// Files of the same name in later directories, which are not used.
    pub hides: Vec<PathBuf>,
    /// None for an environment.
    pub asks: Option<Asks>,
}

/// The columns that an estimator or a loss asks for with the default config.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Asks {
    With {
        /// Flags: `values`, `anchors`, `reference`, `entropy`.
        needs: Vec<&'static str>,
        /// Names of columns; an optional one ends with a question mark.
        columns: Vec<String>,
    },
    /// The estimator cannot be opened with the default config.
    Unknown { why: String },
}

impl Plugins {
    /// Describes the components that an id, a file, or a file with an id (`file.so#id`) names.
    pub fn show(&self, plugin: &str) -> Result<Vec<Shown>> {
        let candidates = candidates(&self.dirs)?;
        let describe = |found: Found| {
            let hides = candidates.iter().find(|one| one.path == found.path).map(|one| one.shadowed.clone());
            let path = found.path.canonicalize().with_context(|| format!("reading {}", found.path.display()))?;
            Ok(Shown { sha256: sha256(&path)?, hides: hides.unwrap_or_default(), asks: self.asks(&found), found })
        };
        self.named(plugin)?.into_iter().map(describe).collect()
    }

    /// The components that an id, a file, or a file with an id names.
    pub fn named(&self, plugin: &str) -> Result<Vec<Found>> {
        if let Some((path, id)) = file_and_id(plugin) {
            let all = self.described(&path, true)?.map_err(|why| input_error!("{why}"))?;
            let ids: Vec<&str> = all.iter().map(|one| one.id.as_str()).collect();
            return match id {
                None if all.is_empty() => Err(input_error!("plugin file {} holds no components", path.display())),
                Some(id) if !ids.contains(&id) => {
                    let known = suggest(id, &ids);
                    Err(input_error!("plugin file {} holds no component `{id}`{known}", path.display()))
                }
                _ => Ok(all.iter().filter(|one| id.is_none_or(|id| one.id == id)).cloned().collect()),
            };
        }
        let all = self.list()?;
        let has = |kind: &Kind| all.iter().any(|one| one.kind == *kind && one.id == plugin);
        let kinds: Vec<Kind> = Kind::ALL.into_iter().filter(has).collect();
        if kinds.is_empty() {
            let known: Vec<&str> = all.iter().map(|one| one.id.as_str()).collect();
            let refused: String = self.refused()?.iter().map(|one| format!("; not usable: {}", one.why)).collect();
            return Err(input_error!("there is no plugin `{plugin}`{}{refused}", suggest(plugin, &known)));
        }
        kinds.into_iter().map(|kind| self.by_id(kind, plugin)).collect()
    }

    fn asks(&self, found: &Found) -> Option<Asks> {
        if found.kind == Kind::Environment {
            return None;
        }
        let plugin = format!("{}#{}", found.path.display(), found.id);
        if found.kind == Kind::Loss {
            return Some(self.asks_of_loss(&plugin));
        }
        Some(match self.estimator(&PluginChoice::new(&plugin, json!({}))) {
            Ok(estimator) => {
                let needs = estimator.needs();
                let flags = [("values", needs.values), ("anchors", needs.anchors), ("reference", needs.reference)];
                Asks::With {
                    needs: asked(&flags),
                    columns: estimator.asked().iter().map(ToString::to_string).collect(),
                }
            }
            Err(error) => Asks::unknown(&error),
        })
    }

    fn asks_of_loss(&self, plugin: &str) -> Asks {
        match self.loss(&PluginChoice::new(plugin, json!({}))) {
            Ok(loss) => {
                let flags = [("reference", loss.needs().reference), ("entropy", loss.needs().entropy)];
                Asks::With { needs: asked(&flags), columns: Vec::new() }
            }
            Err(error) => Asks::unknown(&error),
        }
    }
}

impl Asks {
    fn unknown(error: &anyhow::Error) -> Self {
        Self::Unknown { why: format!("{error:#}") }
    }
}

/// The names of the flags that are set.
fn asked(flags: &[(&'static str, bool)]) -> Vec<&'static str> {
    flags.iter().filter(|(_, asked)| *asked).map(|(name, _)| *name).collect()
}

impl Display for Shown {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Found { id, kind, doc, schema, path, border, extensions } = &self.found;
        let ours = ffi::Head::OURS;
        writeln!(f, "{kind} {id}: {doc}")?;
        writeln!(f, "  file        {}", path.display())?;
        writeln!(f, "  sha256      {}", self.sha256)?;
        writeln!(f, "  border      needs {border}, this program has {}.{}", ours.abi_major, ours.abi_minor)?;
        writeln!(f, "  extensions  {}", list(extensions))?;
        match &self.asks {
            None => {}
            Some(Asks::With { needs, columns }) => {
                writeln!(f, "  needs       {} (with the default config)", list(needs))?;
                writeln!(f, "  columns     {} (with the default config)", list(columns))?;
            }
            Some(Asks::Unknown { why }) => writeln!(f, "  columns     unknown: the default config is refused: {why}")?,
        }
        for hidden in &self.hides {
            writeln!(f, "  hides       {}, which has the same name and is not used", hidden.display())?;
        }
        let keys = keys_of(schema);
        writeln!(f, "  config      {}", if keys.is_empty() { "takes no keys" } else { "takes these keys:" })?;
        for Key { path, kind, default, doc, .. } in &keys {
            let default = default.as_ref().map_or("required".into(), |default| format!("default {default}"));
            writeln!(f, "    {path}: {}; {}. {doc}", kind.replace('`', ""), default.replace('`', ""))?;
        }
        Ok(())
    }
}

fn list<T: AsRef<str>>(names: &[T]) -> String {
    match names {
        [] => "none".into(),
        names => names.iter().map(AsRef::as_ref).collect::<Vec<_>>().join(", "),
    }
}
