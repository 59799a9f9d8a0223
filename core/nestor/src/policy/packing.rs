//! Sequences packed end to end on one token axis. Attention takes them as they are, without padding. Tokens that successive
//! sequences have in common are there once ([`super::prefix_tree`]).

use std::collections::HashMap;
use std::ops::Range;

use anyhow::Result;
use nestor_torch::ops;
use nestor_torch::packed::{PackedSequence, PackedSequences};
use nestor_torch::upload;
use tch::{Device, Tensor};

use super::prefix_tree::{Path, paths};
use crate::data::{KeyedImage, Rows, Sequence};
use crate::model::Model;
use crate::model::vision::{ImagePart, ImageRows, PlacedImage, placed, positions};

/// The sequences of one forward pass, and the N states that are read: those that predict the response tokens
/// ([`Packed::new`]), or those whose value a critic gives ([`Packed::with_values`]). Responses that begin alike read the same
/// states, so that U of them are computed.
#[derive(Debug)]
pub struct Packed {
    /// Token ids (T).
    pub tokens: Tensor,
    /// The images among them, if there are any.
    pub images: Option<ImageRows>,
    /// Positions and attention.
    pub packing: Packing,
    /// The places of each sequence's tokens on the token axis.
    pub paths: Vec<Path>,
    /// Places of the computed states on the token axis, (U) int64.
    pub predictors: Tensor,
    /// The token after each computed state, (U) int64; empty for values.
    pub targets: Tensor,
    /// The number of each state that is read among the computed ones, (N) int64; none where U = N.
    computed: Option<Tensor>,
    /// Place of each state's entry in the ragged columns of [`Rows`], (N).
    pub token_index: Vec<usize>,
    /// Number of states of each response.
    pub lengths: Vec<usize>,
}

impl Packed {
    /// The states that predict the response tokens: N is the number of these.
    pub fn new(sequences: &[&Sequence], rows: &Rows, model: &Model) -> Result<Self> {
        let target = |sequence: &Sequence, token: usize| Some(sequence.tokens[token + 1]);
        Self::reading(sequences, rows, model, target, |row| {
            rows.token_offsets[row] as usize..rows.token_offsets[row + 1] as usize
        })
    }

    /// The states before each response token and after the last: indices are those of the column `values`.
    pub fn with_values(sequences: &[&Sequence], rows: &Rows, model: &Model) -> Result<Self> {
        Self::reading(
            sequences,
            rows,
            model,
            |_, _| None,
            |row| rows.token_offsets[row] as usize + row..rows.token_offsets[row + 1] as usize + row + 1,
        )
    }

    /// Every state of these sequences but the last of each, with the token after it. None may be empty.
    pub fn predicting_all(sequences: &[(&[u32], Vec<PlacedImage>)], device: Device) -> Self {
        let mut states = States::default();
        let paths = whole(sequences.iter().map(|(tokens, _)| tokens.len()));
        for ((tokens, _), path) in sequences.iter().zip(&paths) {
            (0..tokens.len() - 1).for_each(|token| states.add(path.place(token), Some(tokens[token + 1])));
        }
        Self::of(sequences, paths, states, device)
    }

    /// `target` gives the token that the state at a place of a sequence predicts, and `ragged` a row's entries in the column; its
    /// first state is the one before its first response token.
    fn reading(
        sequences: &[&Sequence],
        rows: &Rows,
        model: &Model,
        target: impl Fn(&Sequence, usize) -> Option<u32>,
        ragged: impl Fn(usize) -> Range<usize>,
    ) -> Result<Self> {
        let (mut states, mut token_index, mut lengths) = (States::default(), Vec::new(), Vec::new());
        let paths = paths(sequences);
        for (sequence, path) in sequences.iter().zip(&paths) {
            for &row in &sequence.rows {
                let first = rows.span_start[row as usize] as usize - 1;
                let ragged = ragged(row as usize);
                (first..first + ragged.len()).for_each(|token| states.add(path.place(token), target(sequence, token)));
                lengths.push(ragged.len());
                token_index.extend(ragged);
            }
        }
        let mut parts = Vec::with_capacity(sequences.len());
        for s in sequences {
            parts.push((&s.tokens[..], placed(&s.images, &s.tokens, &model.config)?));
        }
        Ok(Self { token_index, lengths, ..Self::of(&parts, paths, states, model.device()) })
    }

    fn of(sequences: &[(&[u32], Vec<PlacedImage>)], paths: Vec<Path>, states: States, device: Device) -> Self {
        let own = sequences.iter().zip(&paths).flat_map(|((tokens, _), path)| &tokens[path.common..]);
        let tokens: Vec<i64> = own.map(|&id| i64::from(id)).collect();
        let (images, packing) = pack(sequences, &paths, device);
        let several = states.numbers.len() > states.places.len();
        Self {
            tokens: upload(&tokens, device),
            images,
            packing,
            paths,
            predictors: upload(&states.places, device),
            targets: upload(&states.targets, device),
            computed: several.then(|| upload(&states.numbers, device)),
            token_index: Vec::new(),
            lengths: Vec::new(),
        }
    }

    /// Tokens of all sequences, of which the token axis has each distinct one once.
    pub fn sequence_tokens(&self) -> usize {
        self.paths.iter().map(|path| path.common + path.own.len()).sum()
    }

    /// Numbers of the states that are read (N) from those of the computed ones (U). The gradient is the sum of those of each.
    pub fn read(&self, computed: &Tensor) -> Tensor {
        let read = |numbers: &Tensor| ops::rows(&computed.unsqueeze(1), numbers).squeeze_dim(1);
        self.computed.as_ref().map_or_else(|| computed.shallow_clone(), read)
    }

    /// The gradient of the computed states' numbers (U), given that of [`Self::read`]'s (N).
    pub fn read_backward(&self, grad: &Tensor) -> Tensor {
        let count = self.predictors.size()[0];
        let sum = |numbers: &Tensor| {
            Tensor::embedding_dense_backward(&grad.unsqueeze(1), numbers, count, -1, false).squeeze_dim(1)
        };
        self.computed.as_ref().map_or_else(|| grad.shallow_clone(), sum)
    }

    /// The images, each once.
    pub fn shown(&self) -> &[KeyedImage] {
        self.images.as_ref().map_or(&[], |rows| &rows.images)
    }

    /// The states' entries of a ragged column, (N) float32.
    pub fn pick(&self, column: &[f32]) -> Tensor {
        let values: Vec<f32> = self.token_index.iter().map(|&i| column[i]).collect();
        upload(&values, self.tokens.device())
    }

    /// Writes values of the states (N) to their places in a ragged column.
    pub fn put(&self, values: &Tensor, column: &mut [f32]) {
        let mut numbers = vec![0f32; self.token_index.len()];
        let count = numbers.len();
        values.copy_data(&mut numbers, count);
        for (&index, number) in self.token_index.iter().zip(numbers) {
            column[index] = number;
        }
    }

    /// One number per response, repeated for each of its states: (N) float32.
    pub fn per_response(&self, number: impl Fn(usize) -> f64) -> Tensor {
        let repeated = self.lengths.iter().flat_map(|&length| std::iter::repeat_n(number(length) as f32, length));
        upload(&repeated.collect::<Vec<_>>(), self.tokens.device())
    }

    /// The response each state belongs to, counted from 0: (N) int64.
    pub fn responses(&self) -> Tensor {
        let numbers = self.lengths.iter().enumerate().flat_map(|(i, &length)| std::iter::repeat_n(i as i64, length));
        upload(&numbers.collect::<Vec<_>>(), self.tokens.device())
    }
}

/// States to compute: each once, although several responses read it.
#[derive(Default)]
struct States {
    /// Place on the token axis, and the token to predict, if any.
    places: Vec<i64>,
    targets: Vec<i64>,
    /// For each state that is read, the number of the computed one.
    numbers: Vec<i64>,
    known: HashMap<(usize, Option<u32>), i64>,
}

impl States {
    fn add(&mut self, place: usize, target: Option<u32>) {
        let number = *self.known.entry((place, target)).or_insert_with(|| {
            self.places.push(place as i64);
            self.targets.extend(target.map(i64::from));
            self.places.len() as i64 - 1
        });
        self.numbers.push(number);
    }
}

/// Paths of sequences that have nothing in common.
fn whole(lengths: impl Iterator<Item = usize>) -> Vec<Path> {
    let path = |start: &mut usize, length: usize| {
        let own = *start..*start + length;
        *start = own.end;
        Some(Path { prefix: Vec::new(), common: 0, own })
    };
    lengths.scan(0, path).collect()
}

/// The images of sequences, given with the tokens of each, and the own tokens' positions and places.
fn pack(sequences: &[(&[u32], Vec<PlacedImage>)], paths: &[Path], device: Device) -> (Option<ImageRows>, Packing) {
    let mut packing = Packing::new(paths, device);
    let (mut parts, mut all) = (Vec::new(), Vec::new());
    for ((tokens, images), path) in sequences.iter().zip(paths) {
        all.extend(positions(tokens.len(), images).0.split_off(path.common));
        // An image is common as a whole or not at all.
        parts.extend(images.iter().filter(|image| image.start >= path.common).map(|image| ImagePart {
            row: path.place(image.start),
            first: 0,
            count: image.tokens,
            image,
        }));
    }
    let images = ImageRows::new(parts.into_iter(), device);
    if images.is_some() {
        packing.positions = upload(all.as_flattened(), device).view([-1, 3]).tr().contiguous();
    }
    (images, packing)
}

/// Packed sequences: their tokens' positions, and their places for attention.
#[derive(Debug)]
pub struct Packing {
    /// Position of every token in its own sequence, (T) int64, or where there are images those of time, row and column,
    /// (3, T).
    pub positions: Tensor,
    pub sequences: PackedSequences,
}

impl Packing {
    fn new(paths: &[Path], device: Device) -> Self {
        let own = |path: &Path| path.common as i64..(path.common + path.own.len()) as i64;
        let positions: Vec<i64> = paths.iter().flat_map(own).collect();
        let piece = |piece: &Range<usize>| piece.start as i64..piece.end as i64;
        let sequence = |path: &Path| PackedSequence {
            prefix: path.prefix.iter().map(piece).collect(),
            own: path.own.len() as i64,
        };
        let sequences = PackedSequences::new(paths.iter().map(sequence).collect(), device);
        Self { positions: upload(&positions, device), sequences }
    }

    /// Number of tokens T.
    pub fn tokens(&self) -> i64 {
        self.positions.size().last().copied().unwrap_or(0)
    }
}
