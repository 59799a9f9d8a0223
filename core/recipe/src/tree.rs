//! YAML as a tree that keeps the location of every key, so that errors can name it after merging.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use anyhow::Result;
use saphyr_parser::{Event, Parser, ScalarStyle, ScanError, Span, StrInput};

use super::location::Location;
use super::variables::{self, Lookup};
use crate::input_error;

/// The key that takes the keys of other maps into its own (YAML 1.1's merge key).
const MERGE: &str = "<<";

/// Deeper nesting is refused, since the reader is recursive.
const MAX_DEPTH: usize = 64;

/// Most values that aliases may copy: aliases of aliases grow a short text without bound.
const MAX_COPIES: usize = 10_000;

/// Most keys of one map: merging maps compares their keys one by one.
const MAX_KEYS: usize = 10_000;

#[derive(Debug, Clone)]
pub(super) enum Node {
    /// Text, a number, `true`, `false` or `null`.
    Scalar(serde_json::Value),
    List(Vec<(Location, Node)>),
    Map(Map),
}

/// Keys in the order written.
pub(super) type Map = Vec<MapEntry>;

#[derive(Debug, Clone)]
pub(super) struct MapEntry {
    pub(super) key: String,
    pub(super) location: Location,
    pub(super) node: Node,
}

impl Node {
    /// Drops the locations.
    pub(super) fn to_json(&self) -> serde_json::Value {
        match self {
            Node::Scalar(value) => value.clone(),
            Node::List(items) => items.iter().map(|(_, node)| node.to_json()).collect(),
            Node::Map(map) => map.iter().map(|e| (e.key.clone(), e.node.to_json())).collect(),
        }
    }

    /// Number of values, including this one.
    fn size(&self) -> usize {
        self.children().map(Node::size).sum::<usize>() + 1
    }

    /// Depth of nesting, including this node.
    fn height(&self) -> usize {
        self.children().map(Node::height).max().unwrap_or(0) + 1
    }

    fn children(&self) -> Box<dyn Iterator<Item = &Node> + '_> {
        match self {
            Node::Scalar(_) => Box::new(std::iter::empty()),
            Node::List(items) => Box::new(items.iter().map(|(_, node)| node)),
            Node::Map(map) => Box::new(map.iter().map(|entry| &entry.node)),
        }
    }

    fn is_null(&self) -> bool {
        matches!(self, Node::Scalar(serde_json::Value::Null))
    }
}

/// Parses one YAML document and replaces its variables; `origin` is the location of its first character.
pub(super) fn parse(text: &str, origin: &Location, lookup: Lookup) -> Result<Node> {
    let shielded = variables::shield(text.strip_prefix('\u{feff}').unwrap_or(text));
    let parser = Parser::new_from_str(&shielded);
    let hides = matches!(shielded, Cow::Owned(_));
    let mut reader = TreeReader { parser, origin, lookup, hides, anchors: Vec::new(), copies: 0 };
    let mut root = Node::Scalar(serde_json::Value::Null);
    let mut documents = 0;
    loop {
        let (event, span) = reader.next()?;
        match event {
            Event::StreamEnd => return Ok(root),
            Event::StreamStart | Event::DocumentEnd | Event::Nothing => {}
            Event::DocumentStart(_) if documents == 0 => documents += 1,
            Event::DocumentStart(_) => {
                return Err(reader.fail(&span, "a second YAML document (`---`) begins here; one file holds one"));
            }
            event => root = reader.node(event, &span, 0)?,
        }
    }
}

struct TreeReader<'a> {
    parser: Parser<'a, StrInput<'a>>,
    origin: &'a Location,
    lookup: Lookup<'a>,
    /// References are hidden from the parser.
    hides: bool,
    anchors: Vec<(usize, Node)>,
    /// Values copied from aliases so far.
    copies: usize,
}

impl<'a> TreeReader<'a> {
    fn next(&mut self) -> Result<(Event<'a>, Span)> {
        match self.parser.next_event() {
            Some(Ok(next)) => Ok(next),
            Some(Err(error)) => Err(self.syntax(&error)),
            None => Ok((Event::StreamEnd, Span::default())),
        }
    }

    fn syntax(&self, error: &ScanError) -> anyhow::Error {
        let (place, info) = (self.origin.moved(error.marker()), error.info());
        input_error!("{place}: this is not valid YAML: {}{}", self.shown(info), syntax_remedy(info))
    }

    /// A text of the parser as the recipe has it.
    fn shown(&self, text: &str) -> String {
        if self.hides { variables::unshield(text) } else { text.to_owned() }
    }

    fn fail(&self, span: &Span, message: &str) -> anyhow::Error {
        input_error!("{}: {message}", self.origin.moved(&span.start))
    }

    fn node(&mut self, event: Event<'a>, span: &Span, depth: usize) -> Result<Node> {
        if depth > MAX_DEPTH {
            return Err(self.fail(span, "nested too deeply"));
        }
        let (node, anchor) = match event {
            Event::Scalar(_, _, _, Some(tag))
            | Event::SequenceStart(_, Some(tag))
            | Event::MappingStart(_, Some(tag)) => {
                let tag = tag.to_string().replace("tag:yaml.org,2002:!", "!!").replace("tag:yaml.org,2002:", "!!");
                return Err(self.fail(span, &format!("the YAML tag `{tag}` means nothing here; remove it")));
            }
            Event::Scalar(text, style, anchor, None) => (Node::Scalar(self.scalar(&text, style, span)?), anchor),
            Event::SequenceStart(anchor, None) => (self.list(depth)?, anchor),
            Event::MappingStart(anchor, None) => (self.map(depth)?, anchor),
            Event::Alias(id) => match self.anchors.iter().find(|(anchor, _)| *anchor == id) {
                Some((_, node)) => {
                    self.copies += node.size();
                    if self.copies > MAX_COPIES || depth + node.height() > MAX_DEPTH + 1 {
                        return Err(self.fail(span, "this alias makes the recipe too large or nested too deeply"));
                    }
                    (node.clone(), 0)
                }
                None => return Err(self.fail(span, "this alias names an anchor that is not complete yet")),
            },
            _ => return Err(self.fail(span, "this is not valid YAML")),
        };
        if anchor != 0 {
            self.anchors.push((anchor, node.clone()));
        }
        Ok(node)
    }

    fn list(&mut self, depth: usize) -> Result<Node> {
        let mut items = Vec::new();
        loop {
            let (event, span) = self.next()?;
            if event == Event::SequenceEnd {
                return Ok(Node::List(items));
            }
            items.push((self.origin.moved(&span.start), self.node(event, &span, depth + 1)?));
        }
    }

    fn map(&mut self, depth: usize) -> Result<Node> {
        let mut map = Map::new();
        let mut index = HashMap::new();
        let mut merged = None;
        loop {
            let (event, span) = self.next()?;
            let (key, merges) = match event {
                Event::MappingEnd => return Ok(Node::Map(with_merged(map, merged.unwrap_or_default()))),
                Event::Scalar(text, style, ..) => (self.shown(&text), text == MERGE && style == ScalarStyle::Plain),
                _ => return Err(self.fail(&span, "a key must be text")),
            };
            if map.len() == MAX_KEYS {
                return Err(self.fail(&span, &format!("this map has more than {MAX_KEYS} keys")));
            }
            let location = self.origin.moved(&span.start);
            let first = if merges { None } else { index.insert(key.clone(), map.len()) };
            if let Some(first) = first.and_then(|at: usize| map.get(at)) {
                return Err(input_error!("{location}: key `{key}` appears a second time (first: {})", first.location));
            }
            let (event, value) = self.next()?;
            let node = self.node(event, &value, depth + 1)?;
            match (merges, &merged) {
                (true, None) => merged = Some(self.merged(node, &location)?),
                (true, Some(_)) => {
                    return Err(self.fail(&span, "`<<` appears a second time; one takes a list: `<<: [*a, *b]`"));
                }
                (false, _) => map.push(MapEntry { key, location, node }),
            }
        }
    }

    /// The keys that a merge key takes from a map, or from a list of maps, of which earlier ones count first.
    fn merged(&mut self, node: Node, location: &Location) -> Result<Map> {
        let maps = match node {
            Node::List(items) => items.into_iter().map(|(_, node)| node).collect(),
            node => vec![node],
        };
        maps.into_iter().try_fold(Map::new(), |taken, node| match node {
            Node::Map(map) => Ok(with_merged(taken, map)),
            _ => Err(input_error!("{location}: `<<` takes a map, such as `<<: *anchor`, or a list of maps")),
        })
    }

    /// Reads plain scalars as serde_yaml does, so that a recipe that serde_yaml wrote loads to the same values.
    fn scalar(&self, text: &str, style: ScalarStyle, span: &Span) -> Result<serde_json::Value> {
        let text = variables::expand(&self.shown(text), &self.origin.moved(&span.start), self.lookup)?;
        if style != ScalarStyle::Plain {
            return Ok(text.into());
        }
        match serde_yaml::from_str(&text) {
            Ok(serde_yaml::Value::Null) => Ok(serde_json::Value::Null),
            Ok(serde_yaml::Value::Bool(value)) => Ok(value.into()),
            Ok(serde_yaml::Value::Number(number)) => match (number.as_u64(), number.as_i64(), number.as_f64()) {
                (Some(value), _, _) => Ok(value.into()),
                (_, Some(value), _) => Ok(value.into()),
                (_, _, Some(value)) if value.is_finite() => Ok(value.into()),
                _ => Err(self.fail(span, &format!("`{text}` is not a finite number"))),
            },
            _ => Ok(text.into()),
        }
    }
}

/// The remedy for an error of syntax, by the parser's words.
fn syntax_remedy(info: &str) -> &'static str {
    const REMEDIES: [(&str, &str); 8] = [
        (" tab", "; indent by blanks, not by tabs"),
        (
            "simple key",
            "; a line is `key: value`, with a blank behind the colon: look at this line and the one above it",
        ),
        ("mapping values", "; keys of one section start in the same column, and a text with a colon needs quotes"),
        ("block mapping", "; keys of one section start in the same column"),
        ("flow", "; a `{` or a `[` has no end, or a comma is missing"),
        ("quoted scalar", "; a quote has no end"),
        ("unexpected character", "; put the text in quotes"),
        ("unknown anchor", "; `*name` repeats a value that `&name` marks above it: put any other text in quotes"),
    ];
    REMEDIES.iter().find(|(words, _)| info.contains(words)).map_or("", |(_, remedy)| remedy)
}

/// A map with further keys, unless it has them.
fn with_merged(mut map: Map, further: Map) -> Map {
    let known: HashSet<String> = map.iter().map(|entry| entry.key.clone()).collect();
    map.extend(further.into_iter().filter(|entry| !known.contains(&entry.key)));
    map
}

/// Lays `over` on `base`: merges maps key by key and replaces everything else. A section that names a `plugin` other
/// than that of `base` does not inherit its `config`.
pub(super) fn merge(base: Node, over: Node) -> Node {
    let (mut base, over) = match (base, over) {
        (Node::Map(base), Node::Map(over)) => (base, over),
        (_, over) => return over,
    };
    let plugin = |map: &Map| map.iter().find(|e| e.key == "plugin").map(|e| e.node.to_json());
    if let (Some(below), Some(above)) = (plugin(&base), plugin(&over))
        && below != above
    {
        base.retain(|e| e.key != "config");
    }
    for entry in over {
        match base.iter_mut().find(|e| e.key == entry.key) {
            Some(slot) => {
                let below = std::mem::replace(&mut slot.node, Node::Scalar(serde_json::Value::Null));
                slot.node = merge(below, entry.node);
                slot.location = entry.location;
            }
            None => base.push(entry),
        }
    }
    Node::Map(base)
}

/// Applies `--set` arguments. An argument replaces the value at its path and creates missing sections. Naming another
/// plugin drops the `config` of the old one, in any order of the arguments.
pub(super) fn set_all(root: &mut Node, arguments: &[String], lookup: Lookup) -> Result<()> {
    let mut sets = arguments.iter().map(|argument| SetArgument::parse(argument, lookup)).collect::<Result<Vec<_>>>()?;
    sets.sort_by_key(|set| set.path.last().is_none_or(|key| key != "plugin"));
    sets.into_iter().try_for_each(|set| set.apply(root))
}

struct SetArgument {
    path: Vec<String>,
    location: Location,
    value: Node,
}

impl SetArgument {
    fn parse(argument: &str, lookup: Lookup) -> Result<Self> {
        let location = Location::argument(argument);
        let form = || input_error!("{location}: expected `--set key.path=value`, for example `--set update.lr=1e-5`");
        let (path, value) = argument.split_once('=').ok_or_else(form)?;
        let path: Vec<String> = path.split('.').map(|key| key.trim().to_string()).collect();
        if path.iter().any(String::is_empty) {
            return Err(form());
        }
        if path.len() > MAX_DEPTH {
            return Err(input_error!("{location}: nested too deeply"));
        }
        let value = parse(value, &location, lookup)?;
        Ok(Self { path, location, value })
    }

    fn apply(self, root: &mut Node) -> Result<()> {
        let SetArgument { path, location, value } = self;
        let (last, sections) = path.split_last().expect("split gives at least one part");
        let mut node = root;
        for (depth, key) in sections.iter().enumerate() {
            node = match node {
                Node::List(items) => item(items, key, &path[..depth], &location)?,
                node => &mut entry(section(node, &path[..depth], &location)?, key, &location).node,
            };
        }
        let map = section(node, sections, &location)?;
        if last == "plugin" && map.iter().any(|e| e.key == "plugin" && e.node.to_json() != value.to_json()) {
            map.retain(|e| e.key != "config");
        }
        let slot = entry(map, last, &location);
        slot.node = value;
        slot.location = location;
        Ok(())
    }
}

/// Returns the node as a map; an absent (null) section becomes an empty one.
fn section<'a>(node: &'a mut Node, path: &[String], location: &Location) -> Result<&'a mut Map> {
    if node.is_null() {
        *node = Node::Map(Map::new());
    }
    match node {
        Node::Map(map) => Ok(map),
        _ => Err(input_error!("{location}: `{}` holds one value, not keys of its own", path.join("."))),
    }
}

/// Returns the item of a list with this number.
fn item<'a>(
    items: &'a mut [(Location, Node)],
    number: &str,
    path: &[String],
    location: &Location,
) -> Result<&'a mut Node> {
    let (list, count) = (path.join("."), items.len());
    let found = number.parse().ok().and_then(|number: usize| items.get_mut(number));
    found.map(|(_, node)| node).ok_or_else(|| {
        input_error!(
            "{location}: `{list}` is a list of {count}, whose items have the numbers from 0; `{number}` is none"
        )
    })
}

fn entry<'a>(map: &'a mut Map, key: &str, location: &Location) -> &'a mut MapEntry {
    let index = map.iter().position(|e| e.key == key).unwrap_or_else(|| {
        let node = Node::Scalar(serde_json::Value::Null);
        map.push(MapEntry { key: key.to_string(), location: location.clone(), node });
        map.len() - 1
    });
    &mut map[index]
}
