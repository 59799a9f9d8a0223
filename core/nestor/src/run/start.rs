//! The start of a run: its recipe is checked, its networks are created or restored, its parts are put together.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};
use nestor_torch::{fused, kernels};
use tch::{Device, Kind};

use super::alarms::Alarms;
use super::check::{Checked, check, files};
use super::columns::load_frozen;
use super::directory::{MODEL, PARTIAL_MODEL};
use super::divergence::of_warm_start;
use super::ledger::{Ledger, SaveClock, State, UnderWay};
use super::mirror::Mirror;
use super::record::{moved, rebuilt, snapshots, write_recipe};
use super::resume::{Resumption, drop_later_evaluations};
use super::speed::Speed;
use super::summary::{Facts, RunSummary};
use super::{Learner, Meter, Run, TrainArgs, estimator_state, report, signals, stream_seed};
use crate::agent::{Player, PlayerOptions, TaskDraws};
use crate::checkpoint::{Checkpoints, Source, export};
use crate::engine::noise;
use crate::event::Event;
use crate::input_error;
use crate::model::config::Output;
use crate::model::new_folder::in_new_folder;
use crate::model::{Model, StoredType, device_name, kind, new, prepare, weights};
use crate::policy::Network;
use crate::policy::kl_reward::KlCoefficient;
use crate::preflight::{Ready, check_sharding, needs_reference, new_tokenizer};
use crate::progress::Progress;
use crate::ranks::{self, Rendezvous, from_root};
use crate::recipe::{Recipe, WarmStart};
use crate::shard::{Ranks, Stepping};
use crate::stop_notice::StopNotice;
use crate::tokenizer::Tokenizer;
use crate::track::{Console, Kept, Metrics, Phases, RunFacts, TensorBoard, Tracker, WandbRun};
use crate::warm_start::{Imitation, ImitationState, ImitationStep, Lessons};

/// Joins the ranks that run a recipe together.
pub fn join(recipe: &Recipe) -> Result<Ranks> {
    let place = Rendezvous::of_environment()?;
    let notice = StopNotice::default();
    // Before the ranks meet: a rank that has begun anything answers signals, and so do all others then.
    let stop = signals::watch(notice.clone(), place.rank == 0)?;
    check_sharding(recipe, place.world)?;
    let device = prepare(recipe, place.local_rank)?;
    let comm = ranks::join(&place, device, &recipe.dist)?;
    let (sharding, deterministic) = (recipe.sharding, recipe.deterministic);
    Ok(Ranks { comm, sharding, deterministic, stop, progress: Progress::hidden(), notice })
}

/// The networks and the state that a run starts from.
struct Origin {
    model_files: PathBuf,
    policy: Network,
    critic: Option<Network>,
    teacher: Option<Model>,
    state: State,
    /// The estimator's state, at rank 0.
    estimator: Option<Vec<u8>>,
    under_way: UnderWay,
}

impl Run {
    /// Starts or resumes a run. All ranks call it together.
    pub fn open(mut recipe: Recipe, name: &str, args: &TrainArgs, ranks: &Ranks) -> Result<Self> {
        let began = Instant::now();
        let mut console = Console::open(ranks.comm.rank(), ranks.world(), args.json);
        if recipe.update.kl.is_some() {
            console.expect_kl();
        }
        let ranks = Ranks { progress: console.progress(), ..ranks.clone() };
        let starting = ranks.progress.phase("start", "");
        let phases = Phases::new("start", ranks.notice.phase.clone());
        let mut checked = check(&mut recipe, name, args, &ranks, &console)?;
        let resumption = checked.resumption.clone();
        let mut warnings = std::mem::take(&mut checked.ready.warnings);
        let mut origin = match &resumption {
            Some(resumption) => restore(&recipe, &checked, resumption, &ranks)?,
            None => create(&recipe, &checked, &ranks)?,
        };
        let before = std::mem::replace(&mut origin.state.plugins, checked.plugins().to_vec());
        warnings.extend(rebuilt(&before, &origin.state.plugins));
        let earlier = std::mem::replace(&mut origin.state.models, snapshots(&recipe));
        warnings.extend(moved(&earlier, &origin.state.models));
        let teacher = recipe.estimator.teacher.as_ref().map(|teacher| load_frozen(&teacher.path, &recipe, &ranks));
        origin.teacher = teacher.transpose().context("recipe key `estimator.teacher.path`")?;
        origin.estimator =
            estimator_state::begin(&*ranks.comm, &checked.ready.estimator, resumption.as_ref(), &before)?;
        let mut run = Self::assemble(recipe, checked, origin, ranks, phases, console)?;
        drop(starting);
        run.summary = run.begin_summary(began)?;
        run.introduce(resumption.as_ref(), &warnings)?;
        Ok(run)
    }

    /// Puts the parts together and opens the run's files.
    fn assemble(
        recipe: Recipe,
        checked: Checked,
        origin: Origin,
        ranks: Ranks,
        phases: Phases,
        console: Console,
    ) -> Result<Self> {
        let Checked { dir, claim, mut ready, resumption } = checked;
        let Origin { model_files, policy, critic, teacher, mut state, estimator, under_way } = origin;
        let player = Player::new(PlayerOptions {
            tokenizer: Tokenizer::load(&model_files)?,
            config: policy.model.config.clone(),
            environments: ready.environments.clone(),
            rollout: recipe.rollout.clone(),
            seed: recipe.seed,
            deterministic: recipe.deterministic,
            stop: ranks.stop.clone(),
            progress: ranks.progress.clone(),
        })?;
        let speed = Speed::measure(ranks.comm.device(), kind(recipe.dtype), ranks.world());
        state.kl_coefficient = kl_coefficient(&recipe, state.kl_coefficient);
        // Everything was accepted: from here on the run's files change.
        from_root(&*ranks.comm, || {
            write_recipe(&dir, &recipe, (files(&ready), &state.models), state.iteration + 1)?;
            drop_later_evaluations(&dir, state.iteration)
        })?;
        let UnderWay { warm_start, update, row } = under_way;
        let lessons = match (ready.lessons.take(), &warm_start) {
            (_, None) => None,
            (Some(lessons), _) => Some(lessons),
            // A rank that had no tokenizer of a new model before.
            (None, Some(_)) => lessons_of(&recipe, &model_files)?,
        };
        let kept = match (&resumption, &warm_start) {
            (None, _) => Kept::Nothing,
            (Some(_), Some(warm_start)) => Kept::WarmStart(warm_start.steps),
            (Some(_), None) => Kept::Rows(state.iteration),
        };
        let model = &policy.model;
        let facts = RunFacts {
            plugins: &state.plugins,
            parameters: model.numel(),
            adapters: model.adapters.as_ref().map(|adapters| adapters.numel()),
            device: &device_name(model.device()),
            ranks: ranks.world(),
        };
        let tracker = open_tracker(&recipe, facts, (&dir, kept), &ranks, console)?;
        let mut ledger = Ledger {
            tasks: state.tasks.clone(),
            kl_coefficient: state.kl_coefficient,
            totals: state.totals,
            estimator,
            scored: None,
            warm_start,
            update,
            checkpoints: Checkpoints::new(&dir),
            saved: None,
            saving: None,
            clock: SaveClock::start(&recipe.checkpoint, ranks.comm.rank()),
            state,
        };
        if let Some(resumption) = &resumption {
            ledger.saved = Some(ledger.moment());
            ranks.notice.saved(&resumption.checkpoint);
        }
        let learner = Learner { policy, critic, reference: None, teacher };
        let mut meter =
            Meter { phases, speed, metrics: Metrics::new(), tracker, alarms: Alarms::resumed(ledger.state.diverged) };
        meter.resume_row(row);
        let Ready { estimator, loss, .. } = ready;
        let summary = None;
        let mirror = recipe.checkpoint.mirror.as_deref().filter(|_| ranks.comm.rank() == 0);
        let mirror = mirror.map(|url| Mirror::start(url, &dir)).transpose()?;
        Ok(Self {
            recipe,
            dir,
            model_files,
            ranks,
            player,
            lessons,
            estimator,
            loss,
            learner,
            meter,
            ledger,
            summary,
            mirror,
            claim,
        })
    }

    /// Prepares the first iteration: the frozen reference and, in a run that has no first evaluation yet, the warm start, a
    /// critic and that evaluation.
    pub fn begin(&mut self) -> Result<()> {
        if self.ledger.warm_start.is_none() {
            if self.next_iteration().is_none() {
                self.check_last_steps()?; // that of a run which failed for it
            }
            return self.freeze_reference(true);
        }
        self.warm_start()?;
        self.freeze_reference(false)?;
        let critic = self.recipe.critic.as_ref().map(|_| Network::critic_of(&self.learner.policy));
        self.learner.critic = critic.transpose()?;
        let mut best = false;
        match self.recipe.eval.evaluates() {
            true => {
                let success = self.evaluate(0)?;
                // Reinforcement learning may lose what imitation taught. A start without imitation is there already, as the model.
                best = self.recipe.warm_start.is_some() && self.ledger.state.evaluated(0, success);
            }
            false => self.count_env_errors()?, // those of the warm start
        }
        report::totals(&mut self.meter.metrics, self.ledger.totals);
        self.record()?;
        self.ledger.warm_start = None;
        if self.save_is_due()? || best || self.recipe.checkpoint.every > 0 {
            self.save()?;
        }
        Ok(())
    }

    /// Writes `run.json` at rank 0.
    fn begin_summary(&self, began: Instant) -> Result<Option<RunSummary>> {
        let facts = Facts {
            policy: &self.learner.policy.model,
            model_files: &self.model_files,
            ranks: self.ranks.world(),
            environment: &self.player.environments().names(),
            estimator: self.estimator.file(),
        };
        let root = self.ranks.comm.rank() == 0;
        root.then(|| RunSummary::begin(&self.dir, facts, began)).transpose()
    }

    fn introduce(&mut self, resumption: Option<&Resumption>, warnings: &[String]) -> Result<()> {
        let resumed_from = resumption.map(|resumption| &*resumption.checkpoint);
        let Learner { policy, .. } = &self.learner;
        let device = policy.model.device();
        let tracker = &mut self.meter.tracker;
        tracker.emit(&Event::Start {
            run_dir: &self.dir,
            parameters: policy.model.numel(),
            adapters: policy.model.adapters.as_ref().map(|adapters| adapters.numel()),
            dtype: StoredType::of(policy.model.kind())?.name,
            device: device_name(device),
            products: fused::has_products(device).then(fused::product_library).transpose()?,
            kernels: device.is_cuda().then(|| kernels::code_of(device).unwrap_or_else(|| "none".into())),
            environment: &self.recipe.env.names(),
            estimator: &self.recipe.estimator.plugin,
            plugins: &self.ledger.state.plugins,
            iterations: self.recipe.iterations,
            world: self.ranks.world(),
            resumed_from,
        })?;
        for message in warnings {
            tracker.emit(&Event::Warning { message })?;
        }
        if let Some(line) = WandbRun::hint(&self.recipe) {
            tracker.log(&line)?;
        }
        let Some(resumption) = resumption else { return Ok(()) };
        tracker.log(&format!("resumed from {}", resumption.checkpoint.display()))?;
        resumption.changes.iter().try_for_each(|change| tracker.log(&format!("changed {change}")))?;
        match (self.ledger.state.iteration, self.recipe.iterations) {
            (done, planned) if done >= planned => {
                tracker.log(&format!("all {planned} iterations are done; for more, add --set iterations=N"))
            }
            _ => Ok(()),
        }
    }

    /// Imitates the expert or learns chats, from where the run's checkpoint left it, and saves the result.
    fn warm_start(&mut self) -> Result<()> {
        let Some(settings) = self.recipe.warm_start.clone() else { return Ok(()) };
        if let (Some(state), Some(lessons)) = (&mut self.ledger.warm_start, &self.lessons) {
            state.begin(lessons)?;
        }
        while !self.imitate_until_due(&settings)? {
            self.save()?;
        }
        if let Some(state) = &self.ledger.warm_start {
            self.meter.metrics.set("warm_start/loss", state.loss);
            if let Some(loss) = state.validation_loss {
                self.meter.metrics.set("warm_start/validation_loss", loss);
            }
        }
        self.lessons = None;
        if self.ledger.saved != Some(self.ledger.moment()) {
            self.save()?;
        }
        Ok(())
    }

    /// Makes steps of the warm start until a checkpoint is due. Returns true once none remains.
    fn imitate_until_due(&mut self, settings: &WarmStart) -> Result<bool> {
        self.meter.phases.start("warm_start");
        let _bar = self.ranks.progress.phase("warm start", "steps");
        let Ledger { warm_start: Some(state), clock, .. } = &mut self.ledger else { return Ok(true) };
        let (tracker, ranks) = (&mut self.meter.tracker, &self.ranks);
        let steps = settings.steps(self.lessons.as_ref().map_or(0, |lessons| lessons.learned.len()));
        let (every, first) = ((steps / 10).max(1), Cell::new(true));
        ranks.progress.set_total(steps.saturating_sub(state.steps) as usize);
        let vocabulary = self.learner.policy.model.config.vocab_size;
        let mut imitation = Imitation {
            comm: &*ranks.comm,
            player: &mut self.player,
            lessons: self.lessons.as_ref(),
            seed: warm_start_seed(&self.recipe),
            settings,
            steps,
            rollout: &self.recipe.rollout,
            update: &self.recipe.update,
            state,
        };
        // At least one step between two pauses.
        let pause = || ranks.check_stop_or(!first.replace(false) && clock.is_due());
        let (recipe, warned) = (&self.recipe, RefCell::new(BTreeSet::new()));
        imitation.teach(&mut self.learner.policy, pause, |done| {
            let ImitationStep { step, loss, validation_loss, lr, .. } = done;
            ranks.progress.advance(1, 0);
            let measured = validation_loss.map(|loss| ("validation_loss", loss));
            let values: Vec<_> = [("loss", loss), ("lr", lr)].into_iter().chain(measured).collect();
            tracker.record_warm_start(step, &values)?;
            if let Some(sign) =
                of_warm_start(recipe, settings, &done, vocabulary).filter(|sign| warned.borrow_mut().insert(sign.cause))
            {
                tracker.alarm(sign.cause, &format!("warm start, step {step}: {}: {}", sign.fact, sign.remedy))?;
            }
            if step % every == 0 || validation_loss.is_some() {
                tracker.emit(&Event::WarmStart { step, steps, loss, validation_loss })?;
            }
            Ok(())
        })
    }

    /// Loads the model of `reference`; without one copies the policy that reinforcement learning starts from, or loads that copy in a
    /// resumed run.
    fn freeze_reference(&mut self, resumed: bool) -> Result<()> {
        if !needs_reference(&self.recipe, Some(&self.estimator), self.loss.as_ref()) {
            return Ok(());
        }
        self.finish_save()?; // one save at a time writes into the folder
        self.meter.phases.start("checkpoint");
        let (ranks, checkpoints) = (&self.ranks, &self.ledger.checkpoints);
        let _bar = ranks.progress.phase("checkpoint", "");
        if let Some(other) = &self.recipe.reference {
            let loaded = load_frozen(&other.path, &self.recipe, ranks).context("recipe key `reference.path`")?;
            self.learner.reference = Some(loaded);
            return Ok(());
        }
        let mut reference = self.learner.policy.model.frozen();
        if resumed {
            checkpoints.load_reference(&mut reference, ranks).context("loading the frozen reference")?;
        } else {
            checkpoints.save_reference(&reference, ranks)?;
        }
        self.learner.reference = Some(reference);
        Ok(())
    }
}

/// The networks and the state of a checkpoint.
fn restore(recipe: &Recipe, checked: &Checked, resumption: &Resumption, ranks: &Ranks) -> Result<Origin> {
    let (comm, checkpoint) = (&*ranks.comm, &*resumption.checkpoint);
    let model_files = from_root(comm, || model_files(recipe, &checked.ready, &checked.dir))?;
    Checkpoints::check_model(checkpoint, &model_files)?;
    let (mut policy, start_model) = load_policy(recipe, &model_files, ranks)?;
    let under_way = UnderWay::of(from_root(comm, || Checkpoints::unfinished(checkpoint))?)?;
    let begun = recipe.critic.as_ref().filter(|_| under_way.warm_start.is_none());
    let mut critic = begun.map(|_| Network::critic_of(&policy)).transpose()?;
    let mut state: State = Checkpoints::load(comm, checkpoint, &mut policy, critic.as_mut())?;
    if state.start_model != start_model {
        return Err(input_error!(
            "{}: the weights are not those that the run began with, which its adapters belong to; put them back, or \
             start another run",
            model_files.display()
        ));
    }
    state.policy.restore(&mut policy);
    if let (Some(critic), Some(counters)) = (&mut critic, state.critic) {
        counters.restore(critic);
    }
    resumption.fit(&mut state, under_way.update.is_some(), recipe, &checked.ready.tasks)?;
    let begun = under_way.warm_start.is_none();
    if begun
        && recipe.reference.is_none()
        && needs_reference(recipe, Some(&checked.ready.estimator), checked.ready.loss.as_ref())
        && !Checkpoints::new(&checked.dir).has_reference()
    {
        return Err(input_error!(
            "this run began without a frozen reference: resume without `update.kl` and `update.kl_in_reward`, or start \
             another run"
        ));
    }
    Ok(Origin { model_files, policy, critic, teacher: None, state, estimator: None, under_way })
}

/// The networks and the state of a new run. The critic is made after the warm start.
fn create(recipe: &Recipe, checked: &Checked, ranks: &Ranks) -> Result<Origin> {
    let model_files = from_root(&*ranks.comm, || model_files(recipe, &checked.ready, &checked.dir))?;
    let (policy, start_model) = load_policy(recipe, &model_files, ranks)?;
    let state = State::new(TaskDraws::new(&checked.ready.tasks, recipe.seed), start_model);
    let warm_start = ImitationState::new(TaskDraws::new(&checked.ready.tasks, warm_start_seed(recipe)));
    let under_way = UnderWay { warm_start: Some(warm_start), ..UnderWay::default() };
    Ok(Origin { model_files, policy, critic: None, teacher: None, state, estimator: None, under_way })
}

/// The chats of a warm start, with the tokenizer of a folder.
fn lessons_of(recipe: &Recipe, model_files: &Path) -> Result<Option<Lessons>> {
    Lessons::read(recipe, &Tokenizer::load(model_files)?.with_thinking(recipe.rollout.thinking)?)
}

/// Seed of the warm start's tasks, environments and noise, and of the order of chats.
fn warm_start_seed(recipe: &Recipe) -> u64 {
    stream_seed(recipe.seed, noise::WARM_START, 0)
}

/// Loads the policy, and with LoRA the fingerprint of the weights that its adapters belong to.
fn load_policy(recipe: &Recipe, model_files: &Path, ranks: &Ranks) -> Result<(Network, Option<String>)> {
    let (comm, kind) = (&*ranks.comm, kind(recipe.dtype));
    let model = weights::load(model_files, kind, comm.device())?.with_vision(&recipe.model, recipe.deterministic)?;
    let stepping = Stepping::of(&recipe.update);
    let (mut policy, fingerprint) = match &recipe.model.lora {
        None => (Network::new(model, stepping, ranks)?, None),
        Some(settings) => {
            let fingerprint = from_root(comm, || weights::fingerprint(model_files, kind))?;
            (Network::with_lora(model, stepping, (settings, recipe.seed), ranks)?, Some(fingerprint))
        }
    };
    if let Some(factor) = recipe.update.loss_scale {
        policy.optimizer.begin_loss_scale(factor);
    }
    Ok((policy, fingerprint))
}

/// The coefficient of KL in the reward. A run may begin or stop using it when it is resumed.
fn kl_coefficient(recipe: &Recipe, saved: Option<KlCoefficient>) -> Option<KlCoefficient> {
    recipe.update.kl_in_reward.as_ref().map(|section| {
        let adapted = saved.filter(|_| section.adaptive.is_some());
        adapted.unwrap_or(KlCoefficient(section.coef))
    })
}

/// Opens the run's files at rank 0.
fn open_tracker(
    recipe: &Recipe,
    facts: RunFacts,
    (dir, kept): (&Path, Kept),
    ranks: &Ranks,
    console: Console,
) -> Result<Tracker> {
    if ranks.comm.rank() != 0 {
        return Ok(Tracker::silent(recipe.iterations).with_console(console));
    }
    let mut tracker = Tracker::open(dir, recipe.iterations, kept)?.with_console(console);
    tracker.wandb = WandbRun::open(recipe, facts, dir, kept)?;
    tracker.tensorboard = TensorBoard::open(recipe, dir, kept, tracker.steps()).context("recipe key `tensorboard`")?;
    Ok(tracker)
}

/// The Hugging Face folder of the policy. Makes a new model in the run directory where the recipe asks for one, and a copy there of
/// the policy of another run.
fn model_files(recipe: &Recipe, ready: &Ready, dir: &Path) -> Result<PathBuf> {
    if let Some(Source::Folder(folder)) = &ready.source {
        return Ok(folder.clone());
    }
    let (folder, partial) = (dir.join(MODEL), dir.join(PARTIAL_MODEL));
    // An earlier start that was killed may have left these.
    for leftover in [&folder, &partial].into_iter().filter(|f| f.exists()) {
        std::fs::remove_dir_all(leftover).with_context(|| format!("removing {}", leftover.display()))?;
    }
    if let Some(Source::Checkpoint(checkpoint)) = &ready.source {
        in_new_folder(&folder, |staged| export(checkpoint, staged, Output::Tokens, Kind::Float))?;
        return Ok(folder);
    }
    let model = recipe.model.new.as_ref().context("the recipe names no model")?;
    let trained; // by the checks, unless the run began before
    let tokenizer = match &ready.tokenizer {
        Some(tokenizer) => tokenizer,
        None => {
            trained = new_tokenizer(recipe, &ready.environments, &ready.tasks)?;
            &trained
        }
    };
    let config = new::config(model, tokenizer, recipe.rollout.max_tokens())?.with_image_limits(&recipe.model)?;
    let model = new::random(&config, recipe.seed, Kind::Float, Device::Cpu)?;
    std::fs::create_dir_all(&partial).with_context(|| format!("making {}", partial.display()))?;
    tokenizer.save(&partial)?;
    weights::save_pretrained(&model, &folder, Some(&partial), Kind::Float)?;
    std::fs::remove_dir_all(&partial).with_context(|| format!("removing {}", partial.display()))?;
    Ok(folder)
}
