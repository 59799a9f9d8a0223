//! Gradients of the packed, block-wise update for `tests/python/test_gradients.py` and `tests/python/test_lora.py`, which compare them
//! with PyTorch.
//!
//! usage: gradients MODEL_DIR BATCH.json OUT.safetensors [cpu|cuda]
//!
//! Ranks come from torchrun's variables, and shard the weights. Rank 0 writes and prints.
//!
//! BATCH holds `sequences` (lists of turns `{"prompt": [ids], "response": [ids], "old": […], "ref": […], "advantage": a}`),
//! `update` (a recipe's section) and `temperature`. A turn's `images` are the files of the images in its prompt, and `vision` names
//! the trained parts of the model's vision tower. Writes one float32 tensor per parameter and prints the loss sums. With
//! `lora` (`{"settings": a recipe's section, "adapter": FILE}`) the parameters are the adapters', which start with the values of
//! FILE; the output also holds them after one optimizer step, as `after.NAME`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nestor::policy::Network;
use nestor::policy::update::{UpdateSettings, gradients};
use nestor_drivers::{Row, named, pack};
use nestor_model::model::{device, weights};
use nestor_model::ranks::{self, Rendezvous};
use nestor_model::shard::{Layout, Ranks, update_rule};
use nestor_recipe::{DeviceChoice, Dist, Lora, ModelSource, Update, Vision, VisionTrain};
use serde::Deserialize;
use tch::{Device, Kind, Tensor};

#[derive(Deserialize)]
struct Input {
    sequences: Vec<Vec<Row>>,
    update: Update,
    temperature: f64,
    lora: Option<Adapted>,
    /// The trained parts of a vision tower.
    vision: Option<VisionTrain>,
}

#[derive(Deserialize)]
struct Adapted {
    settings: Lora,
    adapter: PathBuf,
}

fn main() -> Result<()> {
    nestor_torch::cuda::load_where_useful()?;
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (model, batch, out, device) = match &arguments[..] {
        [model, batch, out] => (model, batch, out, Device::Cpu),
        [model, batch, out, name] if name == "cpu" => (model, batch, out, Device::Cpu),
        [model, batch, out, name] if name == "cuda" => (model, batch, out, device(DeviceChoice::Cuda)?),
        _ => anyhow::bail!("usage: gradients MODEL_DIR BATCH.json OUT [cpu|cuda]"),
    };
    let input: Input = serde_json::from_str(&std::fs::read_to_string(batch)?).context("reading the batch")?;
    let vision = input.vision.map(|train| Vision { train: Some(train), ..Vision::default() });
    let source = ModelSource { path: None, new: None, lora: None, vision };
    let model = weights::load(Path::new(model), Kind::Float, device)?.with_vision(&source, false)?;
    let comm = ranks::join(&Rendezvous::of_environment()?, device, &Dist::default())?;
    let ranks = Ranks { comm, ..Ranks::solo(device) };
    let rule = update_rule(&input.update.optimizer);
    let mut policy = match &input.lora {
        Some(lora) => {
            let mut policy = Network::with_lora(model, rule, (&lora.settings, 0), &ranks)?;
            let layouts = policy.trained().to_vec();
            weights::read_flats(&lora.adapter, &layouts, &policy.optimizer.master_weights)?;
            policy.refresh()?;
            policy
        }
        None => Network::new(model, rule, &ranks)?,
    };
    let settings = UpdateSettings {
        update: &input.update,
        loss: None,
        lr: input.update.lr,
        temperature: input.temperature,
        max_response_tokens: 16,
        seed: 0,
    };
    let batch = pack(&input.sequences, &policy.model.config)?;
    let all: Vec<usize> = (0..batch.sequences.len()).collect();
    let report = gradients(&mut policy, &batch, &all, &settings)?;
    let whole = |layouts: &[Layout], shards: &[Tensor]| {
        layouts.iter().zip(shards).map(|(layout, shard)| ranks.whole_of(layout, shard)).collect::<Result<Vec<_>>>()
    };
    let layouts = policy.trained().to_vec();
    let grads = whole(&layouts, &policy.optimizer.grads)?;
    let tensors = if input.lora.is_some() {
        let mut tensors = named("", &layouts, &grads);
        policy.step(input.update.lr, input.update.grad_clip)?;
        tensors.extend(named("after.", &layouts, &whole(&layouts, &policy.optimizer.master_weights)?));
        tensors
    } else {
        // A large model finds no room beside copies of its gradients.
        drop(policy);
        named("", &layouts, &grads)
    };
    if ranks.comm.rank() > 0 {
        return Ok(());
    }
    Tensor::write_safetensors(&tensors, out)?;
    let own = |name| report.losses.get(name).unwrap_or(0.0);
    println!(
        "{}",
        serde_json::json!({
            "total": own("loss/total"), "policy": own("loss/policy"), "kl": own("loss/kl"), "entropy": own("policy/entropy"),
        })
    );
    Ok(())
}
