//! The network of BERT (arXiv 1810.04805) without its pooler, as transformers' `BertModel` computes it.
//!
//! Shapes: B texts, T tokens of the longest, H heads, D head size, E hidden size.

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::Value;
use tch::{Device, Kind, Tensor};

use crate::files::read_object;
use crate::input_error;
use crate::model::stored::Expected;
use crate::model::weight_files::open_any;
use crate::ranks::Solo;
use crate::shard::Layout;

/// More than any encoder has; bounds the memory that a wrong `config.json` allocates.
const MOST: i64 = 10_000_000;

/// The fields of a `config.json` that shape the network, under their Hugging Face names.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct BertConfig {
    /// Rows of the word embedding.
    pub vocab_size: i64,
    /// E.
    pub hidden_size: i64,
    pub intermediate_size: i64,
    pub num_hidden_layers: i64,
    /// H.
    pub num_attention_heads: i64,
    /// Longest text in tokens.
    pub max_position_embeddings: i64,
    pub type_vocab_size: i64,
    pub layer_norm_eps: f64,
}

impl BertConfig {
    /// Reads `config.json`.
    ///
    /// # Errors
    /// If the file is missing or names another network than BERT.
    pub fn load(dir: &Path) -> Result<Self> {
        let path = dir.join("config.json");
        let shown = path.display();
        let json = read_object(&path)?
            .ok_or_else(|| input_error!("{shown}: no such file; take the whole folder of a BERT encoder"))?;
        for (key, only, default) in [
            ("model_type", "bert", None),
            ("hidden_act", "gelu", Some("gelu")),
            ("position_embedding_type", "absolute", Some("absolute")),
        ] {
            match json.get(key).map_or(default, Value::as_str) {
                Some(found) if found == only => {}
                found => {
                    let found = found.map_or("nothing".into(), |found| format!("`{found}`"));
                    return Err(input_error!(
                        "{shown}: {key} is {found}, but only `{only}` can be computed; take a BERT encoder such as \
                         intfloat/e5-base-v2"
                    ));
                }
            }
        }
        let config: Self =
            serde_json::from_value(Value::Object(json)).map_err(|error| input_error!("{shown}: {error}"))?;
        config.check().map_err(|why| input_error!("{shown}: {why}; fetch the file again"))?;
        Ok(config)
    }

    fn check(&self) -> Result<(), String> {
        let sizes = [
            ("vocab_size", self.vocab_size),
            ("hidden_size", self.hidden_size),
            ("intermediate_size", self.intermediate_size),
            ("num_hidden_layers", self.num_hidden_layers),
            ("num_attention_heads", self.num_attention_heads),
            ("max_position_embeddings", self.max_position_embeddings),
            ("type_vocab_size", self.type_vocab_size),
        ];
        if let Some((name, size)) = sizes.into_iter().find(|(_, size)| !(1..=MOST).contains(size)) {
            return Err(format!("{name} is {size}"));
        }
        if self.hidden_size % self.num_attention_heads != 0 {
            return Err(format!(
                "hidden_size {} is no multiple of num_attention_heads {}",
                self.hidden_size, self.num_attention_heads
            ));
        }
        if !(self.layer_norm_eps > 0.0 && self.layer_norm_eps < 1.0) {
            return Err(format!("layer_norm_eps is {}", self.layer_norm_eps));
        }
        Ok(())
    }

    /// The parameters that an encoder needs, without the prefix `bert.`.
    fn layout(&self) -> Layout {
        let Self { hidden_size: e, intermediate_size: f, .. } = *self;
        let norm = |name: &str| [(format!("{name}.weight"), vec![e]), (format!("{name}.bias"), vec![e])];
        let linear = |name: &str, to: i64, from: i64| {
            [(format!("{name}.weight"), vec![to, from]), (format!("{name}.bias"), vec![to])]
        };
        let mut params = vec![
            ("embeddings.word_embeddings.weight".to_string(), vec![self.vocab_size, e]),
            ("embeddings.position_embeddings.weight".to_string(), vec![self.max_position_embeddings, e]),
            ("embeddings.token_type_embeddings.weight".to_string(), vec![self.type_vocab_size, e]),
        ];
        params.extend(norm("embeddings.LayerNorm"));
        for number in 0..self.num_hidden_layers {
            let name = |part: &str| format!("encoder.layer.{number}.{part}");
            for part in ["self.query", "self.key", "self.value", "output.dense"] {
                params.extend(linear(&name(&format!("attention.{part}")), e, e));
            }
            params.extend(norm(&name("attention.output.LayerNorm")));
            params.extend(linear(&name("intermediate.dense"), f, e));
            params.extend(linear(&name("output.dense"), e, f));
            params.extend(norm(&name("output.LayerNorm")));
        }
        Layout::new("bert", params)
    }
}

/// The network with its weights.
#[derive(Debug)]
pub struct Bert {
    pub config: BertConfig,
    words: Tensor,
    positions: Tensor,
    /// The embedding of token type 0 (E): a text of its own has no other.
    kind: Tensor,
    norm: Norm,
    layers: Vec<Layer>,
}

#[derive(Debug)]
struct Layer {
    query: Linear,
    key: Linear,
    value: Linear,
    attended: Linear,
    attended_norm: Norm,
    up: Linear,
    down: Linear,
    norm: Norm,
}

#[derive(Debug)]
struct Linear {
    weight: Tensor,
    bias: Tensor,
}

#[derive(Debug)]
struct Norm {
    weight: Tensor,
    bias: Tensor,
    eps: f64,
}

/// Parameters by name, each taken once.
struct Params {
    tensors: HashMap<String, Tensor>,
    eps: f64,
}

impl Params {
    fn take(&mut self, name: &str) -> Result<Tensor> {
        self.tensors.remove(name).with_context(|| format!("the layout lacks {name}"))
    }

    fn linear(&mut self, name: &str) -> Result<Linear> {
        Ok(Linear { weight: self.take(&format!("{name}.weight"))?, bias: self.take(&format!("{name}.bias"))? })
    }

    fn norm(&mut self, name: &str) -> Result<Norm> {
        let Linear { weight, bias } = self.linear(name)?;
        Ok(Norm { weight, bias, eps: self.eps })
    }

    fn layer(&mut self, number: i64) -> Result<Layer> {
        let name = |part: &str| format!("encoder.layer.{number}.{part}");
        Ok(Layer {
            query: self.linear(&name("attention.self.query"))?,
            key: self.linear(&name("attention.self.key"))?,
            value: self.linear(&name("attention.self.value"))?,
            attended: self.linear(&name("attention.output.dense"))?,
            attended_norm: self.norm(&name("attention.output.LayerNorm"))?,
            up: self.linear(&name("intermediate.dense"))?,
            down: self.linear(&name("output.dense"))?,
            norm: self.norm(&name("output.LayerNorm"))?,
        })
    }
}

impl Bert {
    /// Loads a Hugging Face folder in the given compute type. Names may have the prefix `bert.`. A pooler and heads are
    /// left out.
    ///
    /// # Errors
    /// Files that do not hold the network of `config.json`.
    pub fn load(dir: &Path, kind: Kind, device: Device) -> Result<Self> {
        let config = BertConfig::load(dir)?;
        let files = open_any(dir)?.renamed(|name| {
            let bare = name.strip_prefix("bert.").unwrap_or(name);
            let unused = bare.starts_with("pooler.")
                || bare.starts_with("cls.")
                || ["embeddings.position_ids", "embeddings.token_type_ids"].contains(&bare);
            (!unused).then(|| bare.to_string())
        });
        let layout = config.layout();
        let layouts = std::slice::from_ref(&layout);
        files.check(dir, &Expected { layouts, ..Expected::default() })?;
        let flat = Tensor::f_zeros([layout.numel()], (kind, device))?;
        files.fill(layouts, &Solo { device }, std::slice::from_ref(&flat))?;
        let tensors = layout.params.iter().map(|param| (param.name.clone(), layout.view(&flat, param))).collect();
        let mut params = Params { tensors, eps: config.layer_norm_eps };
        Ok(Self {
            words: params.take("embeddings.word_embeddings.weight")?,
            positions: params.take("embeddings.position_embeddings.weight")?,
            kind: params.take("embeddings.token_type_embeddings.weight")?.f_select(0, 0)?,
            norm: params.norm("embeddings.LayerNorm")?,
            layers: (0..config.num_hidden_layers).map(|number| params.layer(number)).collect::<Result<_>>()?,
            config,
        })
    }

    /// The last hidden states (B, T, E) of token ids (B, T). `mask` (B, T) is true for tokens, false for padding.
    ///
    /// # Errors
    /// If libtorch fails.
    pub fn forward(&self, ids: &Tensor, mask: &Tensor) -> Result<Tensor> {
        let length = ids.size()[1];
        let positions = self.positions.f_narrow(0, 0, length)?;
        let words = Tensor::f_embedding(&self.words, ids, -1, false, false)?;
        let mut x = self.norm.forward(&words.f_add(&self.kind)?.f_add(&positions)?)?;
        let mask = mask.f_unsqueeze(1)?.f_unsqueeze(1)?.f_expand([-1, -1, length, -1], false)?; // (B, 1, T, T)
        for layer in &self.layers {
            x = layer.forward(&x, &mask, self.config.num_attention_heads)?;
        }
        Ok(x)
    }
}

impl Layer {
    fn forward(&self, x: &Tensor, mask: &Tensor, heads: i64) -> Result<Tensor> {
        let (batch, length, width) = x.size3()?;
        let split = |linear: &Linear| -> Result<Tensor> {
            Ok(linear.forward(x)?.f_view([batch, length, heads, width / heads])?.f_transpose(1, 2)?) // (B, H, T, D)
        };
        let (query, key, value) = (split(&self.query)?, split(&self.key)?, split(&self.value)?);
        let attended =
            Tensor::f_scaled_dot_product_attention(&query, &key, &value, Some(mask), 0.0, false, None, false)?;
        let attended = attended.f_transpose(1, 2)?.f_reshape([batch, length, width])?;
        let x = self.attended_norm.forward(&self.attended.forward(&attended)?.f_add(x)?)?;
        let inner = self.up.forward(&x)?.f_gelu("none")?;
        self.norm.forward(&self.down.forward(&inner)?.f_add(&x)?)
    }
}

impl Linear {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(x.f_linear(&self.weight, Some(&self.bias))?)
    }
}

impl Norm {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(x.f_layer_norm(self.weight.size(), Some(&self.weight), Some(&self.bias), self.eps, false)?)
    }
}
