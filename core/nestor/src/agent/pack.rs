//! Turns episodes into a batch: the sequences of the update and the rows of an estimator.

use std::borrow::Cow;

use crate::data::{Batch, Episode, Sequence};
use crate::recipe::{Rollout, Update};
use crate::tokenizer::Ends;

/// One row per step, episode by episode, steps ascending. A sequence holds one step, or in a transcript all steps of a
/// conversation.
///
/// The last token of every step gets the episode's return as reward, less the penalty where the step was invalid. Failed
/// episodes have no rows.
pub fn pack(episodes: &[Episode], rollout: &Rollout) -> Batch {
    pack_all(episodes.iter().filter(|episode| !episode.failed()), rollout)
}

fn pack_all<'a>(episodes: impl Iterator<Item = &'a Episode>, rollout: &Rollout) -> Batch {
    let mut batch = Batch::default();
    let rows = &mut batch.rows;
    rows.token_offsets.push(0);
    for episode in episodes {
        // The sequence of each step.
        let mut sequence_of: Vec<usize> = Vec::with_capacity(episode.steps.len());
        let episode_return = episode.episode_return();
        for (number, step) in episode.steps.iter().enumerate() {
            let row = rows.group.len() as u32;
            let penalty = if step.valid { 0.0 } else { rollout.invalid_action_penalty };
            let of = step.continues.map_or(batch.sequences.len(), |before| sequence_of[before as usize]);
            if of == batch.sequences.len() {
                batch.sequences.push(Sequence::default());
            }
            sequence_of.push(of);
            let sequence = &mut batch.sequences[of];
            rows.group.push(episode.group);
            rows.episode.push(episode.episode);
            rows.step.push(number as u32);
            sequence.images.extend(episode.placed(sequence.tokens.len(), &step.prompt_images));
            sequence.tokens.extend(&step.prompt);
            sequence.rows.push(row);
            rows.sequence.push(of as u32);
            rows.span_start.push(sequence.tokens.len() as u32);
            sequence.tokens.extend(&step.response);
            rows.reward.push(step.reward);
            rows.penalty.push(penalty);
            rows.valid.push(step.valid);
            rows.terminated.push(step.terminated);
            rows.truncated.push(step.truncated);
            rows.anchor.push(step.anchor.clone());
            rows.duplicate_of.push(-1);
            let end = rows.token_rewards.len() + step.response.len();
            rows.token_offsets.push(end as u64);
            rows.token_rewards.resize(end, 0.0);
            if let Some(last) = rows.token_rewards.last_mut().filter(|_| !step.response.is_empty()) {
                *last = episode_return - penalty;
            }
            rows.logprobs.extend(&step.logprobs);
            // Demonstrations have no log-probs.
            rows.logprobs.resize(end, 0.0);
        }
    }
    batch
}

/// As [`pack`], of the failed episodes alone, with the steps that environments failed in.
pub fn pack_failed(episodes: &[Episode], rollout: &Rollout) -> Batch {
    pack_all(episodes.iter().filter(|episode| episode.failed()), rollout)
}

/// The batch of the policy's update: the scored one, the failed episodes behind it, and where the recipe asks for it without the
/// responses that were cut.
pub fn trained_batch<'a>(batch: &'a Batch, failed: &Batch, update: &Update, ends: &Ends) -> Cow<'a, Batch> {
    let trained = batch.with_failed(failed);
    match update.mask_cut_responses {
        true => Cow::Owned(trained.without(|row| ends.end(trained.response(row)).is_none())),
        false => trained,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::data::{Rows, Step};

    /// A rollout section with the given penalty.
    pub(crate) fn rollout(invalid_action_penalty: f64) -> Rollout {
        serde_json::from_value(serde_json::json!({
            "tasks": 1, "group_size": 1, "max_steps": 4, "max_prompt_tokens": 300, "max_response_tokens": 8,
            "invalid_action_penalty": invalid_action_penalty,
        }))
        .expect("the section is complete")
    }

    #[test]
    fn a_batch_is_as_if_failed_episodes_had_never_been_played() {
        let step = |token: u32, reward: f64| Step {
            prompt: vec![1, 2],
            response: vec![token, 9],
            logprobs: vec![-1.0, -2.0],
            anchor: vec![token as u8],
            reward,
            valid: true,
            ..Step::default()
        };
        let episode = |number: u32, failure: Option<&str>| Episode {
            group: number / 2,
            episode: number,
            steps: vec![step(3 + number, 1.0), step(4 + number, 0.0)],
            failure: failure.map(str::to_string),
            ..Episode::default()
        };
        // One of two failed, both, none.
        let all: Vec<Episode> =
            (0..6).map(|number| episode(number, (1..4).contains(&number).then_some("died"))).collect();
        let others: Vec<Episode> = all.iter().filter(|episode| !episode.failed()).cloned().collect();
        let rollout = rollout(0.25);
        let continued = |episodes: &[Episode]| -> Vec<Episode> {
            let mut episodes = episodes.to_vec();
            episodes.iter_mut().for_each(|episode| episode.steps[1].continues = Some(0));
            episodes
        };
        for (all, others) in [(all.clone(), others.clone()), (continued(&all), continued(&others))] {
            let batch = pack(&all, &rollout);
            assert_eq!(batch, pack(&others, &rollout));
            assert_eq!(batch.rows.group, [0, 0, 2, 2, 2, 2]);
            let asked: Vec<_> = ["next_anchor", "action", "success"].map(|name| name.parse().expect("a column")).into();
            let run = crate::agent::RunColumns { split: "train", iteration: 1 };
            let columns = |episodes: &[Episode]| crate::agent::episode_columns(&asked, episodes, run);
            assert_eq!(columns(&all), columns(&others));

            // The update has them behind the others.
            let mut failed = pack_failed(&all, &rollout);
            assert_eq!(failed.rows.episode, [1, 1, 2, 2, 3, 3]);
            let (mut batch, tokens) = (batch, failed.response_tokens());
            (batch.rows.advantages, failed.rows.advantages) = (vec![1.0; batch.response_tokens()], vec![-1.0; tokens]);
            let trained = batch.with_failed(&failed);
            assert_eq!(trained.sequences[..batch.sequences.len()], batch.sequences);
            assert_eq!(trained.failed, failed.sequences.len());
            for (sequence, own) in trained.sequences[batch.sequences.len()..].iter().zip(&failed.sequences) {
                assert_eq!(sequence.tokens, own.tokens);
                for (&row, &other) in sequence.rows.iter().zip(&own.rows) {
                    let response = trained.rows.response(row);
                    let start = trained.rows.span_start[row as usize] as usize;
                    assert_eq!(trained.rows.advantages[response.clone()], [-1.0; 2]);
                    assert_eq!(trained.rows.logprobs[response], failed.rows.logprobs[failed.rows.response(other)]);
                    assert_eq!(sequence.tokens[start + 1], 9);
                }
            }
        }
    }

    #[test]
    fn the_last_token_gets_the_return_less_the_penalty() {
        let step = |prompt: &[u32], response: &[u32], reward: f64, valid: bool| Step {
            prompt: prompt.to_vec(),
            response: response.to_vec(),
            logprobs: response.iter().map(|&t| -(t as f32)).collect(),
            reward,
            valid,
            ..Step::default()
        };
        let first = Episode {
            steps: vec![step(&[1, 2], &[3, 4, 5], 0.5, true), step(&[1], &[6], 1.0, false)],
            ..Episode::default()
        };
        let second =
            Episode { group: 1, episode: 1, steps: vec![step(&[7], &[8, 9], -1.0, false)], ..Episode::default() };
        let episodes = [first, second];
        let batch = pack(&episodes, &rollout(0.25));
        let rows = &batch.rows;
        assert_eq!(rows.token_offsets, [0, 3, 4, 6]);
        assert_eq!(rows.token_rewards, [0.0, 0.0, 1.5, 1.25, 0.0, -1.25]);
        assert_eq!(rows.reward, [0.5, 1.0, -1.0]);
        assert_eq!(rows.penalty, [0.0, 0.25, 0.25]);
        assert_eq!(rows.logprobs, [-3.0, -4.0, -5.0, -6.0, -8.0, -9.0]);
        assert_eq!(
            (&rows.span_start[..], &rows.step[..], &rows.sequence[..]),
            (&[2, 1, 1][..], &[0, 1, 0][..], &[0, 1, 2][..])
        );
        assert_eq!((rows.group.clone(), rows.episode.clone()), (vec![0, 0, 1], vec![0, 0, 1]));
        assert_eq!(batch.sequences[0], Sequence { tokens: vec![1, 2, 3, 4, 5], rows: vec![0], ..Sequence::default() });

        let mut conversations = episodes.clone();
        conversations[0].steps[1].continues = Some(0);
        let whole = pack(&conversations, &rollout(0.25));
        let sequences = [(vec![1, 2, 3, 4, 5, 1, 6], vec![0, 1]), (vec![7, 8, 9], vec![2])];
        assert_eq!(whole.sequences, sequences.map(|(tokens, rows)| Sequence { tokens, rows, ..Sequence::default() }));
        assert_eq!((&whole.rows.span_start[..], &whole.rows.sequence[..]), (&[2, 6, 1][..], &[0, 0, 1][..]));
        let same = Rows { span_start: rows.span_start.clone(), sequence: rows.sequence.clone(), ..whole.rows };
        assert_eq!(&same, rows);
    }
}
