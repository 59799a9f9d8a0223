//! Continues a conversation token by token with the text that a chat template writes between two responses.
//!
//! Rendering the whole chat again would be wrong for two reasons. The text of a sampled response may encode to other
//! tokens than were sampled. And a template may omit parts of earlier turns (Qwen3's drops thoughts). So a response is
//! never rendered: a placeholder replaces it, and the template's text after the placeholder is the next turn.

use anyhow::Result;

use super::{Message, Tokenizer};
use crate::input_error;

/// Placeholder for a response while a template is rendered.
const RESPONSE: &str = "nestor0response";
/// User messages with which a template is examined.
const USER: [&str; 3] = ["nestor1said", "nestor2said", "nestor3said"];

/// Continues conversations with a tokenizer's chat template.
#[derive(Debug)]
pub struct Turns {
    /// The end-of-sequence tokens by which the template itself ends an assistant's turn.
    ends: Vec<u32>,
}

impl Turns {
    /// Examines the chat template.
    ///
    /// # Errors
    /// If a longer chat is not a shorter one with text appended: a transcript then has no meaning.
    pub fn new(tokenizer: &Tokenizer) -> Result<Self> {
        let fails = |why: String| {
            input_error!(
                "the model's chat template cannot continue a conversation, which rollout.history.mode: transcript \
                 needs: {why}; set the mode to window"
            )
        };
        let render = |turns: usize, prompt: bool| {
            tokenizer.render(&conversation(&USER[..turns]), prompt).map_err(|error| fails(format!("{error:#}")))
        };
        let mut follow_ups = Vec::new();
        for (turns, user) in USER.into_iter().enumerate().skip(1) {
            let longer = render(turns + 1, true)?;
            let Some((before, after)) = longer.rsplit_once(RESPONSE) else {
                return Err(fails("it omits an earlier response".into()));
            };
            // A generation prompt may open a response with more text than the template keeps later. And it may leave the
            // blank before a response to the model.
            if !before.starts_with(&render(turns, false)?) || !render(turns, true)?.starts_with(before.trim_end()) {
                return Err(fails(format!("its text of {turns} turn(s) changes when another one follows")));
            }
            follow_ups.push(after.replace(user, USER[0]));
        }
        if follow_ups[0] != follow_ups[1] {
            return Err(fails("its text of a turn depends on the turns before".into()));
        }
        let Some((end, _)) = follow_ups[0].split_once(USER[0]) else {
            return Err(fails("it omits the user's message".into()));
        };
        let ends = tokenizer.encode(end)?.into_iter().filter(|id| tokenizer.eos().contains(id)).collect();
        Ok(Self { ends })
    }

    /// The tokens between a response and the next one: the end of the assistant's turn unless the response contains it,
    /// the messages after it, and the generation prompt.
    pub fn follow_up(&self, tokenizer: &Tokenizer, response: &[u32], messages: &[Message]) -> Result<Vec<u32>> {
        let mut chat = conversation(&USER[..1]);
        chat.push(Message::new("assistant", RESPONSE));
        chat.extend_from_slice(messages);
        let text = tokenizer.render(&chat, true)?;
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

/// A chat with these user messages, of which the assistant answers all but the last.
fn conversation(messages: &[&str]) -> Vec<Message> {
    let mut chat = Vec::new();
    for message in messages {
        chat.extend([Message::new("user", *message), Message::new("assistant", RESPONSE)]);
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
        let mut tokenizer = Tokenizer::train(["x".to_string()].into_iter(), 259, false).expect("a tokenizer");
        let settings = json!({ "eos_token": "<|im_end|>" }).as_object().expect("a map").clone();
        tokenizer.template = Template::new(template, &settings).expect("a template");
        tokenizer
    }

    /// Treats thoughts as Qwen3 does: a generation prompt may contain empty ones, earlier turns lose theirs.
    const THINKS: &str = "{%- for m in messages %}{%- set content = m.content.split('</think>')[-1] %}\
        {{- '<|im_start|>' + m.role + '\\n' }}\
        {%- if m.role == 'assistant' and loop.last %}{{- '<think>\\n\\n</think>\\n\\n' }}{% endif %}\
        {{- content + '<|im_end|>\\n' }}{% endfor %}\
        {%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n<think>\\n\\n</think>\\n\\n' }}{% endif %}";

    #[test]
    fn the_end_of_a_turn_appears_once_whether_sampled_or_rendered() -> Result<()> {
        let (end, other, begin) = (258, 256, 257);
        for (template, opening) in [(CHATML, ""), (QWEN, ""), (THINKS, "<think>\n\n</think>\n\n")] {
            let t = tokenizer(template);
            let turns = Turns::new(&t)?;
            let rest = format!("\n<|im_start|>user\nwhere <|im_end|>?<|im_end|>\n<|im_start|>assistant\n{opening}");
            let after = |response: &[u32]| turns.follow_up(&t, response, &[Message::new("user", "where <|im_end|>?")]);
            assert_eq!(t.eos(), [end, other]);
            assert_eq!(after(&[65, end])?, t.encode(&rest)?);
            let whole = t.encode(&format!("<|im_end|>{rest}"))?;
            // Cut responses, also at a token that the template writes after the end of a turn or at a token of no turn's end.
            for last in [t.encode("\n")?[0], 65, other, begin] {
                assert_eq!(after(&[end, last])?, whole, "{last}");
            }
        }
        Ok(())
    }

    #[test]
    fn a_follow_up_has_the_roles_of_its_messages() -> Result<()> {
        let t = tokenizer(QWEN);
        let messages = [Message::new("tool", "3"), Message::new("tool", "4"), Message::new("user", "so?")];
        let wanted = "\n<|im_start|>user\n<tool_response>\n3\n</tool_response>\n<tool_response>\n4\n</tool_response><|im_end|>\n\
                      <|im_start|>user\nso?<|im_end|>\n<|im_start|>assistant\n";
        assert_eq!(Turns::new(&t)?.follow_up(&t, &[65, 258], &messages)?, t.encode(wanted)?);
        Ok(())
    }

    #[test]
    fn a_template_that_writes_before_its_end_token_loses_only_that() -> Result<()> {
        let t = tokenizer(
            "{% for m in messages %}{% if m.role == 'user' %}[{{ m.content }}]{% else %} {{ m.content }} <|im_end|>{% endif %}{% endfor %}",
        );
        let turns = Turns::new(&t)?;
        let go = [Message::new("user", "go")];
        assert_eq!(turns.follow_up(&t, &[258], &go)?, t.encode("[go]")?);
        assert_eq!(turns.follow_up(&t, &[65], &go)?, t.encode(" <|im_end|>[go]")?);
        Ok(())
    }

    #[test]
    fn a_template_that_does_not_only_append_is_refused() {
        let each = |turn: &str| format!("{{% for m in messages %}}{turn}{{% endfor %}}");
        for (template, why) in [
            (each("{% if loop.last %}{{ m.content }}{% endif %}"), "omits an earlier response"),
            (each("{% if m.role == 'assistant' or loop.last %}{{ m.content }}{% endif %}"), "changes when another"),
            (format!("{{{{ messages | length }}}}{}", each("{{ m.content }};")), "changes when another"),
            (
                each("{% if m.role == 'user' %}{{ loop.index }}{% endif %}{{ m.content }};"),
                "depends on the turns before",
            ),
            (each("{% if m.role == 'assistant' or loop.first %}{{ m.content }}{% endif %};"), "the user's message"),
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
