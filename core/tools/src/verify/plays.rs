//! The runs of a verification, one after the other, each a child process in a directory of its own.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use nestor_args::output::shell_word;
use signal_hook::iterator::Signals;

use super::VerifyOptions;
use super::child::{Running, fork};
use super::lines::column;
use crate::checkpoint::Checkpoints;
use crate::recipe::{DeviceChoice, Recipe, Sharding};
use crate::terminal;

/// Attempts to kill a run before its end, each earlier than the one before.
const ATTEMPTS: u32 = 5;

/// A run that has ended.
#[derive(Debug, Clone)]
pub struct Played {
    pub name: &'static str,
    /// The commands that anybody can run again.
    pub commands: Vec<String>,
    /// A remark, such as the moment of the kill.
    pub note: String,
    pub dir: PathBuf,
    /// Wall time, the start of the program included.
    pub seconds: f64,
}

impl Played {
    /// Seconds of the iterations, without checkpoints.
    pub fn iteration_seconds(&self) -> Result<f64> {
        let sum = |name: &str| -> Result<f64> {
            Ok(column(&self.dir, name)?.iter().filter(|(iteration, _)| *iteration > 0).map(|(_, x)| x).sum())
        };
        Ok(sum("time/iteration_s")? - sum("time/checkpoint_s")?)
    }
}

/// The result of a play: a run, or the reason that there is none.
pub type Attempt = Result<Played, String>;

/// Plays one recipe several times.
pub struct Plays<'a> {
    pub options: &'a VerifyOptions,
    pub recipe: &'a Recipe,
    /// `--set` arguments of its warm-ups.
    pub warmups: &'a [String],
    /// The directory of all runs.
    pub out: &'a Path,
    pub signals: Signals,
}

impl Plays<'_> {
    /// The recipe as it is; also the time from its first checkpoint to its last one, in which a run can be killed.
    pub fn plain(&mut self, name: &'static str, about: &str, deterministic: bool) -> Result<(Played, Duration)> {
        let arguments = self.train(name, deterministic);
        let mut run = self.start(name, about, &arguments)?;
        let (mut newest, mut seen) = (None, Vec::new());
        while !run.poll(&mut self.signals)? {
            let now = self.newest(name)?;
            if now != newest {
                newest = now;
                seen.push(run.elapsed());
            }
        }
        let seconds = run.finish(&mut self.signals)?;
        let window = seen.first().zip(seen.last()).map_or(Duration::ZERO, |(first, last)| *last - *first);
        Ok((self.played(name, &[&arguments], String::new(), seconds), window))
    }

    /// A run that is killed and then resumed. `window` is the time between an undisturbed one's checkpoints.
    pub fn killed(&mut self, window: Duration) -> Result<Attempt> {
        const NAME: &str = "resumed";
        let arguments = self.train(NAME, true);
        let share = self.options.kill_at.unwrap_or_else(rand::random::<f64>);
        for attempt in 0..ATTEMPTS {
            let run = self.start(NAME, "a run that is killed", &arguments)?;
            let Some(after) = self.kill(run, NAME, window.mul_f64(share / f64::from(1 << attempt)))? else {
                let dir = self.out.join(NAME);
                fs::remove_dir_all(&dir).with_context(|| format!("removing {}", dir.display()))?;
                continue;
            };
            let newest = self.newest(NAME)?.context("a killed run keeps its checkpoints")?;
            let resume = words(&["train", "--resume", "--run-dir"], &self.out.join(NAME));
            let seconds = self.start(NAME, "the killed run, resumed", &resume)?.finish(&mut self.signals)?;
            let note = format!("killed after {after:.2} s by SIGKILL, resumed from {newest}");
            return Ok(Ok(self.played(NAME, &[&arguments, &resume], note, after + seconds)));
        }
        Ok(Err(format!("{ATTEMPTS} runs ended before they could be killed: raise --iterations")))
    }

    /// Kills a run this long after its first checkpoint. Returns its age in seconds; none where it ended before.
    fn kill(&mut self, mut run: Running, name: &str, delay: Duration) -> Result<Option<f64>> {
        let mut due = None;
        while due.is_none_or(|due| run.elapsed() < due) {
            if run.poll(&mut self.signals)? {
                return run.finish(&mut self.signals).map(|_| None);
            }
            if due.is_none() && self.newest(name)?.is_some() {
                due = Some(run.elapsed() + delay);
            }
        }
        let age = run.elapsed().as_secs_f64();
        Ok(run.kill()?.then_some(age))
    }

    /// The recipe on several ranks. A recipe with a warm start begins at the first run's checkpoint after it, so that both
    /// have the same weights: sums in another order change them in the warm start.
    pub fn ranks(&mut self, first: &Played) -> Result<Attempt> {
        const NAME: &str = "ranks";
        let ranks = self.options.ranks;
        if self.recipe.sharding == Sharding::None {
            return Ok(Err("`sharding: none` is for one rank".into()));
        }
        let gpus = if self.recipe.device == DeviceChoice::Cpu { 0 } else { tch::Cuda::device_count() };
        if gpus == 1 || (gpus > 1 && (gpus as u64) < u64::from(ranks)) {
            return Ok(Err(format!("{ranks} ranks need {ranks} GPUs, and there are {gpus}: try --set device=cpu")));
        }
        let mut launch: Vec<OsString> = vec!["launch".into(), "--nproc".into(), ranks.to_string().into()];
        if self.options.oversubscribe {
            launch.push("--oversubscribe".into());
        }
        let note = if self.recipe.warm_start.is_some() {
            let checkpoints = Checkpoints::new(&first.dir).all()?;
            let Some((start, _)) = checkpoints.iter().rev().find(|(name, _)| name.starts_with("warm-start")) else {
                return Ok(Err(
                    "the first run no longer has the checkpoint after its warm start: raise checkpoint.keep".into(),
                ));
            };
            fork(&first.dir, &self.out.join(NAME), start)?;
            launch.extend(words(&["train", "--resume", "--run-dir"], &self.out.join(NAME)));
            format!("{ranks} ranks, from the first run's {start}")
        } else {
            launch.extend(self.train(NAME, true));
            format!("{ranks} ranks")
        };
        let seconds = self.start(NAME, &note, &launch)?.finish(&mut self.signals)?;
        Ok(Ok(self.played(NAME, &[&launch], note, seconds)))
    }

    /// The arguments of a shortened run of the recipe.
    fn train(&self, name: &str, deterministic: bool) -> Vec<OsString> {
        let VerifyOptions { recipe, .. } = self.options;
        let mut arguments: Vec<OsString> = vec!["train".into(), recipe.into()];
        for set in self.options.all_sets(self.warmups, deterministic) {
            arguments.extend(["--set".into(), set.into()]);
        }
        arguments.extend(["--run-dir".into(), self.out.join(name).into_os_string()]);
        arguments
    }

    fn start(&self, name: &str, about: &str, arguments: &[OsString]) -> Result<Running> {
        terminal::warn(&format!("{name}: {about}"));
        Running::start(arguments, &self.out.join(format!("{name}.log")))
    }

    /// The newest complete checkpoint of a run.
    fn newest(&self, name: &str) -> Result<Option<String>> {
        Ok(Checkpoints::new(&self.out.join(name)).all()?.pop().map(|(name, _)| name))
    }

    fn played(&self, name: &'static str, commands: &[&[OsString]], note: String, seconds: f64) -> Played {
        let commands = commands.iter().map(|command| shown(command)).collect();
        Played { name, commands, note, dir: self.out.join(name), seconds }
    }
}

fn words(words: &[&str], path: &Path) -> Vec<OsString> {
    words.iter().map(OsString::from).chain([path.into()]).collect()
}

/// A command as a shell takes it.
fn shown(arguments: &[OsString]) -> String {
    let quoted = arguments.iter().map(|word| shell_word(&word.to_string_lossy()));
    ["nestor".to_string()].into_iter().chain(quoted).collect::<Vec<_>>().join(" ")
}
