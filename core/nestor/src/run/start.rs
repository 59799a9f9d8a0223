//! How a run begins: its directory, its model, the warm start, or its newest checkpoint.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level;
use tch::{Device, Kind};

use super::speed::Speed;
use super::{Run, State, TrainArgs, stream_seed};
use crate::agent::{Player, PlayerOptions, TaskCursor, count_tasks, plan, texts};
use crate::checkpoint::Checkpoints;
use crate::dist::{self, Rendezvous, from_root};
use crate::engine::noise;
use crate::files;
use crate::input_error;
use crate::model::{Config, kind, new, prepare, weights};
use crate::plugin::{Estimator, Plugins, SharedEnv};
use crate::policy::Network;
use crate::policy::network::{set_shards, shards};
use crate::policy::kl_reward::KlCoefficient;
use crate::recipe::{Recipe, Sharding};
use crate::shard::Ranks;
use crate::tokenizer::{Tokenizer, Turns};
use crate::track::{Console, Event, Metrics, Phases, Progress, Tracker, Wandb, terminal};
use crate::warm_start::Imitation;

/// Expert episodes whose texts train a new model's tokenizer.
const TOKENIZER_EPISODES: usize = 512;

/// Joins the ranks that run a recipe together.
pub fn join(recipe: &Recipe) -> Result<Ranks> {
    let place = Rendezvous::of_environment()?;
    if place.world > 1 && recipe.sharding == Sharding::None {
        return Err(input_error!(
            "recipe key `sharding`: `none` is for one rank, and there are {}; set it to full or grad_op",
            place.world
        ));
    }
    let device = prepare(recipe, place.local_rank)?;
    let comm = dist::join(&place, device, &recipe.dist)?;
    let (stop, progress) = (stop_flag()?, Progress::hidden());
    Ok(Ranks { comm, sharding: recipe.sharding, deterministic: recipe.deterministic, stop, progress })
}

impl Run {
    /// Starts a run, or goes on with one. All ranks do it together.
    pub fn open(recipe: Recipe, name: &str, args: &TrainArgs, ranks: &Ranks) -> Result<Self> {
        let console = Console::open(ranks.comm.rank(), ranks.world(), args.json);
        let ranks = &Ranks { progress: console.progress(), ..ranks.clone() };
        let starting = ranks.progress.phase("start", "");
        let comm = &*ranks.comm;
        let phases = Phases::new("start");
        from_root(comm, || Wandb::check(recipe.wandb.as_ref()))?;
        let dir = from_root(comm, || run_dir(name, args))?;
        let resume = args.resume || (args.restarted && is_run(&dir));
        let plugins = Plugins::discover()?;
        let shared_env = plugins.environment(&recipe.env).context("recipe key `env`")?;
        let estimator = plugins.estimator(&recipe.estimator).context("recipe key `estimator`")?;
        check_critic(&recipe, &estimator)?;
        let count = count_tasks(&shared_env, "rollout.split", &recipe.rollout.split)?;
        count_tasks(&shared_env, "eval.split", &recipe.eval.split)?;
        if let Some(path) = recipe.model.path.as_deref().map(Path::new) {
            let (config, tokenizer) = (Config::load(path)?, Tokenizer::load(path)?);
            new::check_vocabulary(&config, &tokenizer)
                .with_context(|| format!("recipe key `model.path`: {}", path.display()))?;
            let tokenizer =
                tokenizer.with_thinking(recipe.rollout.thinking).context("recipe key `rollout.thinking`")?;
            check_conversation(&recipe, &config, &tokenizer)?;
        }
        let speed = Speed::measure(comm.device(), kind(recipe.dtype), comm.world());
        let checkpoints = Checkpoints::new(&dir);
        let newest = if resume { checkpoints.newest(comm, |line| console.warn(line))? } else { None };
        match &newest {
            Some(_) => check_same_run(&recipe, &dir)?,
            None if resume && comm.rank() == 0 => {
                console.warn("there is no checkpoint yet; the run starts from the beginning")
            }
            None => {}
        }
        let model_files = from_root(comm, || {
            // From here on the directory is this run's.
            std::fs::create_dir_all(&dir).with_context(|| format!("making {}", dir.display()))?;
            files::write_whole(&dir.join("recipe.yaml"), recipe.to_yaml()?)?;
            model_files(&recipe, &shared_env, &dir, newest.is_some())
        })?;
        if let Some(checkpoint) = &newest {
            Checkpoints::check_model(checkpoint, &model_files)?;
        }

        let model = weights::load(&model_files, kind(recipe.dtype), comm.device())?;
        let tokenizer = Tokenizer::load(&model_files)?;
        let tasks = TaskCursor::new(count, recipe.seed);
        let player = Player::new(PlayerOptions {
            tokenizer,
            shared_env,
            rollout: recipe.rollout.clone(),
            seed: recipe.seed,
            deterministic: recipe.deterministic,
            stop: ranks.stop.clone(),
            progress: ranks.progress.clone(),
        })?;
        let fingerprint = || from_root(comm, || weights::fingerprint(&model_files, kind(recipe.dtype)));
        let start_model = recipe.model.lora.as_ref().map(|_| fingerprint()).transpose()?;
        let mut policy = match &recipe.model.lora {
            Some(settings) => Network::with_lora(model, settings, recipe.seed, ranks)?,
            None => Network::new(model, ranks)?,
        };
        let mut critic = None;
        let mut state = State { start_model, ..State::new(tasks) };
        if let Some(path) = &newest {
            critic = recipe.critic.as_ref().map(|_| Network::critic_of(&policy)).transpose()?;
            let start_model = state.start_model;
            state = Checkpoints::load(comm, path, &mut policy, critic.as_mut())?;
            if state.start_model != start_model {
                return Err(input_error!(
                    "{}: the weights are not those that the run began with, which its adapters belong to; put them back, \
                     or start another run",
                    model_files.display()
                ));
            }
            state.policy.restore(&mut policy);
            if let (Some(critic), Some(counters)) = (&mut critic, state.critic) {
                counters.restore(critic);
            }
        }
        let interrupted = match &newest {
            Some(path) => from_root(comm, || {
                Checkpoints::interrupted(path)?.map(|bytes| Ok(postcard::from_bytes(&bytes)?)).transpose()
            })?,
            None => None,
        };
        // A run may take up KL in the reward, or give it up, when it is resumed.
        state.kl_coefficient = recipe.update.kl_in_reward.as_ref().map(|section| {
            let adapted = state.kl_coefficient.filter(|_| section.adaptive.is_some());
            adapted.unwrap_or(KlCoefficient(section.coef))
        });
        let kept = newest.is_some().then_some(state.iteration);
        let tracker = match comm.rank() {
            0 => Tracker::open(&dir, recipe.iterations, kept)?,
            _ => Tracker::silent(recipe.iterations),
        };
        let mut tracker = tracker.speaking(console);
        if comm.rank() == 0 {
            tracker.wandb = Wandb::open(&recipe, &dir, kept)?;
        }
        drop(starting);
        let mut run = Self {
            reference: None,
            metrics: Metrics::new(),
            recipe,
            dir,
            ranks: ranks.clone(),
            policy,
            critic,
            player,
            estimator,
            tracker,
            checkpoints,
            model_files,
            phases,
            speed,
            interrupted,
            baseline: newest.is_some(),
            saved: None,
            tasks: state.tasks.clone(),
            state,
        };
        run.saved = newest.is_some().then(|| run.progress());
        run.introduce(newest.as_deref())?;
        Ok(run)
    }

    /// What comes before the first iteration: the frozen reference, and in a run that is not resumed the warm start, a
    /// critic and the first evaluation.
    pub fn begin(&mut self) -> Result<()> {
        if !self.baseline {
            self.warm_start()?;
        }
        self.freeze_reference(self.baseline)?;
        if !self.baseline {
            self.critic = self.recipe.critic.as_ref().map(|_| Network::critic_of(&self.policy)).transpose()?;
            self.evaluate()?;
            self.record()?;
            self.baseline = true;
            if self.recipe.checkpoint.every > 0 {
                self.save()?;
            }
        }
        Ok(())
    }

    fn introduce(&mut self, resumed: Option<&Path>) -> Result<()> {
        let model = &self.policy.model;
        self.tracker.emit(&Event::Start {
            run_dir: &self.dir,
            parameters: model.numel(),
            adapters: self.policy.adapters.as_ref().map(|adapters| adapters.numel()),
            dtype: format!("{:?}", model.kind()),
            device: format!("{:?}", model.device()),
            environment: &self.recipe.env.plugin,
            estimator: &self.recipe.estimator.plugin,
            iterations: self.recipe.iterations,
            world: self.ranks.world(),
            resumed_from: resumed,
        })?;
        for warning in self.recipe.warnings() {
            self.tracker.emit(&Event::Warning { message: &warning })?;
        }
        match resumed {
            Some(path) => self.tracker.log(&format!("resumed from {}", path.display())),
            None => Ok(()),
        }
    }

    fn warm_start(&mut self) -> Result<()> {
        let Some(settings) = self.recipe.warm_start.clone() else { return Ok(()) };
        self.phases.start("warm_start");
        let _bar = self.ranks.progress.phase("warm start", "steps");
        let seed = stream_seed(self.recipe.seed, noise::WARM_START, 0);
        let count = self.player.shared_env().tasks(&self.recipe.rollout.split)?;
        let mut teacher = Imitation {
            comm: &*self.ranks.comm,
            player: &mut self.player,
            tasks: TaskCursor::new(count, seed),
            seed,
            settings: &settings,
            rollout: &self.recipe.rollout,
            update: &self.recipe.update,
        };
        let (tracker, ranks) = (&mut self.tracker, &self.ranks);
        let every = (settings.steps / 10).max(1);
        ranks.progress.set_total(settings.steps as usize);
        let mut last = f64::NAN;
        teacher.teach(&mut self.policy, |step, loss| {
            last = loss;
            ranks.progress.advance(1, 0);
            ranks.check_stop()?;
            if step % every == 0 {
                tracker.emit(&Event::WarmStart { step, steps: settings.steps, loss })?;
            }
            Ok(())
        })?;
        self.metrics.set("warm_start/loss", last);
        Ok(())
    }

    /// The reference is the policy that reinforcement learning starts from.
    fn freeze_reference(&mut self, resumed: bool) -> Result<()> {
        let update = &self.recipe.update;
        if update.kl.is_none() && update.kl_in_reward.is_none() && !self.estimator.needs().reference {
            return Ok(());
        }
        self.phases.start("checkpoint");
        let ranks = &self.ranks;
        let _bar = ranks.progress.phase("checkpoint", "");
        let reference = self.policy.model.copy(self.policy.model.kind());
        let shards = shards(&reference, ranks);
        if resumed && !self.checkpoints.has_reference() {
            return Err(input_error!(
                "this run began without a frozen reference: resume without `update.kl` and `update.kl_in_reward`, or \
                 start another run"
            ));
        }
        if resumed {
            let loaded = self.checkpoints.load_reference(&*ranks.comm, &reference.layouts, &shards);
            loaded.context("loading the frozen reference")?;
            set_shards(&reference, ranks, &shards)?;
        } else {
            self.checkpoints.save_reference(&*ranks.comm, &reference.layouts, &shards)?;
        }
        self.reference = Some(reference);
        Ok(())
    }
}

/// Whether a directory holds a run.
fn is_run(dir: &Path) -> bool {
    dir.join("recipe.yaml").exists()
}

/// The run directory: the one asked for, or the first free `runs/<name>[-n]`; with `--resume` the last taken one.
pub fn run_dir(name: &str, args: &TrainArgs) -> Result<PathBuf> {
    if let (Some(dir), true) = (&args.run_dir, args.restarted) {
        return Ok(dir.clone());
    }
    let candidates =
        || (1..).map(|n| PathBuf::from(if n == 1 { format!("runs/{name}") } else { format!("runs/{name}-{n}") }));
    let dir = match (&args.run_dir, args.resume) {
        (Some(dir), _) => dir.clone(),
        (None, false) => candidates().find(|dir| !dir.exists()).unwrap_or_default(),
        (None, true) => {
            candidates().take_while(|dir| dir.exists()).last().unwrap_or_else(|| format!("runs/{name}").into())
        }
    };
    if args.resume && !is_run(&dir) {
        return Err(input_error!(
            "{} holds no run and so no checkpoint to resume: leave out --resume, or name the run with --run-dir",
            dir.display()
        ));
    }
    let holds_something = std::fs::read_dir(&dir).is_ok_and(|mut entries| entries.next().is_some());
    if !args.resume && holds_something {
        return Err(input_error!(
            "{} {}, or choose another --run-dir",
            dir.display(),
            if is_run(&dir) { "already holds a run: go on with it by --resume" } else { "is not empty: clear it" }
        ));
    }
    Ok(dir)
}

/// A critic stands in the recipe where the estimator asks for values, and only there.
fn check_critic(recipe: &Recipe, estimator: &Estimator) -> Result<()> {
    let id = estimator.id();
    match (estimator.needs().values, &recipe.critic) {
        (true, None) => Err(input_error!(
            "recipe key `estimator.plugin`: `{id}` asks for a critic's values, and the recipe has no critic; add the \
             section `critic: {{}}` (or --set critic={{}})"
        )),
        (false, Some(_)) => Err(input_error!(
            "recipe key `critic`: estimator `{id}` does not ask for values, so the critic would be trained for nothing; \
             remove the section (or --set critic=null)"
        )),
        _ => Ok(()),
    }
}

/// A checkpoint continues only the run that wrote it: what the saved recipe says of seed, model and environment holds.
fn check_same_run(recipe: &Recipe, dir: &Path) -> Result<()> {
    let saved = crate::recipe::load(&dir.join("recipe.yaml"), &[])?;
    let same = [
        ("seed", saved.seed == recipe.seed),
        ("model", saved.model == recipe.model),
        ("env", saved.env == recipe.env),
        ("dtype", saved.dtype == recipe.dtype),
    ];
    match same.iter().find(|(_, same)| !same) {
        None => Ok(()),
        Some((key, _)) => Err(input_error!(
            "recipe key `{key}` differs from the run in {}: resume with the same value, or start another run",
            dir.display()
        )),
    }
}

/// A transcript needs a chat template that goes on turn by turn, and a model made for so many tokens.
fn check_conversation(recipe: &Recipe, config: &Config, tokenizer: &Tokenizer) -> Result<()> {
    let Some(tokens) = recipe.rollout.max_sequence_tokens else { return Ok(()) };
    let limit = config.max_position_embeddings;
    if i64::try_from(tokens).is_ok_and(|tokens| tokens <= limit) {
        return Turns::new(tokenizer).map(drop);
    }
    Err(input_error!(
        "recipe key `rollout.max_sequence_tokens` is {tokens}, but the model's max_position_embeddings is {limit}; \
         lower it, or choose another model"
    ))
}

/// The Hugging Face folder of the policy; a new model is made in the run directory first.
fn model_files(recipe: &Recipe, shared_env: &SharedEnv, dir: &Path, resumed: bool) -> Result<PathBuf> {
    if let Some(path) = &recipe.model.path {
        return Ok(PathBuf::from(path));
    }
    let folder = dir.join("model");
    if let (Some(model), false) = (&recipe.model.new, resumed) {
        let count = shared_env.tasks(&recipe.rollout.split)?;
        let tasks = TaskCursor::new(count, recipe.seed).next(TOKENIZER_EPISODES);
        let plan = plan(&tasks, 1, recipe.seed, 0);
        let noise = recipe.warm_start.as_ref().map_or(0.0, |w| w.expert_noise);
        let texts = texts(shared_env, &recipe.rollout, &plan, noise, recipe.seed)?;
        let tokenizer = Tokenizer::train(texts.into_iter(), model.vocab_size as usize)?;
        let config = Config::of_new(model, tokenizer.vocab_size() as i64, recipe.rollout.max_tokens() as i64);
        let model = new::random(&config, recipe.seed, Kind::Float, Device::Cpu)?;
        // What an earlier, killed start may have left.
        let partial = dir.join("model.partial");
        for leftover in [&folder, &partial].into_iter().filter(|f| f.exists()) {
            std::fs::remove_dir_all(leftover).with_context(|| format!("removing {}", leftover.display()))?;
        }
        std::fs::create_dir_all(&partial).with_context(|| format!("making {}", partial.display()))?;
        tokenizer.save(&partial)?;
        weights::save_pretrained(&model, &folder, Some(&partial), Kind::Float)?;
        std::fs::remove_dir_all(&partial).with_context(|| format!("removing {}", partial.display()))?;
    }
    Ok(folder)
}

/// A flag that SIGINT and SIGTERM set; a second signal ends the process at once.
fn stop_flag() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, stop.clone()).context("watching for signals")?;
    }
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("watching for signals")?;
    let watch = move || {
        if signals.forever().nth(1).is_some() {
            terminal::clear();
            low_level::exit(130);
        }
    };
    std::thread::Builder::new().name("signals".into()).spawn(watch).context("watching for signals")?;
    Ok(stop)
}
