//! Model FLOPs utilization: the share of its devices' arithmetic that a run uses (Chowdhery et al. 2022, "PaLM", arXiv
//! 2204.02311, appendix B). Recomputation does not count, so that it cannot make a run look fast.

use std::collections::HashSet;
use std::time::Instant;

use tch::{Cuda, Device, Kind, Tensor};

use super::peaks::data_sheet;
use crate::data::Batch;
use crate::model::flops::{block_flops, head_flops, merger_flops, tower_flops};
use crate::model::{Config, Model};

/// FLOPs of training per forward FLOP: the backward pass takes two products for each one of the forward pass.
pub const TRAINED: f64 = 3.0;

/// The same where adapters alone are trained: the frozen weights have no gradient, and the adapters' own products are few.
pub const TRAINED_THROUGH_ADAPTERS: f64 = 2.0;

/// Rows of the matrices whose product measures a CPU.
const CPU_SIZE: i64 = 512;

/// FLOPs of an iteration, relative to the peak of the ranks' devices.
#[derive(Debug, Clone, Copy)]
pub struct Speed {
    /// Peak FLOP/s of one rank's device: that of its data sheet, or the largest rate seen, of products alone or of the run's
    /// own work.
    pub peak: f64,
    device: Device,
    kind: Kind,
    ranks: usize,
    done: f64,
}

impl Speed {
    /// Looks the peak of this rank's device up, or measures it.
    pub fn measure(device: Device, kind: Kind, ranks: usize) -> Self {
        let known = device.is_cuda().then(|| data_sheet(kind)).flatten();
        let peak = known.unwrap_or_else(|| product_rate(device, kind, 5));
        Self { peak, device, kind, ranks, done: 0.0 }
    }

    /// Measures the peak of a CPU again after a row of this many seconds, unless that would cost a hundredth of the row: other
    /// programs may have slowed the first measurement down.
    pub fn refresh(&mut self, seconds: f64) {
        if self.device == Device::Cpu && product_flops(CPU_SIZE) / self.peak < 0.01 * seconds {
            self.peak = self.peak.max(product_rate(self.device, self.kind, 1));
        }
    }

    /// Adds FLOPs of all ranks to the iteration.
    pub fn count(&mut self, flops: f64) {
        self.done += flops;
    }

    /// The given FLOPs in the given seconds as a share of the peak of all ranks, at most 1. A rate over the peak shows that
    /// other programs slowed its measurement down, so it is measured again; then the rate itself is the best bound.
    pub fn share(&mut self, flops: f64, seconds: f64) -> f64 {
        let rate = flops / (seconds.max(1e-9) * self.ranks as f64);
        if rate > self.peak {
            self.peak = self.peak.max(product_rate(self.device, self.kind, 5)).max(rate);
        }
        rate / self.peak
    }

    /// FLOPs counted since the last call of [`Self::take`].
    pub fn so_far(&self) -> f64 {
        self.done
    }

    /// FLOPs counted since the last call.
    pub fn take(&mut self) -> f64 {
        std::mem::take(&mut self.done)
    }
}

/// FLOPs of one forward pass of the language model over a batch, with the LM head on response tokens only.
pub fn forward_flops(c: &Config, batch: &Batch) -> f64 {
    let tokens = |length: f64| length * c.num_hidden_layers as f64 * block_flops(c, length);
    let blocks: f64 = batch.sequences.iter().map(|s| tokens(s.tokens.len() as f64)).sum();
    blocks + batch.rows.token_rewards.len() as f64 * head_flops(c)
}

/// FLOPs of one forward pass over a batch by a network that has not seen its images.
pub fn scoring_flops(c: &Config, batch: &Batch) -> f64 {
    forward_flops(c, batch) + image_flops(c, batch)[0]
}

/// FLOPs of a vision tower for a batch's images, each once: the tower's, and those of its merger among them.
pub fn image_flops(c: &Config, batch: &Batch) -> [f64; 2] {
    let Some(vision) = &c.vision else { return [0.0; 2] };
    let mut seen = HashSet::new();
    let images = batch.sequences.iter().flat_map(|s| &s.images).map(|shown| &shown.image);
    let distinct = images.filter(|image| seen.insert(image.key()));
    let flops = distinct.filter_map(|image| vision.grid(image).ok()).map(|grid| {
        let patches = f64::from(grid.rows) * f64::from(grid.cols);
        [tower_flops(vision, c.hidden_size, patches), patches * merger_flops(vision, c.hidden_size)]
    });
    flops.fold([0.0; 2], |[tower, merger], one| [tower + one[0], merger + one[1]])
}

/// FLOPs of one forward and backward pass over a batch, of the parts that are trained. A frozen tower's embeddings come
/// from the cache.
pub fn training_flops(model: &Model, batch: &Batch) -> f64 {
    let c = &model.config;
    let [tower, merger] = image_flops(c, batch);
    let (language, trained) = match &model.adapters {
        Some(_) => (TRAINED_THROUGH_ADAPTERS, 0.0),
        None if model.trained > model.merger_unit() + 1 => (TRAINED, tower),
        None if model.trained > model.merger_unit() => (TRAINED, merger),
        None => (TRAINED, 0.0),
    };
    language * forward_flops(c, batch) + TRAINED * trained
}

/// FLOPs of generating a batch. `prefilled` counts the prompt tokens that were computed, not those that the cache
/// shared.
pub fn generation_flops(c: &Config, batch: &Batch, prefilled: u64, generated: u64) -> f64 {
    let tokens: usize = batch.sequences.iter().map(|s| s.tokens.len()).sum();
    let length = tokens as f64 / batch.sequences.len().max(1) as f64;
    let each = c.num_hidden_layers as f64 * block_flops(c, length);
    (prefilled + generated) as f64 * each + generated as f64 * head_flops(c)
}

/// FLOPs of a product of two square matrices.
fn product_flops(n: i64) -> f64 {
    2.0 * (n * n * n) as f64
}

/// FLOP/s of a large matrix product. Takes the best of several, since other programs may use the machine.
pub fn product_rate(device: Device, kind: Kind, times: usize) -> f64 {
    let n = if device.is_cuda() { 8192 } else { CPU_SIZE };
    let wait = || {
        if let Device::Cuda(index) = device {
            Cuda::synchronize(index as i64);
        }
    };
    let a = Tensor::arange(n * n, (Kind::Float, device)).sin().view([n, n]).to_kind(kind);
    let seconds = (0..times).map(|_| {
        wait();
        let begin = Instant::now();
        let _product = a.matmul(&a);
        wait();
        begin.elapsed().as_secs_f64()
    });
    product_flops(n) / seconds.fold(f64::INFINITY, f64::min)
}

#[cfg(test)]
mod tests {
    use nestor_plugin::Image;

    use super::*;
    use crate::data::{Rows, Sequence, SequenceImage};

    #[test]
    fn a_share_is_at_most_one_and_the_peak_the_largest_rate_seen() {
        let mut speed = Speed { peak: 1.0, device: Device::Cpu, kind: Kind::Float, ranks: 2, done: 0.0 };
        let slow = speed.share(1e3, 1.0);
        assert!(slow < 1e-3 && speed.peak > 1e6, "{speed:?}"); // a measured product is faster than 500 FLOP/s
        assert_eq!(speed.share(4e30, 1.0), 1.0);
        assert_eq!((speed.peak, speed.share(1e30, 1.0)), (2e30, 0.25));
    }

    #[test]
    fn a_peak_measured_beside_other_programs_is_measured_again() {
        let mut speed = Speed { peak: 1e6, device: Device::Cpu, kind: Kind::Float, ranks: 1, done: 0.0 };
        speed.refresh(1.0); // the product would cost more than the row
        assert_eq!(speed.peak, 1e6);
        speed.refresh(1e6);
        assert!(speed.peak > 1e6, "{speed:?}");
    }

    /// The published tower by hand: 2 FLOPs for each matrix weight and patch, or token of the merger, and 4 W for each pair of
    /// patches that attend to each other: 4 of 32 blocks over the whole image, the others inside windows of 64 patches.
    #[test]
    fn flops_of_a_tower_count_each_image_once() {
        let config = Config::shape("qwen2.5-vl-3b").expect("a known shape");
        // 16 x 20 patches, 80 tokens.
        let image = |shade| Image::new(280, 224, vec![shade; 3 * 280 * 224]).expect("an image");
        let shown = |shades: &[u8]| Sequence {
            images: shades.iter().map(|&shade| SequenceImage { start: 0, image: image(shade).into() }).collect(),
            ..Sequence::default()
        };
        let batch = Batch { sequences: vec![shown(&[1, 2]), shown(&[2])], ..Batch::default() };
        let (patches, width, ffn) = (320u64, 1280u64, 3420u64);
        let matrices = 3 * 2 * 14 * 14 * width + 32 * (4 * width * width + 3 * width * ffn);
        let merger = 80 * 2 * (5120 * 5120 + 5120 * 2048);
        let tower = patches * 2 * matrices + patches * 4 * width * (4 * 320 + 28 * 64) + merger;
        assert_eq!(image_flops(&config, &batch), [2.0 * tower as f64, 2.0 * merger as f64]);
        assert_eq!(image_flops(&Config::shape("3b").expect("a known shape"), &batch), [0.0; 2]);
    }

    /// 2 N FLOPs a token of N matrix weights, and 2 T Q of causal attention (PaLM's 12 L H Q T a token trained).
    #[test]
    fn flops_are_two_for_each_weight_and_token() {
        let config = Config::shape("0.5b").expect("a known shape");
        let sequence = Sequence { tokens: vec![0; 100], rows: vec![0], ..Sequence::default() };
        let rows = Rows { token_rewards: vec![0.0; 40], ..Rows::default() };
        let batch = Batch { sequences: vec![sequence], rows, ..Batch::default() };
        // Qwen2.5-0.5B's config.json: q and o 896 x 896, k and v 896 x 128, three of 896 x 4864; 24 blocks.
        let block = 2 * 896 * 896 + 2 * 896 * 128 + 3 * 896 * 4864;
        let want = 100 * 24 * (2 * block + 2 * 100 * 896) + 40 * 2 * 896 * 151_936u64;
        assert_eq!(forward_flops(&config, &batch), want as f64);
        let want = 110 * 24 * (2 * block + 2 * 100 * 896) + 30 * 2 * 896 * 151_936u64;
        assert_eq!(generation_flops(&config, &batch, 80, 30), want as f64);
    }
}
