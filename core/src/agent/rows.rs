//! Episodes to what the update packs and an estimator scores.

use crate::data::{Batch, Episode, Sequence};
use crate::recipe::Rollout;

/// One sequence and one row per step, episode by episode, steps ascending (window history).
///
/// The episode's return stands on the last token of every step, less the penalty where the step was invalid.
pub fn pack(episodes: &[Episode], rollout: &Rollout) -> Batch {
    let mut batch = Batch::default();
    let rows = &mut batch.rows;
    rows.token_offsets.push(0);
    for episode in episodes {
        let episode_return = episode.episode_return();
        for (number, step) in episode.steps.iter().enumerate() {
            let row = rows.group.len() as u32;
            let penalty = if step.valid { 0.0 } else { rollout.invalid_action_penalty };
            rows.group.push(episode.group);
            rows.episode.push(episode.episode);
            rows.step.push(number as u32);
            rows.sequence.push(row);
            rows.span_start.push(step.prompt.len() as u32);
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
            // A demonstration has none.
            rows.logprobs.resize(end, 0.0);
            let tokens = [&step.prompt[..], &step.response].concat();
            batch.sequences.push(Sequence { tokens, rows: vec![row] });
        }
    }
    batch
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::data::Step;

    /// A rollout section with the given penalty.
    pub(crate) fn rollout(invalid_action_penalty: f64) -> Rollout {
        serde_json::from_value(serde_json::json!({
            "tasks": 1, "group_size": 1, "max_steps": 4, "max_prompt_tokens": 300, "max_response_tokens": 8,
            "invalid_action_penalty": invalid_action_penalty,
        }))
        .expect("the section is whole")
    }

    #[test]
    fn the_return_less_the_penalty_stands_on_the_last_token() {
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
        let batch = pack(&[first, second], &rollout(0.25));
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
        assert_eq!(batch.sequences[0], Sequence { tokens: vec![1, 2, 3, 4, 5], rows: vec![0] });
    }
}
