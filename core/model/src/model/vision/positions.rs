//! Images among the tokens of a sequence: their places, and the positions of M-RoPE.
//!
//! A token of text has one position, which all three axes (time, row, column) share. A token of an image has the position
//! that the image begins at, plus its row and its column. The text after the image continues behind its longer side. So a
//! sequence without images has ordinary positions. The rules are those of `get_rope_index` in transformers'
//! `modeling_qwen2_5_vl.py` for still images.

use anyhow::{Result, ensure};
use nestor_images::{Grid, KeyedImage};

use crate::data::SequenceImage;
use crate::input_error;
use crate::model::{Config, VisionConfig};

/// An image and its tokens in a sequence.
#[derive(Debug, Clone, PartialEq)]
pub struct PlacedImage {
    /// Place of its first token.
    pub start: usize,
    /// Number of its tokens.
    pub tokens: usize,
    /// Rows and columns of these.
    pub squares: [i64; 2],
    pub image: KeyedImage,
}

impl PlacedImage {
    /// The place behind its last token.
    pub fn end(&self) -> usize {
        self.start + self.tokens
    }
}

impl VisionConfig {
    /// The grid of an image's patches.
    ///
    /// # Errors
    /// When the image is too narrow to be read.
    pub fn grid(&self, image: &KeyedImage) -> Result<Grid> {
        self.processor.grid(image.image().width(), image.image().height())
    }

    /// Number of tokens of an image in a prompt.
    pub fn tokens(&self, image: &KeyedImage) -> Result<usize> {
        Ok(self.processor.tokens(self.grid(image)?))
    }

    /// An image whose tokens begin at this place.
    fn at(&self, start: usize, image: &KeyedImage) -> Result<PlacedImage> {
        let grid = self.grid(image)?;
        let squares = [grid.rows, grid.cols].map(|n| i64::from(n) / self.spatial_merge_size);
        Ok(PlacedImage { start, tokens: self.processor.tokens(grid), squares, image: image.clone() })
    }

    /// Replaces each placeholder of an image by as many as the image has tokens.
    ///
    /// # Errors
    /// When there are not as many placeholders as images.
    pub fn expand(&self, tokens: &[u32], images: &[KeyedImage]) -> Result<Vec<u32>> {
        let is_placeholder = |&token: &u32| i64::from(token) == self.image_token_id;
        let found = tokens.iter().filter(|token| is_placeholder(token)).count();
        if found != images.len() {
            return Err(input_error!(
                "the prompt has {found} placeholders of images (token {}) for {} images; write one for each, and none in \
                 an observation's text",
                self.image_token_id,
                images.len()
            ));
        }
        let (mut expanded, mut images) = (Vec::with_capacity(tokens.len()), images.iter());
        for &token in tokens {
            let count =
                if is_placeholder(&token) { images.next().map_or(Ok(1), |image| self.tokens(image))? } else { 1 };
            expanded.extend(std::iter::repeat_n(token, count));
        }
        Ok(expanded)
    }

    /// Finds the images of a sequence, whose tokens are in their order.
    ///
    /// # Errors
    /// When the tokens and the images do not belong together.
    pub fn place(&self, tokens: &[u32], images: &[KeyedImage]) -> Result<Vec<PlacedImage>> {
        let (mut placed, mut at) = (Vec::with_capacity(images.len()), 0);
        let is_image = |token: &u32| i64::from(*token) == self.image_token_id;
        for image in images {
            let count = self.tokens(image)?;
            let start = tokens[at..].iter().position(is_image).map(|offset| at + offset);
            let Some(start) =
                start.filter(|&start| tokens[start..].iter().take_while(|t| is_image(t)).count() >= count)
            else {
                return Err(input_error!(
                    "image {} of {} takes {count} tokens, but the sequence has no room of {count} placeholders for it",
                    placed.len() + 1,
                    images.len()
                ));
            };
            placed.push(self.at(start, image)?);
            at = start + count;
        }
        match tokens[at..].iter().any(is_image) {
            true => Err(input_error!("the sequence has more placeholders than its {} images take", images.len())),
            false => Ok(placed),
        }
    }
}

/// Replaces each placeholder of an image in a prompt by as many as the image has tokens.
///
/// # Errors
/// When there are not as many placeholders as images, or the model reads no images.
pub fn expand(tokens: Vec<u32>, images: &[KeyedImage], config: &Config) -> Result<Vec<u32>> {
    match &config.vision {
        Some(vision) => vision.expand(&tokens, images),
        None if images.is_empty() => Ok(tokens),
        None => Err(blind(config)),
    }
}

/// Finds the images of a sequence.
///
/// # Errors
/// When the tokens and the images do not belong together, or the model reads no images.
pub fn place(tokens: &[u32], images: &[KeyedImage], config: &Config) -> Result<Vec<PlacedImage>> {
    match &config.vision {
        Some(vision) => vision.place(tokens, images),
        None if images.is_empty() => Ok(Vec::new()),
        None => Err(blind(config)),
    }
}

/// Images at known places of a sequence.
///
/// # Errors
/// When the tokens at these places are not those of the images, or the model reads no images.
pub fn placed(images: &[SequenceImage], tokens: &[u32], config: &Config) -> Result<Vec<PlacedImage>> {
    let Some(vision) = &config.vision else {
        return if images.is_empty() { Ok(Vec::new()) } else { Err(blind(config)) };
    };
    let placed = images.iter().map(|SequenceImage { start, image }| {
        let placed = vision.at(*start as usize, image)?;
        let own = tokens.get(placed.start..placed.end());
        let right = own.is_some_and(|own| own.iter().all(|&token| i64::from(token) == vision.image_token_id));
        ensure!(right, "the tokens from place {start} on are not the {} of an image", placed.tokens);
        Ok(placed)
    });
    placed.collect()
}

/// The error of a model that is given an image and reads text alone.
pub fn blind(config: &Config) -> anyhow::Error {
    input_error!(
        "the model ({}) reads no images; take a Qwen2.5-VL model, or leave the images out",
        config.architecture.model_type
    )
}

/// Positions of the first `length` tokens of a sequence (time, row, column), and the position of the next one.
pub fn positions(length: usize, images: &[PlacedImage]) -> (Vec<[i64; 3]>, i64) {
    let (mut all, mut next) = (Vec::with_capacity(length), 0);
    for image in images.iter().take_while(|image| image.start < length) {
        extend(&mut all, &mut next, image.start);
        let [rows, cols] = image.squares;
        let inside = (0..rows).flat_map(|row| (0..cols).map(move |col| [next, next + row, next + col]));
        all.extend(inside.take(length - image.start));
        next += rows.max(cols);
    }
    extend(&mut all, &mut next, length);
    (all, next)
}

/// Adds tokens of text up to the place `end`.
fn extend(all: &mut Vec<[i64; 3]>, next: &mut i64, end: usize) {
    while all.len() < end {
        all.push([*next; 3]);
        *next += 1;
    }
}

#[cfg(test)]
mod tests {
    use nestor_plugin::Image;

    use super::*;

    fn image(width: u32, height: u32) -> KeyedImage {
        Image::new(width, height, vec![0; (3 * width * height) as usize]).expect("an image").into()
    }

    #[test]
    fn text_continues_behind_the_longer_side_of_an_image() {
        let placed = PlacedImage { start: 2, tokens: 6, squares: [2, 3], image: image(84, 56) };
        let (all, next) = positions(10, std::slice::from_ref(&placed));
        assert_eq!(all[..3], [[0; 3], [1; 3], [2; 3]]);
        assert_eq!(all[3..8], [[2, 2, 3], [2, 2, 4], [2, 3, 2], [2, 3, 3], [2, 3, 4]]);
        assert_eq!((all[8], all[9], next), ([5; 3], [6; 3], 7));
        assert_eq!(positions(4, &[]), (vec![[0; 3], [1; 3], [2; 3], [3; 3]], 4));
        assert_eq!(positions(4, &[placed]).0, all[..4], "a prefix that ends inside the image");
    }

    #[test]
    fn placeholders_and_images_must_belong_together() -> Result<()> {
        let vision = VisionConfig::published();
        let pad = vision.image_token_id as u32;
        let images = [image(56, 56), image(84, 56)];
        let tokens = vision.expand(&[1, pad, 2, pad], &images)?;
        assert_eq!(tokens.len(), 2 + 4 + 6);
        let placed = vision.place(&tokens, &images)?;
        assert_eq!(placed.iter().map(|p| (p.start, p.tokens)).collect::<Vec<_>>(), [(1, 4), (6, 6)]);
        assert!(vision.expand(&[1, pad], &images).is_err());
        assert!(vision.place(&tokens[..9], &images).is_err());
        assert!(vision.place(&tokens, &images[..1]).is_err());
        assert!(vision.place(&[1, 2], &[])?.is_empty());
        Ok(())
    }
}
