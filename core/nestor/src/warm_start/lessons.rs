//! Chats as sequences to learn: which tokens the model saw, and which it is to say.

use anyhow::{Context, Result};
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

use super::chats::{Chat, Chats};
use crate::data::{Episode, Step};
use crate::input_error;
use crate::recipe::{Recipe, TooLong, WarmStart};
use crate::tokenizer::Tokenizer;

/// The chats of a warm start, tokenised. An episode is a conversation: what its steps respond is learned.
#[derive(Debug, Default)]
pub struct Lessons {
    pub learned: Vec<Episode>,
    /// Those that the loss is measured on.
    pub held_out: Vec<Episode>,
    /// Number of chats that were too long.
    pub too_long: usize,
    /// SHA-256 sums of the files of `data` and of `validation`.
    pub sha256: String,
}

impl Lessons {
    /// Reads the files of a recipe's warm start; none where it imitates the expert.
    ///
    /// # Errors
    /// A file or a row that cannot be learned from, or files of which no chat is short enough.
    pub fn read(recipe: &Recipe, tokenizer: &Tokenizer) -> Result<Option<Self>> {
        let Some(settings) = recipe.warm_start.as_ref().filter(|settings| !settings.data.is_empty()) else {
            return Ok(None);
        };
        let longest = settings.max_tokens.unwrap_or(recipe.rollout.max_tokens());
        let (data, validation) = (Chats::read(&settings.data)?, Chats::read(&settings.validation)?);
        let mut lessons = Self { sha256: data.sha256.clone() + &validation.sha256, ..Self::default() };
        lessons.learned = lessons.add(&data.all, tokenizer, longest, settings)?;
        lessons.held_out = lessons.add(&validation.all, tokenizer, longest, settings)?;
        if settings.validation_share > 0.0 {
            lessons.hold_out(settings.validation_share, recipe.seed);
        }
        if lessons.learned.is_empty() {
            return Err(input_error!(
                "{}: none of {} chats has at most {longest} tokens; raise `warm_start.max_tokens`",
                settings.data.join(", "),
                data.all.len()
            ));
        }
        Ok(Some(lessons))
    }

    /// The conversations of chats that are short enough.
    fn add(
        &mut self,
        chats: &[Chat],
        tokenizer: &Tokenizer,
        longest: usize,
        settings: &WarmStart,
    ) -> Result<Vec<Episode>> {
        let mut all = Vec::new();
        for chat in chats {
            let conversations =
                conversations(tokenizer, chat).map_err(|error| input_error!("{}: {error:#}", chat.place))?;
            let lengths = conversations.iter().map(tokens);
            if lengths.clone().all(|length| length <= longest) {
                all.extend(conversations);
                continue;
            }
            self.too_long += 1;
            if settings.too_long == TooLong::Cut {
                all.extend(conversations.into_iter().filter_map(|conversation| cut(conversation, longest)));
            }
        }
        Ok(all)
    }

    /// Holds out a share of the conversations, at least one, and leaves at least one to learn.
    fn hold_out(&mut self, share: f64, seed: u64) {
        let count = self.learned.len();
        let held_out = ((share * count as f64).round() as usize).max(1).min(count.saturating_sub(1));
        let mut order: Vec<usize> = (0..count).collect();
        order.shuffle(&mut ChaCha8Rng::seed_from_u64(seed));
        let mut chosen = vec![false; count];
        order[..held_out].iter().for_each(|&index| chosen[index] = true);
        let (held_out, learned): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.learned).into_iter().zip(chosen).partition(|(_, chosen)| *chosen);
        let alone = |all: Vec<(Episode, bool)>| all.into_iter().map(|(episode, _)| episode).collect();
        (self.held_out, self.learned) = (alone(held_out), alone(learned));
    }

    /// The conversations of an optimizer step, from 0: a part of its epoch's order, which `seed` draws where `settings` shuffle.
    pub fn batch(&self, settings: &WarmStart, step: u64, seed: u64) -> Vec<Episode> {
        let each = settings.steps_per_epoch(self.learned.len());
        let (epoch, part) = (step / each, (step % each) as usize);
        let mut order: Vec<usize> = (0..self.learned.len()).collect();
        if settings.shuffle {
            order.shuffle(&mut ChaCha8Rng::seed_from_u64(seed.wrapping_add(epoch)));
        }
        let end = order.len().min((part + 1) * settings.batch);
        order[part * settings.batch..end].iter().map(|&index| self.learned[index].clone()).collect()
    }
}

/// The conversations of a chat: one, unless the chat template rewrites earlier turns, as those that drop the thoughts of the past do.
///
/// The model learns what follows each prompt of the template up to the end of the turn, with the same tokens as in a rollout:
/// a prompt is tokenised apart from its response.
fn conversations(tokenizer: &Tokenizer, chat: &Chat) -> Result<Vec<Episode>> {
    let render =
        |end: usize, asks: bool| tokenizer.render_with_tools(&chat.messages[..end], chat.tools.as_deref(), asks);
    let (mut all, mut seen) = (Vec::<Episode>::new(), String::new());
    for (number, message) in chat.messages.iter().enumerate().skip(chat.learned_from) {
        if message.role != "assistant" {
            continue;
        }
        let (prompt, whole) = (render(number, true)?, render(number + 1, false)?);
        let answer = whole.strip_prefix(&*prompt).with_context(|| {
            format!(
                "the chat template does not continue its prompt by message {}, so it is not known what the model is to say",
                number + 1
            )
        })?;
        let said = &answer[..end_of_turn(tokenizer, answer)];
        let mut response = tokenizer.encode(said)?;
        if let Some(&eos) =
            tokenizer.eos().first().filter(|_| !response.last().is_some_and(|id| tokenizer.eos().contains(id)))
        {
            response.push(eos);
        }
        let new = prompt.strip_prefix(&*seen).filter(|_| !all.is_empty());
        let step = Step { prompt: tokenizer.encode(new.unwrap_or(&prompt))?, response, ..Step::default() };
        match (new, all.last_mut()) {
            (Some(_), Some(last)) => {
                let continues = Some(last.steps.len() as u32 - 1);
                last.steps.push(Step { continues, ..step });
            }
            _ => all.push(Episode { steps: vec![step], ..Episode::default() }),
        }
        seen = prompt + said;
    }
    Ok(all)
}

/// The place behind the last end-of-sequence token of a text, or the end of the text.
fn end_of_turn(tokenizer: &Tokenizer, text: &str) -> usize {
    let ends = tokenizer.eos().iter().filter_map(|&id| {
        let end = tokenizer.decode(&[id], false);
        (!end.is_empty()).then(|| text.rfind(&*end).map(|at| at + end.len()))?
    });
    ends.max().unwrap_or(text.len())
}

fn tokens(conversation: &Episode) -> usize {
    conversation.steps.iter().map(|step| step.prompt.len() + step.response.len()).sum()
}

/// The first tokens of a conversation; none where no response is among them.
fn cut(mut conversation: Episode, longest: usize) -> Option<Episode> {
    let mut left = longest;
    let steps = std::mem::take(&mut conversation.steps);
    conversation.steps = steps
        .into_iter()
        .map_while(|mut step| {
            left = left.checked_sub(step.prompt.len()).filter(|&left| left > 0)?;
            step.response.truncate(left);
            left -= step.response.len();
            (!step.response.is_empty()).then_some(step)
        })
        .collect();
    (!conversation.steps.is_empty()).then_some(conversation)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::Message;

    fn tokenizer() -> Tokenizer {
        Tokenizer::train(["go north, then go south".to_string()].into_iter(), 300, false).expect("a tokenizer")
    }

    fn chat(turns: &[(&str, &str)], learned_from: usize) -> Chat {
        let messages = turns.iter().map(|(role, text)| Message::new(*role, *text)).collect();
        Chat { place: "a.jsonl: row 1".into(), messages, tools: None, learned_from }
    }

    const TURNS: [(&str, &str); 5] =
        [("system", "s"), ("user", "where?"), ("assistant", "go north"), ("user", "and?"), ("assistant", "go south")];

    #[test]
    fn a_chat_is_one_conversation_whose_answers_are_learned() -> Result<()> {
        let (tokenizer, chat) = (tokenizer(), chat(&TURNS, 0));
        let [conversation] = &conversations(&tokenizer, &chat)?[..] else { panic!("one conversation") };
        let learned: Vec<String> =
            conversation.steps.iter().map(|step| tokenizer.decode(&step.response, false)).collect();
        assert_eq!(learned, ["go north<|im_end|>", "go south<|im_end|>"]);
        let all: Vec<u32> =
            conversation.steps.iter().flat_map(|step| step.prompt.iter().chain(&step.response)).copied().collect();
        let whole = tokenizer.render(&chat.messages, false)?;
        assert_eq!(tokenizer.decode(&all, false), whole.trim_end());
        assert_eq!(all, tokenizer.encode(whole.trim_end())?);

        // Answers of the prompt are context.
        let [conversation] = &conversations(&tokenizer, &super::tests::chat(&TURNS, 4))?[..] else { panic!("one") };
        assert_eq!(conversation.steps.len(), 1);
        assert_eq!(tokenizer.decode(&conversation.steps[0].response, false), "go south<|im_end|>");
        Ok(())
    }

    #[test]
    fn a_long_chat_keeps_its_first_tokens() -> Result<()> {
        let [whole] = &conversations(&tokenizer(), &chat(&TURNS, 0))?[..] else { panic!("one conversation") };
        let (first, second) = (&whole.steps[0], &whole.steps[1]);
        let to_second = first.prompt.len() + first.response.len() + second.prompt.len();
        let kept = |longest: usize| {
            cut(whole.clone(), longest).map(|it| it.steps.iter().map(|step| step.response.len()).collect::<Vec<_>>())
        };
        assert_eq!(kept(tokens(whole)), Some(vec![first.response.len(), second.response.len()]));
        assert_eq!(kept(to_second + 1), Some(vec![first.response.len(), 1]));
        assert_eq!(kept(to_second), Some(vec![first.response.len()]));
        assert_eq!(kept(first.prompt.len() + 2), Some(vec![2]));
        assert_eq!(kept(first.prompt.len()), None);
        Ok(())
    }

    #[test]
    fn every_epoch_has_each_chat_once_in_an_order_of_its_own() {
        let numbered = |number: usize| Episode { task: number as u64, ..Episode::default() };
        let mut lessons = Lessons { learned: (0..10).map(numbered).collect(), ..Lessons::default() };
        let settings: WarmStart =
            serde_json::from_value(serde_json::json!({"data": "a.jsonl", "epochs": 2.5, "batch": 4, "lr": 1.0}))
                .expect("a section");
        assert_eq!((settings.steps_per_epoch(10), settings.steps(10)), (3, 8));
        let epoch = |lessons: &Lessons, settings: &WarmStart, number: u64| -> Vec<u64> {
            let steps = (0..3).map(|part| lessons.batch(settings, 3 * number + part, 1));
            steps.flatten().map(|episode| episode.task).collect()
        };
        let (first, second) = (epoch(&lessons, &settings, 0), epoch(&lessons, &settings, 1));
        let mut sorted = first.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..10).collect::<Vec<_>>());
        assert!(first != second && first != sorted && first == epoch(&lessons, &settings, 0));
        let plain = WarmStart { shuffle: false, ..settings };
        assert_eq!(epoch(&lessons, &plain, 1), sorted);

        lessons.hold_out(0.24, 1);
        assert_eq!((lessons.held_out.len(), lessons.learned.len()), (2, 8));
        let all = lessons.held_out.iter().chain(&lessons.learned).map(|episode| episode.task);
        let mut all: Vec<u64> = all.collect();
        all.sort_unstable();
        assert_eq!(all, sorted);
    }
}
