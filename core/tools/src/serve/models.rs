//! The models that a server has: one, and adapters of it beside the same weights.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::ServeOptions;
use crate::checkpoint::{Source, load_adapters};
use crate::input_error;
use crate::model::Model;

/// Models by name, of which the first is the one that was asked for.
pub struct Models {
    /// The folder of the tokenizer.
    pub folder: PathBuf,
    pub all: Vec<(String, Model)>,
}

impl Models {
    pub fn load(options: &ServeOptions) -> Result<Self> {
        let names = names(options)?;
        let source = Source::find(&options.model)?;
        let folder = source.folder().to_path_buf();
        let model = source.load(options.kind, options.device)?;
        let mut adapted = Vec::new();
        for (name, path) in names.adapters {
            let adapters = load_adapters(&path, &source, &model.config, options.device)
                .with_context(|| format!("--adapter {name}"))?;
            adapted.push((name, Model { adapters: Some(adapters), ..model.without_adapters() }));
        }
        let mut all = vec![(names.model, model)];
        all.append(&mut adapted);
        Ok(Self { folder, all })
    }
}

/// The names of all models.
#[derive(Debug, PartialEq)]
struct Names {
    model: String,
    adapters: Vec<(String, PathBuf)>,
}

fn names(options: &ServeOptions) -> Result<Names> {
    let model = options.name.clone().unwrap_or_else(|| usual_name(&options.model));
    if model.is_empty() {
        return Err(input_error!("--name is empty; requests choose a model by its name"));
    }
    let mut adapters: Vec<(String, PathBuf)> = Vec::new();
    for adapter in &options.adapters {
        let Some((name, path)) = adapter.split_once('=').filter(|(name, path)| !name.is_empty() && !path.is_empty())
        else {
            return Err(input_error!("--adapter {adapter}: write NAME=PATH, as in --adapter tuned=runs/lora"));
        };
        if name == model || adapters.iter().any(|(known, _)| known == name) {
            return Err(input_error!("--adapter {adapter}: another model has the name {name}; choose a new one"));
        }
        adapters.push((name.into(), path.into()));
    }
    Ok(Names { model, adapters })
}

/// A model's name where none is given: a Hub id as it is, else the name of the folder.
fn usual_name(model: &Path) -> String {
    let text = model.to_string_lossy();
    let is_id = !model.exists() && text.split('/').count() == 2;
    let folder = || std::path::absolute(model).ok()?.file_name().map(|name| name.to_string_lossy().into_owned());
    if is_id { text.into_owned() } else { folder().unwrap_or_default() }
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind};

    use super::*;

    #[test]
    fn every_model_has_a_name_of_its_own() {
        let options = |name: Option<&str>, adapters: &[&str]| ServeOptions {
            model: "runs/demo/".into(),
            adapters: adapters.iter().map(|adapter| adapter.to_string()).collect(),
            name: name.map(str::to_string),
            address: ([127, 0, 0, 1], 0).into(),
            key: None,
            slots: 1,
            max_tokens: None,
            thinking: None,
            kind: Kind::Float,
            device: Device::Cpu,
        };
        let found = names(&options(None, &["a=x/y=z", "b=x"])).expect("names");
        assert_eq!(found.model, "demo");
        assert_eq!(found.adapters, [("a".into(), "x/y=z".into()), ("b".into(), "x".into())]);
        assert_eq!(usual_name(Path::new("Qwen/Qwen2.5-0.5B@main")), "Qwen/Qwen2.5-0.5B@main");
        for (name, adapters) in [
            (None, vec!["demo=x"]),
            (None, vec!["a=x", "a=y"]),
            (None, vec!["a"]),
            (None, vec!["=x"]),
            (None, vec!["a="]),
            (Some(""), vec![]),
        ] {
            assert!(names(&options(name, &adapters)).is_err(), "{adapters:?}");
        }
    }
}
