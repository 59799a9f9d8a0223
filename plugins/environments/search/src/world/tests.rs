//! The generated world is learnable only by searching, and its expert always wins.

use std::collections::HashSet;

use nestor_retrieve::{Bm25, Retriever};
use proptest::prelude::*;

use super::choices::Choices;
use super::expert::{act, response};
use super::{ONE_HOP, Size, TWO_HOP, World, WorldConfig, generate};
use crate::questions::Question;
use crate::turn::Turn;

/// A world with BM25 over its corpus.
struct Searchable {
    world: World,
    index: Bm25,
}

impl Searchable {
    fn new(config: &WorldConfig) -> Searchable {
        let world = generate(config).unwrap();
        Searchable { index: Bm25::of(world.passages.clone()).unwrap(), world }
    }

    fn search(&self, query: &str, topk: usize) -> Vec<String> {
        self.index.retrieve(query, topk).unwrap().into_iter().map(|passage| passage.contents).collect()
    }

    /// Plays the expert for four turns; returns its answer and the number of its searches.
    fn play(&self, question: &Question) -> (String, usize) {
        let mut history: Vec<Turn> = Vec::new();
        for _ in 0..4 {
            let action = act(question, &history);
            let Some(query) = inside(&action, "search") else {
                return (inside(&action, "answer").unwrap().to_owned(), history.len());
            };
            let information = format!("<information>{}</information>", self.search(query, 3).join("\n"));
            history.push(Turn { action, information });
        }
        (String::new(), history.len())
    }
}

fn inside<'a>(action: &'a str, tag: &str) -> Option<&'a str> {
    action.strip_prefix(&format!("<{tag}>"))?.strip_suffix(&format!("</{tag}>"))
}

fn config(size: Size, entities: u32, seed: u64) -> WorldConfig {
    let (train, eval) = (entities, entities / 5);
    WorldConfig { seed, entities, train, eval, size, ..WorldConfig::default() }
}

/// The title of the passage with a fact about a named entity, and the names of a question.
fn named<'a>(question: &'a str, titles: &[&'a str]) -> Vec<&'a str> {
    let padded = format!(" {} ", question.replace('?', " "));
    titles.iter().copied().filter(|title| padded.contains(&format!(" {title} "))).collect()
}

fn titles(world: &World) -> Vec<&str> {
    world.passages.iter().map(|it| it.contents.lines().next().unwrap().trim_matches('"')).collect()
}

/// This world once had a town called Felix, so that a question about Felix Lurok named two entities.
#[test]
fn no_entity_has_a_name_that_others_share() {
    let world = generate(&config(Size::Real, 207, 8755436207819575949)).unwrap();
    assert!(!titles(&world).contains(&"Felix"));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn answers_are_in_the_corpus_and_not_in_questions(seed: u64, entities in 60u32..400, real: bool) {
        let size = if real { Size::Real } else { Size::Small };
        let config = config(size, entities, seed);
        let it = Searchable::new(&config);
        prop_assert_eq!(&generate(&config).unwrap(), &it.world);
        let titles = titles(&it.world);
        prop_assert_eq!(titles.iter().collect::<HashSet<_>>().len(), entities as usize);
        prop_assert_eq!(it.world.train.len() + it.world.eval.len(), (config.train + config.eval) as usize);

        let mut starts = [HashSet::new(), HashSet::new()];
        for (split, starts) in [&it.world.train, &it.world.eval].into_iter().zip(&mut starts) {
            for question in split {
                let [start] = named(&question.question, &titles)[..] else { panic!("{question:?} names one entity") };
                starts.insert(start);
                let [answer] = &question.answers[..] else { panic!("{question:?} has one answer") };
                prop_assert!(titles.contains(&answer.as_str()) && !question.question.contains(answer.as_str()));
                // The obvious query, the name, finds the entity's passage first; only one hop finds the answer there.
                let found = it.search(start, 3);
                prop_assert!(found[0].starts_with(&format!("\"{start}\"\n")), "{}", found[0]);
                let gold = found[0].contains(&format!(" {answer}."));
                prop_assert_eq!(gold, question.source == ONE_HOP, "{:?}", question);
                let (given, searches) = it.play(question);
                prop_assert_eq!(&given, answer, "{:?}", question);
                // A passage about somebody of the same given name may be the second one by chance.
                let by_chance = real && !gold && searches == 1;
                prop_assert!(by_chance || searches == if gold { 1 } else { 2 }, "{} searches: {:?}", searches, question);
            }
        }
        prop_assert!(starts[0].is_disjoint(&starts[1]));
        let questions: HashSet<&str> =
            it.world.train.iter().chain(&it.world.eval).map(|it| it.question.as_str()).collect();
        prop_assert_eq!(questions.len(), it.world.train.len() + it.world.eval.len());
    }
}

/// Searching the whole question is no way around the second search. A share, as a third passage may be any.
#[test]
fn one_search_seldom_answers_a_question_of_two_hops() {
    let it = Searchable::new(&config(Size::Real, 2000, 3));
    let shares = [ONE_HOP, TWO_HOP].map(|source| {
        let all: Vec<_> = it.world.train.iter().filter(|question| question.source == source).collect();
        let answered = all.iter().filter(|it_asks| {
            let (answer, found) = (&it_asks.answers[0], it.search(&it_asks.question, 3));
            found.iter().any(|text| text.contains(&format!(" {answer}.")))
        });
        let share = answered.count() as f64 / all.len() as f64;
        println!(
            "{source}: the answer is in the top 3 for the question itself in {share:.3} of {} questions",
            all.len()
        );
        let searches: usize = all.iter().map(|question| it.play(question).1).sum();
        println!("{source}: the expert searches {:.3} times", searches as f64 / all.len() as f64);
        assert!(searches as f64 > 0.98 * all.len() as f64 * if source == ONE_HOP { 1.0 } else { 2.0 });
        share
    });
    assert!(shares[0] > 0.95 && shares[1] < 0.05, "{shares:?}");
}

#[test]
fn choices_are_the_names_that_were_shown_and_have_the_experts_actions() {
    for size in [Size::Small, Size::Real] {
        let it = Searchable::new(&config(size, 300, 5));
        let choices = Choices::new(&it.world.passages);
        let elsewhere = it.world.passages[0].contents.clone();
        for (question, in_vain) in it.world.train.iter().flat_map(|question| [(question, false), (question, true)]) {
            let mut history = Vec::new();
            for step in 0..3 {
                let (list, action) = (choices.list(question, &history), act(question, &history));
                assert!(list.contains(&action), "{action} is none of {list:?}");
                assert!(in_vain || !action.contains(&question.question), "{action} where the passages have the answer");
                assert!(step > 0 || list.len() == 1, "{list:?} before the first search");
                let Some(query) = inside(&action, "search") else { break };
                let result = if in_vain { elsewhere.clone() } else { it.search(query, 1).join("\n") };
                let information = serde_json::json!({ "result": format!("Doc 1: {result}") });
                history.push(Turn { action, information: format!("<information>{information}</information>") });
            }
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_world_in_every_release() {
    let world = generate(&config(Size::Real, 20, 1)).unwrap();
    assert_eq!(
        world.passages[2].contents,
        "\"Silver Rimok\"\nCritics praised the ending of Silver Rimok. Silver Rimok is a novel in three parts. Silver Rimok was written by Edith Sirek. Silver Rimok is set in Gerin. Silver Rimok was published by Redan Works."
    );
    assert_ne!(world, generate(&config(Size::Real, 20, 2)).unwrap());
}

#[test]
fn numbers_out_of_range_have_one_clear_message() {
    let refusal = |config: WorldConfig| generate(&config).unwrap_err().to_string();
    let config = || config(Size::Small, 20, 0);
    assert!(refusal(WorldConfig { entities: 3, ..config() }).contains("generate.entities is 3: take 20 to 1000000"));
    assert!(refusal(WorldConfig { two_hop: 1.5, ..config() }).contains("generate.two_hop is 1.5"));
    assert!(refusal(WorldConfig { two_hop: f64::NAN, ..config() }).contains("generate.two_hop is NaN"));
    assert!(refusal(WorldConfig { train: 0, ..config() }).contains("generate.train is 0"));
    let many = refusal(WorldConfig { train: 900, ..config() });
    assert!(many.contains("split train wants 450 one_hop questions, but its 19 entities have 57: raise"), "{many}");
}

#[test]
fn the_expert_thinks_aloud_where_it_is_asked_to() {
    assert_eq!(response("<search>Lun</search>", false), "<search>Lun</search>");
    assert_eq!(
        response("<search>Lun</search>", true),
        "<think>I need a passage about Lun.</think>\n<search>Lun</search>"
    );
    let answer = response("<answer>Lun</answer>", true);
    assert_eq!(answer, "<think>The passages say that the answer is Lun.</think>\n<answer>Lun</answer>");
}
