//! Reads the batches that Python tests write, and names tensors for their readers.

use std::path::PathBuf;

use anyhow::Result;
use nestor_images::read_image;
use nestor_model::data::{Batch, Rows, Sequence, SequenceImage};
use nestor_model::model::Config;
use nestor_model::model::vision::place;
use nestor_model::shard::Layout;
use serde::Deserialize;
use tch::{Device, Tensor};

/// One turn of a sequence: its new tokens, and the data of its response's tokens.
#[derive(Deserialize)]
pub struct Row {
    prompt: Vec<u32>,
    /// Files of the images in the prompt.
    #[serde(default)]
    images: Vec<PathBuf>,
    response: Vec<u32>,
    old: Vec<f32>,
    r#ref: Vec<f32>,
    advantage: f32,
}

/// Packs sequences of turns into a batch for a network of this configuration.
pub fn pack(sequences: &[Vec<Row>], config: &Config) -> Result<Batch> {
    let mut rows = Rows { token_offsets: vec![0], ref_logprobs: Some(Vec::new()), ..Rows::default() };
    let mut packed = Vec::new();
    for turns in sequences {
        let mut sequence = Sequence::default();
        for row in turns {
            sequence.rows.push(rows.len() as u32);
            let images = row.images.iter().map(|file| read_image(file)).collect::<Result<Vec<_>>>()?;
            for placed in place(&row.prompt, &images, config)? {
                let start = (sequence.tokens.len() + placed.start) as u32;
                sequence.images.push(SequenceImage { start, image: placed.image });
            }
            sequence.tokens.extend(&row.prompt);
            rows.group.push(0);
            rows.span_start.push(sequence.tokens.len() as u32);
            sequence.tokens.extend(&row.response);
            rows.logprobs.extend(&row.old);
            rows.token_offsets.push(rows.logprobs.len() as u64);
            rows.ref_logprobs.get_or_insert_default().extend(&row.r#ref);
            rows.advantages.extend(std::iter::repeat_n(row.advantage, row.response.len()));
        }
        packed.push(sequence);
    }
    Ok(Batch { sequences: packed, rows, ..Batch::default() })
}

/// Copies all parameters out of flat tensors to the CPU, by name.
pub fn named(prefix: &str, layouts: &[Layout], flats: &[Tensor]) -> Vec<(String, Tensor)> {
    let params = layouts.iter().zip(flats).flat_map(|(l, flat)| l.params.iter().map(move |p| (p, l.view(flat, p))));
    params.map(|(p, view)| (format!("{prefix}{}", p.name), view.to_device(Device::Cpu).copy())).collect()
}
