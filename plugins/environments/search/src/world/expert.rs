//! The expert of a generated world. It reads question and passages by rule, as the phrases of the relations are known: it
//! searches the entity, then the related one if the question has two hops, and answers.

use std::borrow::Cow;

use super::relation::{RELATIONS, Relation, subject_in};
use crate::questions::Question;
use crate::turn::Turn;

/// The expert's next action: `<search>name</search>` or `<answer>name</answer>`.
///
/// It reads no answer of the question. A question of another form is searched as it is.
pub fn act(question: &Question, history: &[Turn]) -> String {
    let Some((name, hops)) = parse(&question.question) else {
        return search(&question.question);
    };
    let texts: Vec<Cow<str>> = history.iter().map(|turn| passages(&turn.information)).collect();
    let mut entity = name;
    for relation in hops {
        let Some(object) = texts.iter().find_map(|text| read(text, relation, entity)) else {
            let query = search(entity);
            let in_vain = history.iter().any(|turn| turn.action == query);
            return if in_vain { search(&question.question) } else { query };
        };
        entity = object;
    }
    format!("<answer>{entity}</answer>")
}

/// The expert's response that carries an action, with a thought before it if it is to think aloud.
pub fn response(action: &str, think: bool) -> String {
    let name = |tag: &str| action.strip_prefix(&format!("<{tag}>"))?.strip_suffix(&format!("</{tag}>"));
    let thought = match (think, name("search"), name("answer")) {
        (false, ..) => return action.to_owned(),
        (_, Some(query), _) => format!("I need a passage about {query}."),
        (_, _, Some(answer)) => format!("The passages say that the answer is {answer}."),
        _ => String::new(),
    };
    format!("<think>{thought}</think>\n{action}")
}

fn search(query: &str) -> String {
    format!("<search>{query}</search>")
}

/// The named entity of a question, and the relations from there to the answer.
fn parse(question: &str) -> Option<(&str, Vec<&'static Relation>)> {
    RELATIONS.iter().find_map(|asked| {
        let phrase = asked.asks.iter().find_map(|ask| subject_in(ask, question))?;
        if !phrase.starts_with("the ") {
            return Some((phrase, vec![asked]));
        }
        let near = RELATIONS.iter().filter(|relation| relation.object == asked.subject);
        near.into_iter().find_map(|relation| Some((subject_in(relation.noun, phrase)?, vec![relation, asked])))
    })
}

/// The object of an entity's relation, if a text states it.
fn read<'a>(text: &'a str, relation: &Relation, entity: &str) -> Option<&'a str> {
    relation.states.iter().find_map(|state| {
        let before = state.replace("{s}", entity).replace("{o}.", "");
        let after =
            text.match_indices(&before).find_map(|(at, _)| starts_sentence(text, at).then(|| at + before.len()))?;
        text[after..].split_once('.').map(|(object, _)| object)
    })
}

/// True if no letter comes right before this place: a sentence about `Silver Lun` is not one about `Lun`.
fn starts_sentence(text: &str, at: usize) -> bool {
    let before = text[..at].trim_end_matches(' ');
    !before.ends_with(char::is_alphanumeric)
}

/// The passages in an observation: the JSON string of verl-agent's form, or the plain text of Search-R1's.
fn passages(information: &str) -> Cow<'_, str> {
    #[derive(serde::Deserialize)]
    struct Found {
        result: String,
    }
    let inside = match (information.find('{'), information.rfind('}')) {
        (Some(start), Some(end)) if start < end => &information[start..=end],
        _ => return information.into(),
    };
    serde_json::from_str(inside).map_or(information.into(), |found: Found| found.result.into())
}

#[cfg(test)]
mod tests {
    use super::super::relation::{Kind, relations_of};
    use super::*;

    #[test]
    fn every_question_of_one_and_two_hops_has_one_reading() {
        for asked in &RELATIONS {
            for ask in asked.asks {
                let (name, hops) = parse(&ask.replace("{s}", "Dunak")).map(|(n, h)| (n.to_owned(), h)).unwrap();
                assert!(name == "Dunak" && hops.len() == 1 && std::ptr::eq(hops[0], asked), "{ask}");
                for near in RELATIONS.iter().filter(|near| near.object == asked.subject) {
                    let question = ask.replace("{s}", &near.noun.replace("{s}", "Dunak"));
                    let (name, hops) = parse(&question).unwrap();
                    assert!(
                        name == "Dunak" && std::ptr::eq(hops[0], near) && std::ptr::eq(hops[1], asked),
                        "{question}"
                    );
                }
            }
        }
    }

    #[test]
    fn relations_are_in_the_order_of_the_kinds() {
        for kind in Kind::ALL {
            assert!(relations_of(kind).iter().all(|relation| relation.subject == kind));
        }
    }

    #[test]
    fn both_forms_of_information_are_read() {
        let plain = "\n\n<information>Doc 1(Title: \"Dunak\") Dunak is based in Zorax. The rival of Dunak is Polem.";
        let json = "<information>{\"result\": \"Doc 1: \\\"Dunak\\\"\\nDunak is based in Zorax. The rival of Dunak is Polem.\"}</information>";
        for information in [plain, json] {
            let ask = |question: &str| Question { question: question.into(), answers: vec![], source: String::new() };
            let seen = [Turn { action: "<search>Dunak</search>".into(), information: information.into() }];
            assert_eq!(act(&ask("Where is Dunak based?"), &seen), "<answer>Zorax</answer>");
            assert_eq!(act(&ask("Where is the rival of Dunak based?"), &seen), "<search>Polem</search>");
            assert_eq!(act(&ask("Where is Unak based?"), &seen), "<search>Unak</search>");
        }
    }
}
