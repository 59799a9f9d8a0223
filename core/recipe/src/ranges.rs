//! Ranges of a recipe's values, and rules between its keys.

use super::error::Problem;
use super::*;

/// Smallest vocabulary of a new model's tokenizer: 256 bytes and three special tokens.
const SMALLEST_VOCABULARY: i64 = 259;

// Limits beyond any machine: a number with a digit too many fails here, with its key, and not when memory runs out.
const MOST_SLOTS: usize = 1 << 16;
const MOST_ENV_THREADS: usize = 1 << 10;
const MOST_TOKENS: usize = 1 << 24;
const MOST_EPISODES: usize = 1 << 20;
const MOST_SAMPLES: usize = 1 << 10;
const MOST_STOPS: usize = 16;
const LONGEST_STOP: usize = 256;
const MOST_SECONDS: u64 = 7 * 24 * 3600;
/// Memory that a process needs before it loads a plugin.
const LEAST_GIB: f64 = 0.0625;
/// Logits over a smaller temperature overflow; with a larger one all tokens are alike.
const TEMPERATURES: std::ops::RangeInclusive<f64> = 0.01..=100.0;
/// Gradients that are clipped to a smaller norm vanish beside an optimizer's epsilon.
const LEAST_CLIP: f64 = 1e-6;
const MOST_MINUTES: f64 = 7.0 * 24.0 * 60.0;

/// Finds the values out of range: the first of each section.
pub(super) fn problems(recipe: &Recipe) -> Vec<Problem> {
    let r = recipe;
    let thinking = "is for a model with a thinking switch in its chat template, and that of `model.new` has none";
    let (played, updated) = (rollout(&r.rollout), update(&r.update, r.iterations));
    // Sums over both sections mean nothing where one of their terms is wrong.
    let sound = played.is_none() && updated.is_none();
    let sums = sound.then(|| batches(&r.rollout, &r.update).or_else(|| transcript(r))).flatten();
    let sections = [
        model(&r.model),
        environments(&r.env).or_else(|| r.env.problem([&r.rollout.split, &r.eval.split])),
        least("estimator.plugin", r.estimator.plugin.len(), 1, "must name a plugin"),
        plugin_config("estimator.config", &r.estimator.config),
        plugin_limits("estimator", &r.estimator.choice()),
        r.estimator
            .teacher
            .as_ref()
            .and_then(|teacher| least("estimator.teacher.path", teacher.path.len(), 1, "must name a model folder")),
        r.reference.as_ref().and_then(|it| least("reference.path", it.path.len(), 1, "must name a model folder")),
        r.loss.as_ref().and_then(|loss| loss_plugin(loss, &r.update)),
        played,
        (r.rollout.thinking.is_some() && r.model.new.is_some()).then(|| ("rollout.thinking".into(), thinking.into())),
        updated,
        optimizer::problem(&r.update.optimizer, r.model.lora.is_some()),
        sums,
        r.critic.as_ref().and_then(|c| critic(c, r.iterations)),
        r.warm_start.as_ref().and_then(warm_start),
        (r.update.loss_scale.is_some() && r.dtype != Dtype::Float16).then(|| {
            (
                "update.loss_scale".into(),
                "belongs to `dtype: float16`; leave it out (`--set update.loss_scale=null`)".into(),
            )
        }),
        (r.update.offload == Offload::All && r.dtype == Dtype::Float32).then(|| {
            let message = "must be `moments` with `dtype: float32`, in which the network computes with the master weights themselves";
            ("update.offload".into(), message.into())
        }),
        eval(&r.eval),
        minutes(r.checkpoint.every_minutes),
        least("checkpoint.keep", r.checkpoint.keep, 1, "must be at least 1"),
        dist(&r.dist),
        serde_json::to_value(r).ok().and_then(|whole| no_float32("", &whole)),
    ];
    let mut problems: Vec<Problem> = Vec::new();
    for (path, message) in sections.into_iter().flatten() {
        // One value may break two rules; the first message suffices.
        if problems.iter().all(|(known, _)| *known != path) {
            problems.push((path, message));
        }
    }
    problems
}

/// Finds a number that float32, in which the program computes, cannot hold. Plugins read their own config.
fn no_float32(path: &str, value: &serde_json::Value) -> Option<Problem> {
    let inner = |key: &str| if path.is_empty() { key.to_string() } else { format!("{path}.{key}") };
    match value {
        serde_json::Value::Object(map) if !path.ends_with(".config") => {
            map.iter().find_map(|(key, value)| no_float32(&inner(key), value))
        }
        serde_json::Value::Array(items) if path == "env" => {
            items.iter().enumerate().find_map(|(number, item)| no_float32(&inner(&number.to_string()), item))
        }
        serde_json::Value::Array(items) => items.iter().find_map(|item| no_float32(path, item)),
        serde_json::Value::Number(number) if number.is_f64() => {
            let size = number.as_f64()?.abs();
            let fits = size == 0.0 || (f64::from(f32::MIN_POSITIVE)..=f64::from(f32::MAX)).contains(&size);
            let message = format!("must fit into float32 (0, or from 1.2e-38 to 3.4e38), but is {number}");
            (!fits).then(|| (path.into(), message))
        }
        _ => None,
    }
}

fn minutes(every: f64) -> Option<Problem> {
    range("checkpoint.every_minutes", every, (0.0..=MOST_MINUTES).contains(&every), "from 0 to 10080 (a week)")
}

fn eval(e: &Eval) -> Option<Problem> {
    let tasks = e.tasks.number(1) as usize;
    let most = MOST_EPISODES / tasks.clamp(1, MOST_EPISODES);
    let zero = "must be at least 1; set it to `none` for no evaluation";
    least("eval.tasks", tasks + usize::from(!e.evaluates()), 1, zero)
        .or_else(|| self::most("eval.tasks", tasks, MOST_EPISODES))
        .or_else(|| count("eval.samples", e.samples as usize, MOST_SAMPLES.min(most)))
        .or_else(|| {
            let good = e.temperature == 0.0 || TEMPERATURES.contains(&e.temperature);
            range("eval.temperature", e.temperature, good, "0 (greedy), or from 0.01 to 100")
        })
        .or_else(|| least("eval.split", e.split.len(), 1, "must name a split"))
}

/// Most pixels of an image.
const MOST_PIXELS: u64 = 1 << 24;

fn vision(source: &ModelSource) -> Option<Problem> {
    let vision = source.vision.as_ref()?;
    if source.lora.is_some() && source.vision_train() != VisionTrain::None {
        let message = "must be `none` beside `model.lora`, which trains adapters of the language model alone";
        return Some(("model.vision.train".into(), message.into()));
    }
    if source.new.as_ref().is_some_and(|new| new.vision.is_none()) {
        let message = "is for a model with a vision tower: describe one in `model.new.vision`, or leave it out";
        return Some(("model.vision".into(), message.into()));
    }
    let pixels = [("min_pixels", vision.min_pixels), ("max_pixels", vision.max_pixels)];
    if let Some((key, pixels)) = pixels.iter().find(|(_, n)| n.is_some_and(|n| !(1..=MOST_PIXELS).contains(&n))) {
        let message = format!("must be from 1 to {MOST_PIXELS}, but is {}", pixels.unwrap_or(0));
        return Some((format!("model.vision.{key}"), message));
    }
    if let (Some(least), Some(most)) = (vision.min_pixels, vision.max_pixels)
        && least > most
    {
        let message = format!("must be at most `max_pixels` ({most}), but is {least}");
        return Some(("model.vision.min_pixels".into(), message));
    }
    count("model.vision.cache_tokens", vision.cache_tokens, MOST_TOKENS)
}

fn model(source: &ModelSource) -> Option<Problem> {
    if let Some(problem) = vision(source) {
        return Some(problem);
    }
    let new = match (&source.path, &source.new) {
        (Some(_), None) => return source.lora.as_ref().and_then(lora::problem),
        (None, Some(new)) => new,
        (None, None) => return Some(("model".into(), "must hold `path` (a Hugging Face folder) or `new`".into())),
        (Some(_), Some(_)) => {
            return Some(("model".into(), "holds both `path` and `new`; remove one (`--set model.new=null`)".into()));
        }
    };
    let sizes = [
        ("hidden_size", new.hidden_size, 1 << 16),
        ("intermediate_size", new.intermediate_size, 1 << 20),
        ("layers", new.layers, 1_000),
        ("heads", new.heads, 1 << 10),
        ("kv_heads", new.kv_heads, 1 << 10),
        ("vocab_size", new.vocab_size, 1 << 20),
    ];
    if let Some((key, value, most)) = sizes.iter().find(|(_, value, most)| !(1..=*most).contains(value)) {
        return Some((format!("model.new.{key}"), format!("must be from 1 to {most}, but is {value}")));
    }
    let NewModel { hidden_size, heads, kv_heads, vocab_size, initializer_range, .. } = new;
    if *vocab_size < SMALLEST_VOCABULARY {
        let message = format!("must be at least {SMALLEST_VOCABULARY} (256 bytes and three special tokens)");
        return Some(("model.new.vocab_size".into(), format!("{message}, but is {vocab_size}")));
    }
    if !(initializer_range.is_finite() && *initializer_range > 0.0) {
        return range("model.new.initializer_range", *initializer_range, false, "greater than 0 and finite");
    }
    if hidden_size % heads != 0 || (hidden_size / heads) % 2 != 0 {
        let message = format!("must be a multiple of twice `heads` ({heads}), so that heads have an even size");
        return Some(("model.new.hidden_size".into(), format!("{message}, but is {hidden_size}")));
    }
    if heads % kv_heads != 0 {
        return Some(("model.new.kv_heads".into(), format!("must divide `heads` ({heads}), but is {kv_heads}")));
    }
    if let Some(problem) = new.vision.as_ref().and_then(NewVision::problem) {
        return Some(problem);
    }
    source.lora.as_ref().and_then(lora::problem)
}

fn environments(all: &EnvChoices) -> Option<Problem> {
    all.sections().find_map(|(path, env)| {
        least(&format!("{path}.plugin"), env.plugin.len(), 1, "must name a plugin")
            .or_else(|| plugin_config(&format!("{path}.config"), &env.config))
            .or_else(|| plugin_limits(&path, &env.choice()))
    })
}

fn plugin_config(path: &str, config: &serde_json::Value) -> Option<Problem> {
    (!config.is_object()).then(|| (path.into(), format!("must be a map, but is {config}")))
}

/// The limits of a plugin's calls and processes, and the form of its pin.
fn plugin_limits(section: &str, choice: &PluginChoice) -> Option<Problem> {
    let path = |key: &str| format!("{section}.{key}");
    let pinned =
        |hash: &String| hash.len() == 64 && hash.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    let hash = choice.sha256.as_ref().filter(|hash| !pinned(hash));
    None.or_else(|| seconds(&path("timeout_s"), choice.timeout_s?))
        .or_else(|| {
            let memory = choice.memory_gib?;
            range(&path("memory_gib"), memory, memory == 0.0 || memory >= LEAST_GIB, "0 (off), or at least 0.0625")
        })
        .or_else(|| seconds(&path("cpu_s"), choice.cpu_s?))
        .or_else(|| Some((path("sha256"), format!("must be 64 lower case hexadecimal digits, but is {}", hash?))))
}

/// The section `loss`, and the keys of `update` that belong to the built-in losses.
fn loss_plugin(loss: &PluginChoice, u: &Update) -> Option<Problem> {
    least("loss.plugin", loss.plugin.len(), 1, "must name a plugin")
        .or_else(|| plugin_config("loss.config", &loss.config))
        .or_else(|| plugin_limits("loss", loss))
        .or_else(|| u.given_to_built_in_losses())
}

fn rollout(r: &Rollout) -> Option<Problem> {
    let counts = [
        ("tasks", r.tasks as usize, MOST_EPISODES),
        ("group_size", r.group_size as usize, MOST_EPISODES),
        ("max_steps", r.max_steps as usize, 1 << 20),
        ("max_prompt_tokens", r.max_prompt_tokens, MOST_TOKENS),
        ("max_response_tokens", r.max_response_tokens, MOST_TOKENS),
        ("slots", r.slots, MOST_SLOTS),
        ("env_threads", r.env_threads, MOST_ENV_THREADS),
        ("open_episodes", r.open_episodes.unwrap_or(1), MOST_EPISODES),
    ];
    counts
        .iter()
        .find_map(|(key, value, most)| count(&format!("rollout.{key}"), *value, *most))
        .or_else(|| {
            let message = format!("times `tasks` ({}) must be at most {MOST_EPISODES} episodes", r.tasks);
            let fits = r.tasks as usize * r.group_size as usize <= MOST_EPISODES;
            (!fits).then(|| ("rollout.group_size".into(), format!("{message}, but is {}", r.group_size)))
        })
        .or_else(|| dynamic_sampling(r, r.dynamic_sampling.as_ref()?))
        .or_else(|| r.curriculum.as_ref()?.problem())
        .or_else(|| {
            let bounds = if r.temperature <= 0.0 { "greater than 0" } else { "from 0.01 to 100" };
            range("rollout.temperature", r.temperature, TEMPERATURES.contains(&r.temperature), bounds)
        })
        .or_else(|| range("rollout.top_k", r.top_k as f64, r.top_k >= 0, "0 (off) or more"))
        .or_else(|| {
            let fits = |text: &String| !text.is_empty() && text.len() <= LONGEST_STOP;
            let message = format!("must be at most {MOST_STOPS} texts of 1 to {LONGEST_STOP} bytes");
            (r.stop.len() > MOST_STOPS || !r.stop.iter().all(fits)).then(|| ("rollout.stop".into(), message))
        })
        .or_else(|| range("rollout.top_p", r.top_p, r.top_p > 0.0 && r.top_p <= 1.0, "greater than 0 and at most 1"))
        .or_else(|| range("rollout.min_p", r.min_p, (0.0..=1.0).contains(&r.min_p), "from 0 (off) to 1"))
        .or_else(|| {
            let penalty = r.invalid_action_penalty;
            range("rollout.invalid_action_penalty", penalty, penalty >= 0.0, "0 or more: it is subtracted")
        })
        .or_else(|| least("rollout.split", r.split.len(), 1, "must name a split"))
}

fn dynamic_sampling(r: &Rollout, d: &DynamicSampling) -> Option<Problem> {
    let rounds = "rollout.dynamic_sampling.rounds";
    let last = "must be at least 2: the last round is kept as it is, so that one round drops nothing";
    let fits = u64::from(r.tasks) * u64::from(r.group_size) <= u64::from(u32::MAX / d.rounds.max(1));
    least(rounds, d.rounds as usize, 2, &format!("{last}; it is {}", d.rounds))
        .or_else(|| {
            let message = "needs `rollout.group_size` of at least 2: the only return of a group is equal to itself";
            (r.group_size < 2).then(|| ("rollout.dynamic_sampling".into(), message.into()))
        })
        .or_else(|| {
            let message = "times `tasks` and `group_size` must be less than 2^32 episodes";
            (!fits).then(|| (rounds.into(), format!("{message}, but is {}", d.rounds)))
        })
}

/// An iteration's steps must fill a mini-batch, and a sequence must fit into a micro-batch.
fn batches(r: &Rollout, u: &Update) -> Option<Problem> {
    let steps = u64::from(r.tasks) * u64::from(r.group_size) * u64::from(r.max_steps);
    let sequence = r.max_tokens();
    None.or_else(|| {
        let message =
            "must be at most `tasks` * `group_size` * `max_steps` of the rollout, the most steps of an iteration";
        (u.mini_batch as u64 > steps)
            .then(|| ("update.mini_batch".into(), format!("{message} ({steps}), but is {}", u.mini_batch)))
    })
    .or_else(|| {
        let message =
            "must be at least `max_prompt_tokens` + `max_response_tokens` of the rollout (or its `max_sequence_tokens`)";
        let short = |path: &str, tokens: usize| {
            (tokens < sequence).then(|| (path.into(), format!("{message} ({sequence}), but is {tokens}")))
        };
        short("update.micro_batch_tokens", u.micro_batch_tokens)
            .or_else(|| short("rollout.cache_tokens", r.cache_tokens?))
    })
}

/// Keys that only one mode of history allows, and keys that a transcript requires.
fn transcript(recipe: &Recipe) -> Option<Problem> {
    let r = &recipe.rollout;
    let problem = |path: &str, message: String| Some((path.to_string(), message));
    let mode = "`rollout.history.mode: transcript`";
    if !r.is_transcript() {
        let limit = r.max_sequence_tokens?;
        return problem("rollout.max_sequence_tokens", format!("belongs to {mode}; leave it out (it is {limit})"));
    }
    if let Some(length @ 1..) = r.history.length {
        let message = format!("must be 0 or left out with {mode}, which holds all steps, but is {length}");
        return problem("rollout.history.length", message);
    }
    if !matches!(r.truncation, Truncation::Error | Truncation::Drop) {
        return problem(
            "rollout.truncation",
            format!("must be `error` or `drop` with {mode}: a conversation is never cut"),
        );
    }
    let least = r.max_prompt_tokens.saturating_add(r.max_response_tokens);
    let limit = r.max_sequence_tokens;
    if limit.is_none_or(|limit| limit < least) {
        let found = limit.map_or("missing".into(), |limit| limit.to_string());
        let message = format!("must be at least `max_prompt_tokens` + `max_response_tokens` ({least}) with {mode}");
        return problem("rollout.max_sequence_tokens", format!("{message}, but is {found}"));
    }
    let steps = r.max_steps as usize;
    let batches = [
        ("update.mini_batch", recipe.update.mini_batch),
        ("warm_start.batch", recipe.warm_start.as_ref().filter(|w| w.data.is_empty()).map_or(steps, |w| w.batch)),
    ];
    let (path, batch) = batches.into_iter().find(|(_, batch)| *batch < steps)?;
    let message = format!("must be at least `rollout.max_steps` ({steps}) with {mode}, since episodes stay whole");
    problem(path, format!("{message}, but is {batch}"))
}

fn update(u: &Update, iterations: u64) -> Option<Problem> {
    least("update.mini_batch", u.mini_batch, 1, "must be at least 1")
        .or_else(|| least("update.micro_batch_tokens", u.micro_batch_tokens, 1, "must be at least 1"))
        .or_else(|| least("update.epochs", u.epochs as usize, 1, "must be at least 1"))
        .or_else(|| {
            let target = u.target_kl?;
            let lone = "needs several `update.epochs`, before one of which an update ends; leave it out, or raise them";
            let alone = (u.epochs == 1).then(|| ("update.target_kl".into(), lone.into()));
            range("update.target_kl", target, target > 0.0, "greater than 0").or(alone)
        })
        .or_else(|| {
            let power = u.reweight.as_ref()?.power;
            range("update.reweight.power", power, power >= 0.0, "0 or more")
        })
        .or_else(|| range("update.lr", u.lr, u.lr > 0.0, "greater than 0"))
        .or_else(|| {
            let fits = warms_up(u.warmup, iterations);
            range("update.warmup", u.warmup as f64, fits, &format!("at most `iterations` ({iterations})"))
        })
        .or_else(|| {
            let ratio = u.min_lr_ratio;
            range("update.min_lr_ratio", ratio, (0.0..=1.0).contains(&ratio), "from 0 to 1")
        })
        .or_else(|| range("update.grad_clip", u.grad_clip, u.grad_clip >= LEAST_CLIP, "at least 1e-6"))
        .or_else(|| least("update.max_skipped", u.max_skipped as usize, 1, "must be at least 1"))
        .or_else(|| {
            let scale = u.loss_scale?;
            range("update.loss_scale", scale, scale >= 1.0, "at least 1")
        })
        .or_else(|| range("update.clip_low", u.clip_low, u.clip_low > 0.0 && u.clip_low < 1.0, "between 0 and 1"))
        .or_else(|| range("update.clip_high", u.clip_high, u.clip_high > 0.0, "greater than 0"))
        .or_else(|| range("update.dual_clip", u.dual_clip, u.dual_clip > 1.0, "greater than 1"))
        .or_else(|| range("update.entropy", u.entropy, u.entropy >= 0.0, "0 or more"))
        .or_else(|| {
            let coef = u.kl.as_ref()?.coef;
            range("update.kl.coef", coef, coef >= 0.0, "0 or more")
        })
        .or_else(|| u.kl_in_reward.as_ref().and_then(kl_in_reward))
        .or_else(|| {
            let cap = u.importance_cap?;
            range("update.importance_cap", cap, cap > 0.0, "greater than 0")
        })
        .or_else(|| u.loss.problem(u))
}

/// True if a warm-up of that number of iterations fits into a run. A run of none is a warm start alone, or only evaluates.
fn warms_up(warmup: u64, iterations: u64) -> bool {
    warmup <= iterations || iterations == 0
}

fn kl_in_reward(kl: &KlInReward) -> Option<Problem> {
    let adaptive = kl.adaptive.as_ref();
    range("update.kl_in_reward.coef", kl.coef, kl.coef >= 0.0, "0 or more")
        .or_else(|| {
            let target = adaptive?.target;
            range("update.kl_in_reward.adaptive.target", target, target > 0.0, "greater than 0")
        })
        .or_else(|| least("update.kl_in_reward.adaptive.horizon", adaptive?.horizon as usize, 1, "must be at least 1"))
}

fn critic(c: &Critic, iterations: u64) -> Option<Problem> {
    range("critic.lr", c.lr, c.lr > 0.0, "greater than 0")
        .or_else(|| range("critic.clip", c.clip, c.clip > 0.0, "greater than 0"))
        .or_else(|| range("critic.grad_clip", c.grad_clip, c.grad_clip >= LEAST_CLIP, "at least 1e-6"))
        .or_else(|| {
            let fits = warms_up(c.warmup, iterations);
            range("critic.warmup", c.warmup as f64, fits, &format!("at most `iterations` ({iterations})"))
        })
}

fn warm_start(w: &WarmStart) -> Option<Problem> {
    let problem = |key: &str, message: &str| Some((format!("warm_start.{key}"), message.to_string()));
    let steps = match (w.steps, w.epochs) {
        (Some(0), None) => problem("steps", "must be at least 1; leave the section out for none"),
        (Some(_), None) => None,
        (Some(_), Some(_)) => problem("epochs", "must be left out beside `warm_start.steps`"),
        (None, Some(_)) if w.data.is_empty() => {
            problem("epochs", "are passes over `warm_start.data`; give `warm_start.steps` for the expert")
        }
        (None, Some(epochs)) => range("warm_start.epochs", epochs, epochs > 0.0, "greater than 0"),
        (None, None) if w.data.is_empty() => problem("steps", "is missing"),
        (None, None) => problem("epochs", "is missing, and so is `warm_start.steps`; give one of them"),
    };
    let of_data = [
        ("validation", !w.validation.is_empty()),
        ("validation_share", w.validation_share != 0.0),
        ("max_tokens", w.max_tokens.is_some()),
        ("too_long", w.too_long != TooLong::default()),
        ("validate_every", w.validate_every.is_some()),
        ("shuffle", !w.shuffle),
    ];
    steps
        .or_else(|| count("warm_start.batch", w.batch, MOST_EPISODES))
        .or_else(|| {
            let (key, _) = of_data.into_iter().find(|(_, given)| w.data.is_empty() && *given)?;
            problem(key, "belongs to `warm_start.data`; leave it out, or name the files of chats")
        })
        .or_else(|| {
            let both = !w.data.is_empty() && w.expert_noise != 0.0;
            both.then(|| {
                problem("expert_noise", "belongs to the expert, and `warm_start.data` replaces it; leave one out")
            })?
        })
        .or_else(|| {
            let share = w.validation_share;
            range("warm_start.validation_share", share, (0.0..1.0).contains(&share), "from 0 to below 1")
        })
        .or_else(|| {
            let both = !w.validation.is_empty() && w.validation_share > 0.0;
            both.then(|| problem("validation_share", "must be left out beside `warm_start.validation`"))?
        })
        .or_else(|| least("warm_start.max_tokens", w.max_tokens.unwrap_or(2), 2, "must be at least 2"))
        .or_else(|| least("warm_start.validate_every", w.validate_every.unwrap_or(1) as usize, 1, "must be at least 1"))
        .or_else(|| {
            let ratio = w.min_lr_ratio;
            range("warm_start.min_lr_ratio", ratio, (0.0..=1.0).contains(&ratio), "from 0 to 1")
        })
        .or_else(|| range("warm_start.lr", w.lr, w.lr > 0.0, "greater than 0"))
        .or_else(|| {
            let noise = w.expert_noise;
            range("warm_start.expert_noise", noise, (0.0..=1.0).contains(&noise), "from 0 to 1")
        })
}

fn dist(d: &Dist) -> Option<Problem> {
    let (timeout, silence) = (d.timeout_s, d.silence_s);
    seconds("dist.timeout_s", timeout)
        .or_else(|| range("dist.silence_s", silence as f64, (5..=50).contains(&silence), "from 5 to 50"))
}

fn seconds(path: &str, value: u64) -> Option<Problem> {
    range(path, value as f64, (1..=MOST_SECONDS).contains(&value), "from 1 to 604800 (a week)")
}

fn count(path: &str, value: usize, most: usize) -> Option<Problem> {
    least(path, value, 1, "must be at least 1").or_else(|| self::most(path, value, most))
}

fn least(path: &str, value: usize, least: usize, message: &str) -> Option<Problem> {
    (value < least).then(|| (path.into(), message.into()))
}

fn most(path: &str, value: usize, most: usize) -> Option<Problem> {
    (value > most).then(|| (path.into(), format!("must be at most {most}, but is {value}")))
}

fn range(path: &str, value: f64, good: bool, wanted: &str) -> Option<Problem> {
    (!good).then(|| (path.into(), format!("must be {wanted}, but is {value}")))
}
