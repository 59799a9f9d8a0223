//! The thread that keeps a mirror up to date beside training.

use std::cell::Cell;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::Format;
use crate::progress::Progress;
use crate::store::{Store, block_on};
use crate::sync::Mirror;

/// Time after which a failed upload is tried again, if no save comes first.
const AGAIN: Duration = Duration::from_millis(500);
/// The time doubles with each failure in a row, up to this one.
const AGAIN_AT_MOST: Duration = Duration::from_secs(60);
/// Time without a byte after which the end of a run stops waiting.
const PATIENCE: Duration = Duration::from_secs(150);
/// Steps in which it waits.
const STEP: Duration = Duration::from_millis(50);

/// News of a mirror.
#[derive(Debug, Clone, PartialEq)]
pub enum Report {
    /// The mirror has this checkpoint, and all that is kept beside it.
    Mirrored { checkpoint: String, bytes: u64, seconds: f64 },
    /// The store could not be brought up to date; the next attempt follows.
    Failed(String),
}

enum Message {
    Saved,
    End,
}

/// A thread with the mirror of a run. It never delays the run.
#[derive(Debug)]
pub struct Worker {
    tell: Sender<Message>,
    reports: Receiver<Report>,
    progress: Progress,
    thread: JoinHandle<Result<()>>,
}

impl Worker {
    /// Starts the thread for the run in `dir`.
    pub fn start(store: Store, dir: &Path, format: Format) -> Result<Self> {
        let ((tell, told), (report, reports)) = (channel(), channel());
        let mirror = Mirror::new(store, dir, format);
        let progress = mirror.progress.clone();
        let mailbox = Mailbox { told, saved: Cell::new(false), ends: Cell::new(false) };
        let work = move || block_on(keep(mirror, mailbox, report));
        let thread = Builder::new().name("mirror".into()).spawn(work).context("starting a thread")?;
        Ok(Self { tell, reports, progress, thread })
    }

    /// Says that the run has saved a checkpoint.
    pub fn saved(&self) {
        let _ = self.tell.send(Message::Saved); // the end of a run reports a thread that has ended early
    }

    /// The reports since the last call.
    pub fn reports(&self) -> Vec<Report> {
        self.reports.try_iter().collect()
    }

    /// Lets the thread bring the mirror up to date a last time, and waits for it as long as bytes move. Returns its reports.
    pub fn finish(self) -> Vec<Report> {
        let _ = self.tell.send(Message::End);
        let (mut moved, mut since) = (self.progress.bytes(), Instant::now());
        while !self.thread.is_finished() {
            std::thread::sleep(STEP);
            let now = self.progress.bytes();
            if now != moved {
                (moved, since) = (now, Instant::now());
            }
            if since.elapsed() > PATIENCE {
                let mut reports = self.reports();
                reports.push(Report::Failed(format!("no byte was accepted for {} s", PATIENCE.as_secs())));
                return reports;
            }
        }
        let mut reports: Vec<Report> = self.reports.try_iter().collect();
        match self.thread.join() {
            Ok(Ok(())) => {}
            Ok(Err(error)) => reports.push(Report::Failed(format!("{error:#}"))),
            Err(_) => reports.push(Report::Failed("the thread of the mirror panicked".into())),
        }
        reports
    }
}

/// The messages of the run since the last look.
struct Mailbox {
    told: Receiver<Message>,
    saved: Cell<bool>,
    ends: Cell<bool>,
}

impl Mailbox {
    fn take(&self, message: Message) {
        match message {
            Message::Saved => self.saved.set(true),
            Message::End => self.ends.set(true),
        }
    }

    /// True if a checkpoint was saved, and no upload has begun since.
    fn has_save(&self) -> bool {
        self.told.try_iter().for_each(|message| self.take(message));
        self.saved.get()
    }

    /// Waits for a message, or for some time. Only the newest save matters: what came before is one.
    fn wait(&self, patience: Option<Duration>) {
        let first = match patience {
            None => self.told.recv().ok(),
            Some(patience) => match self.told.recv_timeout(patience) {
                Err(RecvTimeoutError::Timeout) => return,
                message => message.ok(),
            },
        };
        self.take(first.unwrap_or(Message::End)); // the run has dropped its end
    }
}

/// Brings the mirror up to date after each save, and after [`AGAIN`] where that failed, until the run ends.
async fn keep(mut mirror: Mirror, mailbox: Mailbox, report: Sender<Report>) -> Result<()> {
    let mut again = None;
    loop {
        if !mailbox.has_save() && !mailbox.ends.get() {
            mailbox.wait(again);
        }
        mailbox.has_save();
        mailbox.saved.set(false);
        let last = mailbox.ends.get();
        let (began, before) = (Instant::now(), mirror.progress.bytes());
        let synced = mirror.sync(|| mailbox.has_save()).await;
        let (bytes, seconds) = (mirror.progress.bytes() - before, began.elapsed().as_secs_f64());
        let longer = again.map_or(AGAIN, |time: Duration| (2 * time).min(AGAIN_AT_MOST));
        again = synced.is_err().then_some(longer);
        let news = match synced {
            Ok(Some(checkpoint)) => Some(Report::Mirrored { checkpoint, bytes, seconds }),
            Ok(None) => None,
            Err(error) => Some(Report::Failed(format!("{error:#}"))),
        };
        news.into_iter().for_each(|news| drop(report.send(news))); // a run that waits no more needs none
        if last {
            return Ok(());
        }
    }
}
