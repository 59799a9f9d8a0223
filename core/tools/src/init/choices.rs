//! The three choices of `nestor init`.

use std::path::{Path, PathBuf};

use anyhow::Result;
use nestor_args::InitArgs;

use crate::input_error;
use crate::plugin::{Kind, Plugins};

/// The word for a network with random weights.
pub const NEW: &str = "new";

/// The three parts of a recipe.
pub struct Choices {
    pub env: String,
    pub estimator: String,
    pub model: String,
}

impl Choices {
    /// Takes the arguments. Without one, the model is `new`.
    ///
    /// # Errors
    /// A plugin that is missing or unknown; the message lists those that are there.
    pub fn of(args: &InitArgs, plugins: &Plugins) -> Result<Self> {
        let plugin = |given: &Option<String>, option: &str, kind| match given {
            Some(given) => plugins.find(kind, given).map(|_| given.clone()),
            None => {
                let all = plugins.list()?;
                let known: Vec<&str> = all.iter().filter(|found| found.kind == kind).map(|found| &*found.id).collect();
                let known = known.join(", ");
                Err(input_error!("--{option} is missing; known: {known}, or the path of a plugin file"))
            }
        };
        let env = plugin(&args.env, "env", Kind::Environment)?;
        let estimator = plugin(&args.estimator, "estimator", Kind::Estimator)?;
        Ok(Self { env, estimator, model: args.model.clone().unwrap_or_else(|| NEW.into()) })
    }

    /// The recipe's default file, ENV_ESTIMATOR.yaml.
    pub fn file(&self) -> PathBuf {
        let name = |plugin: &str| {
            let (file, id) = plugin.split_once('#').unwrap_or((plugin, ""));
            let stem = Path::new(file).file_stem().unwrap_or_default().to_string_lossy();
            if id.is_empty() {
                stem.trim_start_matches("lib").trim_start_matches("nestor_").to_string()
            } else {
                id.into()
            }
        };
        PathBuf::from(format!("{}_{}.yaml", name(&self.env), name(&self.estimator)))
    }
}
