//! The text of a response while its tokens are drawn, for streams and stop texts.

use crate::tokenizer::Tokenizer;

/// The text of a response so far. It holds whole characters only, and takes no time for tokens that it has.
#[derive(Debug, Default)]
pub struct Writing {
    text: String,
    /// Tokens whose text it has.
    read: usize,
    /// The first of the tokens that are decoded again, because a decoder may write a token in another way at the beginning.
    from: usize,
    /// Bytes that are sent.
    sent: usize,
}

impl Writing {
    /// Reads the tokens of the response, those before included.
    pub fn read(&mut self, tokenizer: &Tokenizer, tokens: &[u32]) {
        let (from, read) = (self.from.min(tokens.len()), self.read.min(tokens.len()));
        let before = tokenizer.decode(&tokens[from..read], true);
        let now = tokenizer.decode(&tokens[from..], true);
        // The last character may be in pieces.
        if let Some(added) = now.strip_prefix(&before).filter(|_| !now.ends_with(char::REPLACEMENT_CHARACTER))
            && !added.is_empty()
        {
            self.text.push_str(added);
            (self.from, self.read) = (self.read, tokens.len());
        }
    }

    /// The text so far.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The text that may be sent now: what is new, without an end that may begin a stop text.
    pub fn next(&mut self, stops: &[String]) -> Option<String> {
        let held = stops.iter().map(|stop| begun(&self.text, stop)).max().unwrap_or(0);
        let end = (self.text.len() - held).max(self.sent);
        let next = self.text.get(self.sent..end).filter(|next| !next.is_empty())?.to_string();
        self.sent = end;
        Some(next)
    }
}

/// The place of the first stop text.
pub fn stop_in(text: &str, stops: &[String]) -> Option<usize> {
    stops.iter().filter_map(|stop| text.find(stop.as_str())).min()
}

/// Bytes at the end of a text that a stop text begins with.
fn begun(text: &str, stop: &str) -> usize {
    let begins = stop.char_indices().map(|(at, _)| at).rev();
    begins.into_iter().find(|&bytes| text.ends_with(&stop[..bytes])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_whole_characters_and_make_up_the_text() {
        let tokenizer = Tokenizer::train(["x".to_string()].into_iter(), 259, false).expect("a tokenizer");
        let text = "aé€😀 b";
        let tokens = tokenizer.encode(text).expect("ids");
        assert_eq!(tokens.len(), text.len(), "each byte is a token");
        let (mut writing, mut parts) = (Writing::default(), Vec::new());
        for end in 1..=tokens.len() {
            writing.read(&tokenizer, &tokens[..end]);
            parts.extend(writing.next(&[]));
        }
        assert_eq!(parts, ["a", "é", "€", "😀", " ", "b"]);
        let ended = [&tokens[..1], &[tokenizer.eos()[0]]].concat();
        let mut writing = Writing::default();
        writing.read(&tokenizer, &ended);
        assert_eq!(writing.text(), "a", "an end-of-sequence token has no text");
    }

    #[test]
    fn a_text_that_may_become_a_stop_text_is_held_back() {
        let stops = ["</a>".to_string(), "\n\n".to_string()];
        let mut writing = Writing::default();
        let mut said = |more: &str| {
            writing.text.push_str(more);
            writing.next(&stops)
        };
        assert_eq!(said("go </").as_deref(), Some("go "));
        assert_eq!(said("a"), None);
        assert_eq!(said("b>\n").as_deref(), Some("</ab>"));
        assert_eq!(said("x").as_deref(), Some("\nx"));
        assert_eq!(stop_in("go</a>\n\n", &stops), Some(2));
        assert_eq!(stop_in("a\n\nb</a>", &stops), Some(1));
        assert_eq!(stop_in("go</a", &stops), None);
    }
}
