//! A conversation token by token: what a chat template writes between two responses.
//!
//! Rendering the whole chat again would not do: text of a sampled response may have other tokens than were sampled, and
//! a template may leave parts of earlier turns out (Qwen3's drop what was thought). So a response is never rendered.
//! A placeholder stands for it, and what the template writes after the placeholder is the next turn.

use anyhow::Result;

use super::{Message, Tokenizer};
use crate::input_error;

/// Stands for a response while a template is rendered.
const RESPONSE: &str = "nestor0response";
/// What users say while a template is examined.
const SAID: [&str; 3] = ["nestor1said", "nestor2said", "nestor3said"];

/// How a tokenizer's chat template goes on with a conversation.
#[derive(Debug)]
pub struct Turns {
    /// The end-of-sequence tokens by which the template itself ends an assistant's turn.
    ends: Vec<u32>,
}

impl Turns {
    /// Examines the chat template.
    ///
    /// # Errors
    /// Where a longer chat is not a shorter one with something after it: a transcript then has no meaning.
    pub fn new(tokenizer: &Tokenizer) -> Result<Self> {
        let fails = |why: String| {
            input_error!(
                "the model's chat template cannot go on with a conversation, which rollout.history.mode: transcript \
                 needs: {why}; set the mode to window"
            )
        };
        let render = |turns: usize, prompt: bool| {
            tokenizer.render(&conversation(&SAID[..turns]), prompt).map_err(|error| fails(format!("{error:#}")))
        };
        let mut follow_ups = Vec::new();
        for (turns, said) in SAID.into_iter().enumerate().skip(1) {
            let longer = render(turns + 1, true)?;
            let Some((before, after)) = longer.rsplit_once(RESPONSE) else {
                return Err(fails("it leaves out an earlier response".into()));
            };
            // A generation prompt may open a response with more than the template keeps of it later, and leave a blank
            // before it to the model.
            if !before.starts_with(&render(turns, false)?) || !render(turns, true)?.starts_with(before.trim_end()) {
                return Err(fails(format!("what it writes of {turns} turn(s) changes when another one follows")));
            }
            follow_ups.push(after.replace(said, SAID[0]));
        }
        if follow_ups[0] != follow_ups[1] {
            return Err(fails("what it writes for a turn depends on the turns before".into()));
        }
        let Some((end, _)) = follow_ups[0].split_once(SAID[0]) else {
            return Err(fails("it leaves out what the user says".into()));
        };
        let ends = tokenizer.encode(end)?.into_iter().filter(|id| tokenizer.eos().contains(id)).collect();
        Ok(Self { ends })
    }

    /// The tokens between a response and the next one: the end of the assistant's turn as far as the response does not
    /// hold it, the user's turn, and the generation prompt.
    pub fn follow_up(&self, tokenizer: &Tokenizer, response: &[u32], said: &str) -> Result<Vec<u32>> {
        let text = tokenizer.render(&conversation(&[SAID[0], said]), true)?;
        let after = text.split_once(RESPONSE).map_or("", |(_, after)| after);
        let mut tokens = tokenizer.encode(after)?;
        if let Some(own) = response.last().filter(|last| self.ends.contains(last))
            && let Some(end) = tokens.iter().position(|token| token == own)
        {
            tokens.drain(..=end);
        }
        Ok(tokens)
    }
}

/// A chat in which the user says these and the assistant answers all but the last.
fn conversation(said: &[&str]) -> Vec<Message> {
    let mut chat = Vec::new();
    for said in said {
        chat.extend([Message::new("user", *said), Message::new("assistant", RESPONSE)]);
    }
    chat.pop();
    chat
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::error::InputError;
    use crate::tokenizer::template::{CHATML, QWEN, Template};

    /// A byte-level tokenizer with the given chat template.
    fn tokenizer(template: &str) -> Tokenizer {
        let mut tokenizer = Tokenizer::train(["x".to_string()].into_iter(), 259).expect("a tokenizer");
        let settings = json!({ "eos_token": "<|im_end|>" }).as_object().expect("a map").clone();
        tokenizer.template = Template::new(template, &settings).expect("a template");
        tokenizer
    }

    /// Qwen3's way with thoughts: a generation prompt may hold empty ones, earlier turns lose theirs.
    const THINKS: &str = "{%- for m in messages %}{%- set content = m.content.split('</think>')[-1] %}\
        {{- '<|im_start|>' + m.role + '\\n' }}\
        {%- if m.role == 'assistant' and loop.last %}{{- '<think>\\n\\n</think>\\n\\n' }}{% endif %}\
        {{- content + '<|im_end|>\\n' }}{% endfor %}\
        {%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n<think>\\n\\n</think>\\n\\n' }}{% endif %}";

    #[test]
    fn the_end_of_a_turn_stands_once_whoever_wrote_it() -> Result<()> {
        let (end, other, begin) = (258, 256, 257);
        for (template, opening) in [(CHATML, ""), (QWEN, ""), (THINKS, "<think>\n\n</think>\n\n")] {
            let t = tokenizer(template);
            let turns = Turns::new(&t)?;
            let rest = format!("\n<|im_start|>user\nwhere <|im_end|>?<|im_end|>\n<|im_start|>assistant\n{opening}");
            let after = |response: &[u32]| turns.follow_up(&t, response, "where <|im_end|>?");
            assert_eq!(t.eos(), [end, other]);
            assert_eq!(after(&[65, end])?, t.encode(&rest)?);
            let whole = t.encode(&format!("<|im_end|>{rest}"))?;
            // Cut, also at a token that the template writes after its end of a turn; ended by a token that is not its.
            for last in [t.encode("\n")?[0], 65, other, begin] {
                assert_eq!(after(&[end, last])?, whole, "{last}");
            }
        }
        Ok(())
    }

    #[test]
    fn a_template_that_writes_before_its_end_token_loses_only_that() -> Result<()> {
        let t = tokenizer(
            "{% for m in messages %}{% if m.role == 'user' %}[{{ m.content }}]{% else %} {{ m.content }} <|im_end|>{% endif %}{% endfor %}",
        );
        let turns = Turns::new(&t)?;
        assert_eq!(turns.follow_up(&t, &[258], "go")?, t.encode("[go]")?);
        assert_eq!(turns.follow_up(&t, &[65], "go")?, t.encode(" <|im_end|>[go]")?);
        Ok(())
    }

    #[test]
    fn a_template_that_does_not_only_append_is_refused() {
        let each = |turn: &str| format!("{{% for m in messages %}}{turn}{{% endfor %}}");
        for (template, why) in [
            (each("{% if loop.last %}{{ m.content }}{% endif %}"), "leaves out an earlier response"),
            (each("{% if m.role == 'assistant' or loop.last %}{{ m.content }}{% endif %}"), "changes when another"),
            (format!("{{{{ messages | length }}}}{}", each("{{ m.content }};")), "changes when another"),
            (
                each("{% if m.role == 'user' %}{{ loop.index }}{% endif %}{{ m.content }};"),
                "depends on the turns before",
            ),
            (each("{% if m.role == 'assistant' or loop.first %}{{ m.content }}{% endif %};"), "what the user says"),
            (
                "{% if messages | length > 1 %}{{ raise_exception('one turn only') }}{% endif %}x".into(),
                "one turn only",
            ),
        ] {
            let error = Turns::new(&tokenizer(&template)).expect_err(why);
            assert!(error.chain().any(|cause| cause.is::<InputError>()), "{error:#}");
            let message = format!("{error:#}");
            assert!(message.contains(why) && message.contains("rollout.history.mode"), "{message}");
        }
    }
}
