//! The key `env` of a recipe: one environment, or a list of them.

use std::fmt;

use schemars::JsonSchema;
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::EnvChoice;
use super::error::Problem;

/// Most environments of a run.
const MOST: usize = 64;
/// Largest quotient of two weights: a rarer environment would not be played at all in most runs.
const MOST_WEIGHT: f64 = 1e6;

/// The environments of a run.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum EnvChoices {
    /// The environment of all tasks.
    One(Box<EnvChoice>),
    /// Several environments in one run. Each group of episodes is of one of them, drawn by `weight`.
    Several(Vec<EnvChoice>),
}

impl EnvChoices {
    /// All environments, in the order of the recipe.
    pub fn all(&self) -> &[EnvChoice] {
        match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::Several(all) => all,
        }
    }

    /// As [`Self::all`], to change them.
    pub fn all_mut(&mut self) -> &mut [EnvChoice] {
        match self {
            Self::One(one) => std::slice::from_mut(one),
            Self::Several(all) => all,
        }
    }

    /// True for a list, of one environment too: then metrics and files name the environments.
    pub fn is_list(&self) -> bool {
        matches!(self, Self::Several(_))
    }

    /// The names of all environments, such as `numberline, cards`.
    pub fn names(&self) -> String {
        self.all().iter().map(EnvChoice::name).collect::<Vec<_>>().join(", ")
    }

    /// The longest time in seconds that a call into one of them may take.
    pub fn timeout_s(&self) -> u64 {
        self.all().iter().map(|env| env.timeout_s).max().unwrap_or_default()
    }

    /// The path of each environment's section in the recipe, such as `env` or `env.0`.
    pub fn sections(&self) -> impl Iterator<Item = (String, &EnvChoice)> {
        let path = |number| if self.is_list() { format!("env.{number}") } else { "env".into() };
        self.all().iter().enumerate().map(move |(number, env)| (path(number), env))
    }

    /// Finds a list that does not make sense. `splits` are those of training and evaluation.
    pub(super) fn problem(&self, splits: [&str; 2]) -> Option<Problem> {
        let Self::Several(all) = self else {
            let [env] = self.all() else { return None };
            let of_list = [
                ("name", env.name.is_some()),
                ("weight", env.weight.is_some()),
                ("split", env.split.is_some()),
                ("eval_split", env.eval_split.is_some()),
            ];
            let (key, _) = of_list.into_iter().find(|(_, given)| *given)?;
            let other = match key {
                "split" => "; write `rollout.split`",
                "eval_split" => "; write `eval.split`",
                _ => "; leave it out",
            };
            return Some((format!("env.{key}"), format!("belongs to a list of environments{other}")));
        };
        if !(1..=MOST).contains(&all.len()) {
            return Some(("env".into(), format!("must list 1 to {MOST} environments, but lists {}", all.len())));
        }
        let least = all.iter().filter_map(|env| env.weight).fold(1.0, f64::min);
        for (number, env) in all.iter().enumerate() {
            let problem = |key: &str, message: String| Some((format!("env.{number}.{key}"), message));
            let weight = env.weight.unwrap_or(1.0);
            if weight <= 0.0 {
                return problem(
                    "weight",
                    format!("must be greater than 0, but is {weight}; remove an environment to leave it out"),
                );
            }
            if weight / least > MOST_WEIGHT {
                return problem("weight", format!("must be at most {MOST_WEIGHT:e} times any other, but is {weight}"));
            }
            let key = if env.name.is_some() { "name" } else { "plugin" };
            if env.name.is_none() && env.plugin.contains('/') {
                return problem(key, "is a file, so the environment needs a `name`".into());
            }
            if env.name().is_empty() || env.name().contains(|c: char| c == '/' || c.is_control()) {
                return problem(key, "must be a name on one line, without `/`".into());
            }
            if all[..number].iter().any(|other| other.name() == env.name()) {
                return problem(
                    key,
                    format!("`{}` names two environments of the list; give each a `name` of its own", env.name()),
                );
            }
            let own = [("split", &env.split), ("eval_split", &env.eval_split)];
            if let Some((key, _)) = own.iter().find(|(_, split)| split.as_ref().is_some_and(String::is_empty)) {
                return problem(key, "must name a split".into());
            }
            if let Some((key, _)) = own.iter().find(|(_, split)| split.is_some() && splits[0] == splits[1]) {
                return problem(
                    key,
                    format!("needs a `rollout.split` other than `eval.split`: both are `{}`", splits[0]),
                );
            }
        }
        None
    }
}

/// By hand, because serde's untagged form loses the cause of an error.
impl<'de> Deserialize<'de> for EnvChoices {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = EnvChoices;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a section or a list of sections")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<EnvChoices, A::Error> {
                EnvChoice::deserialize(MapAccessDeserializer::new(map)).map(|one| EnvChoices::One(Box::new(one)))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<EnvChoices, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(list)).map(EnvChoices::Several)
            }
        }
        deserializer.deserialize_any(Either)
    }
}
