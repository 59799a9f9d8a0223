//! The tokens of images among those of a pass.

use std::collections::HashMap;

use nestor_images::{ImageKey, KeyedImage};
use nestor_torch::upload;
use tch::{Device, Tensor};

use super::positions::PlacedImage;

/// The tokens of images on a packed axis, and the images that they show, each once.
#[derive(Debug)]
pub struct ImageRows {
    pub images: Vec<KeyedImage>,
    /// Places of the tokens on the axis, (R) int64.
    pub rows: Tensor,
    /// The row of each among the embeddings of all `images`, end to end: (R) int64.
    pub sources: Tensor,
}

/// Tokens of one image, one after the other on a packed axis.
#[derive(Debug, Clone, Copy)]
pub struct ImagePart<'a> {
    /// Place of the first one.
    pub row: usize,
    /// Its number among the image's tokens.
    pub first: usize,
    pub count: usize,
    pub image: &'a PlacedImage,
}

impl ImageRows {
    /// The tokens of these parts. None where there is no image.
    pub fn new<'a>(parts: impl Iterator<Item = ImagePart<'a>>, device: Device) -> Option<Self> {
        let (mut images, mut rows, mut sources) = (Vec::new(), Vec::new(), Vec::new());
        let (mut first_rows, mut numel): (HashMap<ImageKey, i64>, i64) = (HashMap::new(), 0);
        for ImagePart { row, first, count, image } in parts {
            let start = *first_rows.entry(image.image.key()).or_insert_with(|| {
                images.push(image.image.clone());
                numel += image.tokens as i64;
                numel - image.tokens as i64
            });
            let (row, first, count) = (row as i64, start + first as i64, count as i64);
            rows.extend(row..row + count);
            sources.extend(first..first + count);
        }
        (!images.is_empty()).then(|| Self { images, rows: upload(&rows, device), sources: upload(&sources, device) })
    }

    /// Puts the images' embeddings, end to end (M, E), in the place of their tokens' (T, E).
    pub fn put(&self, x: &Tensor, embeddings: &Tensor) -> Tensor {
        x.index_copy(0, &self.rows, &embeddings.index_select(0, &self.sources))
    }

    /// The gradient of the embeddings (M, E), given that of their tokens' (T, E), whose rows of images become zero: the
    /// embedding of the placeholder has no part in them.
    pub fn take_gradient(&self, grad: &mut Tensor, embeddings: &Tensor) -> Tensor {
        let of_rows = grad.index_select(0, &self.rows);
        let _ = grad.index_fill_(0, &self.rows, 0.0);
        embeddings.zeros_like().index_add(0, &self.sources, &of_rows)
    }
}
