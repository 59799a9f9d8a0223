//! A policy for checks: it plays admissible actions at random, and now and then something else.

use anyhow::Result;
use nestor_plugin::Observation;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::Start;
use crate::Env;

/// Responses that carry no action of most environments.
const OTHERS: [&str; 6] =
    ["hello", "42", "yes", "<think>hm</think><action>look</action>", "{\"action\": \"wait\"}", "né ☃"];
/// One response in so many is one of [`OTHERS`].
const RARELY: u64 = 8;

/// A form in which an environment reads an action.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Form {
    /// The expert's own.
    Expert,
    Bare,
    Tagged,
    Json,
}

impl Form {
    /// The form that an environment accepts; none if it lists no actions, or accepts none of the forms.
    pub fn find(env: &mut Env, start: &Start) -> Result<Option<Self>> {
        for form in [Self::Expert, Self::Bare, Self::Tagged, Self::Json] {
            let first = env.reset(&start.split, start.task, start.seed)?;
            let Some(action) = first.admissible.first() else { return Ok(None) };
            let Some(response) = form.of(env, action) else { continue };
            if env.step(&response).is_ok_and(|seen| seen.valid) {
                return Ok(Some(form));
            }
        }
        Ok(None)
    }

    /// A response that carries an action. None if the expert has none.
    pub fn of(self, env: &mut Env, action: &str) -> Option<String> {
        match self {
            Self::Expert => env.expert_response(action).ok(),
            Self::Bare => Some(action.to_string()),
            Self::Tagged => Some(format!("<think></think><action>{action}</action>")),
            Self::Json => Some(serde_json::json!({ "action": action }).to_string()),
        }
    }
}

/// The policy.
#[derive(Debug, Clone)]
pub struct Player {
    dice: ChaCha8Rng,
    form: Option<Form>,
}

impl Player {
    pub fn new(form: Option<Form>, seed: u64) -> Self {
        Self { dice: ChaCha8Rng::seed_from_u64(seed), form }
    }

    fn pick<'a, T: ?Sized>(&mut self, from: &[&'a T]) -> &'a T {
        from[(self.dice.next_u64() % from.len() as u64) as usize]
    }

    /// A response to what was seen.
    pub fn respond(&mut self, env: &mut Env, seen: &Observation) -> String {
        if self.dice.next_u64().is_multiple_of(RARELY) {
            return self.pick(&OTHERS).to_string();
        }
        self.act(env, seen).unwrap_or_else(|| self.pick(&OTHERS).to_string())
    }

    /// A response that carries a random admissible action; without a list, the expert's. None if there is neither.
    pub fn act(&mut self, env: &mut Env, seen: &Observation) -> Option<String> {
        if seen.admissible.is_empty() {
            let action = env.expert_action(&[]).ok()?;
            return env.expert_response(&action).ok();
        }
        let all: Vec<&str> = seen.admissible.iter().map(String::as_str).collect();
        let action = self.pick(&all);
        self.form?.of(env, action)
    }
}
