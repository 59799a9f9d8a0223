//! The run's copy in an object store (`checkpoint.mirror`): fetched before a start, and kept up to date by a thread of rank 0.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nestor_host::lock::Lock;
use nestor_mirror::{FETCHING, Fetched, Report, SET_ASIDE, Store, Worker, fetch};

use super::TrainArgs;
use super::directory::{LOCK, RECIPE, RESTART_PATIENCE, check_free, is_run, make, remove_empty};
use crate::checkpoint::{Checkpoints, FORMAT, Moment};
use crate::error::InputError;
use crate::input_error;
use crate::recipe::Recipe;
use crate::terminal;
use crate::track::Tracker;

/// Looks into the mirror before a run starts, at rank 0. A command that may be started again fetches the run into an empty directory; a new
/// run must find no other run in the mirror.
///
/// # Errors
/// An `InputError` where the store refuses, or holds a run that is not to be continued. Others where it cannot be reached and may hold a run
/// that this start would begin anew.
pub fn look(recipe: &Recipe, args: &TrainArgs) -> Result<()> {
    let Some(url) = &recipe.checkpoint.mirror else { return Ok(()) };
    let store = Store::open(url)?;
    let continues = args.run_dir.as_deref().filter(|dir| (args.resume || args.restarted) && is_run(dir));
    let latest = match store.latest() {
        Err(error) if continues.is_some() && !error.is::<InputError>() => {
            terminal::warn(&format!("warning: {error:#}; the run continues from its directory"));
            return Ok(());
        }
        Err(error) if args.restarted && !error.is::<InputError>() => {
            return Err(
                error.context("the run directory holds no run, and nobody knows if the mirror holds one to continue")
            );
        }
        latest => latest?,
    };
    let Some(latest) = latest else { return Ok(()) };
    match (continues, &args.run_dir) {
        (Some(_), _) if args.resume => Ok(()),
        (Some(dir), _) if Moment::of_name(&latest) <= Checkpoints::new(dir).newest_moment()? => Ok(()),
        (Some(dir), _) => {
            let _lock = Lock::take(dir, LOCK, RESTART_PATIENCE)?;
            let aside = set_aside(dir, url)?;
            let aside = aside.display();
            terminal::warn(&format!(
                "warning: the mirror {url} holds {latest}, which is newer than all checkpoints of {}: these are in {aside} now",
                dir.display()
            ));
            fetch_here(&store, url, dir)
        }
        (None, Some(dir)) if args.restarted => fetch_run(&store, url, dir, args),
        _ => Err(input_error!(
            "the mirror {url} already holds a run ({latest}): continue it by --resume auto, or name another folder by `checkpoint.mirror`"
        )),
    }
}

/// Moves a run that is older than its mirror, as on an old disk, into a folder of its directory. A killed process's last request may also
/// have reached the store after the run was begun anew.
fn set_aside(dir: &Path, url: &str) -> Result<PathBuf> {
    let aside = (1..).map(|n| dir.join(format!("{SET_ASIDE}{n}"))).find(|path| !path.exists());
    let aside = aside.context("no number is free")?;
    let context = || format!("moving the run in {} aside", dir.display());
    fs::create_dir(&aside).and_then(|()| fs::write(dir.join(FETCHING), url)).with_context(context)?;
    let mut names: Vec<_> = fs::read_dir(dir).with_context(context)?.flatten().map(|entry| entry.file_name()).collect();
    // A process that is killed here leaves a run without checkpoints, or none: the next one moves the rest.
    names.sort_by_key(|name| (name != "checkpoints", name != RECIPE));
    for name in names {
        let text = name.to_string_lossy();
        if ![LOCK.file, FETCHING].contains(&&*text) && !text.starts_with(SET_ASIDE) {
            fs::rename(dir.join(&name), aside.join(&name)).with_context(context)?;
        }
    }
    Ok(aside)
}

fn fetch_run(store: &Store, url: &str, dir: &Path, args: &TrainArgs) -> Result<()> {
    let made = make(dir)?;
    let lock = Lock::take(dir, LOCK, RESTART_PATIENCE)?;
    if is_run(dir) {
        return Ok(()); // the one that held the lock began it, or fetched it
    }
    check_free(dir, args)?;
    let fetched = fetch_here(store, url, dir);
    drop(lock);
    remove_empty(&made); // where nothing was fetched
    fetched
}

fn fetch_here(store: &Store, url: &str, dir: &Path) -> Result<()> {
    terminal::warn(&format!("fetching the run from its mirror {url}"));
    let Some(Fetched { newest, skipped, bytes }) = fetch(store, dir, FORMAT)? else { return Ok(()) };
    Checkpoints::new(dir).link_newest()?;
    for why in skipped {
        terminal::warn(&format!("warning: damage in the mirror: {why}"));
    }
    terminal::warn(&format!("fetched {newest} and what belongs to it ({:.3} GB)", bytes as f64 / 1e9));
    Ok(())
}

/// The mirror of a run under way, at rank 0.
pub struct Mirror {
    worker: Worker,
    url: String,
    /// A failure was told, and no success followed.
    fails: bool,
}

impl Mirror {
    pub fn start(url: &str, dir: &Path) -> Result<Self> {
        let worker = Worker::start(Store::open(url)?, dir, FORMAT)?;
        worker.saved(); // the files so far, so that a store which refuses them is known early
        Ok(Self { worker, url: url.into(), fails: false })
    }

    /// Says that a checkpoint was saved.
    pub fn saved(&self) {
        self.worker.saved();
    }

    /// Logs what happened since the last call.
    pub fn tell(&mut self, tracker: &mut Tracker) -> Result<()> {
        let reports = self.worker.reports();
        log(reports, &self.url, &mut self.fails, tracker)
    }

    /// Waits until the mirror is up to date, as long as the store takes bytes, and logs how that ended.
    pub fn finish(self, tracker: &mut Tracker) -> Result<()> {
        let Self { worker, url, mut fails } = self;
        let reports = worker.finish();
        log(reports, &url, &mut fails, tracker)?;
        if fails {
            tracker.warn(&format!("the mirror {url} lacks what this run saved last; its directory is whole"))?;
        }
        Ok(())
    }
}

fn log(reports: Vec<Report>, url: &str, fails: &mut bool, tracker: &mut Tracker) -> Result<()> {
    for report in reports {
        match report {
            Report::Mirrored { checkpoint, bytes, seconds } => {
                *fails = false;
                let gb = bytes as f64 / 1e9;
                tracker.log(&format!("mirrored {checkpoint} to {url} ({gb:.3} GB in {seconds:.1} s)"))?;
            }
            // One warning until it succeeds: a store may be away for hours.
            Report::Failed(_) if *fails => {}
            Report::Failed(why) => {
                *fails = true;
                tracker.warn(&format!(
                    "the mirror could not be brought up to date; training continues, and it is tried again: {why}"
                ))?;
            }
        }
    }
    Ok(())
}
