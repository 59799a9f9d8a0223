//! Models with random weights, initialised as transformers does.

use std::path::Path;

use anyhow::{Context, Result, anyhow};
use tch::{Device, Kind, Tensor};

use super::new_folder::in_new_folder_or_stop;
use super::weights::write;
use super::{Config, Model};
use crate::input_error;
use crate::random::{WEIGHTS, normals};
use crate::recipe::NewModel;
use crate::tokenizer::Tokenizer;

/// Elements drawn from one random stream; threads draw different streams.
const CHUNK: i64 = 1 << 20;

/// The model that `nestor model new` writes.
#[derive(Debug)]
pub struct RandomModel<'a> {
    pub config: Config,
    /// A `tokenizer.json` with Qwen's special tokens.
    pub tokenizer: Option<&'a Path>,
    /// Seed of the weights.
    pub seed: u64,
    /// The stored type of the weights.
    pub kind: Kind,
}

/// Writes a model with random weights as a Hugging Face folder, with the files of its tokenizer if it has one.
pub fn create(dir: &Path, new: &RandomModel) -> Result<()> {
    let seeing = new.config.vision.is_some();
    let tokenizer = new.tokenizer.map(|path| Tokenizer::from_file(path, seeing)).transpose()?;
    if let (Some(tokenizer), Some(path)) = (&tokenizer, new.tokenizer) {
        check_vocabulary(&new.config, tokenizer).map_err(|error| input_error!("{}: {error:#}", path.display()))?;
    }
    let mut config = new.config.clone();
    if let (Some(vision), Some(tokenizer), Some(path)) = (&mut config.vision, &tokenizer, new.tokenizer) {
        let Some(ids) = tokenizer.image_ids() else {
            return Err(input_error!(
                "{}: has no tokens for images (<|image_pad|> and others); take the tokenizer.json of a Qwen2.5-VL model",
                path.display()
            ));
        };
        let [start, end, image, video] = ids.map(i64::from);
        (vision.vision_start_token_id, vision.vision_end_token_id) = (start, end);
        (vision.image_token_id, vision.video_token_id) = (image, video);
    }
    in_new_folder_or_stop(dir, |staged| {
        let model = random(&config, new.seed, new.kind, Device::Cpu)?;
        let mut eos = &[][..];
        if let Some(tokenizer) = &tokenizer {
            tokenizer.save(staged)?;
            eos = tokenizer.eos();
        }
        write(&model, staged, eos, new.kind)
    })
}

/// The network that a recipe's `model.new` describes, with this tokenizer, for sequences of `max_tokens`.
pub fn config(new: &NewModel, tokenizer: &Tokenizer, max_tokens: usize) -> Result<Config> {
    let vocabulary = tokenizer.vocab_size() as i64;
    let ids = match new.vision {
        Some(_) => tokenizer.image_ids().context("a tokenizer for images has their tokens")?.map(i64::from),
        None => last_ids(vocabulary),
    };
    Config::of_new(new, vocabulary, max_tokens as i64, ids)
}

/// The last four ids of a vocabulary: those of the tokens for images in a trained tokenizer.
pub fn last_ids(vocabulary: i64) -> [i64; 4] {
    [4, 3, 2, 1].map(|back| vocabulary - back)
}

/// Checks that the network has an embedding row for every token, and for every end-of-sequence id.
pub fn check_vocabulary(config: &Config, tokenizer: &Tokenizer) -> Result<()> {
    let (rows, ids) = (config.vocab_size, tokenizer.vocab_size());
    if ids as i64 > rows {
        return Err(input_error!(
            "the tokenizer has {ids} ids, but the model's vocab_size is {rows}; take tokenizer and model that belong \
             together"
        ));
    }
    match tokenizer.eos().iter().find(|&&id| i64::from(id) >= rows) {
        Some(id) => Err(input_error!(
            "the end-of-sequence id {id} is beyond the model's vocab_size {rows}; mend eos_token_id in \
             generation_config.json"
        )),
        None => Ok(()),
    }
}

/// A network with normal weights of standard deviation `initializer_range`, zero biases and norms of one. The weights
/// depend on the seed alone, not on the number of threads.
pub fn random(config: &Config, seed: u64, kind: Kind, device: Device) -> Result<Model> {
    config.check()?;
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let model = Model::empty(config.clone(), kind, device);
    let mut number = 0;
    for (layout, flat) in model.layouts.iter().zip(model.units.whole()?) {
        for param in &layout.params {
            number += 1;
            let is_norm = ["norm.weight", "norm1.weight", "norm2.weight", "ln_q.weight"];
            let is_norm = is_norm.iter().any(|end| param.name.ends_with(end));
            if is_norm {
                let _ = flat.narrow(0, param.offset, param.numel()).fill_(1.0);
            }
            if is_norm || param.name.ends_with("bias") {
                continue;
            }
            let starts: Vec<i64> = (0..param.numel()).step_by(CHUNK as usize).collect();
            for some in starts.chunks(threads) {
                for (start, values) in some.iter().zip(draw(seed, number, some, param.numel())?) {
                    let values = Tensor::from_slice(&values) * config.initializer_range;
                    flat.narrow(0, param.offset + start, values.numel() as i64).copy_(&values);
                }
            }
        }
    }
    Ok(model)
}

/// Draws the chunks of parameter `number` that begin at `starts`, one thread each.
fn draw(seed: u64, number: u64, starts: &[i64], numel: i64) -> Result<Vec<Vec<f32>>> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = starts
            .iter()
            .map(|&start| scope.spawn(move || normals([seed, number, start as u64, WEIGHTS], CHUNK.min(numel - start))))
            .collect();
        threads.into_iter().map(|t| t.join().map_err(|_| anyhow!("a thread that draws weights died"))).collect()
    })
}
