//! `nestor episodes`: the episodes of a run as chats, to learn from the best of them (rejection sampling) or to read.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use nestor_args::episodes::{EpisodesArgs, EpisodesOf, Format};
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

use crate::checkpoint::Source;
use crate::files::write_whole;
use crate::input_error;
use crate::recipe;
use crate::run::RECIPE;
use crate::tokenizer::{Message, Tokenizer};

/// Tokens around a message of the chat templates that prompts can be read back from: those before the role, between role
/// and content, and behind the content.
const TEMPLATES: [[&str; 3]; 2] =
    [["<|im_start|>", "\n", "<|im_end|>"], ["<|start_header_id|>", "<|end_header_id|>\n\n", "<|eot_id|>"]];

/// A written file.
#[derive(Debug, PartialEq, Eq)]
pub struct Written {
    pub rows: usize,
    /// Episodes that the conditions chose, and all.
    pub episodes: [usize; 2],
}

/// Writes the episodes of a run that fulfil the conditions.
///
/// # Errors
/// A directory that is no run, conditions that cannot be read, a chat template whose prompts cannot be read back as messages,
/// or a run without such an episode.
pub fn episodes(args: &EpisodesArgs) -> Result<Written> {
    let conditions = conditions(args.condition.as_deref().unwrap_or_default())?;
    let recipe = recipe::load(&args.run.join(RECIPE), &[])
        .map_err(|error| input_error!("{} is no run directory: {error:#}", args.run.display()))?;
    let tokenizer = match args.format {
        Format::Messages => {
            let tokenizer = Tokenizer::load(Source::find(&args.run)?.folder())?;
            Some(tokenizer.with_thinking(recipe.rollout.thinking)?)
        }
        Format::Text => None,
    };
    let (mut rows, mut chosen, mut all) = (Vec::new(), 0, 0);
    for (file, iteration) in files(&args.run, args.from)? {
        let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        for (number, line) in text.lines().enumerate() {
            let place = || format!("{}: line {}", file.display(), number + 1);
            let mut episode: Value = serde_json::from_str(line).with_context(place)?;
            episode["iteration"] = iteration.into();
            all += 1;
            if !conditions.iter().all(|condition| condition.holds(&episode)) {
                continue;
            }
            chosen += 1;
            rows.extend(match &tokenizer {
                Some(tokenizer) => chats(&episode, recipe.rollout.is_transcript(), tokenizer).with_context(place)?,
                None => texts(&episode),
            });
        }
    }
    if args.dedupe {
        let mut seen = HashSet::new();
        rows.retain(|row: &Value| {
            seen.insert(["messages", "prompt", "completion", "response"].map(|name| row[name].to_string()))
        });
    }
    if let Some(seed) = args.shuffle {
        rows.shuffle(&mut ChaCha8Rng::seed_from_u64(seed));
    }
    rows.truncate(args.limit.unwrap_or(usize::MAX));
    if rows.is_empty() {
        return Err(input_error!(
            "{}: none of {all} episodes fulfils --where '{}', so nothing was written",
            args.run.display(),
            args.condition.as_deref().unwrap_or_default()
        ));
    }
    write_whole(&args.out, rows.iter().map(|row| format!("{row}\n")).collect::<String>())?;
    Ok(Written { rows: rows.len(), episodes: [chosen, all] })
}

/// The files of episodes with their iterations, in order.
fn files(run: &Path, from: EpisodesOf) -> Result<Vec<(PathBuf, u64)>> {
    let folders: &[&str] = match from {
        EpisodesOf::Training => &["rollouts"],
        EpisodesOf::Evaluations => &["evaluations"],
        EpisodesOf::All => &["rollouts", "evaluations"],
    };
    let mut all = Vec::new();
    for folder in folders {
        let Ok(entries) = fs::read_dir(run.join(folder)) else { continue };
        let mut own = Vec::new();
        for entry in entries {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let iteration = name.strip_prefix("iteration-").and_then(|name| name.strip_suffix(".jsonl")?.parse().ok());
            own.extend(iteration.map(|iteration| (path.clone(), iteration)));
        }
        own.sort_by_key(|(_, iteration)| *iteration);
        all.extend(own);
    }
    if all.is_empty() {
        return Err(input_error!(
            "{} has no episodes in {}: a run writes them where `checkpoint.rollouts_every` is 1 or more, and evaluations unless \
             `eval.save_episodes` is false",
            run.display(),
            folders.join("/ and ") + "/"
        ));
    }
    Ok(all)
}

/// A condition on an episode.
#[derive(Debug, Clone, PartialEq)]
enum Condition {
    Is(Flag, bool),
    Compares(String, Comparison, f64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flag {
    Won,
    Valid,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Comparison {
    Least,
    Most,
    More,
    Less,
    Equal,
}

/// Numbers of an episode that conditions compare.
const NUMBERS: [&str; 6] = ["return", "steps", "tokens", "iteration", "task", "seed"];

/// Reads conditions that are joined by `and`.
fn conditions(text: &str) -> Result<Vec<Condition>> {
    let parts = text.split(" and ").map(str::trim).filter(|part| !part.is_empty());
    parts.map(|part| condition(part).map_err(|error| input_error!("--where: `{part}`: {error:#}"))).collect()
}

fn condition(text: &str) -> Result<Condition> {
    let (name, is) = text.strip_prefix("not ").map_or((text, true), |name| (name.trim(), false));
    match name {
        "won" => return Ok(Condition::Is(Flag::Won, is)),
        "valid" => return Ok(Condition::Is(Flag::Valid, is)),
        _ => ensure!(is, "only `won` and `valid` can have a `not`"),
    }
    use Comparison::{Equal, Least, Less, More, Most};
    let signs = [(">=", Least), ("<=", Most), ("==", Equal), (">", More), ("<", Less), ("=", Equal)];
    let found = signs.into_iter().find_map(|(sign, comparison)| Some((name.split_once(sign)?, comparison)));
    let known = || {
        format!("known are won, valid, {}, the last ones with a comparison such as `return >= 0.5`", NUMBERS.join(", "))
    };
    let ((name, number), comparison) = found.with_context(known)?;
    let name = name.trim();
    ensure!(NUMBERS.contains(&name), "{}", known());
    let number = number.trim().parse().with_context(|| format!("`{}` is no number", number.trim()))?;
    Ok(Condition::Compares(name.into(), comparison, number))
}

impl Condition {
    /// True for an episode, as a line of the run has it. One that failed has no outcome and fulfils none.
    fn holds(&self, episode: &Value) -> bool {
        let steps = || episode["steps"].as_array().into_iter().flatten();
        if !episode["failure"].is_null() {
            return false;
        }
        match self {
            Self::Is(Flag::Won, is) => episode["won"].as_bool() == Some(*is),
            Self::Is(Flag::Valid, is) => steps().all(|step| step["valid"] == true) == *is,
            Self::Compares(name, comparison, number) => {
                let value = match &**name {
                    "steps" => Some(steps().count() as f64),
                    "tokens" => steps().map(|step| step["response_tokens"].as_f64()).sum(),
                    name => episode[name].as_f64(),
                };
                value.is_some_and(|value| match comparison {
                    Comparison::Least => value >= *number,
                    Comparison::Most => value <= *number,
                    Comparison::More => value > *number,
                    Comparison::Less => value < *number,
                    Comparison::Equal => value == *number,
                })
            }
        }
    }
}

/// An episode as rows with the texts of its steps.
fn texts(episode: &Value) -> Vec<Value> {
    let steps = episode["steps"].as_array().into_iter().flatten();
    steps.map(|step| described(episode, json!({ "prompt": step["prompt"], "response": step["response"] }))).collect()
}

/// An episode as chats: one of each conversation, or in a recipe without transcripts one of each step.
fn chats(episode: &Value, is_transcript: bool, tokenizer: &Tokenizer) -> Result<Vec<Value>> {
    let steps = episode["steps"].as_array().map_or(&[][..], Vec::as_slice);
    if !is_transcript {
        let row = |step: &Value| {
            let prompt = messages(text(step, "prompt"), true, tokenizer)?;
            let completion = [Message::new("assistant", text(step, "response"))];
            Ok(described(episode, json!({ "prompt": prompt, "completion": completion })))
        };
        return steps.iter().map(row).collect();
    }
    let row = |whole: String| Ok(described(episode, json!({ "messages": messages(&whole, false, tokenizer)? })));
    conversations(steps).into_iter().map(row).collect()
}

/// The text of each conversation of a transcript. A file of an older version does not say which step a step continues: there it is the one
/// before.
fn conversations(steps: &[Value]) -> Vec<String> {
    let says = steps.iter().any(|step| step.get("continues").is_some());
    let (mut all, mut of) = (Vec::<String>::new(), Vec::<usize>::new());
    for (number, step) in steps.iter().enumerate() {
        let before =
            if says { step["continues"].as_u64().map(|before| before as usize) } else { number.checked_sub(1) };
        let own = before.and_then(|before| of.get(before).copied()).unwrap_or(all.len());
        if own == all.len() {
            all.push(String::new());
        }
        of.push(own);
        all[own] += text(step, "prompt");
        step["tokens"].as_array().into_iter().flatten().filter_map(Value::as_str).for_each(|piece| all[own] += piece);
    }
    all
}

fn text<'a>(step: &'a Value, name: &str) -> &'a str {
    step[name].as_str().unwrap_or_default()
}

/// The row, with what it is of.
fn described(episode: &Value, mut row: Value) -> Value {
    for name in ["iteration", "task", "won", "return"] {
        row[name] = episode[name].clone();
    }
    row
}

/// The messages of a rendered chat. They must give the same text again.
fn messages(rendered: &str, asks: bool, tokenizer: &Tokenizer) -> Result<Vec<Message>> {
    for [before, between, behind] in TEMPLATES {
        let mut found = Vec::new();
        // A response that was cut has no end.
        let is_cut = !asks && !rendered.trim_end().ends_with(behind);
        let whole = if is_cut { format!("{rendered}{behind}") } else { rendered.to_owned() };
        for part in whole.split(before).skip(1) {
            let Some((role, rest)) = part.split_once(between) else { break };
            // The prompt of a response has no content.
            let Some((content, _)) = rest.split_once(behind) else { break };
            found.push(Message::new(role, content));
        }
        let again = tokenizer.render(&found, asks);
        if !found.is_empty() && again.is_ok_and(|again| again.trim_end() == whole.trim_end()) {
            return Ok(found);
        }
    }
    Err(input_error!(
        "its text cannot be read back as messages of the run's chat template (an image, or a template of \
         another form than ChatML's or Llama 3's); --format text writes it as it is"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_choose_episodes() -> Result<()> {
        let episode = json!({"won": true, "return": 0.5, "task": 3, "seed": 9, "iteration": 2, "failure": null, "steps": [
            {"valid": true, "response_tokens": 4}, {"valid": false, "response_tokens": 3}]});
        let holds = |text: &str| Ok::<_, anyhow::Error>(conditions(text)?.iter().all(|it| it.holds(&episode)));
        for text in [
            "",
            "won",
            "not valid",
            "return >= 0.5",
            "return<=.5",
            "steps = 2",
            "tokens == 7",
            "iteration > 1 and task < 4",
            "won and seed=9",
        ] {
            assert!(holds(text)?, "{text}");
        }
        for text in ["not won", "valid", "return > 0.5", "steps < 2", "won and tokens > 7"] {
            assert!(!holds(text)?, "{text}");
        }
        let mut failed = episode.clone();
        failed["failure"] = "died".into();
        assert!(conditions("won")?.iter().all(|it| !it.holds(&failed)));
        for (text, wanted) in [
            ("wins", "--where: `wins`: known are won, valid, return, "),
            ("score > 1", "--where: `score > 1`: known are"),
            ("return > much", "`much` is no number"),
            ("not return > 1", "only `won` and `valid` can have a `not`"),
        ] {
            let message = format!("{:#}", conditions(text).expect_err(text));
            assert!(message.contains(wanted), "{message}");
        }
        Ok(())
    }

    #[test]
    fn a_conversation_goes_by_the_step_that_each_step_continues() {
        let step = |prompt: &str, continues: Option<u64>| match continues {
            Some(before) => json!({ "prompt": prompt, "tokens": ["!"], "continues": before }),
            None => json!({ "prompt": prompt, "tokens": ["!"] }),
        };
        let branched = [step("a", None), step("b", None), step("c", Some(0)), step("d", Some(1)), step("e", Some(2))];
        assert_eq!(conversations(&branched), ["a!c!e!", "b!d!"]);
        assert_eq!(conversations(&[step("a", None), step("b", None)]), ["a!b!"], "a file of an older version");
    }

    #[test]
    fn a_rendered_chat_is_read_back() -> Result<()> {
        let tokenizer = Tokenizer::train(["go north".to_string()].into_iter(), 300, false)?;
        let chat = [Message::new("system", "s\n\nt"), Message::new("user", "where?"), Message::new("assistant", "go")];
        assert_eq!(messages(&tokenizer.render(&chat, false)?, false, &tokenizer)?, chat);
        assert_eq!(messages(&tokenizer.render(&chat[..2], true)?, true, &tokenizer)?, chat[..2]);
        let cut = tokenizer.render(&chat, false)?.replace("go<|im_end|>\n", "go");
        assert_eq!(messages(&cut, false, &tokenizer)?, chat);
        for wrong in ["where?", "<|im_start|>user", "x<|im_start|>user\nwhere?<|im_end|>\n"] {
            assert!(messages(wrong, false, &tokenizer).is_err(), "{wrong}");
        }
        Ok(())
    }
}
