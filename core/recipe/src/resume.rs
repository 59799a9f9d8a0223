//! The differences between a run's recipe and the one that it is resumed with, and the refusal of those not permitted.

use std::fmt::{self, Display, Formatter};

use anyhow::Result;
use serde_json::{Map, Value};

use super::permissions::{OnResume, on_resume};
use super::{Key, Recipe, keys};
use crate::input_error;

/// Keys that choose the tasks of an evaluation, or the way in which it plays them.
const EVALUATION: &[&str] = &[
    "env.config",
    "env.plugin",
    "env.eval_split",
    "eval.samples",
    "eval.seed",
    "eval.split",
    "eval.tasks",
    "eval.temperature",
    "seed",
];

/// Keys that choose the training tasks.
const TASKS: &[&str] = &["env", "rollout.split", "seed"];

/// A key whose value differs between two recipes.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    /// Its path; for an optional section that only one recipe has, the section's.
    pub key: String,
    /// The values; null where a recipe lacks the key.
    pub before: Value,
    pub after: Value,
}

impl Change {
    /// The permission of the key, or for a plugin's own key that of its `config`.
    pub fn on_resume(&self) -> OnResume {
        let whole = without_numbers(&self.key);
        let mut key = whole.as_str();
        loop {
            match (on_resume(key), key.rsplit_once('.')) {
                (Some(permission), _) => return permission,
                (None, Some((section, _))) => key = section,
                (None, None) => return OnResume::Fixed,
            }
        }
    }

    fn is_of(&self, keys: &[&str]) -> bool {
        // A list of other environments changes all keys of them.
        keys.iter().any(|key| is_within(&without_numbers(&self.key), key) || self.key == "env" && is_within(key, "env"))
    }
}

impl Display for Change {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        write!(f, "{}: {} -> {}", self.key, shown(&self.before), shown(&self.after))
    }
}

/// A value on one line, cut where it is long.
fn shown(value: &Value) -> String {
    const LONGEST: usize = 60;
    let text = match value {
        Value::Null => "none".into(),
        Value::String(text) if !text.is_empty() && !text.contains(|c: char| c.is_whitespace() || c.is_control()) => {
            text.clone()
        }
        Value::Number(number) => match number.as_f64().filter(|_| number.is_f64()) {
            // As people write a learning rate.
            Some(x) if x != 0.0 && !(0.01..1e6).contains(&x.abs()) => format!("{x:e}"),
            _ => number.to_string(),
        },
        value => value.to_string(),
    };
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// The keys whose values differ, in the order of the schema. Values that were left out count as their defaults.
pub fn changes(before: &Recipe, after: &Recipe) -> Result<Vec<Change>> {
    let mut changes = Vec::new();
    compare("", &serde_json::to_value(before)?, &serde_json::to_value(after)?, &mut changes);
    Ok(changes)
}

fn compare(key: &str, before: &Value, after: &Value, changes: &mut Vec<Change>) {
    if let (Value::Array(old), Value::Array(new), "env") = (before, after, key)
        && old.len() == new.len()
    {
        for (number, (old, new)) in old.iter().zip(new).enumerate() {
            compare(&format!("{key}.{number}"), old, new, changes);
        }
        return;
    }
    let (Value::Object(old), Value::Object(new)) = (before, after) else {
        if before != after {
            changes.push(Change { key: key.into(), before: before.clone(), after: after.clone() });
        }
        return;
    };
    let value = |map: &Map<String, Value>, name: &str| map.get(name).cloned().unwrap_or_default();
    // Another plugin has other keys.
    let other_plugin = value(old, "plugin") != value(new, "plugin");
    for name in old.keys().chain(new.keys().filter(|name| !old.contains_key(*name))) {
        if other_plugin && name == "config" {
            continue;
        }
        let path = if key.is_empty() { name.clone() } else { format!("{key}.{name}") };
        compare(&path, &value(old, name), &value(new, name), changes);
    }
}

/// The changes that a resumed run makes, and the keys that the user allows to change.
#[derive(Debug, Clone, Default)]
pub struct Changes<'a> {
    pub changes: Vec<Change>,
    pub allowed: &'a [String],
}

impl<'a> Changes<'a> {
    /// The changes from a run's recipe to that of its resume.
    ///
    /// # Errors
    /// If `allowed` names no key.
    pub fn new(before: &Recipe, after: &Recipe, allowed: &'a [String]) -> Result<Self> {
        let known = keys();
        allowed.iter().try_for_each(|key| check_key(&known, key))?;
        Ok(Self { changes: changes(before, after)?, allowed })
    }

    /// Refuses changes that the keys do not permit. `in_update` is the iteration whose update is resumed after some of its
    /// mini-batches.
    pub fn check(&self, in_update: Option<u64>) -> Result<()> {
        let refused = |change: &&Change| change.on_resume() == OnResume::Fixed && !self.allows(&change.key);
        let fixed: Vec<&Change> = self.changes.iter().filter(refused).collect();
        if !fixed.is_empty() {
            let options: Vec<String> = fixed.iter().map(|change| format!("--allow-change {}", change.key)).collect();
            return Err(input_error!(
                "a resumed run keeps {}: {}; give the old value, start another run, or allow the change by {}",
                if fixed.len() == 1 { "this key of its recipe" } else { "these keys of its recipe" },
                listed(&fixed),
                options.join(" ")
            ));
        }
        let now: Vec<&Change> = self.changes.iter().filter(|change| change.on_resume() != OnResume::Free).collect();
        match in_update {
            Some(iteration) if !now.is_empty() => Err(input_error!(
                "the checkpoint is inside the update of iteration {iteration}, which must end as it began: {}; resume without \
                 the change and with --set iterations={iteration}, then resume again with it",
                listed(&now)
            )),
            _ => Ok(()),
        }
    }

    /// True if the user allows a key to change, by its name or that of its section.
    pub fn allows(&self, key: &str) -> bool {
        self.allowed.iter().any(|allowed| is_within(key, allowed))
    }

    /// True if the training tasks may be others than those that the run began with.
    pub fn allow_other_tasks(&self) -> bool {
        self.allowed.iter().any(|allowed| TASKS.iter().any(|key| is_within(allowed, key)))
    }

    /// True if the user allows another estimator than the one that the run began with.
    pub fn allow_other_estimator(&self) -> bool {
        self.allowed.iter().any(|allowed| is_within("estimator.plugin", allowed))
    }

    /// True if later evaluations do not compare with earlier ones.
    pub fn change_evaluation(&self) -> bool {
        self.changes.iter().any(|change| change.is_of(EVALUATION))
    }
}

/// A key without the numbers of environments in a list: `env.config.range` for `env.1.config.range`.
fn without_numbers(key: &str) -> String {
    let parts = key.split('.').filter(|part| !part.bytes().all(|byte| byte.is_ascii_digit()));
    parts.collect::<Vec<_>>().join(".")
}

/// True for a key of a section, and for the section itself.
fn is_within(key: &str, section: &str) -> bool {
    key.strip_prefix(section).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

fn listed(changes: &[&Change]) -> String {
    changes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// Refuses a name that is neither a key nor a key of a plugin's config.
fn check_key(known: &[Key], name: &str) -> Result<()> {
    let name = &*without_numbers(name);
    let of_plugin = ["env.config.", "estimator.config.", "loss.config."].iter().any(|start| name.starts_with(start));
    if of_plugin || known.iter().any(|key| key.path == name) {
        return Ok(());
    }
    let near = known.iter().map(|key| (strsim::damerau_levenshtein(&key.path, name), &key.path)).min();
    let hint = near.map_or(String::new(), |(_, path)| format!("; did you mean `{path}`?"));
    Err(input_error!("--allow-change {name}: there is no such recipe key{hint}"))
}
