//! The bodies of the fuzz targets, shared with the test that replays the kept seeds. Every reader must return a value
//! or a message about the input's fault, a line for each problem, and nothing else may happen.

use std::io::{Error, ErrorKind};
use std::path::{Path, PathBuf};

use anyhow::Result;
use nestor_model::error::{InputError, message};
use nestor_model::model::{Config, weights};
use nestor_recipe::{lines, load_with};
use tch::{Device, Kind};

/// A recipe, the recipe it may extend, and `--set` arguments, with a zero byte between them.
pub fn recipe(data: &[u8]) {
    let parts: Vec<&[u8]> = data.split(|&byte| byte == 0).collect();
    let sets: Vec<String> = parts.iter().skip(2).map(|part| String::from_utf8_lossy(part).into()).collect();
    let own = Path::new("recipe.yaml");
    let read = |path: &Path| {
        let index = usize::from(path != own);
        let text = parts.get(index).ok_or(ErrorKind::NotFound)?;
        let text = String::from_utf8(text.to_vec()).map_err(|error| Error::new(ErrorKind::InvalidData, error))?;
        Ok((PathBuf::from(index.to_string()), text))
    };
    let Some(recipe) = value_or_message(load_with(own, &sets, &read)) else { return };
    let _ = recipe.warnings();
    let resolved = recipe.to_yaml().expect("a recipe can be written");
    let again = load_with(own, &[], &|path| Ok((path.into(), resolved.clone()))).expect("what was written can be read");
    assert_eq!(again, recipe, "{resolved}");
}

/// A safetensors file for a small network; or, where it begins with `{`, a `config.json`.
pub fn safetensors(data: &[u8]) {
    if data.first() == Some(&b'{') {
        let Ok(serde_json::Value::Object(json)) = serde_json::from_slice(data) else { return };
        if let Some(config) = value_or_message(Config::from_json(&json)) {
            assert!(config.head_dim() > 0 && config.check().is_ok());
        }
        return;
    }
    value_or_message(weights::model_of(Path::new("file"), data, small(), (Kind::Float, Device::Cpu)));
}

/// The network that [`safetensors`] reads files for.
pub fn small() -> Config {
    Config {
        vocab_size: 4,
        hidden_size: 2,
        intermediate_size: 2,
        num_hidden_layers: 1,
        num_attention_heads: 2,
        num_key_value_heads: 1,
        head_dim: Some(2),
        max_position_embeddings: 16,
        ..Config::shape("qwen3-tiny").expect("a shape")
    }
}

/// The value; or none, where the input was refused as it must be.
fn value_or_message<T>(result: Result<T>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(error) => {
            assert!(error.chain().any(|cause| cause.is::<InputError>()), "not the input's fault: {error:#}");
            let text = message(&error);
            assert!(lines(&text).all(|line| !line.is_empty() && !line.contains('\n')), "{text}");
            None
        }
    }
}
