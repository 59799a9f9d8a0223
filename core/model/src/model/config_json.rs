//! Reads and writes the `config.json` of a Hugging Face folder.

use std::path::Path;

use anyhow::Result;
use nestor_images::Processor;
use serde_json::{Map, Value, json};
use tch::Kind;

use super::arch::Architecture;
use super::config::Output;
use super::fields::Fields;
use super::rope_scaling::RopeScaling;
use super::vision_config::VisionConfig;
use super::weight_files::head_is_its_own;
use super::{Config, StoredType};
use crate::files::read_object;
use crate::input_error;

/// The file that describes how images become patches.
pub const PROCESSOR: &str = "preprocessor_config.json";

impl Config {
    /// Reads and checks the `config.json` of a Hugging Face folder. Head and embedding are not tied if the weights differ.
    pub fn load(dir: &Path) -> Result<Self> {
        let path = dir.join("config.json");
        let Some(json) = read_object(&path)? else {
            if dir.join("adapter_config.json").exists() {
                return Err(input_error!(
                    "{} holds peft's adapters, not a model; merge them into their base (merge_and_unload of peft, then \
                     save_pretrained) and name that folder",
                    dir.display()
                ));
            }
            if dir.join("checkpoints").is_dir() {
                return Err(input_error!(
                    "{} is a run, not a model folder; write its model by `nestor export {} DIR` and name DIR",
                    dir.display(),
                    dir.display()
                ));
            }
            return Err(input_error!(
                "{}: no such file; a model folder holds config.json, safetensors and tokenizer.json, as Hugging Face \
                 publishes them (scripts/models/get.py NAME fetches one as models/NAME)",
                path.display()
            ));
        };
        let mut config = Self::from_json(&json).map_err(|error| input_error!("{}: {error:#}", path.display()))?;
        if let Some(vision) = &mut config.vision {
            let sizes = [vision.patch_size, vision.spatial_merge_size, vision.temporal_patch_size].map(|n| n as u32);
            let processor = Processor::load(dir)?;
            processor
                .check(sizes[0], sizes[1], sizes[2])
                .map_err(|error| input_error!("{}: {error:#}", dir.display()))?;
            vision.processor = processor;
        }
        if config.tie_word_embeddings && head_is_its_own(dir, config.architecture) {
            config.tie_word_embeddings = false;
        }
        Ok(config)
    }

    /// Reads a `config.json` object; absent fields get transformers' defaults.
    pub fn from_json(json: &Map<String, Value>) -> Result<Self> {
        let architecture = Architecture::of_json(json)?;
        let json = &architecture.section.map_or_else(|| json.clone(), |section| flattened(json, section));
        refuse_unsupported(json)?;
        let (fields, defaults) = (Fields(json), &architecture.defaults);
        let block = (architecture.read_block)(&fields)?;
        let heads = fields.required("num_attention_heads")?;
        let kv_heads = match json.get("num_key_value_heads") {
            Some(Value::Null) => heads,
            _ => fields.integer("num_key_value_heads")?.or(defaults.num_key_value_heads).unwrap_or(heads),
        };
        let hidden_size = fields.required("hidden_size")?;
        let vision = architecture.tower.map(|_| VisionConfig::from_json(json, hidden_size)).transpose()?;
        let longest = fields.integer("max_position_embeddings")?.unwrap_or(defaults.max_position_embeddings);
        let (rope_theta, rope_scaling) = rope(json, defaults.rope_theta, longest)?;
        let config = Self {
            architecture,
            block,
            vocab_size: fields.required("vocab_size")?,
            hidden_size,
            intermediate_size: fields.required("intermediate_size")?,
            num_hidden_layers: fields.required("num_hidden_layers")?,
            num_attention_heads: heads,
            num_key_value_heads: kv_heads,
            head_dim: fields.integer("head_dim")?.or(defaults.head_dim),
            max_position_embeddings: longest,
            rope_theta,
            rope_scaling,
            rms_norm_eps: fields.number("rms_norm_eps")?.unwrap_or(defaults.rms_norm_eps),
            tie_word_embeddings: fields.boolean("tie_word_embeddings")?.unwrap_or(false),
            initializer_range: fields.number("initializer_range")?.unwrap_or(0.02),
            output: Output::Tokens,
            vision,
        };
        config.check()?;
        Ok(config)
    }

    /// The `config.json` object of this network, in the form that every transformers version with this network reads.
    pub fn to_json(&self, eos: &[u32], kind: Kind) -> Result<Value> {
        let mut json = json!({
            "architectures": [self.architecture.class],
            "model_type": self.architecture.model_type,
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_hidden_layers,
            "num_attention_heads": self.num_attention_heads,
            "num_key_value_heads": self.num_key_value_heads,
            "hidden_act": "silu",
            "max_position_embeddings": self.max_position_embeddings,
            "rope_theta": self.rope_theta,
            "rms_norm_eps": self.rms_norm_eps,
            "tie_word_embeddings": self.tie_word_embeddings,
            "use_sliding_window": false,
            "attention_dropout": 0.0,
            "initializer_range": self.initializer_range,
            "use_cache": true,
            "eos_token_id": eos.first(),
            "torch_dtype": StoredType::of(kind)?.name,
        });
        if let Some(dim) = self.head_dim {
            json["head_dim"] = dim.into();
        }
        if let Some(scaling) = self.rope_scaling {
            json["rope_scaling"] = scaling.to_json();
        }
        (self.architecture.write_block)(self.block, &mut json);
        if let Some(vision) = &self.vision {
            vision.put_json(&mut json, self.hidden_size);
        }
        if self.output == Output::Value {
            json["architectures"] = json!([self.architecture.class.replace("CausalLM", "TokenClassification")]);
            json["tie_word_embeddings"] = json!(false);
            json["num_labels"] = json!(1);
            json["id2label"] = json!({ "0": "value" });
            json["label2id"] = json!({ "value": 0 });
            json["classifier_dropout"] = json!(0.0);
        }
        Ok(json)
    }

    /// [`Self::to_json`] with every key of `original`, the `config.json` that this network was read from. Keys that Nestor
    /// does not know keep their values.
    pub fn to_json_like(&self, mut original: Map<String, Value>, eos: &[u32], kind: Kind) -> Result<Value> {
        const OF_CRITIC: &[&str] =
            &["architectures", "tie_word_embeddings", "num_labels", "id2label", "label2id", "classifier_dropout"];
        let mut own = self.to_json(eos, kind)?;
        // A file may have the decoder's keys in a section of their own.
        let section = self.architecture.section.and_then(|section| original.get(section));
        if let (Some(Value::Object(text)), Some(own)) = (section, own.as_object_mut()) {
            own.retain(|key, _| !text.contains_key(key) && key != "rope_scaling" && key != "rope_theta");
        }
        // transformers 5 has the rotary embedding as `rope_parameters`, and reads either.
        if let (Some(Value::Object(_)), Some(own)) = (original.get("rope_parameters"), own.as_object_mut()) {
            own.remove("rope_scaling");
        }
        // It calls the type `dtype`, and reads either.
        if let Some(dtype) = original.get_mut("dtype") {
            *dtype = own["torch_dtype"].clone();
        }
        for (key, value) in own.as_object().into_iter().flatten() {
            let changed = ["torch_dtype", "tie_word_embeddings"].contains(&key.as_str())
                || self.output == Output::Value && OF_CRITIC.contains(&key.as_str());
            if changed || original.get(key).is_none_or(Value::is_null) {
                original.insert(key.clone(), value.clone());
            }
        }
        Ok(original.into())
    }
}

/// The keys of a file on one level, where it may have those of the decoder in a section.
fn flattened(json: &Map<String, Value>, section: &str) -> Map<String, Value> {
    let mut flat = json.clone();
    if let Some(Value::Object(text)) = flat.remove(section) {
        for (key, value) in text {
            if flat.get(&key).is_none_or(Value::is_null) {
                flat.insert(key, value);
            }
        }
    }
    flat
}

/// Refuses networks that would load, but compute other numbers than transformers does.
fn refuse_unsupported(json: &Map<String, Value>) -> Result<()> {
    let fields = Fields(json);
    if let Some(act) = fields.text("hidden_act")?
        && act != "silu"
    {
        return Err(input_error!("hidden_act \"{act}\" is not supported, only \"silu\""));
    }
    if fields.number("attention_dropout")?.unwrap_or(0.0) != 0.0 {
        return Err(input_error!("attention_dropout is not supported; set it to 0"));
    }
    if json.get("quantization_config").is_some_and(|v| !v.is_null()) {
        return Err(input_error!("quantized weights cannot be trained; take the model in bfloat16 or float32"));
    }
    let layers = fields.integer("num_hidden_layers")?.unwrap_or(0);
    let slides = match json.get("layer_types").and_then(Value::as_array) {
        Some(types) => types.iter().any(|t| t != "full_attention"),
        None => {
            fields.boolean("use_sliding_window")?.unwrap_or(false)
                && json.get("sliding_window").is_none_or(|window| !window.is_null())
                && fields.integer("max_window_layers")?.unwrap_or(28) < layers
        }
    };
    if slides {
        return Err(input_error!(
            "sliding-window attention is not supported; set use_sliding_window to false if sequences stay below the window"
        ));
    }
    Ok(())
}

/// The rotary base and the change of its frequencies: transformers 5 writes `rope_parameters`, older ones `rope_theta` and
/// perhaps `rope_scaling`. `longest` is `max_position_embeddings`.
fn rope(json: &Map<String, Value>, default: f64, longest: i64) -> Result<(f64, Option<RopeScaling>)> {
    let outer = Fields(json).number("rope_theta")?;
    let section = ["rope_scaling", "rope_parameters"]
        .into_iter()
        .find_map(|name| json.get(name).filter(|v| !v.is_null()).map(|value| (name, value)));
    let Some((name, section)) = section else { return Ok((outer.unwrap_or(default), None)) };
    let inner = section.as_object().ok_or_else(|| input_error!("{name} must be an object, not {section}"))?;
    let fields = Fields(inner);
    let kind = fields.text("rope_type")?.or(fields.text("type")?).unwrap_or_else(|| "default".into());
    let whole = fields.number("partial_rotary_factor")?.unwrap_or(1.0) == 1.0;
    let original = Fields(json).integer("original_max_position_embeddings")?;
    let original = original.or(fields.integer("original_max_position_embeddings")?).unwrap_or(longest);
    let scaling = RopeScaling::from_json(&kind, &fields, longest, original)?;
    let known = kind == "default" || kind == "mrope" && inner.contains_key("mrope_section") || scaling.is_some();
    if !known || !whole || inner.values().any(Value::is_object) {
        return Err(input_error!("{name} {section} is not supported; remove it to use the plain rotary embedding"));
    }
    Ok((fields.number("rope_theta")?.or(outer).unwrap_or(default), scaling))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::arch::shape_names;

    fn read(change: Value) -> Result<Config> {
        let mut json = Config::shape("tiny").and_then(|c| c.to_json(&[], Kind::Float)).expect("tiny");
        for (key, value) in change.as_object().expect("an object") {
            json[key] = value.clone();
        }
        Config::from_json(json.as_object().expect("an object"))
    }

    #[test]
    fn a_written_config_reads_back() {
        for name in shape_names() {
            let shape = Config::shape(name).expect(name);
            let json = shape.to_json(&[], Kind::Float).expect(name);
            assert_eq!(Config::from_json(json.as_object().expect("an object")).expect(name), shape);
        }
    }

    #[test]
    fn heads_may_have_a_size_of_their_own() {
        assert_eq!(read(json!({})).expect("read").head_dim(), 16);
        assert_eq!(read(json!({"head_dim": 32})).expect("read").head_dim(), 32);
        let qwen3 = json!({"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]});
        assert_eq!(read(qwen3).expect("read").head_dim(), 128, "the default of transformers");
    }

    #[test]
    fn both_forms_of_the_rotary_base_are_read() {
        let theta = |change| read(change).expect("read").rope_theta;
        assert_eq!(theta(json!({"rope_theta": null})), 1e4);
        assert_eq!(
            theta(json!({"rope_theta": null, "rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}})),
            5e5
        );
        assert_eq!(theta(json!({"rope_theta": 2e6, "rope_parameters": {"rope_type": "default"}})), 2e6);
    }

    #[test]
    fn scaled_frequencies_are_written_as_they_were_read() {
        let scaling = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                             "original_max_position_embeddings": 512});
        let json = read(json!({"rope_scaling": scaling})).and_then(|c| c.to_json(&[], Kind::Float)).expect("read");
        assert_eq!(json["rope_scaling"], scaling);
        // A file of transformers 5 keeps its own form alone.
        let mut new = scaling.clone();
        new["rope_theta"] = 1e6.into();
        let original = json!({ "rope_parameters": new });
        let config = read(json!({"rope_theta": null, "rope_parameters": new})).expect("read");
        let original = original.as_object().expect("an object").clone();
        let json = config.to_json_like(original, &[], Kind::Float).expect("written");
        assert!(json["rope_parameters"] == new && json.get("rope_scaling").is_none(), "{json}");
    }

    #[test]
    fn absent_fields_get_transformers_defaults() {
        let config = json!({"model_type": "qwen2", "vocab_size": 8, "hidden_size": 64, "intermediate_size": 8,
                            "num_hidden_layers": 1, "num_attention_heads": 32});
        let config = Config::from_json(config.as_object().expect("an object")).expect("read");
        assert_eq!((config.num_key_value_heads, config.tie_word_embeddings), (32, false));
        assert_eq!((config.rms_norm_eps, config.max_position_embeddings), (1e-6, 32_768));
    }

    #[test]
    fn unsupported_networks_are_refused() {
        for (change, word) in [
            (json!({"model_type": "mamba", "architectures": ["MambaForCausalLM"]}), "MambaForCausalLM"),
            (json!({"rope_scaling": {"type": "longrope", "factor": 4.0}}), "rope_scaling"),
            (json!({"rope_scaling": {"type": "yarn", "factor": 4.0, "beta_fast": 0.5}}), "beta_slow"),
            (json!({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}), "low_freq_factor"),
            (json!({"rope_scaling": {"rope_type": "linear", "factor": 0.5}}), "at least 1"),
            (json!({"use_sliding_window": true, "max_window_layers": 1}), "sliding"),
            (json!({"layer_types": ["full_attention", "sliding_attention"]}), "sliding"),
            (json!({"num_key_value_heads": 3}), "num_key_value_heads"),
            (json!({"hidden_size": 66}), "hidden_size"),
            (json!({"hidden_size": "64"}), "whole number"),
            (json!({"head_dim": 33}), "head_dim"),
            (json!({"head_dim": 0}), "head_dim"),
            (json!({"model_type": "qwen3"}), "Qwen2ForCausalLM"),
            (
                json!({"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "attention_bias": true}),
                "attention_bias",
            ),
            (json!({"vocab_size": i64::MAX}), "parameters"),
            (json!({"num_attention_heads": 1_i64 << 62}), "hidden_size"),
            (json!({"num_attention_heads": 1_i64 << 62, "num_key_value_heads": null, "head_dim": 2}), "parameters"),
            (json!({"num_hidden_layers": 1_i64 << 40}), "blocks"),
        ] {
            let error = read(change.clone()).expect_err("refused").to_string();
            assert!(error.contains(word), "{change}: {error}");
        }
    }
}
