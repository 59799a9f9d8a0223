//! `preprocessor_config.json`, the file of a Hugging Face image processor.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nestor_plugin::files::SMALL;
use nestor_recipe::input_error;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::Processor;
use crate::processor::{CLIP_MEAN, CLIP_STD, RESCALE};

const FILE: &str = "preprocessor_config.json";

/// The file in which transformers 5 keeps the parts of a processor.
const PARTS_FILE: &str = "processor_config.json";

/// Class names of processors with these rules. `Fast` and `Pil` name implementations.
const CLASSES: [&str; 2] = ["Qwen2VLImageProcessor", "Qwen2_5_VLImageProcessor"];

const CLASS_KEYS: [&str; 3] = ["image_processor_type", "image_processor_class", "feature_extractor_type"];

/// Steps that Nestor always takes.
const ALWAYS: [&str; 4] = ["do_convert_rgb", "do_normalize", "do_rescale", "do_resize"];

/// Steps that Nestor never takes.
const NEVER: [&str; 4] = ["crop_size", "do_center_crop", "do_pad", "pad_size"];

/// Keys without effect on the patches of one image.
const WITHOUT_EFFECT: [&str; 6] =
    ["default_to_square", "device", "disable_grouping", "input_data_format", "processor_class", "return_tensors"];

/// The bounds of a file that gives none, as in transformers.
const DEFAULT_MIN: u64 = 56 * 56;
const DEFAULT_MAX: u64 = 28 * 28 * 1280;

impl Processor {
    /// Reads a `preprocessor_config.json`, or that of a model folder. In a folder, the part `image_processor` of
    /// `processor_config.json` comes first, as in transformers.
    ///
    /// # Errors
    /// When the file is absent or malformed, has an unknown key, or asks for a step that Nestor does not take.
    pub fn load(path: &Path) -> Result<Self> {
        let parts = path.join(PARTS_FILE);
        if parts.is_file()
            && let Some(Value::Object(keys)) = read_json(&parts)?.remove("image_processor")
        {
            return from_keys(keys).map_err(|wrong| refused(&parts, "image_processor: ", wrong));
        }
        let file = if path.is_dir() { path.join(FILE) } else { PathBuf::from(path) };
        from_keys(read_json(&file)?).map_err(|wrong| refused(&file, "", wrong))
    }

    /// The processor as the text of a `preprocessor_config.json`, in the form of the published files of Qwen2.5-VL.
    pub fn to_json(&self) -> Result<String> {
        let published = Published {
            min_pixels: self.min_pixels,
            max_pixels: self.max_pixels,
            patch_size: self.patch_size,
            temporal_patch_size: self.temporal_patch_size,
            merge_size: self.merge_size,
            image_mean: self.mean,
            image_std: self.std,
            image_processor_type: CLASSES[0],
            processor_class: "Qwen2_5_VLProcessor",
        };
        let text = serde_json::to_string_pretty(&published).context("cannot write an image processor as JSON")?;
        Ok(text + "\n")
    }
}

/// The keys of the published files, in their order.
#[derive(Serialize)]
struct Published {
    min_pixels: u64,
    max_pixels: u64,
    patch_size: u32,
    temporal_patch_size: u32,
    merge_size: u32,
    image_mean: [f64; 3],
    image_std: [f64; 3],
    image_processor_type: &'static str,
    processor_class: &'static str,
}

fn refused(file: &Path, part: &str, wrong: String) -> anyhow::Error {
    input_error!("{}: {part}{wrong}", file.display())
}

fn read_json(file: &Path) -> Result<Map<String, Value>> {
    let text = nestor_plugin::files::read_to_string(file, SMALL).map_err(|err| {
        refused(file, "", format!("cannot be read: {err}; take the file of the model that images go to"))
    })?;
    serde_json::from_str(&text)
        .map_err(|err| refused(file, "", format!("is no JSON object: {err}; take the file of a published model")))
}

/// The processor that these keys describe, or the first wrong key with its remedy.
fn from_keys(mut keys: Map<String, Value>) -> Result<Processor, String> {
    let mut bounds = Bounds::of(keys.remove("size"))?;
    if let Some(min) = integer(&mut keys, "min_pixels")? {
        bounds.min = Some(min);
    }
    if let Some(max) = integer(&mut keys, "max_pixels")? {
        bounds.max = Some(max);
    }
    let (Some(min_pixels), Some(max_pixels)) = (bounds.min, bounds.max) else {
        return Err("size has no \"shortest_edge\" and \"longest_edge\", the least and most pixels; give both".into());
    };
    let mut side = |key: &str, default: u32| match integer(&mut keys, key)? {
        Some(size) => u32::try_from(size).map_err(|_| format!("{key} is {size}; give the model's")),
        None => Ok(default),
    };
    let (patch_size, merge_size) = (side("patch_size", 14)?, side("merge_size", 2)?);
    let temporal_patch_size = side("temporal_patch_size", 2)?;
    let mean = channels(&mut keys, "image_mean", CLIP_MEAN)?;
    let std = channels(&mut keys, "image_std", CLIP_STD)?;
    for (key, value) in &keys {
        supported(key, value)?;
    }
    Processor { patch_size, merge_size, temporal_patch_size, min_pixels, max_pixels, mean, std }.checked()
}

/// Least and most pixels after resizing, as far as they are given.
struct Bounds {
    min: Option<u64>,
    max: Option<u64>,
}

impl Bounds {
    /// Those of the key `size`, as transformers takes them: `min_pixels` and `max_pixels` within it have no effect.
    fn of(size: Option<Value>) -> Result<Self, String> {
        let mut size = match size {
            None | Some(Value::Null) => return Ok(Self { min: Some(DEFAULT_MIN), max: Some(DEFAULT_MAX) }),
            Some(Value::Object(size)) => size,
            Some(other) => return Err(format!("size is {other}; give \"shortest_edge\" and \"longest_edge\"")),
        };
        let bounds = Self { min: integer(&mut size, "shortest_edge")?, max: integer(&mut size, "longest_edge")? };
        for key in ["min_pixels", "max_pixels"] {
            size.remove(key);
        }
        match size.keys().next() {
            Some(key) => Err(format!("size has an unknown key \"{key}\"; give \"shortest_edge\" and \"longest_edge\"")),
            None => Ok(bounds),
        }
    }
}

/// Removes a key and returns its integer, if it has one.
fn integer(keys: &mut Map<String, Value>, key: &str) -> Result<Option<u64>, String> {
    match keys.remove(key) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => match value.as_u64() {
            Some(number) => Ok(Some(number)),
            None => Err(format!("{key} is {value}; give a whole number")),
        },
    }
}

/// Removes a key and returns its number for red, green and blue.
fn channels(keys: &mut Map<String, Value>, key: &str, default: [f64; 3]) -> Result<[f64; 3], String> {
    let Some(value) = keys.remove(key) else { return Ok(default) };
    serde_json::from_value(value.clone())
        .map_err(|_| format!("{key} is {value}; give 3 numbers, for red, green and blue"))
}

/// Refuses a key that is unknown or asks for what Nestor does not do.
fn supported(key: &str, value: &Value) -> Result<(), String> {
    let one_of = |allowed: bool, remedy: &str| {
        if allowed { Ok(()) } else { Err(format!("{key} is {value}; Nestor supports {remedy}")) }
    };
    match key {
        _ if WITHOUT_EFFECT.contains(&key) => Ok(()),
        _ if CLASS_KEYS.contains(&key) => {
            let class = value.as_str().unwrap_or_default();
            let class = class.strip_suffix("Fast").or(class.strip_suffix("Pil")).unwrap_or(class);
            one_of(CLASSES.contains(&class), &format!("\"{}\" alone: take a model of Qwen2.5-VL", CLASSES[0]))
        }
        _ if ALWAYS.contains(&key) => one_of(value == &Value::Bool(true), "true alone"),
        _ if NEVER.contains(&key) => one_of(value.is_null() || value == &Value::Bool(false), "null or false alone"),
        "data_format" => one_of(value.is_null() || value == "channels_first", "\"channels_first\" alone"),
        "resample" => one_of(value.as_u64() == Some(3), "3 (bicubic) alone"),
        "rescale_factor" => {
            let given = value.as_f64().unwrap_or_default();
            one_of((given - RESCALE).abs() < 1e-9, "1/255 (0.00392156862745098) alone")
        }
        _ => Err(format!(
            "unknown key \"{key}\"; Nestor applies the rules of {}: take its file, or remove the key",
            CLASSES[0]
        )),
    }
}
