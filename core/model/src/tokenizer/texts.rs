//! Texts to token ids for an encoder, with the special tokens and the truncation that its training had.

use std::path::Path;

use anyhow::Result;
use tokenizers::TruncationParams;

use super::{plain, read_tokenizer};
use crate::error::quietly;
use crate::input_error;

/// The `tokenizer.json` of an encoder.
#[derive(Debug)]
pub struct TextTokenizer(tokenizers::Tokenizer);

impl TextTokenizer {
    /// Reads `tokenizer.json` of a Hugging Face folder. Texts of more than `max_length` tokens will lose their end.
    ///
    /// # Errors
    /// If the file is missing, is no tokenizer, or adds no special tokens.
    pub fn load(dir: &Path, max_length: usize) -> Result<Self> {
        let path = dir.join("tokenizer.json");
        let mut inner = read_tokenizer(&path)?;
        let truncation = TruncationParams { max_length, ..TruncationParams::default() };
        inner.with_truncation(Some(truncation)).map_err(plain)?;
        let tokenizer = Self(inner);
        if tokenizer.encode(vec![String::new()])?[0].is_empty() {
            return Err(input_error!(
                "{}: adds no [CLS] and [SEP] to a text; take the tokenizer.json of the encoder's own folder",
                path.display()
            ));
        }
        Ok(tokenizer)
    }

    /// Token ids of each text, special tokens included.
    ///
    /// # Errors
    /// If the tokenizer fails on a text.
    pub fn encode(&self, texts: Vec<String>) -> Result<Vec<Vec<u32>>> {
        let encoded = quietly(|| self.0.encode_batch_fast(texts, true))
            .map_err(|panic| input_error!("the tokenizer's regular expressions fail on a text: {panic}"))?;
        Ok(encoded.map_err(plain)?.iter().map(|encoding| encoding.get_ids().to_vec()).collect())
    }
}
