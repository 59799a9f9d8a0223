//! The sizes of a vision tower, and its keys in `config.json`.

use anyhow::Result;
use nestor_images::Processor;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::fields::Fields;
use crate::input_error;
use crate::recipe::{NewModel, NewVision};

/// The parts of Qwen2.5-VL that Qwen2.5 lacks, under their Hugging Face names.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VisionConfig {
    /// Number of blocks.
    pub depth: i64,
    /// Width of the tower's residual stream.
    pub hidden_size: i64,
    /// Width of its feed-forward layers.
    pub intermediate_size: i64,
    /// Number of heads.
    pub num_heads: i64,
    /// Pixels of a patch's side.
    pub patch_size: i64,
    /// Frames of a patch: a still image is repeated.
    pub temporal_patch_size: i64,
    /// Patches of the side of a square that the merger makes one token of.
    pub spatial_merge_size: i64,
    /// Pixels of the side of an attention window.
    pub window_size: i64,
    /// The blocks that attend to the whole image; the others attend inside windows.
    pub fullatt_block_indexes: Vec<i64>,
    /// Pairs of a head's rotary angles that count time, rows and columns.
    pub mrope_section: [i64; 3],
    /// The token that stands for a part of an image.
    pub image_token_id: i64,
    pub video_token_id: i64,
    pub vision_start_token_id: i64,
    pub vision_end_token_id: i64,
    /// From an image to patches: the folder's `preprocessor_config.json`.
    pub processor: Processor,
}

/// Sizes beyond any tower; they bound what a wrong `config.json` allocates.
const MOST_BLOCKS: i64 = 1_000;
const MOST_SIZE: i64 = 1 << 20;

impl VisionConfig {
    /// The tower of Qwen2.5-VL-3B and 7B, and its token ids.
    pub fn published() -> Self {
        Self {
            depth: 32,
            hidden_size: 1_280,
            intermediate_size: 3_420,
            num_heads: 16,
            patch_size: 14,
            temporal_patch_size: 2,
            spatial_merge_size: 2,
            window_size: 112,
            fullatt_block_indexes: vec![7, 15, 23, 31],
            mrope_section: [16, 24, 24],
            image_token_id: 151_655,
            video_token_id: 151_656,
            vision_start_token_id: 151_652,
            vision_end_token_id: 151_653,
            processor: Processor::default(),
        }
    }

    /// The tower that a recipe's `model.new.vision` describes. All of its blocks attend to the whole image. Time, rows and
    /// columns share the angles of the language model's heads as in the published models: a quarter, and three eighths each.
    pub fn of_new(new: &NewModel, vision: &NewVision, image_ids: [i64; 4]) -> Self {
        let half = new.hidden_size / new.heads / 2;
        let side = half * 3 / 8;
        let [start, end, image, video] = image_ids;
        let processor = Processor { patch_size: vision.patch_size as u32, ..Processor::default() };
        Self {
            depth: vision.layers,
            hidden_size: vision.hidden_size,
            intermediate_size: vision.intermediate_size,
            num_heads: vision.heads,
            patch_size: vision.patch_size,
            window_size: 8 * vision.patch_size,
            fullatt_block_indexes: (0..vision.layers).collect(),
            mrope_section: [half - 2 * side, side, side],
            image_token_id: image,
            video_token_id: video,
            vision_start_token_id: start,
            vision_end_token_id: end,
            processor,
            ..Self::published()
        }
    }

    /// Size of one head.
    pub fn head_dim(&self) -> i64 {
        self.hidden_size / self.num_heads
    }

    /// Numbers of a patch.
    pub fn patch_numel(&self) -> i64 {
        3 * self.temporal_patch_size * self.patch_size * self.patch_size
    }

    /// Patches that the merger makes one token of.
    pub fn merged(&self) -> i64 {
        self.spatial_merge_size * self.spatial_merge_size
    }

    /// True if this block attends to the whole image.
    pub fn attends_fully(&self, block: usize) -> bool {
        self.fullatt_block_indexes.contains(&(block as i64))
    }

    /// Reads the keys of a `config.json`; `sections` are its rotary sections. Absent fields get transformers' defaults.
    pub fn from_json(json: &Map<String, Value>, hidden_size: i64) -> Result<Self> {
        let outer = Fields(json);
        let section = json.get("vision_config").and_then(Value::as_object);
        let section =
            section.ok_or_else(|| input_error!("vision_config is missing; take the config.json of a whole model"))?;
        let fields = Fields(section);
        let named = |error: anyhow::Error| input_error!("vision_config: {error:#}");
        let size =
            |name: &str, default: i64| Ok::<_, anyhow::Error>(fields.integer(name).map_err(named)?.unwrap_or(default));
        if let Some(act) = fields.text("hidden_act").map_err(named)?
            && act != "silu"
        {
            return Err(input_error!("vision_config: hidden_act \"{act}\" is not supported, only \"silu\""));
        }
        for name in ["in_chans", "in_channels"] {
            if size(name, 3)? != 3 {
                return Err(input_error!("vision_config: {name} must be 3: images have red, green and blue"));
            }
        }
        let out = size("out_hidden_size", 3_584)?;
        if out != hidden_size {
            return Err(input_error!(
                "vision_config: out_hidden_size is {out}, but the language model's hidden_size is {hidden_size}"
            ));
        }
        let blocks = match section.get("fullatt_block_indexes") {
            None | Some(Value::Null) => vec![7, 15, 23, 31],
            Some(list) => serde_json::from_value(list.clone())
                .map_err(|_| input_error!("vision_config: fullatt_block_indexes must be a list of whole numbers"))?,
        };
        let id = |name: &str, default: i64| Ok::<_, anyhow::Error>(outer.integer(name)?.unwrap_or(default));
        let (patch_size, merge, frames) =
            (size("patch_size", 14)?, size("spatial_merge_size", 2)?, size("temporal_patch_size", 2)?);
        let config = Self {
            depth: size("depth", 32)?,
            hidden_size: size("hidden_size", 3_584)?,
            intermediate_size: size("intermediate_size", 3_420)?,
            num_heads: size("num_heads", 16)?,
            patch_size,
            temporal_patch_size: frames,
            spatial_merge_size: merge,
            window_size: size("window_size", 112)?,
            fullatt_block_indexes: blocks,
            mrope_section: mrope_section(json)?,
            image_token_id: id("image_token_id", 151_655)?,
            video_token_id: id("video_token_id", 151_656)?,
            vision_start_token_id: id("vision_start_token_id", 151_652)?,
            vision_end_token_id: id("vision_end_token_id", 151_653)?,
            processor: Processor::default(),
        };
        config.check_sizes()?;
        let processor = Processor::new(patch_size as u32, merge as u32, frames as u32)?;
        Ok(Self { processor, ..config })
    }

    fn check_sizes(&self) -> Result<()> {
        let sizes = [
            ("depth", self.depth, MOST_BLOCKS),
            ("hidden_size", self.hidden_size, MOST_SIZE),
            ("intermediate_size", self.intermediate_size, MOST_SIZE),
            ("num_heads", self.num_heads, MOST_SIZE),
            ("patch_size", self.patch_size, 1 << 10),
            ("temporal_patch_size", self.temporal_patch_size, 16),
            ("spatial_merge_size", self.spatial_merge_size, 16),
            ("window_size", self.window_size, MOST_SIZE),
        ];
        if let Some((name, size, most)) = sizes.iter().find(|(_, size, most)| !(1..=*most).contains(size)) {
            return Err(input_error!("vision_config: {name} is {size}; it must be from 1 to {most}"));
        }
        if self.hidden_size % self.num_heads != 0 || self.head_dim() % 4 != 0 {
            return Err(input_error!(
                "vision_config: hidden_size {} does not divide into {} heads of a size that is a multiple of 4, which \
                 rows and columns share",
                self.hidden_size,
                self.num_heads
            ));
        }
        if self.window_size / self.patch_size / self.spatial_merge_size < 1 {
            return Err(input_error!(
                "vision_config: window_size {} is smaller than one merged patch",
                self.window_size
            ));
        }
        Ok(())
    }

    /// Checks that the sizes fit the language model's: its head size and vocabulary.
    pub fn check(&self, head_dim: i64, vocab_size: i64) -> Result<()> {
        self.check_sizes()?;
        let sections: i64 = self.mrope_section.iter().sum();
        if sections != head_dim / 2 || self.mrope_section.iter().any(|&n| n < 0) {
            return Err(input_error!(
                "mrope_section {:?} must have the sum {}, half the size of a head",
                self.mrope_section,
                head_dim / 2
            ));
        }
        for (name, id) in [
            ("image_token_id", self.image_token_id),
            ("vision_start_token_id", self.vision_start_token_id),
            ("vision_end_token_id", self.vision_end_token_id),
        ] {
            if !(0..vocab_size).contains(&id) {
                return Err(input_error!("{name} {id} is no row of the embedding, whose vocab_size is {vocab_size}"));
            }
        }
        Ok(())
    }

    /// Adds the keys to a `config.json` in the form that Qwen publishes.
    pub fn put_json(&self, json: &mut Value, hidden_size: i64) {
        json["vision_config"] = json!({
            "depth": self.depth,
            "hidden_act": "silu",
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_heads": self.num_heads,
            "in_chans": 3,
            "out_hidden_size": hidden_size,
            "patch_size": self.patch_size,
            "spatial_merge_size": self.spatial_merge_size,
            "spatial_patch_size": self.patch_size,
            "window_size": self.window_size,
            "fullatt_block_indexes": self.fullatt_block_indexes,
            "tokens_per_second": 2,
            "temporal_patch_size": self.temporal_patch_size,
        });
        json["rope_scaling"] = json!({ "type": "mrope", "mrope_section": self.mrope_section });
        json["image_token_id"] = self.image_token_id.into();
        json["video_token_id"] = self.video_token_id.into();
        json["vision_start_token_id"] = self.vision_start_token_id.into();
        json["vision_end_token_id"] = self.vision_end_token_id.into();
    }
}

/// The rotary sections: `rope_scaling` in published files, `rope_parameters` in those of transformers 5.
fn mrope_section(json: &Map<String, Value>) -> Result<[i64; 3]> {
    let section = ["rope_scaling", "rope_parameters"].iter().find_map(|name| json.get(*name)?.get("mrope_section"));
    match section {
        None | Some(Value::Null) => Ok([16, 24, 24]),
        Some(list) => serde_json::from_value(list.clone()).map_err(|_| {
            input_error!("mrope_section must be three whole numbers, for time, rows and columns, not {list}")
        }),
    }
}
