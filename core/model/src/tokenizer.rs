//! Converts text to token ids and back, and chats to prompts, with the files of a Hugging Face folder: `tokenizer.json`
//! and the chat template.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nestor_plugin::files::{self, LARGE, SMALL};
use serde_json::{Map, Value, json};
use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::normalizers::unicode::NFC;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{AddedToken, SplitDelimiterBehavior};

use crate::error::quietly;
use crate::files::{read_object, write_json, write_whole};
use crate::input_error;

mod bounded;
mod conversation;
mod ends;
mod jinja;
mod python;
mod template;
mod texts;
mod turns;

use bounded::bounded;
pub use conversation::{Answered, Continuing};
pub use ends::{End, Ends};
pub use nestor_plugin::Message;
use template::Template;
pub use texts::TextTokenizer;
pub use turns::Turns;

const SETTINGS_FILE: &str = "tokenizer_config.json";
const SPECIAL_FILE: &str = "special_tokens_map.json";
const TEMPLATE_FILE: &str = "chat_template.jinja";
/// The file in which some models of images have their template, `{"chat_template": …}`.
const TEMPLATE_JSON: &str = "chat_template.json";

/// The files of a tokenizer that are copied with a model, if they exist.
const FILES: [&str; 11] = [
    "tokenizer.json",
    SETTINGS_FILE,
    TEMPLATE_FILE,
    TEMPLATE_JSON,
    "preprocessor_config.json",
    "video_preprocessor_config.json",
    SPECIAL_FILE,
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "generation_config.json",
];

/// Qwen2's pattern that splits text before byte pairs are merged.
const SPLIT: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// The special tokens of a trained tokenizer, last in its vocabulary, in Qwen's order.
const SPECIAL: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];

/// An image in the text of a prompt for Qwen2.5-VL.
pub const IMAGE: &str = "<|vision_start|><|image_pad|><|vision_end|>";

/// The further special tokens of a model that reads images, in Qwen's order.
const OF_IMAGES: [&str; 4] = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"];

/// Number of ids before any merge: the bytes and the special tokens.
const SMALLEST_VOCABULARY: usize = 256 + SPECIAL.len();

/// A tokenizer with its chat template and end-of-sequence ids.
#[derive(Debug)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    template: Template,
    eos: Vec<u32>,
    /// The content of `tokenizer_config.json`.
    settings: Map<String, Value>,
    /// True if the model's files hold a chat template, false where ChatML replaces it.
    own_template: bool,
}

impl Tokenizer {
    /// Reads `tokenizer.json`, the chat template (of `chat_template.jinja`, `chat_template.json` or `tokenizer_config.json`, else ChatML)
    /// and all end-of-sequence ids of a Hugging Face folder.
    pub fn load(dir: &Path) -> Result<Self> {
        let inner = read_tokenizer(&dir.join("tokenizer.json"))?;
        let settings = read_settings(dir)?;
        let source = find_template(dir, &settings)?;
        let own_template = source.is_some();
        let template = match source {
            Some((path, text)) => Template::new(&text, &settings)
                .map_err(|error| input_error!("{}: chat template: {error:#}", path.display()))?,
            None => Template::new(template::CHATML, &settings)?,
        };
        let mut eos = eos_ids(dir)?;
        // The tokenizer's own end-of-sequence token counts too, even if the other files do not name it.
        if let Some(id) = template::special_token(&settings, "eos_token").and_then(|text| inner.token_to_id(&text))
            && !eos.contains(&id)
        {
            eos.push(id);
        }
        Ok(Self { inner, template, eos, settings, own_template })
    }

    /// Trains a byte-level BPE as Qwen has it on texts. The vocabulary has `vocab_size` entries, or fewer if the texts
    /// have no more pairs to merge; the special tokens are the last three, and behind them those of images for a model that
    /// is `seeing`.
    pub fn train(texts: impl Iterator<Item = String> + Send, vocab_size: usize, seeing: bool) -> Result<Self> {
        let special: Vec<&str> = SPECIAL.into_iter().chain(OF_IMAGES.into_iter().filter(|_| seeing)).collect();
        let smallest = SMALLEST_VOCABULARY + special.len() - SPECIAL.len();
        if vocab_size < smallest {
            return Err(input_error!(
                "a vocabulary of {vocab_size} is too small: the bytes and the special tokens take {smallest}"
            ));
        }
        let split =
            Split::new(SplitPattern::Regex(SPLIT.into()), SplitDelimiterBehavior::Isolated, false).map_err(plain)?;
        let bytes = ByteLevel::new(false, true, false);
        let mut inner = tokenizers::Tokenizer::new(BPE::default());
        inner.with_normalizer(Some(NFC)).map_err(plain)?;
        inner.with_pre_tokenizer(Some(Sequence::new(vec![split.into(), bytes.into()])));
        inner.with_decoder(Some(bytes));
        let trainer = BpeTrainer::builder()
            .show_progress(false)
            .vocab_size(vocab_size - special.len())
            .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
            .build();
        inner.train(&mut TrainerWrapper::from(trainer), texts).map_err(plain)?;
        let added: Vec<_> = special.iter().map(|&text| AddedToken::from(text, true).normalized(false)).collect();
        inner.add_special_tokens(added).map_err(plain)?;

        let settings = trained_settings(&inner)?;
        let template = Template::new(template::CHATML, &settings)?;
        let id = |text: &str| inner.token_to_id(text).context("a special token has an id");
        let eos = vec![id("<|im_end|>")?, id("<|endoftext|>")?];
        Ok(Self { inner, template, eos, settings, own_template: true })
    }

    /// Reads the `tokenizer.json` of a Qwen model and adds Qwen's settings. The chat template is that of Qwen2.5-VL for a model
    /// that is `seeing`, Qwen3's if the tokenizer has Qwen3's tokens, else Qwen2.5's.
    pub fn from_file(path: &Path, seeing: bool) -> Result<Self> {
        let inner = read_tokenizer(path)?;
        let ids: Vec<_> = ["<|im_end|>", "<|endoftext|>"].iter().map(|text| inner.token_to_id(text)).collect();
        let eos: Vec<u32> = ids.iter().flatten().copied().collect();
        if eos.len() < 2 || inner.token_to_id("<|im_start|>").is_none() {
            return Err(input_error!(
                "{}: has no {}; take the tokenizer.json of a Qwen model",
                path.display(),
                SPECIAL.join(", ")
            ));
        }
        let mut settings = trained_settings(&inner)?;
        let source = match inner.token_to_id("<think>") {
            _ if seeing => template::QWEN_VL,
            Some(_) => template::QWEN3,
            None => template::QWEN,
        };
        settings.insert("chat_template".into(), source.into());
        let template = Template::new(source, &settings)?;
        Ok(Self { inner, template, eos, settings, own_template: true })
    }

    /// Sets the chat template's thinking switch; `None` keeps the template's default.
    ///
    /// # Errors
    /// If the template has no such switch.
    pub fn with_thinking(mut self, thinking: Option<bool>) -> Result<Self> {
        if let Some(thinking) = thinking {
            self.template.set_thinking(thinking)?;
        }
        Ok(self)
    }

    /// Writes `tokenizer.json`, `tokenizer_config.json` (with the chat template) and `generation_config.json`.
    pub fn save(&self, dir: &Path) -> Result<()> {
        let path = dir.join("tokenizer.json");
        let text = self.inner.to_string(false).map_err(plain).context("cannot write a tokenizer as JSON")?;
        write_whole(&path, text)?;
        write_json(&dir.join("tokenizer_config.json"), &Value::Object(self.settings.clone()))?;
        write_json(&dir.join("generation_config.json"), &generation_config(&self.eos))
    }

    /// Token ids of a text. Special tokens in the text become their ids; none are added.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        encode(&self.inner, text)
    }

    /// The text of token ids; ids without a token are skipped.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        self.inner.decode(ids, skip_special).unwrap_or_default()
    }

    /// The text that each token adds, special tokens included. A character of several tokens is in the text of its last
    /// token.
    pub fn pieces(&self, ids: &[u32]) -> Vec<String> {
        let mut pieces = vec![String::new(); ids.len()];
        let mut begin = 0;
        for end in 1..=ids.len() {
            let text = self.decode(&ids[begin..end], false);
            // The longest character has four bytes, and a token has one at least.
            let half = text.ends_with(char::REPLACEMENT_CHARACTER) && end - begin < 4 && end < ids.len();
            if !half {
                pieces[end - 1] = text;
                begin = end;
            }
        }
        pieces
    }

    /// The text of a chat by the model's template.
    pub fn render(&self, chat: &[Message], add_generation_prompt: bool) -> Result<String> {
        self.template.render(chat, None, add_generation_prompt)
    }

    /// As [`Self::render`], with functions that the template describes to the model.
    pub fn render_with_tools(
        &self,
        chat: &[Message],
        tools: Option<&[Value]>,
        add_generation_prompt: bool,
    ) -> Result<String> {
        self.template.render(chat, tools, add_generation_prompt)
    }

    /// Token ids of a chat by the model's template.
    pub fn chat(&self, chat: &[Message], add_generation_prompt: bool) -> Result<Vec<u32>> {
        self.chat_with_tools(chat, None, add_generation_prompt)
    }

    /// As [`Self::chat`], with functions that the template describes to the model.
    pub fn chat_with_tools(
        &self,
        chat: &[Message],
        tools: Option<&[Value]>,
        add_generation_prompt: bool,
    ) -> Result<Vec<u32>> {
        self.encode(&self.render_with_tools(chat, tools, add_generation_prompt)?)
    }

    /// Warnings about the chat template of the folder that it was loaded from: there is none, or it ends a turn by a token that
    /// does not end a sequence.
    pub fn template_warnings(&self, dir: &Path) -> Vec<String> {
        let dir = dir.display();
        let missing = (!self.own_template).then(|| {
            format!(
                "{dir} has no chat template, so prompts are in ChatML (<|im_start|>role); for another format put a \
                 {TEMPLATE_FILE} into the folder"
            )
        });
        let talks_on = self.end_of_turn().filter(|(id, _)| !self.eos.contains(id)).map(|(id, text)| {
            format!(
                "{dir} ends a turn of its chat template by {text} (id {id}), which ends no sequence, so a response continues \
                 behind it; add {id} to eos_token_id in generation_config.json"
            )
        });
        missing.into_iter().chain(talks_on).collect()
    }

    /// The special token by which the chat template ends an assistant's turn.
    fn end_of_turn(&self) -> Option<(u32, String)> {
        let said = "a reply of one line";
        let chat = [Message::new("user", "a"), Message::new("assistant", said)];
        let text = self.render(&chat, false).ok()?;
        let id = *self.encode(text.rsplit_once(said)?.1).ok()?.first()?;
        let token = self.inner.get_added_tokens_decoder().get(&id).filter(|token| token.special)?.content.clone();
        Some((id, token))
    }

    /// All ids that end a sequence.
    pub fn eos(&self) -> &[u32] {
        &self.eos
    }

    /// Ids of the tokens around an image, of an image and of a video; none where the tokenizer lacks one.
    pub fn image_ids(&self) -> Option<[u32; 4]> {
        let ids: Vec<u32> = OF_IMAGES.iter().filter_map(|text| self.inner.token_to_id(text)).collect();
        ids.try_into().ok()
    }

    /// True if both give every token the same id.
    pub fn has_ids_of(&self, other: &Self) -> bool {
        self.inner.get_vocab(true) == other.inner.get_vocab(true)
    }

    /// One more than the largest id: the embedding rows the tokenizer needs.
    pub fn vocab_size(&self) -> usize {
        self.inner.get_vocab(true).values().max().map_or(0, |&id| id as usize + 1)
    }
}

/// All end-of-sequence ids a folder names, each once: those of `generation_config.json`, then `config.json`'s.
pub fn eos_ids(dir: &Path) -> Result<Vec<u32>> {
    let mut ids = Vec::new();
    for file in ["generation_config.json", "config.json"] {
        let path = dir.join(file);
        let Some(json) = read_object(&path)? else { continue };
        let found = match json.get("eos_token_id") {
            None | Some(Value::Null) => Vec::new(),
            Some(Value::Array(list)) => list.clone(),
            Some(one) => vec![one.clone()],
        };
        for value in found {
            let id = value.as_u64().and_then(|id| u32::try_from(id).ok()).ok_or_else(|| {
                input_error!("{}: eos_token_id must be a token id or a list of them, not {value}", path.display())
            })?;
            if !ids.contains(&id) {
                ids.push(id);
            }
        }
    }
    Ok(ids)
}

/// The content of `tokenizer_config.json`. As in transformers, where it lists no added tokens, the special tokens of
/// `special_tokens_map.json` replace its own.
fn read_settings(dir: &Path) -> Result<Map<String, Value>> {
    let mut settings = read_object(&dir.join(SETTINGS_FILE))?.unwrap_or_default();
    if !settings.contains_key("added_tokens_decoder")
        && let Some(special) = read_object(&dir.join(SPECIAL_FILE))?
    {
        settings.extend(special.into_iter().filter(|(name, _)| template::SPECIAL.contains(&name.as_str())));
    }
    Ok(settings)
}

/// The chat template of a Hugging Face folder, and the file that holds it; none where the folder has none.
fn find_template(dir: &Path, settings: &Map<String, Value>) -> Result<Option<(PathBuf, String)>> {
    let path = dir.join(TEMPLATE_FILE);
    match files::read_to_string(&path, SMALL) {
        Ok(text) => Ok(Some((path, text))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            for (file, content) in
                [(TEMPLATE_JSON, read_object(&dir.join(TEMPLATE_JSON))?), (SETTINGS_FILE, Some(settings.clone()))]
            {
                let (path, content) = (dir.join(file), content.unwrap_or_default());
                let text = template::of_settings(&content).map_err(|why| input_error!("{}: {why}", path.display()))?;
                if let Some(text) = text {
                    return Ok(Some((path, text)));
                }
            }
            Ok(None)
        }
        Err(error) => Err(input_error!("cannot read {}: {error}", path.display())),
    }
}

/// Copies the files of a tokenizer from one model folder to another; returns the end-of-sequence ids. A folder without a
/// chat template gets ChatML, since that is the format of every prompt that its model was trained on here.
pub fn copy_files(source: &Path, dir: &Path) -> Result<Vec<u32>> {
    for file in FILES {
        let from = source.join(file);
        if from.exists() {
            let to = dir.join(file);
            std::fs::copy(&from, &to).with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
        }
    }
    let settings = read_object(&source.join(SETTINGS_FILE))?.unwrap_or_default();
    if source.join("tokenizer.json").exists() && find_template(source, &settings)?.is_none() {
        write_whole(&dir.join(TEMPLATE_FILE), template::CHATML)?;
    }
    let eos = eos_ids(source)?;
    let generation = dir.join("generation_config.json");
    if !eos.is_empty() && !generation.exists() {
        write_json(&generation, &generation_config(&eos))?;
    }
    Ok(eos)
}

/// The `generation_config.json` object that names these end-of-sequence ids; the last one also pads, as in Qwen2.5.
fn generation_config(eos: &[u32]) -> Value {
    json!({ "eos_token_id": eos, "pad_token_id": eos.last(), "do_sample": true })
}

fn read_tokenizer(path: &Path) -> Result<tokenizers::Tokenizer> {
    let bytes = files::read(path, LARGE).map_err(|error| match path.with_file_name("vocab.json").exists() {
        true => input_error!(
            "{}: {error}; the folder has a tokenizer of the older form (vocab.json and merges.txt): load it by AutoTokenizer of \
             transformers and save it there, which writes tokenizer.json",
            path.display()
        ),
        false => input_error!("{}: {error}; the folder needs the model's tokenizer.json", path.display()),
    })?;
    let read = quietly(|| tokenizers::Tokenizer::from_bytes(bytes).map_err(|error| error.to_string()));
    let mut inner = read
        .and_then(|read| read)
        .map_err(|error| input_error!("{}: not a tokenizer ({error}); fetch the file again", path.display()))?;
    // The file may set truncation and padding of its author's batches. A prompt is encoded whole, as in transformers.
    inner.with_padding(None).with_truncation(None).map_err(plain)?;
    // Regular expressions of the file show themselves on the kinds of text that let them backtrack.
    let shown = path.display().to_string();
    bounded("encoding a sample with its regular expressions", move || {
        let sample = ["a", "0", " ", "\n", ".", "aB1 "].map(|piece| piece.repeat(64) + "!").concat();
        encode(&inner, &sample)?;
        Ok(inner)
    })
    .with_context(|| shown)
}

/// Token ids of a text. The tokenizers crate panics where a regular expression of the file fails.
fn encode(inner: &tokenizers::Tokenizer, text: &str) -> Result<Vec<u32>> {
    let encoding = quietly(|| inner.encode_fast(text, false))
        .map_err(|panic| input_error!("the tokenizer's regular expressions fail on a text: {panic}"))?;
    Ok(encoding.map_err(plain).context("cannot encode a text")?.get_ids().to_vec())
}

/// The `tokenizer_config.json` of a tokenizer with Qwen's special tokens.
fn trained_settings(inner: &tokenizers::Tokenizer) -> Result<Map<String, Value>> {
    let added = inner.get_added_tokens_decoder();
    let mut ids: Vec<_> = added.keys().copied().collect();
    ids.sort_unstable();
    let mut decoder = Map::new();
    for id in ids {
        let token = &added[&id];
        decoder.insert(
            id.to_string(),
            json!({ "content": token.content, "lstrip": token.lstrip, "normalized": token.normalized,
                    "rstrip": token.rstrip, "single_word": token.single_word, "special": token.special }),
        );
    }
    let settings = json!({
        "add_bos_token": false,
        "add_prefix_space": false,
        "added_tokens_decoder": decoder,
        "bos_token": null,
        "chat_template": template::CHATML,
        "clean_up_tokenization_spaces": false,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": 131_072,
        "pad_token": "<|endoftext|>",
        "split_special_tokens": false,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": null,
    });
    serde_json::from_value(settings).context("the settings are an object")
}

/// The tokenizers crate has its own boxed error type.
fn plain(error: tokenizers::Error) -> anyhow::Error {
    anyhow::anyhow!("tokenizer: {error}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_character_of_several_tokens_is_in_its_last() -> Result<()> {
        let trained = Tokenizer::train(["plain".to_string()].into_iter(), SMALLEST_VOCABULARY, false)?;
        let ids = trained.encode("a\u{e9}\u{1f642}b<|im_end|>")?;
        assert_eq!(trained.pieces(&ids), ["a", "", "\u{e9}", "", "", "", "\u{1f642}", "b", "<|im_end|>"]);
        // An incomplete character at the end, and bytes that form none, become replacement characters.
        assert_eq!(trained.pieces(&ids[..2]), ["a", "\u{fffd}"]);
        assert_eq!(trained.pieces(&[ids[3], ids[0]]).concat(), "\u{fffd}a");
        Ok(())
    }

    #[test]
    fn truncation_and_padding_of_the_file_are_not_obeyed() -> Result<()> {
        let dir = tempfile::tempdir()?;
        let trained = Tokenizer::train(["some text".to_string()].into_iter(), SMALLEST_VOCABULARY, false)?;
        trained.save(dir.path())?;
        let path = dir.path().join("tokenizer.json");
        let mut file = read_object(&path)?.context("it was saved")?;
        file["truncation"] = json!({ "direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0 });
        file["padding"] = json!({ "strategy": { "Fixed": 20 }, "direction": "Right", "pad_to_multiple_of": null,
                                  "pad_id": 0, "pad_type_id": 0, "pad_token": "!" });
        write_json(&path, &Value::Object(file))?;
        let loaded = Tokenizer::load(dir.path())?;
        for text in ["some text", "ab"] {
            let ids = loaded.encode(text)?;
            assert_eq!((ids.len(), &ids), (text.len(), &trained.encode(text)?));
        }
        Ok(())
    }
}
