//! The environments of a run. Each episode is played by one of them, and so is each group.
//!
//! A task has one number in the whole run: task t of environment e among n has number t n + e. With one environment it is
//! the environment's own number. So plans, groups and estimators need not know the environments.

use std::sync::Arc;

use anyhow::{Context, Result};

use super::prompt::{self, PromptTemplate};
use super::tasks::{TaskCounts, count_eval_tasks, count_tasks};
use crate::data::{Episode, EpisodeEnvironment};
use crate::plugin::{Env, PluginFile, Plugins, SharedEnv};
use crate::recipe::{EnvChoice, Eval, Recipe, Rollout};

/// The environments of a run; clones share them.
#[derive(Clone)]
pub struct Environments {
    members: Arc<Vec<Member>>,
    /// Episodes and metrics name them.
    named: bool,
}

/// One of them.
#[derive(Clone)]
pub struct Member {
    pub name: String,
    pub shared_env: SharedEnv,
    /// Its share of the groups, relative to the others.
    pub weight: f64,
    /// Its own splits in place of those of the recipe, each with that one before it.
    splits: Vec<(String, String)>,
}

impl Member {
    /// Its split where the recipe's sections name `split`.
    pub fn split<'a>(&'a self, split: &'a str) -> &'a str {
        self.splits.iter().find(|(asked, _)| asked == split).map_or(split, |(_, own)| own)
    }
}

/// A task where it is played.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Number of the environment.
    pub member: usize,
    /// The environment's split.
    pub split: String,
    /// Number of the task in that split.
    pub task: u64,
}

impl From<SharedEnv> for Environments {
    fn from(shared_env: SharedEnv) -> Self {
        let name = shared_env.id().to_string();
        let member = Member { name, shared_env, weight: 1.0, splits: Vec::new() };
        Self { members: Arc::new(vec![member]), named: false }
    }
}

impl Environments {
    /// The opened environments of a recipe, in its order.
    pub fn of(recipe: &Recipe, opened: Vec<SharedEnv>) -> Self {
        let named = recipe.env.is_list();
        let member = |(choice, shared_env): (&EnvChoice, SharedEnv)| {
            let name = if named { choice.name() } else { shared_env.id() }.to_string();
            let own = [(&recipe.rollout.split, &choice.split), (&recipe.eval.split, &choice.eval_split)];
            let splits = own.into_iter().filter_map(|(asked, own)| Some((asked.clone(), own.clone()?))).collect();
            Member { name, shared_env, weight: choice.weight.unwrap_or(1.0), splits }
        };
        let members = recipe.env.all().iter().zip(opened).map(member).collect();
        Self { members: Arc::new(members), named }
    }

    /// Opens all environments of a recipe.
    pub fn open(recipe: &Recipe, plugins: &Plugins) -> Result<Self> {
        let open = |(path, choice): (String, &EnvChoice)| {
            plugins.environment(&choice.choice()).with_context(|| format!("recipe key `{path}`"))
        };
        Ok(Self::of(recipe, recipe.env.sections().map(open).collect::<Result<_>>()?))
    }

    /// The same with other tasks of each, in their order.
    pub fn with(&self, shared_envs: Vec<SharedEnv>) -> Self {
        let with = |(member, shared_env): (&Member, SharedEnv)| Member { shared_env, ..member.clone() };
        Self { members: Arc::new(self.members.iter().zip(shared_envs).map(with).collect()), named: self.named }
    }

    /// The names of a list, such as `numberline, cards`; else the plugin's id.
    pub fn names(&self) -> String {
        self.members.iter().map(|member| &*member.name).collect::<Vec<_>>().join(", ")
    }

    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// The files of their plugins, each once.
    pub fn files(&self) -> Vec<&PluginFile> {
        let mut files: Vec<&PluginFile> = Vec::new();
        for file in self.members.iter().map(|member| member.shared_env.file()) {
            if files.iter().all(|known| known.path != file.path) {
                files.push(file);
            }
        }
        files
    }

    /// The weights by which groups are drawn.
    pub fn weights(&self) -> Vec<f64> {
        self.members.iter().map(|member| member.weight).collect()
    }

    /// Number of tasks of each in the split that a recipe's `key` names.
    ///
    /// # Errors
    /// As [`count_tasks`].
    pub fn count_tasks(&self, key: &str, split: &str) -> Result<TaskCounts> {
        self.counts(|member| count_tasks(&member.shared_env, key, member.split(split)))
    }

    /// Number of tasks of each in the split that an evaluation plays on.
    ///
    /// # Errors
    /// As [`count_eval_tasks`].
    pub fn count_eval_tasks(&self, eval: &Eval) -> Result<TaskCounts> {
        self.counts(|member| {
            let own = Eval { split: member.split(&eval.split).into(), ..eval.clone() };
            count_eval_tasks(&member.shared_env, &own)
        })
    }

    /// No number of a task is more than 64 bits hold.
    fn counts(&self, count: impl Fn(&Member) -> Result<u64>) -> Result<TaskCounts> {
        let most = u64::MAX / self.members.len() as u64;
        self.members.iter().map(|member| Ok(count(member)?.min(most))).collect()
    }

    /// The number of the environment that plays a task.
    pub fn member(&self, task: u64) -> usize {
        (task % self.members.len() as u64) as usize
    }

    /// The place of a task of the split that the recipe names.
    pub fn place(&self, split: &str, task: u64) -> Place {
        let member = self.member(task);
        let split = self.members[member].split(split).to_string();
        Place { member, split, task: task / self.members.len() as u64 }
    }

    /// The prompt template of each.
    pub fn templates(&self, rollout: &Rollout) -> Result<Vec<PromptTemplate>> {
        self.members.iter().map(|member| prompt::template(&member.shared_env, rollout)).collect()
    }

    /// Names the environment of an episode that is over, and puts that name before those of its metrics. Without a list of
    /// environments the episode stays as it is.
    pub fn named(&self, mut episode: Episode) -> Episode {
        if self.named {
            let Place { member, task, .. } = self.place("", episode.task);
            let name = self.members[member].name.clone();
            let metrics = std::mem::take(&mut episode.metrics).into_iter();
            episode.metrics = metrics.map(|(metric, value)| (format!("{name}/{metric}"), value)).collect();
            episode.environment = Some(EpisodeEnvironment { name, task });
        }
        episode
    }
}

/// Instances that no episode uses, by the number of their environment.
#[derive(Default)]
pub struct Idle(Vec<(usize, Env)>);

impl Idle {
    /// An instance of an environment; a new one where none is idle.
    pub fn take(&mut self, environments: &Environments, member: usize) -> Instance {
        match self.0.iter().rposition(|(of, _)| *of == member) {
            Some(at) => Instance::Open(self.0.swap_remove(at).1),
            None => Instance::New(environments.members[member].shared_env.clone()),
        }
    }

    pub fn put(&mut self, member: usize, env: Env) {
        self.0.push((member, env));
    }
}

/// An instance to work on.
#[allow(clippy::large_enum_variant)] // it moves once a call
pub enum Instance {
    Open(Env),
    /// One that the working thread makes.
    New(SharedEnv),
}

impl Instance {
    /// Its environment.
    pub fn shared_env(&self) -> &SharedEnv {
        match self {
            Self::Open(env) => env.shared_env(),
            Self::New(shared_env) => shared_env,
        }
    }

    /// The open instance.
    pub fn open(self) -> Result<Env> {
        match self {
            Self::Open(env) => Ok(env),
            Self::New(shared_env) => shared_env.spawn(),
        }
    }
}
