//! Sizes of a network's units and of its adapters, in elements: the parts that ranks gather, reduce and store.

use crate::model::{Config, unit_weights};
use crate::recipe::{Lora, Optimizer, VisionTrain};
use crate::shard::{Adapters, Layout, adapted, update_rule};

/// Sizes of a network's units in elements, and of a rank's shards of them.
#[derive(Debug, Clone)]
pub struct UnitSizes {
    /// Elements of each unit.
    pub numel: Vec<u64>,
    /// Number of the language model's units, the first ones.
    language: usize,
    ranks: u64,
}

/// A network's outer unit, one of its blocks, which are all alike, and the units of a vision tower.
fn outer_and_block(config: &Config) -> Vec<Layout> {
    unit_weights::layouts(&Config { num_hidden_layers: 1, ..config.clone() })
}

impl UnitSizes {
    pub fn new(config: &Config, ranks: u64) -> Self {
        let sizes: Vec<u64> = outer_and_block(config).iter().map(|layout| layout.numel() as u64).collect();
        let blocks = std::iter::repeat_n(sizes[1], config.num_hidden_layers as usize);
        let numel = std::iter::once(sizes[0]).chain(blocks).chain(sizes[2..].iter().copied()).collect();
        Self { numel, language: 1 + config.num_hidden_layers as usize, ranks }
    }

    /// The units that are trained with this part of a vision tower.
    pub fn trained(&self, train: VisionTrain) -> Self {
        let trained = self.language + self.tower_of(train).len();
        Self { numel: self.numel[..trained].into(), ..self.clone() }
    }

    /// The units that are not.
    pub fn frozen(&self, train: VisionTrain) -> Self {
        let frozen = self.numel[self.language + self.tower_of(train).len()..].into();
        Self { numel: frozen, language: 0, ranks: self.ranks }
    }

    /// Elements of the units of a vision tower: merger, blocks, patch embedding.
    pub fn tower(&self) -> &[u64] {
        &self.numel[self.language..]
    }

    /// Those of this part of it.
    pub fn tower_of(&self, train: VisionTrain) -> &[u64] {
        let tower = self.tower();
        match train {
            VisionTrain::None => &[],
            VisionTrain::Merger => &tower[..tower.len().min(1)],
            VisionTrain::All => tower,
        }
    }

    /// Elements of the language model.
    pub fn language(&self) -> u64 {
        self.numel[..self.language].iter().sum()
    }

    /// Elements of all units, N.
    pub fn all(&self) -> u64 {
        self.numel.iter().sum()
    }

    /// Elements of a rank's shards.
    pub fn shard(&self) -> u64 {
        self.numel.iter().map(|n| n.div_ceil(self.ranks)).sum()
    }

    /// Elements of the first unit.
    pub fn outer(&self) -> u64 {
        self.numel[0]
    }

    /// Elements of a block.
    pub fn block(&self) -> u64 {
        self.numel[1]
    }
}

/// Bytes of a rank's float32 tensors of a trained unit.
#[derive(Debug, Clone)]
pub struct UnitTensors {
    /// Number of such units.
    pub count: u64,
    pub master_weights: u64,
    /// Each tensor of the optimizer's state.
    pub state: Vec<u64>,
}

/// The part of a network that is trained.
#[derive(Debug, Clone, Copy)]
pub struct Trained<'a> {
    pub config: &'a Config,
    /// Its adapters alone.
    pub lora: Option<&'a Lora>,
    pub vision: VisionTrain,
    pub optimizer: &'a Optimizer,
    pub ranks: u64,
}

impl Trained<'_> {
    /// The tensors of each unit.
    pub fn tensors(&self) -> Vec<UnitTensors> {
        let Self { config, ranks, .. } = *self;
        let layouts = outer_and_block(config);
        let blocks = config.num_hidden_layers as u64;
        let rule = update_rule(self.optimizer);
        let bytes = |numel: i64| 4 * (numel as u64).div_ceil(ranks);
        let of = |count: u64, layout: &Layout| UnitTensors {
            count,
            master_weights: bytes(layout.numel()),
            state: rule.state(layout).iter().map(|(_, part)| bytes(part.params_numel())).collect(),
        };
        if let Some(lora) = self.lora {
            return vec![of(blocks, &Adapters::layouts_of(&layouts[1..2], lora)[0])];
        }
        let tower = UnitSizes::new(config, ranks).tower_of(self.vision).len();
        let counts = [1, blocks].into_iter().chain(std::iter::repeat_n(1, tower));
        counts.zip(&layouts).map(|(count, layout)| of(count, layout)).collect()
    }
}

/// Bytes of a rank's master weights, and of its state of the optimizer.
pub fn held(units: &[UnitTensors]) -> [u64; 2] {
    let sum = |of: &dyn Fn(&UnitTensors) -> u64| units.iter().map(|unit| unit.count * of(unit)).sum();
    [sum(&|unit| unit.master_weights), sum(&|unit| unit.state.iter().sum())]
}

/// The adapters' units, one per block.
pub fn adapter_units(config: &Config, lora: &Lora, ranks: u64) -> UnitSizes {
    let layouts = outer_and_block(config);
    let block: i64 = adapted(&layouts[1], lora).map(|param| lora.rank * (param.shape[0] + param.shape[1])).sum();
    let blocks = config.num_hidden_layers as usize;
    UnitSizes { numel: vec![block as u64; blocks], language: blocks, ranks }
}
