//! Heartbeats: when a rank dies or stops, all others learn which one it was and end.
//!
//! Each rank has a thread that writes a beat into the store every second. Rank 0 reads the beats of all, the others that
//! of rank 0; whoever finds out why the ranks must end writes a sentence under one key, which all read. Where the store's
//! server is stopped its calls may block for ever, so that a second thread judges the first and ends the process if the
//! main thread, which may hang inside a collective, does not.

use std::cell::{Cell, OnceCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nestor_torch::{Store, StoreAddress, exit_now};

use super::Place;
use crate::track::terminal;

/// Between two beats.
const BEAT: Duration = Duration::from_secs(1);
/// How long the server of the store stays after it has said why the ranks end, so that the others can read it.
const LINGER: Duration = Duration::from_millis(2_500);
/// How long the main thread may take to ask who is to blame before the process is ended without it.
const GRACE: Duration = Duration::from_secs(2);
/// How long the main thread may take to end the process after it has asked.
const END: Duration = Duration::from_secs(5);
/// The key of the sentence that says why all ranks end.
const VERDICT: &str = "verdict";
const RESUME: &str = "go on with --resume";

/// What the threads and the main thread tell each other.
#[derive(Debug, Default)]
struct Shared {
    /// Collectives that this rank has begun.
    begun: AtomicU64,
    /// The rank has nothing left to do but wait for the others: the store may close.
    leaving: AtomicBool,
    /// Somebody tells the user already.
    told: AtomicBool,
}

/// What the thread that talks to the store tells the one that judges it.
enum Event {
    /// The store answers, and all seem well.
    Heard,
    /// Why the ranks must end.
    Verdict(String),
}

/// Watches over the other ranks, and lets them watch over this one.
#[derive(Debug)]
pub struct Watch {
    place: Place,
    silence: Duration,
    /// The main thread's connection.
    store: Rc<Store>,
    shared: Arc<Shared>,
    verdict: Receiver<String>,
    sentence: OnceCell<String>,
    failed: Cell<bool>,
    /// The beats end when this is dropped.
    beats: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Watch {
    /// Starts to beat. A rank counts as gone when it is not heard for `silence`.
    pub fn start(place: &Place, store: Rc<Store>, silence: Duration) -> Result<Self> {
        let shared = Arc::new(Shared::default());
        let (verdict_sender, verdict) = channel();
        let mut beats = None;
        if place.world > 1 {
            let address = StoreAddress { host: place.host.clone(), port: place.port, prefix: place.prefix.clone() };
            let pulse = Pulse {
                store: Store::connect(&address, false, silence)?,
                place: place.clone(),
                silence,
                shared: shared.clone(),
                count: 0,
                others: if place.rank == 0 { (1..place.world).map(Other::new).collect() } else { vec![Other::new(0)] },
            };
            let judge = Judge {
                silence,
                serves: place.serves(),
                store: name_of_store(place),
                mark: place.mark(),
                shared: shared.clone(),
                verdict: verdict_sender,
            };
            let (stop, stopped) = channel();
            let (sender, events) = channel();
            let thread = std::thread::Builder::new().name("pulse".into());
            let pulse = thread.spawn(move || pulse.run(&stopped, &sender)).context("starting a thread")?;
            let thread = std::thread::Builder::new().name("judge".into());
            thread.spawn(move || judge.run(&events)).context("starting a thread")?;
            beats = Some((stop, pulse));
        }
        let (sentence, failed) = (OnceCell::new(), Cell::new(false));
        Ok(Self { place: place.clone(), silence, store, shared, verdict, sentence, failed, beats })
    }

    /// This process begins a collective.
    pub fn begin(&self) {
        self.shared.begun.fetch_add(1, Ordering::Relaxed);
    }

    /// The error of a collective, with the reason in front where it lies at another rank.
    pub fn explain(&self, error: anyhow::Error) -> anyhow::Error {
        if self.shared.leaving.load(Ordering::SeqCst) {
            return error; // of waiting for others that have left
        }
        self.failed.set(true);
        let text = format!("{error:#}").to_lowercase();
        let late = if text.contains("timed out") || text.contains("timeout") { self.behind() } else { None };
        match late.or_else(|| self.blame()) {
            Some(sentence) => error.context(sentence),
            None => error,
        }
    }

    /// Who is gone, after a collective failed: waits until that is known, at most a little longer than `silence`.
    pub fn blame(&self) -> Option<String> {
        self.failed.set(true);
        if self.sentence.get().is_none() {
            let sentence = self.verdict.recv_timeout(self.silence + 5 * BEAT).ok()?;
            if self.shared.told.swap(true, Ordering::SeqCst) {
                std::thread::sleep(END); // the judge was faster: it tells the user and ends the process
            }
            let _ = self.sentence.set(sentence);
            self.linger();
        }
        self.sentence.get().cloned()
    }

    /// Tells the others that this rank ends, and why; nothing where it ends because another did.
    pub fn leave_words(&self, words: &str) {
        self.failed.set(true);
        if self.place.world > 1 && self.sentence.get().is_none() {
            self.shared.told.store(true, Ordering::SeqCst); // the caller does
            let words = words.trim_end_matches(RESUME).trim_end_matches([' ', ';']);
            // If the store is gone, so are the others.
            let _ = post(&self.store, &format!("rank {} failed: {words}; {RESUME}", self.place.rank));
            self.linger();
        }
    }

    /// Whether something failed, so that there is no sense in waiting for the others.
    pub fn failed(&self) -> bool {
        self.failed.get()
    }

    /// From here on this rank only waits for the others, and the store may close.
    pub fn leave(&self) {
        self.shared.leaving.store(true, Ordering::SeqCst);
    }

    /// Names the ranks that never came, or have begun fewer collectives than others.
    fn behind(&self) -> Option<String> {
        let mut begun = Vec::with_capacity(self.place.world);
        for rank in 0..self.place.world {
            let beat = self.store.get(&beat_key(rank)).ok()?;
            begun.push(beat.and_then(|beat| String::from_utf8(beat).ok()?.split_once(' ')?.1.parse::<u64>().ok()));
        }
        // A beat may be a second old.
        let own = self.shared.begun.load(Ordering::Relaxed);
        begun[self.place.rank] = Some(own);
        laggards(&begun)
    }

    fn linger(&self) {
        if self.place.serves() {
            std::thread::sleep(LINGER);
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.leave();
        if let Some((stop, pulse)) = self.beats.take() {
            drop(stop);
            // After a failure it may hang in the store; it ends with the process.
            if !self.failed() {
                let _ = pulse.join();
            }
        }
    }
}

/// The ranks with the fewest collectives, unless all have the same number; none: a rank that never came.
fn laggards(begun: &[Option<u64>]) -> Option<String> {
    let (least, most) = (begun.iter().min()?, begun.iter().max()?);
    if least == most {
        return None;
    }
    let late: Vec<String> = (0..begun.len()).filter(|&rank| begun[rank] == *least).map(|r| r.to_string()).collect();
    let ranks = format!("rank{} {}", if late.len() == 1 { "" } else { "s" }, late.join(", "));
    Some(match least {
        None => format!("{ranks} did not come in time: see what became of it, or raise dist.timeout_s"),
        Some(least) => {
            let most = most.unwrap_or_default();
            format!("{ranks} began {least} collectives and others {most}: slow or hung; raise dist.timeout_s if slow")
        }
    })
}

/// Writes the sentence that all ranks end with, unless there is one.
fn post(store: &Store, sentence: &str) -> Result<()> {
    match store.get(VERDICT)? {
        Some(_) => Ok(()),
        None => store.set(VERDICT, sentence.as_bytes()),
    }
}

fn beat_key(rank: usize) -> String {
    format!("beat/{rank}")
}

fn name_of_store(place: &Place) -> String {
    match place.served {
        true => format!("the store at {}:{}, where all ranks meet,", place.host, place.port),
        false => "rank 0".into(),
    }
}

/// Another rank as this one sees it.
struct Other {
    rank: usize,
    beat: Option<Vec<u8>>,
    quiet: Duration,
}

impl Other {
    fn new(rank: usize) -> Self {
        Self { rank, beat: None, quiet: Duration::ZERO }
    }
}

/// The thread that talks to the store.
struct Pulse {
    store: Store,
    place: Place,
    silence: Duration,
    shared: Arc<Shared>,
    count: u64,
    others: Vec<Other>,
}

impl Pulse {
    fn run(mut self, stopped: &Receiver<()>, judge: &Sender<Event>) {
        let mut last = Instant::now();
        loop {
            // If this process itself was stopped or starved, the time does not count against the others.
            let passed = last.elapsed().min(2 * BEAT);
            last = Instant::now();
            let verdict = match self.round(passed) {
                Ok(verdict) => verdict,
                Err(_) if self.shared.leaving.load(Ordering::SeqCst) => return,
                Err(_) => {
                    let store = name_of_store(&self.place);
                    Some(format!("{store} is gone (killed, ended, or its machine is gone); {RESUME}"))
                }
            };
            let done = verdict.is_some();
            // The judge lives at least as long as this thread.
            let _ = judge.send(verdict.map_or(Event::Heard, Event::Verdict));
            if done || !matches!(stopped.recv_timeout(BEAT), Err(RecvTimeoutError::Timeout)) {
                return;
            }
        }
    }

    /// Writes a beat and reads those of others, `passed` after the last round; gives the reason to end, if there is one.
    fn round(&mut self, passed: Duration) -> Result<Option<String>> {
        self.count += 1;
        let beat = format!("{} {}", self.count, self.shared.begun.load(Ordering::Relaxed));
        self.store.set(&beat_key(self.place.rank), beat.as_bytes())?;
        if let Some(sentence) = self.store.get(VERDICT)? {
            return Ok(Some(String::from_utf8_lossy(&sentence).into_owned()));
        }
        for other in &mut self.others {
            let beat = self.store.get(&beat_key(other.rank))?;
            if beat.is_none() || beat != other.beat {
                (other.beat, other.quiet) = (beat, Duration::ZERO);
                continue;
            }
            other.quiet += passed;
            if other.quiet >= self.silence {
                let sentence = silent(&format!("rank {}", other.rank), self.silence);
                post(&self.store, &sentence)?;
                return Ok(Some(sentence));
            }
        }
        Ok(None)
    }
}

fn silent(who: &str, silence: Duration) -> String {
    format!("{who} has been silent for {} s (killed, stopped, or its machine is gone); {RESUME}", silence.as_secs())
}

/// The thread that ends the process if nothing else does.
struct Judge {
    silence: Duration,
    serves: bool,
    /// Who has the store, as a sentence names it.
    store: String,
    /// Which rank this is, before its words.
    mark: String,
    shared: Arc<Shared>,
    verdict: Sender<String>,
}

impl Judge {
    fn run(self, events: &Receiver<Event>) {
        let mut quiet = Duration::ZERO;
        let sentence = loop {
            let begin = Instant::now();
            match events.recv_timeout(BEAT) {
                Ok(Event::Heard) => quiet = Duration::ZERO,
                Ok(Event::Verdict(sentence)) => break sentence,
                Err(RecvTimeoutError::Timeout) => quiet += begin.elapsed().min(2 * BEAT),
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if quiet >= self.silence {
                break silent(&self.store, self.silence);
            }
        };
        // The main thread may wait for it, or hang; it may also have ended.
        let _ = self.verdict.send(sentence.clone());
        std::thread::sleep(GRACE);
        if self.shared.told.swap(true, Ordering::SeqCst) {
            std::thread::sleep(END);
        }
        // Where the main thread was to tell and hangs instead, twice is better than never.
        terminal::warn(&format!("{}error: {sentence}", self.mark));
        if self.serves {
            std::thread::sleep(LINGER);
        }
        terminal::clear();
        exit_now(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ranks_that_lag_are_named() {
        assert_eq!(laggards(&[Some(7), Some(7)]), None);
        let sentence = laggards(&[Some(42), Some(41), Some(43), Some(41)]).expect("two lag");
        assert!(sentence.starts_with("ranks 1, 3 began 41 collectives and others 43"), "{sentence}");
        let sentence = laggards(&[Some(0), None]).expect("one lags");
        assert!(sentence.starts_with("rank 1 did not come in time"), "{sentence}");
    }
}
