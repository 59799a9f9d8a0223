//! The ends of responses: an end-of-sequence token, or a text that the recipe names (`rollout.stop`).

use std::sync::Arc;

use super::Tokenizer;

/// The tokens and texts that end a response.
#[derive(Debug, Clone, Default)]
pub struct Ends {
    eos: Vec<u32>,
    texts: Option<Arc<StopTexts>>,
}

/// The way in which a response ended by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// By an end-of-sequence token.
    Token,
    /// By a stop text.
    Text,
}

#[derive(Debug)]
struct StopTexts {
    tokenizer: tokenizers::Tokenizer,
    texts: Vec<String>,
    /// Bytes of the longest text: no more tokens can hold it.
    longest: usize,
    /// By token id: the token may be the last one of a text.
    may_end: Vec<bool>,
}

impl From<Vec<u32>> for Ends {
    fn from(eos: Vec<u32>) -> Self {
        Self { eos, texts: None }
    }
}

impl Ends {
    /// The end-of-sequence tokens of a tokenizer, and these texts.
    pub fn new(tokenizer: &Tokenizer, texts: &[String]) -> Self {
        let texts = (!texts.is_empty()).then(|| Arc::new(StopTexts::new(tokenizer, texts)));
        Self { eos: tokenizer.eos().to_vec(), texts }
    }

    /// The way in which a response ends with its last token; none where it was cut, or where more may come. The stop text is the
    /// response's end, perhaps with the rest of its last token.
    pub fn end(&self, response: &[u32]) -> Option<End> {
        let last = response.last()?;
        if self.eos.contains(last) {
            return Some(End::Token);
        }
        self.texts.as_ref().filter(|texts| texts.are_in(response, *last)).map(|_| End::Text)
    }
}

impl StopTexts {
    fn new(tokenizer: &Tokenizer, texts: &[String]) -> Self {
        // A character of several tokens is in the text of none of them.
        let last: Option<Vec<char>> = texts.iter().map(|text| text.chars().last().filter(char::is_ascii)).collect();
        let may_end = |id: usize| {
            let text = tokenizer.decode(&[id as u32], false);
            last.as_ref().is_none_or(|last| text.contains(&last[..]))
        };
        Self {
            tokenizer: tokenizer.inner.clone(),
            texts: texts.to_vec(),
            longest: texts.iter().map(String::len).max().unwrap_or(0),
            may_end: (0..tokenizer.inner.get_vocab_size(true)).map(may_end).collect(),
        }
    }

    /// True if the end of a response that is still open before its last token holds one of the texts.
    fn are_in(&self, response: &[u32], last: u32) -> bool {
        if !self.may_end.get(last as usize).copied().unwrap_or(false) {
            return false;
        }
        let end = &response[response.len().saturating_sub(self.longest)..];
        let text = self.tokenizer.decode(end, false).unwrap_or_default();
        self.texts.iter().any(|stop| text.contains(stop))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_ends_by_the_token_that_completes_a_text() {
        let tokenizer = Tokenizer::train(["<action>go up</action> and more é".to_string()].into_iter(), 300, false)
            .expect("a tokenizer");
        let ids = |text: &str| tokenizer.encode(text).expect("ids");
        let ends = Ends::new(&tokenizer, &["</action>".into(), "é".into()]);
        for text in ["<action>go up</action>", "up</action> ", "é", "no end", "</action", ""] {
            let response = ids(text);
            let first = (1..=response.len()).find(|&end| ends.end(&response[..end]).is_some());
            let stop = ["</action>", "é"].iter().filter_map(|stop| Some(text.find(stop)? + stop.len())).min();
            let wanted = stop.map(|bytes| {
                (1..=response.len()).find(|&end| tokenizer.decode(&response[..end], false).len() >= bytes)
            });
            assert_eq!(first, wanted.flatten(), "{text}");
            assert_eq!(first.and_then(|end| ends.end(&response[..end])), stop.map(|_| End::Text), "{text}");
        }
        let eos = [ids("go up"), vec![tokenizer.eos()[0]]].concat();
        assert_eq!(ends.end(&eos), Some(End::Token));
        assert_eq!(Ends::new(&tokenizer, &[]).end(&ids("up</action>")), None);
        assert_eq!(Ends::from(vec![7]).end(&[1, 7]), Some(End::Token));
    }
}
