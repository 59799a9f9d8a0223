//! Samples the next token of every row, and records its log-prob.
//!
//! The recorded log-prob is that of the whole distribution at the row's temperature; top-k, top-p and min-p only decide which
//! tokens may be drawn. A draw inverts the cumulative distribution at one uniform number per token; [`nestor_torch::draw`] has
//! the rule of all of it.

use nestor_torch::decoding::{self, DrawColumns, TruncationColumns};
use nestor_torch::ops::Ops;
use nestor_torch::upload;
use tch::{Kind, Tensor};

use crate::error::Diverged;
use crate::input_error;

/// Temperatures below this make sound logits overflow float32: a model's logits reach a few hundred.
const LOWEST_TEMPERATURE: f64 = 1e-30;
/// More than any vocabulary has tokens, and the largest number up to which float32 has them all.
const MOST_KEPT: i64 = 1 << 24;

/// Sampling settings of one request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampling {
    /// Divides the logits; 0 takes the likeliest token and records its log-prob at temperature 1.
    pub temperature: f64,
    /// Draw among the k likeliest tokens; 0 or less is off.
    pub top_k: i64,
    /// Draw among the smallest set of likeliest tokens that holds this much probability; 1 is off.
    pub top_p: f64,
    /// Draw among tokens of these with at least this part of the likeliest one's probability; 0 is off.
    pub min_p: f64,
}

impl Default for Sampling {
    fn default() -> Self {
        Self { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0 }
    }
}

/// One row's settings and its uniform number in [0, 1).
#[derive(Debug, Clone, Copy, Default)]
pub struct Draw {
    pub sampling: Sampling,
    /// Picks the token.
    pub uniform: f32,
}

impl Sampling {
    /// True for rows that draw from a part of the distribution.
    pub fn truncates(&self) -> bool {
        !self.is_greedy() && (self.top_k > 0 || self.top_p < 1.0 || self.min_p > 0.0)
    }

    /// The number of the likeliest tokens as a kernel reads it, which float32 holds too: 0 where they are all.
    pub fn kept_tokens(&self) -> i32 {
        self.top_k.clamp(0, MOST_KEPT) as i32
    }

    /// The logarithm of min-p, minus infinity where it is off: the same number in all samplers, which add it to the largest logit.
    pub fn log_min_p(&self) -> f32 {
        (self.min_p as f32).ln()
    }

    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0
    }

    /// Factor of the logits.
    pub fn inverse_temperature(&self) -> f32 {
        1.0 / self.divisor()
    }

    fn divisor(&self) -> f32 {
        if self.is_greedy() { 1.0 } else { self.temperature as f32 }
    }
}

/// Drawn tokens and their log-probs, one per row.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Drawn {
    pub tokens: Vec<u32>,
    /// Log-probs under the untruncated distribution.
    pub logprobs: Vec<f32>,
}

/// Draws a token for each row of the logits (R, V); one draw per row.
///
/// # Errors
/// When a row's logits are not finite (minus infinity is allowed: such a token is never drawn).
pub fn sample(ops: Ops, logits: &Tensor, draws: &[Draw]) -> anyhow::Result<Drawn> {
    let drawn = match ops {
        Ops::Fused => draw_on_cpu(logits, draws)?,
        Ops::Generic => Drawn::read(&draw_tensors(logits, draws).to_device(tch::Device::Cpu), draws.len())?,
    };
    check(&drawn, draws.iter().map(|draw| draw.sampling))?;
    Ok(drawn)
}

/// An error where a drawn token's log-prob is not finite; the rows' settings are in their order.
pub fn check(drawn: &Drawn, settings: impl ExactSizeIterator<Item = Sampling>) -> anyhow::Result<()> {
    // One NaN or infinite logit makes its row's log-prob NaN, and log-probs are copied to the host anyway.
    let (rows, bad) = (settings.len(), drawn.logprobs.iter().filter(|logprob| !logprob.is_finite()).count());
    if bad > 0 {
        let temperatures = settings.filter(|sampling| !sampling.is_greedy());
        let lowest = temperatures.map(|sampling| sampling.temperature).fold(f64::INFINITY, f64::min);
        if lowest < LOWEST_TEMPERATURE {
            return Err(input_error!(
                "the logits overflow once they are divided by the sampling temperature {lowest:e}; raise rollout.temperature \
                 (or eval.temperature), or set it to 0 in an evaluation for greedy choices"
            ));
        }
        let message = format!(
            "the policy's logits are not finite ({bad} of {rows} rows): its weights have diverged or are damaged; start \
             from weights that are sound (an earlier checkpoint, or the model fetched again)"
        );
        return Err(Diverged { critic: false, message }.into());
    }
    Ok(())
}

/// By the CPU's own sampler.
fn draw_on_cpu(logits: &Tensor, draws: &[Draw]) -> anyhow::Result<Drawn> {
    let draws: Vec<nestor_torch::RawDraw> = draws
        .iter()
        .map(|draw| nestor_torch::RawDraw {
            inverse_temperature: draw.sampling.inverse_temperature(),
            uniform: draw.uniform,
            greedy: i32::from(draw.sampling.is_greedy()),
            top_k: draw.sampling.kept_tokens(),
            top_p: draw.sampling.top_p as f32,
            log_min_p: draw.sampling.log_min_p(),
        })
        .collect();
    let drawn = match logits.kind() {
        Kind::Float | Kind::BFloat16 => nestor_torch::draw(logits, &draws)?,
        _ => nestor_torch::draw(&logits.to_kind(Kind::Float), &draws)?,
    };
    Ok(Drawn {
        tokens: drawn.iter().map(|d| d.token as u32).collect(),
        logprobs: drawn.iter().map(|d| d.logprob).collect(),
    })
}

/// Draws a token for each row of the logits (R, V), on any device: (2, R) float64, tokens and their log-probs. Neither a
/// shape nor a wait depends on the results, so a graph can record it. By the kernel where the device has it.
pub fn draw_rows(logits: &Tensor, settings: &DrawColumns) -> Tensor {
    joined(&decoding::sample(logits, settings))
}

/// The same with settings from the host, which does not wait.
pub fn draw_tensors(logits: &Tensor, draws: &[Draw]) -> Tensor {
    let column = |f: &dyn Fn(&Sampling) -> f32| draws.iter().map(|draw| f(&draw.sampling)).collect::<Vec<f32>>();
    let uniforms = draws.iter().map(|draw| draw.uniform).collect();
    let greedy = column(&|sampling| f32::from(u8::from(sampling.is_greedy())));
    let (top_k, top_p) = (column(&|sampling| sampling.kept_tokens() as f32), column(&|sampling| sampling.top_p as f32));
    let log_min_p = column(&Sampling::log_min_p);
    let columns = [column(&Sampling::inverse_temperature), uniforms, greedy, top_k, top_p, log_min_p].concat();
    let columns = upload(&columns, logits.device()).view([6, -1]);
    let truncates = draws.iter().any(|draw| draw.sampling.truncates());
    let truncation =
        truncates.then(|| [columns.select(0, 3).to_kind(Kind::Int), columns.select(0, 4), columns.select(0, 5)]);
    let settings = DrawColumns {
        inverse_temperatures: &columns.select(0, 0),
        uniforms: &columns.select(0, 1),
        greedy: &columns.select(0, 2).to_kind(Kind::Int),
        truncation: truncation.as_ref().map(|[top_k, top_p, log_min_p]| TruncationColumns { top_k, top_p, log_min_p }),
    };
    draw_rows(logits, &settings)
}

/// Tokens (R) and their log-probs, (2, R) in a type that holds both exactly: one copy to the host.
fn joined(columns: &[Tensor; 2]) -> Tensor {
    Tensor::stack(&columns.each_ref().map(|column| column.to_kind(Kind::Double)), 0)
}

impl Drawn {
    /// The first `rows` of a tensor (2, R) of [`draw_rows`] or [`draw_tensors`], on the host.
    pub fn read(both: &Tensor, rows: usize) -> anyhow::Result<Self> {
        let column = |index| Vec::<f64>::try_from(both.select(0, index).narrow(0, 0, rows as i64));
        let (tokens, logprobs) = (column(0)?, column(1)?);
        Ok(Self {
            tokens: tokens.into_iter().map(|token| token as u32).collect(),
            logprobs: logprobs.into_iter().map(|logprob| logprob as f32).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::noise::NoiseKey;

    /// Plain reference: probabilities after temperature, top-k, then top-p on what is left, then min-p, renormalised.
    fn reference(logits: &[f64], s: Sampling) -> Vec<f64> {
        let temperature = if s.temperature == 0.0 { 1.0 } else { s.temperature };
        let exp: Vec<f64> = logits.iter().map(|l| (l / temperature).exp()).collect();
        let sum: f64 = exp.iter().sum();
        let mut order: Vec<usize> = (0..logits.len()).collect();
        order.sort_by(|&a, &b| exp[b].total_cmp(&exp[a]));
        if s.top_k > 0 {
            order.truncate(s.top_k as usize);
        }
        let left: f64 = order.iter().map(|&i| exp[i] / sum).sum();
        let (mut kept, mut mass) = (Vec::new(), 0.0);
        for i in order {
            if !kept.is_empty() && mass >= s.top_p * left {
                break;
            }
            mass += exp[i] / sum;
            kept.push(i);
        }
        let likeliest = exp[kept[0]];
        kept.retain(|&i| exp[i] >= s.min_p * likeliest);
        let mass: f64 = kept.iter().map(|&i| exp[i] / sum).sum();
        let mut probs = vec![0.0; logits.len()];
        kept.iter().for_each(|&i| probs[i] = exp[i] / sum / mass);
        probs
    }

    const BOTH: [Ops; 2] = [Ops::Fused, Ops::Generic];
    const LOGITS: [f64; 8] = [0.3, -1.2, 2.0, 1.1, -30.0, 0.9, -0.4, 1.7];

    #[test]
    fn draws_follow_the_distribution() -> anyhow::Result<()> {
        // All settings in one batch: rows must not use each other's settings.
        let settings = [
            Sampling { temperature: 1.0, ..Default::default() },
            Sampling { temperature: 0.6, ..Default::default() },
            Sampling { top_k: 3, ..Default::default() },
            Sampling { temperature: 1.5, top_k: 5, top_p: 0.7, min_p: 0.0 },
            Sampling { top_p: 0.8, ..Default::default() },
            Sampling { temperature: 1.5, min_p: 0.3, ..Default::default() },
            Sampling { temperature: 2.0, top_k: 6, top_p: 0.9, min_p: 0.2 },
            Sampling { top_p: 0.0, ..Default::default() },
            Sampling { temperature: 0.0, ..Default::default() },
        ];
        let count = 20_000;
        let rows = count * settings.len();
        let draws: Vec<Draw> = (0..rows)
            .map(|i| Draw {
                sampling: settings[i % settings.len()],
                uniform: NoiseKey { episode: i as u32, ..Default::default() }.uniform(7, 0),
            })
            .collect();
        let logits = Tensor::from_slice(&LOGITS).unsqueeze(0).expand([rows as i64, 8], false);
        for ops in BOTH {
            let drawn = sample(ops, &logits, &draws)?;
            for (w, &mode) in settings.iter().enumerate() {
                let mut counts = [0.0f64; 8];
                (0..count).for_each(|i| counts[drawn.tokens[i * settings.len() + w] as usize] += 1.0);
                if mode.temperature == 0.0 {
                    assert_eq!(counts[2], count as f64);
                    continue;
                }
                let mut chi = 0.0;
                for (token, p) in reference(&LOGITS, mode).into_iter().enumerate() {
                    assert!(p > 0.0 || counts[token] == 0.0, "{mode:?} drew token {token}, which is cut");
                    if p * count as f64 > 5.0 {
                        chi += (counts[token] - p * count as f64).powi(2) / (p * count as f64);
                    }
                }
                assert!(chi < 26.0, "{mode:?}: chi-square {chi} (0.999 quantile for 7 degrees of freedom is 24.3)");
            }
        }
        Ok(())
    }

    #[test]
    fn the_recorded_logprob_ignores_truncation() -> anyhow::Result<()> {
        let logits = Tensor::from_slice(&LOGITS).unsqueeze(0).expand([4, 8], false);
        let settings = [(0.0, 0, 1.0), (2.0, 1, 1.0), (1.0, 0, 0.1), (0.5, 0, 1.0)];
        let draws: Vec<Draw> = settings
            .iter()
            .map(|&(temperature, top_k, top_p)| Draw {
                sampling: Sampling { temperature, top_k, top_p, ..Default::default() },
                uniform: 0.999_999_94,
            })
            .collect();
        for ops in BOTH {
            let drawn = sample(ops, &logits, &draws)?;
            assert_eq!(drawn.tokens[..3], [2, 2, 2]);
            for (row, draw) in draws.iter().enumerate() {
                let whole = Sampling { temperature: draw.sampling.temperature, ..Default::default() };
                let expected = reference(&LOGITS, whole)[drawn.tokens[row] as usize].ln();
                assert!((drawn.logprobs[row] as f64 - expected).abs() < 1e-5, "{ops:?}, row {row}: {expected}");
            }
        }
        Ok(())
    }

    #[test]
    fn logits_that_are_not_finite_are_an_error_in_every_mode() {
        let settings = [(0.0, 0, 1.0), (1.0, 0, 1.0), (1.0, 3, 1.0), (1.0, 0, 0.5), (0.7, 3, 0.5)];
        for (temperature, top_k, top_p) in settings {
            let draw = Draw { sampling: Sampling { temperature, top_k, top_p, ..Default::default() }, uniform: 0.5 };
            for bad in [f32::NAN, f32::INFINITY] {
                for row in [[bad; 5], [0.0, bad, 1.0, f32::NEG_INFINITY, 2.0]] {
                    let logits =
                        Tensor::cat(&[Tensor::from_slice(&[1f32; 5]), Tensor::from_slice(&row)], 0).view([2, 5]);
                    for ops in BOTH {
                        let error = sample(ops, &logits, &[draw, draw]).expect_err("not finite").to_string();
                        assert!(error.contains("not finite (1 of 2 rows)"), "{ops:?}: {error}");
                    }
                }
            }
            let none = Tensor::full([1, 5], f64::NEG_INFINITY, (Kind::Float, tch::Device::Cpu));
            assert!(BOTH.into_iter().all(|ops| sample(ops, &none, &[draw]).is_err()));
        }
    }

    #[test]
    fn the_ends_of_the_distribution_never_give_an_impossible_token() -> anyhow::Result<()> {
        let never = f64::NEG_INFINITY;
        let logits = Tensor::from_slice(&[never, 0.0, never, 1.0, never]).unsqueeze(0).expand([2, 5], false);
        for top_p in [1.0, 0.9999] {
            let sampling = Sampling { top_p, ..Default::default() };
            let draws = [Draw { sampling, uniform: 0.0 }, Draw { sampling, uniform: 1.0 }];
            for ops in BOTH {
                let tokens = sample(ops, &logits, &draws)?.tokens;
                assert!(tokens.iter().all(|t| [1, 3].contains(t)), "{ops:?}: {tokens:?}");
            }
        }
        Ok(())
    }
}
