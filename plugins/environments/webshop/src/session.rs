//! A visit to the shop: searching, clicking, choosing options, buying. The behaviour is that of the original engine, with
//! its quirks: a search works on every page, chosen options are forgotten when a page of results opens, and so on.

use anyhow::{Context, Result};

use crate::catalogue::Catalogue;
use crate::goal::Goal;
use crate::pages::{Actions, Detail, Page};

/// Products that a search finds at most.
pub const HITS: usize = 50;

/// The kind of page that a visit is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Start,
    Results,
    Item,
    Detail(Detail),
    Done,
}

/// A visit to the shop with one goal.
pub struct Session {
    goal: Goal,
    place: Place,
    page: Page,
    keywords: String,
    /// Products of the last search.
    hits: Vec<u32>,
    /// Page of results, from 1. One quirk leads to 0.
    number: u64,
    /// The product whose page was opened last.
    product: Option<u32>,
    /// Chosen options, by name.
    options: Vec<(String, String)>,
}

impl Session {
    /// Enters the shop.
    pub fn new(goal: Goal) -> Session {
        let page = Page::start(&goal.instruction_text);
        Session {
            goal,
            place: Place::Start,
            page,
            keywords: String::new(),
            hits: Vec::new(),
            number: 1,
            product: None,
            options: Vec::new(),
        }
    }

    /// The goal.
    pub fn goal(&self) -> &Goal {
        &self.goal
    }

    /// The page under way.
    pub fn page(&self) -> &Page {
        &self.page
    }

    /// The words of the last search.
    pub fn keywords(&self) -> &str {
        &self.keywords
    }

    /// True on a page of results.
    pub fn on_results(&self) -> bool {
        self.place == Place::Results
    }

    /// The page of results that was shown last, from 1.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The product under way.
    pub fn product(&self) -> Option<u32> {
        self.product
    }

    /// The chosen options, by name.
    pub fn options(&self) -> &[(String, String)] {
        &self.options
    }

    /// Plays an action. A purchase returns the product's number; [`Session::close`] then shows the last page.
    pub fn act(&mut self, catalogue: &Catalogue, action: &str) -> Result<Option<u32>> {
        let Some((name, argument)) = parse(action) else { return Ok(None) };
        let argument = argument.to_lowercase();
        let clickable = |actions: &Actions| actions.clickables.contains(&argument);
        match name {
            "search" => {
                self.hits = catalogue.search(&argument, HITS)?;
                self.keywords = argument;
                self.turn_to(catalogue, 1)?;
            }
            "click" if argument != "search" && self.page.actions.as_ref().is_some_and(clickable) => {
                return self.click(catalogue, &argument);
            }
            _ => {}
        }
        Ok(None)
    }

    fn click(&mut self, catalogue: &Catalogue, text: &str) -> Result<Option<u32>> {
        match text {
            "buy now" => {
                self.place = Place::Done;
                return Ok(Some(self.product.context("a purchase without a product")?));
            }
            "back to search" => *self = Session::new(self.goal.clone()),
            "next >" if self.seems() == Place::Results => self.turn_to(catalogue, self.number + 1)?,
            "< prev" if self.seems() == Place::Results => self.turn_to(catalogue, self.number.saturating_sub(1))?,
            "< prev" if matches!(self.seems(), Place::Detail(_)) => self.open(catalogue)?,
            "< prev" if self.seems() == Place::Item => self.turn_to(catalogue, self.number)?,
            _ => match Detail::from_click(text) {
                Some(detail) => {
                    let product = catalogue.store.product(self.product.context("a detail without a product")?)?;
                    self.page = Page::detail(&self.goal.instruction_text, &product, detail);
                    self.place = Place::Detail(detail);
                }
                None => {
                    self.choose(catalogue, text)?;
                    self.open(catalogue)?;
                }
            },
        }
        Ok(None)
    }

    /// The kind of page by which the engine decides about `< Prev` and `Next >`. It looks for names in the page's address,
    /// which contains keywords and options: an agent that searches for `search_results` confuses it.
    fn seems(&self) -> Place {
        if matches!(self.place, Place::Start | Place::Done) {
            return self.place;
        }
        let address_has = |name: &str| {
            let options = self.options.iter().flat_map(|(option, value)| [option, value]);
            self.keywords.contains(name) || options.into_iter().any(|text| text.contains(name))
        };
        match self.place {
            Place::Item | Place::Detail(_) if address_has("search_results") => Place::Results,
            Place::Detail(_) if address_has("item_page") => Place::Item,
            place => place,
        }
    }

    /// Shows a page of results, which forgets product and options.
    fn turn_to(&mut self, catalogue: &Catalogue, number: u64) -> Result<()> {
        self.page = Page::results(catalogue, &self.goal.instruction_text, &self.hits, number)?;
        (self.place, self.number, self.product) = (Place::Results, number, None);
        self.options.clear();
        Ok(())
    }

    /// Notes a click on a product of the results or on an option of the product.
    fn choose(&mut self, catalogue: &Catalogue, text: &str) -> Result<()> {
        if self.place == Place::Results {
            self.product = catalogue.store.find(&text.to_uppercase())?;
            if self.product.is_none() {
                for &hit in &self.hits {
                    if catalogue.store.card(hit)?.asin.to_lowercase() == text {
                        self.product = Some(hit);
                    }
                }
            }
            return Ok(());
        }
        let product = catalogue.store.product(self.product.context("an option without a product")?)?;
        // Where several options have the value, the last one counts.
        let option = product.options.iter().rev().find(|(_, values)| values.contains(&text));
        let Some((name, _)) = option else { return Ok(()) };
        match self.options.iter_mut().find(|(known, _)| known == name) {
            Some((_, value)) => text.clone_into(value),
            None => self.options.push(((*name).to_owned(), text.to_owned())),
        }
        Ok(())
    }

    /// Shows the product's page.
    fn open(&mut self, catalogue: &Catalogue) -> Result<()> {
        let product = catalogue.store.product(self.product.context("a page without a product")?)?;
        self.page = Page::item(&self.goal.instruction_text, &product);
        self.place = Place::Item;
        Ok(())
    }

    /// Shows the page after a purchase.
    pub fn close(&mut self, asin: &str, score: f64) {
        self.page = Page::done(asin, &self.options, score);
    }
}

/// Reads `name[argument]`. As in the original's regular expression `(.+)\[(.+)\]`, the name ends at the last bracket that
/// leaves room for an argument, text after the argument has no effect, and no part contains a line break.
pub fn parse(action: &str) -> Option<(&str, &str)> {
    let line = action.split('\n').next()?;
    let (line, _) = line.rsplit_once(']')?;
    let last = line.char_indices().next_back()?.0;
    let open = line[..last].rfind('[')?;
    (open > 0).then(|| (&line[..open], &line[open + 1..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `re.match(r'(.+)\[(.+)\]', text)` in Python 3.11.
    #[test]
    fn actions_as_the_regular_expression_reads_them() {
        let cases = [
            ("search[red shoes]", Some(("search", "red shoes"))),
            ("click[a[b]c]", Some(("click[a", "b]c"))),
            ("click[a]b] c", Some(("click", "a]b"))),
            ("search[[]", Some(("search", "["))),
            ("search[]", None),
            ("[x]", None),
            ("[[x]", Some(("[", "x"))),
            ("click[x", None),
            ("click\n[x]", None),
            ("click[é]", Some(("click", "é"))),
            ("a[b][]", Some(("a", "b]["))),
            ("x[][]]", Some(("x[]", "]"))),
        ];
        for (text, parts) in cases {
            assert_eq!(parse(text), parts, "{text}");
        }
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig::with_cases(2000))]
        #[test]
        fn any_text_as_the_regular_expression_reads_it(text in r"[a\[\]\r\né ]{0,12}") {
            let found = regex::Regex::new(r"^(.+)\[(.+)\]").unwrap();
            let parts = found.captures(&text).map(|parts| parts.extract()).map(|(_, [name, argument])| (name, argument));
            assert_eq!(parse(&text), parts, "{text:?}");
        }
    }
}
