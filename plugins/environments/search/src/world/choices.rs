//! Candidate actions: a search and an answer for each name of the world that the episode has shown.

use std::collections::HashSet;

use nestor_retrieve::Passage;

use super::expert;
use crate::questions::Question;
use crate::turn::Turn;

/// The names of a world's entities.
#[derive(Debug, Clone)]
pub struct Choices {
    names: HashSet<String>,
    /// Words of the longest name.
    words: usize,
}

impl Choices {
    /// The titles of a corpus.
    pub fn new(passages: &[Passage]) -> Choices {
        let titles = passages.iter().filter_map(|passage| passage.contents.lines().next());
        let names: HashSet<String> = titles.map(|title| title.trim_matches('"').to_owned()).collect();
        let words = names.iter().map(|name| name.split(' ').count()).max().unwrap_or(0);
        Choices { names, words }
    }

    /// The candidates, by the place where their names are first shown: all searches, then the answers. A search that was
    /// made is none, and the names of the question are no answers. A search engine may find other passages than the world's:
    /// the expert's action then comes last.
    pub fn list(&self, question: &Question, history: &[Turn]) -> Vec<String> {
        let asked = self.names_in(&question.question);
        let mut names = asked.clone();
        for turn in history {
            for name in self.names_in(&turn.information) {
                if !names.contains(&name) {
                    names.push(name);
                }
            }
        }
        let searches = names.iter().map(|name| format!("<search>{name}</search>"));
        let new = searches.filter(|search| history.iter().all(|turn| turn.action != *search));
        let answers = names.iter().filter(|name| !asked.contains(name)).map(|name| format!("<answer>{name}</answer>"));
        let mut list: Vec<String> = new.chain(answers).collect();
        let next = expert::act(question, history);
        if !list.contains(&next) {
            list.push(next);
        }
        list
    }

    /// The names in a text, in their order, each once. The longest name wins where one is a part of another.
    fn names_in<'a>(&self, text: &'a str) -> Vec<&'a str> {
        let words: Vec<(usize, &str)> = words(text).collect();
        let (mut found, mut at) = (Vec::new(), 0);
        while at < words.len() {
            let longest = (1..=self.words.min(words.len() - at)).rev().find_map(|count| {
                let (last, word) = words[at + count - 1];
                let name = &text[words[at].0..last + word.len()];
                self.names.contains(name).then_some((count, name))
            });
            if let Some((_, name)) = longest.filter(|(_, name)| !found.contains(name)) {
                found.push(name);
            }
            at += longest.map_or(1, |(count, _)| count);
        }
        found
    }
}

/// The words of a text with their places. A backslash and the letter after it are no part of a word: `\n` of JSON.
fn words(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut escaped = false;
    let mut inside = move |c: char| {
        let part = c.is_alphanumeric() && !escaped;
        escaped = c == '\\' && !escaped;
        part
    };
    let places: Vec<(usize, bool)> = text.char_indices().map(|(at, c)| (at, inside(c))).collect();
    let starts: Vec<usize> = (0..places.len()).filter(|&i| places[i].1 && (i == 0 || !places[i - 1].1)).collect();
    starts.into_iter().map(move |first| {
        let end = places[first..].iter().find(|(_, inside)| !inside).map_or(text.len(), |(at, _)| *at);
        (places[first].0, &text[places[first].0..end])
    })
}
