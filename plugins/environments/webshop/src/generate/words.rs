//! Titles, descriptions, features and instructions.

use super::Core;
use super::dice::Dice;
use super::offer::Options;
use super::shop::Shop;
use crate::files::{Bullets, HumanInstruction, Instruction};

/// The texts that a shop shows of a product.
pub struct Texts {
    pub title: String,
    pub description: String,
    pub bullets: Bullets,
}

/// Draws the texts of a product.
pub fn texts(shop: &Shop, core: &Core, dice: &mut Dice) -> Texts {
    let (sentences, habits) = (&shop.sentences, &shop.habits);
    let mut attributes = core.attributes.clone();
    dice.shuffle(&mut attributes);

    let in_title = dice.between(&habits.in_title).min(attributes.len());
    let template = dice.pick(sentences.titles).replace("{tail}", dice.pick(sentences.tails));
    let title = fill(&template, core, &attributes[..in_title]);
    let title = if habits.capitals { capitals(&title) } else { title };

    dice.shuffle(&mut attributes);
    let description = if dice.chance(habits.no_description) {
        String::new()
    } else {
        let told = attributes.len() - usize::from(attributes.len() > 2 && dice.chance(0.3));
        let first = fill(dice.pick(sentences.descriptions), core, &attributes[..told]);
        let remark = fill(dice.pick(sentences.remarks), core, &[]);
        format!("{first} {remark}").trim_end().to_owned()
    };

    dice.shuffle(&mut attributes);
    let mut bullets: Vec<String> = attributes
        .iter()
        .map(|attribute| {
            let attribute = if habits.capitals { capitals(attribute) } else { (*attribute).to_owned() };
            fill(dice.pick(sentences.bullets), core, &[&attribute])
        })
        .collect();
    bullets.push(fill(dice.pick(sentences.promises), core, &[]));
    let one = dice.chance(habits.one_bullet);
    let bullets = if one { Bullets::One(bullets.swap_remove(0)) } else { Bullets::Many(bullets) };
    Texts { title, description, bullets }
}

/// Draws the synthetic instruction, which some products lack.
pub fn instruction(shop: &Shop, core: &Core, dice: &mut Dice) -> Instruction {
    let attributes = Some(owned(&core.attributes));
    if !dice.chance(shop.habits.instruction) {
        return Instruction { attributes, instruction: None, instruction_attributes: None };
    }
    let asked = asked(shop, core, dice);
    let text = fill(dice.pick(shop.sentences.instructions), core, &asked);
    Instruction { attributes, instruction: Some(text), instruction_attributes: Some(owned(&asked)) }
}

/// Draws the instructions in the style of people: none, one or two.
pub fn human(shop: &Shop, core: &Core, options: &Options, dice: &mut Dice) -> Vec<HumanInstruction> {
    let mut human = Vec::new();
    while human.len() < 2 && dice.chance(shop.habits.human) {
        let asked = asked(shop, core, dice);
        let mut chosen = Vec::new();
        for (_, values) in options.iter().filter(|(_, values)| !values.is_empty()) {
            if dice.chance(0.85) {
                chosen.push(dice.pick(values).replace('/', " | ").to_lowercase());
            }
        }
        let named: String = chosen.iter().map(|value| format!(", {value}")).collect();
        let template = dice.pick(shop.sentences.people).replace("{options}", &named);
        human.push(HumanInstruction {
            instruction: fill(&template, core, &asked),
            instruction_attributes: owned(&asked),
            instruction_options: chosen,
        });
    }
    human
}

/// Draws the attributes that an instruction asks for.
fn asked(shop: &Shop, core: &Core, dice: &mut Dice) -> Vec<&'static str> {
    let count = dice.pick(shop.habits.asked);
    dice.some_of(count, core.attributes.iter().copied())
}

fn owned(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|&text| text.to_owned()).collect()
}

/// Fills a template.
fn fill(template: &str, core: &Core, attributes: &[&str]) -> String {
    let (first, others) = attributes.split_first().map_or(("", attributes), |(first, others)| (*first, others));
    let more: String = others.iter().map(|attribute| format!(", {attribute}")).collect();
    template
        .replace("{attributes}", &format!("{first}{more}"))
        .replace("{attribute}", first)
        .replace("{more}", &more)
        .replace("{brand}", &core.brand)
        .replace("{noun}", core.kind.noun)
        .replace("{query}", core.kind.query)
}

/// Starts words with a capital letter, but for the little ones.
fn capitals(text: &str) -> String {
    let word = |word: &str| match word {
        "and" | "by" | "for" | "of" | "the" | "to" | "with" => word.to_owned(),
        _ => {
            let mut chars = word.chars();
            chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
        }
    };
    text.split(' ').map(word).collect::<Vec<_>>().join(" ")
}
