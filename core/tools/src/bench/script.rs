//! A scripted multi-turn environment. The script, drawn from a workload and a seed, fixes every prompt, the length of every
//! response and the end of every episode. The work is then independent of the sampled tokens, and a peer can repeat it
//! exactly (`--script-out` writes the script as JSON).
//!
//! A window-history prompt is built as verl-agent does: the common instruction, the group's task, the last turns (observation
//! and action; two unless the workload says otherwise), the observation, and the admissible actions. All parts are random tokens;
//! the episodes of a group share their first prompt. In a transcript a turn holds only the tokens that it adds to the conversation.

use anyhow::Result;
use nestor_args::ScriptArgs;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use serde::Serialize;

use super::workload::{PromptParts, Span, Workload};
use crate::files::write_whole;
use crate::input_error;
use crate::model::Config;
use crate::recipe::HistoryMode;

/// Reward of a won episode's last turn, as in verl-agent.
const WON: f64 = 10.0;

/// One turn: a prompt, the length of its response, and the outcome.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ScriptedTurn {
    /// Token ids: the whole prompt, or in a transcript the tokens that the turn adds.
    pub prompt: Vec<u32>,
    /// Tokens of the response.
    pub response: usize,
    /// Number of the turn's state inside the group.
    pub state: u32,
    pub reward: f64,
    /// Milliseconds until the environment shows the prompt.
    pub env_ms: u32,
}

/// One scripted episode.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ScriptedEpisode {
    pub group: u32,
    /// At least one.
    pub turns: Vec<ScriptedTurn>,
}

/// All episodes of an iteration, group by group.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Script {
    /// All token ids are smaller.
    pub vocab_size: i64,
    pub seed: u64,
    /// `window`: each turn has a complete prompt. `transcript`: it continues the previous turns.
    pub history: HistoryMode,
    pub group_size: usize,
    pub episodes: Vec<ScriptedEpisode>,
}

impl Script {
    /// Draws the script for a model, and writes it to `--script-out`.
    pub fn open(workload: &Workload, args: &ScriptArgs, config: &Config) -> Result<Self> {
        let script = Self::draw(workload, args, config.vocab_size)?;
        let (longest, most) = (script.longest(), config.max_position_embeddings);
        if longest as i64 > most {
            return Err(input_error!(
                "the longest prompt with its response has {longest} tokens, but the model's max_position_embeddings is {most}; \
                 lower --turns"
            ));
        }
        if let Some(path) = &args.script_out {
            write_whole(path, serde_json::to_string(&script)?)?;
        }
        Ok(script)
    }

    pub fn draw(workload: &Workload, args: &ScriptArgs, vocab_size: i64) -> Result<Self> {
        let envs = args.envs.unwrap_or(workload.envs);
        let most = args.turns.unwrap_or(workload.turns.most);
        if args.group_size == 0 || envs == 0 || !envs.is_multiple_of(args.group_size) {
            return Err(input_error!(
                "--envs is {envs}: it must be a multiple of --group-size ({}), and both at least 1",
                args.group_size
            ));
        }
        if most == 0 {
            return Err(input_error!("--turns must be at least 1"));
        }
        let turns = Span { least: workload.turns.least.min(most), most };
        let mean = workload.turns.mean * most as f64 / workload.turns.most as f64;
        let total = ((mean * envs as f64).round() as usize).clamp(turns.least * envs, turns.most * envs);
        let mut rng = ChaCha8Rng::seed_from_u64(args.seed);
        let counts = lengths(&mut rng, envs, turns, total);
        let responses = (workload.response.mean * total as f64).round() as usize;
        let mut draft = Draft {
            responses: lengths(&mut rng, total, workload.response.span(), responses).into_iter(),
            rng,
            workload,
            vocab_size,
            env_ms: args.env_ms,
        };
        let mut episodes: Vec<Outline> = Vec::with_capacity(envs);
        for (group, counts) in counts.chunks(args.group_size).enumerate() {
            episodes.extend(draft.group(group as u32, counts));
        }
        draft.list_admissible(&mut episodes, total);
        let episodes = episodes.iter().map(|outline| outline.prompts(args.history)).collect();
        Ok(Self { vocab_size, seed: args.seed, history: args.history, group_size: args.group_size, episodes })
    }

    /// The turns of all episodes.
    pub fn turns(&self) -> impl Iterator<Item = &ScriptedTurn> {
        self.episodes.iter().flat_map(|episode| &episode.turns)
    }

    /// Tokens of the longest prompt with its response: the capacity that an engine needs.
    pub fn longest(&self) -> usize {
        let whole = |episode: &ScriptedEpisode| {
            let sums = episode.turns.iter().map(|turn| turn.prompt.len() + turn.response);
            if self.history == HistoryMode::Transcript { sums.sum() } else { sums.max().unwrap_or(0) }
        };
        self.episodes.iter().map(whole).max().unwrap_or(0)
    }
}

/// The parts of one turn, before its prompt is built.
#[derive(Debug, Clone)]
struct Part {
    observation: Vec<u32>,
    admissible: Vec<u32>,
    /// The action that later prompts repeat, whatever the response was.
    action: Vec<u32>,
    turn: ScriptedTurn,
}

/// An episode before its prompts are built.
#[derive(Debug)]
struct Outline {
    group: u32,
    /// Instruction and task.
    preamble: Vec<u32>,
    /// Past turns in a window-history prompt.
    history: usize,
    parts: Vec<Part>,
}

impl Outline {
    fn prompts(&self, history: HistoryMode) -> ScriptedEpisode {
        let prompt = |number: usize, part: &Part| {
            let window = history == HistoryMode::Window;
            let mut prompt = if window || number == 0 { self.preamble.clone() } else { Vec::new() };
            if window {
                prompt.extend(self.past(number).iter().flat_map(|past| past.observation.iter().chain(&past.action)));
            }
            prompt.extend(part.observation.iter().chain(&part.admissible));
            ScriptedTurn { prompt, ..part.turn.clone() }
        };
        let turns = self.parts.iter().enumerate().map(|(number, part)| prompt(number, part)).collect();
        ScriptedEpisode { group: self.group, turns }
    }

    /// The turns that a window-history prompt repeats.
    fn past(&self, number: usize) -> &[Part] {
        &self.parts[number.saturating_sub(self.history)..number]
    }

    /// Tokens of a turn's window-history prompt without the admissible actions.
    fn base(&self, number: usize) -> usize {
        let past: usize = self.past(number).iter().map(|part| part.observation.len() + part.action.len()).sum();
        self.preamble.len() + past + self.parts[number].observation.len()
    }
}

/// Draws the content of a script.
struct Draft<'a> {
    rng: ChaCha8Rng,
    workload: &'a Workload,
    vocab_size: i64,
    env_ms: u32,
    responses: std::vec::IntoIter<usize>,
}

impl Draft<'_> {
    /// Draws the episodes of one group with the given numbers of turns. Only first turns get their admissible actions, unless
    /// these depend on the state.
    fn group(&mut self, group: u32, counts: &[usize]) -> Vec<Outline> {
        let PromptParts { instruction, task, observation, action, admissible, admissible_by_state, history, .. } =
            self.workload.prompt;
        // All groups share the instruction, so it has its own generator.
        let mut preamble = tokens(&mut ChaCha8Rng::seed_from_u64(0), instruction, self.vocab_size);
        preamble.extend(self.tokens(task));
        // States recur within and across the episodes of a group, so that estimators find equal states.
        let count = self.workload.states.unwrap_or(self.workload.turns.most);
        let states: Vec<Vec<u32>> = (0..count).map(|_| self.tokens_of(observation)).collect();
        let first = self.tokens_of(admissible);
        let mut of_states = vec![first];
        if admissible_by_state {
            of_states.extend(states.iter().skip(1).map(|_| self.tokens_of(admissible)));
        }
        let episode = |&count: &usize| {
            let won = below(&mut self.rng, 2) == 1;
            let part = |number: usize| {
                let state = if number == 0 { 0 } else { below(&mut self.rng, states.len()) };
                let reward = if won && number + 1 == count { WON } else { 0.0 };
                let env_ms = below(&mut self.rng, 2 * self.env_ms as usize + 1) as u32;
                let response = self.responses.next().unwrap_or(self.workload.response.least);
                let length = between(&mut self.rng, action);
                Part {
                    observation: states[state].clone(),
                    admissible: match number == 0 || admissible_by_state {
                        true => of_states[state].clone(),
                        false => Vec::new(),
                    },
                    action: tokens(&mut self.rng, length, self.vocab_size),
                    turn: ScriptedTurn { prompt: Vec::new(), response, state: state as u32, reward, env_ms },
                }
            };
            Outline { group, preamble: preamble.clone(), history, parts: (0..count).map(part).collect() }
        };
        counts.iter().map(episode).collect()
    }

    /// Draws the admissible actions of all later turns; their lengths make the mean prompt exact.
    fn list_admissible(&mut self, episodes: &mut [Outline], turns: usize) {
        if self.workload.prompt.admissible_by_state {
            return;
        }
        let later = turns - episodes.len();
        let first: usize = episodes.iter().map(|episode| episode.base(0) + episode.parts[0].admissible.len()).sum();
        let base: usize = episodes.iter().flat_map(|e| (1..e.parts.len()).map(|number| e.base(number))).sum();
        let span = self.workload.prompt.admissible;
        let total = match self.workload.prompt.mean {
            Some(mean) => ((mean * turns as f64).round() as usize).saturating_sub(first + base),
            None => (span.middle() * later as f64).round() as usize,
        };
        let mut drawn = lengths(&mut self.rng, later, span, total).into_iter();
        for part in episodes.iter_mut().flat_map(|episode| &mut episode.parts[1..]) {
            part.admissible = self.tokens(drawn.next().unwrap_or(span.least));
        }
    }

    fn tokens(&mut self, count: usize) -> Vec<u32> {
        tokens(&mut self.rng, count, self.vocab_size)
    }

    fn tokens_of(&mut self, span: Span) -> Vec<u32> {
        let count = between(&mut self.rng, span);
        self.tokens(count)
    }
}

/// Draws lengths inside a span whose sum is `total`, or the nearest possible sum. They are skewed: least +
/// (most - least) u^k, with u uniform and k chosen for the mean.
fn lengths(rng: &mut ChaCha8Rng, count: usize, span: Span, total: usize) -> Vec<usize> {
    let (least, width) = (span.least as f64, (span.most - span.least) as f64);
    let total = total.clamp(span.least * count, span.most * count);
    let excess = total as f64 / count.max(1) as f64 - least;
    let power = (width / excess - 1.0).max(0.0);
    let mut drawn: Vec<usize> = (0..count).map(|_| (least + width * unit(rng).powf(power)).round() as usize).collect();
    let mut sum: usize = drawn.iter().sum();
    // Corrects the sum for chance and rounding.
    while sum != total {
        for length in &mut drawn {
            if sum < total && *length < span.most {
                *length += 1;
                sum += 1;
            } else if sum > total && *length > span.least {
                *length -= 1;
                sum -= 1;
            }
        }
    }
    drawn
}

/// Uniform in [0, 1).
fn unit(rng: &mut ChaCha8Rng) -> f64 {
    f64::from(rng.next_u32()) / 2f64.powi(32)
}

fn below(rng: &mut ChaCha8Rng, limit: usize) -> usize {
    ((u64::from(rng.next_u32()) * limit as u64) >> 32) as usize
}

fn between(rng: &mut ChaCha8Rng, span: Span) -> usize {
    span.least + below(rng, span.most - span.least + 1)
}

fn tokens(rng: &mut ChaCha8Rng, count: usize, vocab_size: i64) -> Vec<u32> {
    (0..count).map(|_| below(rng, vocab_size as usize) as u32).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::super::workload::tests::{bundled, workload};
    use super::*;

    fn args(envs: Option<usize>, seed: u64, history: HistoryMode) -> ScriptArgs {
        let workload = String::new();
        ScriptArgs { workload, envs, group_size: 8, turns: None, seed, history, env_ms: 0, script_out: None }
    }

    fn draw(workload: &Workload, envs: Option<usize>, seed: u64) -> Script {
        Script::draw(workload, &args(envs, seed, HistoryMode::Window), 8192).expect("a script")
    }

    /// The workload with the published totals: 128 environments, 4322 turns.
    fn published() -> Workload {
        let mut all = bundled().into_iter().map(|(name, _)| workload(&name));
        all.find(|workload| workload.envs == 128).expect("the published workload")
    }

    /// Number of turns, and tokens of prompts and responses.
    fn totals(script: &Script) -> (usize, usize, usize) {
        script.turns().fold((0, 0, 0), |(n, p, r), turn| (n + 1, p + turn.prompt.len(), r + turn.response))
    }

    #[test]
    fn the_published_shape_has_exact_totals_and_scales() {
        let published = published();
        let script = draw(&published, None, 0);
        assert_eq!(script.episodes.len(), 128);
        assert_eq!(totals(&script), (4322, 4322 * 521, 4322 * 81));
        assert!(script.episodes.iter().all(|e| (5..=50).contains(&e.turns.len())));
        assert_eq!(script.episodes.last().expect("episodes").group, 15);
        assert_eq!(totals(&draw(&published, Some(16), 3)), (540, 540 * 521, 540 * 81));
    }

    #[test]
    fn lengths_are_ragged_and_inside_their_bounds() {
        for (workload, prompts) in [(workload("multi-turn"), 128..=210), (published(), 240..=700)] {
            let script = draw(&workload, None, 1);
            let distinct = |lengths: Vec<usize>| lengths.into_iter().collect::<HashSet<_>>().len();
            assert!(distinct(script.episodes.iter().map(|e| e.turns.len()).collect()) >= 6);
            assert!(distinct(script.turns().map(|t| t.response).collect()) > 30);
            for turn in script.turns() {
                assert!((workload.response.least..=workload.response.most).contains(&turn.response));
                assert!(prompts.contains(&turn.prompt.len()), "{}", turn.prompt.len());
            }
        }
        // Skewed: most responses are shorter than the mean.
        let script = draw(&workload("multi-turn"), None, 1);
        assert_eq!((totals(&script).0, totals(&script).2), (160, 160 * 32));
        assert!(script.turns().filter(|turn| turn.response < 32).count() > 90);
    }

    #[test]
    fn the_seed_decides_everything() {
        assert_eq!(draw(&workload("multi-turn"), None, 7), draw(&workload("multi-turn"), None, 7));
        assert_ne!(draw(&workload("multi-turn"), None, 7).episodes, draw(&workload("multi-turn"), None, 8).episodes);
    }

    #[test]
    fn prompts_of_a_group_share_their_common_parts() {
        let script = draw(&workload("multi-turn"), None, 2);
        let groups: Vec<_> = script.episodes.chunks(8).collect();
        for group in &groups {
            assert!(group.iter().all(|episode| episode.turns[0].prompt == group[0].turns[0].prompt));
            let second: HashSet<_> = group.iter().map(|episode| &episode.turns[1].prompt).collect();
            assert_eq!(second.len(), 8);
            // Instruction and task.
            assert!(group.iter().flat_map(|e| &e.turns).all(|t| t.prompt[..80] == group[0].turns[0].prompt[..80]));
        }
        let (a, b) = (&groups[0][0].turns[0].prompt, &groups[1][0].turns[0].prompt);
        assert!(a[..60] == b[..60] && a[60..80] != b[60..80]);
        // An observation is repeated as history two turns long.
        let episode = script.episodes.iter().find(|e| e.turns.len() >= 4).expect("a long episode");
        let seen = &episode.turns[0].prompt[80..96];
        let holds = |number: usize| episode.turns[number].prompt.windows(16).any(|window| window == seen);
        assert!(holds(0) && holds(1) && holds(2));
        assert!(holds(3) == episode.turns[1..=3].iter().any(|turn| turn.state == 0));
    }

    #[test]
    fn a_transcript_turn_holds_only_its_own_tokens() {
        let window = draw(&workload("multi-turn"), None, 4);
        let transcript =
            Script::draw(&workload("multi-turn"), &args(None, 4, HistoryMode::Transcript), 8192).expect("a script");
        for (w, t) in window.turns().zip(transcript.turns()) {
            assert!(w.prompt.ends_with(&t.prompt) && w.response == t.response);
        }
        for episode in &transcript.episodes {
            assert!(episode.turns[0].prompt.len() >= 128 && episode.turns[1].prompt.len() <= 64);
        }
        let lengths = transcript.episodes.iter().map(|e| e.turns.iter().map(|t| t.prompt.len() + t.response).sum());
        assert_eq!(Some(transcript.longest()), lengths.max());
    }

    #[test]
    fn impossible_sizes_are_the_users_error() {
        let refused = |envs, group_size, turns| {
            let args = ScriptArgs { envs: Some(envs), group_size, turns, ..args(None, 0, HistoryMode::Window) };
            Script::draw(&workload("multi-turn"), &args, 64).expect_err("refused").to_string()
        };
        for (envs, group_size) in [(12, 8), (0, 8), (8, 0)] {
            assert!(refused(envs, group_size, None).starts_with("--envs is"));
        }
        assert!(refused(8, 8, Some(0)).starts_with("--turns"));
    }
}
