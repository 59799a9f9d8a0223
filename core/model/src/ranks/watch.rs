//! Heartbeats: when a rank dies or stops, all others name it and end.
//!
//! A thread of each rank, the pulse, writes a heartbeat into the store every second. Rank 0 reads the heartbeats of all
//! ranks, the others read that of rank 0. The rank that finds a failure writes a verdict, one sentence, under a key that
//! all ranks read. If the store's server stops, calls into it may block forever. So a second thread, the judge, watches
//! the pulse. It ends the process if the main thread, which may hang inside a collective, does not.
//!
//! A rank may also live and hang. The others then wait for it in a collective: the main thread where `wait` blocks, and
//! otherwise the pulse, which sees the oldest collective under way stay the same.

use std::cell::{Cell, OnceCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nestor_torch::{Store, exit_now};

use super::environment::Rendezvous;
use super::under_way::{Collective, Stall, UnderWay};
use crate::recipe::Dist;
use crate::terminal::{self, printable};

/// Time between two heartbeats.
const BEAT: Duration = Duration::from_secs(1);
/// Time that the store's server stays up after a verdict, so that the other ranks can read it.
const LINGER: Duration = Duration::from_millis(2_500);
/// Time that the main thread has to ask for the verdict before the judge reports it.
const GRACE: Duration = Duration::from_secs(2);
/// Time that the main thread has to end the process after it asked.
const END: Duration = Duration::from_secs(5);
/// Time beyond `dist.timeout_s` that a main thread inside `wait` has to report a late collective itself.
const LATE: Duration = Duration::from_secs(3);
/// The key of the sentence with which all ranks end.
const VERDICT: &str = "verdict";
const RESUME: &str = "continue with --resume";

/// State that the threads and the main thread share.
#[derive(Debug, Default)]
struct Shared {
    /// The collectives of this rank.
    under_way: UnderWay,
    /// The rank only waits for the others to end: the store may close.
    leaving: AtomicBool,
    /// One thread reports to the user already.
    reported: AtomicBool,
}

/// A message from the pulse to the judge.
enum PulseMessage {
    /// The store answers, and no rank has failed.
    Alive,
    /// The sentence with which the ranks must end.
    Verdict(String),
}

/// Watches the other ranks, and sends this one's heartbeats.
#[derive(Debug)]
pub struct Watch {
    rendezvous: Rendezvous,
    silence: Duration,
    /// The main thread's connection.
    store: Rc<Store>,
    shared: Arc<Shared>,
    verdict: Receiver<String>,
    sentence: OnceCell<String>,
    failed: Cell<bool>,
    /// Each thread ends when its sender is dropped. There are none where this is the only rank.
    threads: Vec<(Sender<()>, JoinHandle<()>)>,
}

impl Watch {
    /// Starts the heartbeats. A rank without a heartbeat for `dist.silence_s` counts as gone.
    pub fn start(rendezvous: &Rendezvous, store: Rc<Store>, patience: &Dist) -> Result<Self> {
        let [timeout, silence] = [patience.timeout_s, patience.silence_s].map(Duration::from_secs);
        let shared = Arc::new(Shared::default());
        let (verdict_sender, verdict) = channel();
        let mut threads = Vec::new();
        if rendezvous.world > 1 {
            let pulse = Pulse {
                store: Store::connect(&rendezvous.store(), false, silence)?,
                rendezvous: rendezvous.clone(),
                silence,
                timeout,
                shared: shared.clone(),
                stall: Stall::default(),
                count: 0,
                others: if rendezvous.rank == 0 {
                    (1..rendezvous.world).map(Peer::new).collect()
                } else {
                    vec![Peer::new(0)]
                },
            };
            let judge = Judge {
                silence,
                serves: rendezvous.serves(),
                store: name_of_store(rendezvous),
                mark: rendezvous.mark(),
                shared: shared.clone(),
                verdict: verdict_sender,
            };
            let (sender, events) = channel();
            threads.push(thread("pulse", move |stopped| pulse.run(stopped, &sender))?);
            let looking = shared.clone();
            threads.push(thread("collectives", move |stopped| looking.under_way.watch(stopped, BEAT))?);
            // Ends with the pulse, or ends the process.
            thread("judge", move |_| judge.run(&events))?;
        }
        let (sentence, failed) = (OnceCell::new(), Cell::new(false));
        Ok(Self { rendezvous: rendezvous.clone(), silence, store, shared, verdict, sentence, failed, threads })
    }

    /// The collectives of this rank.
    pub fn under_way(&self) -> &UnderWay {
        &self.shared.under_way
    }

    /// Adds to the error of a collective the rank that caused it, if that was another.
    pub fn explain(&self, error: anyhow::Error) -> anyhow::Error {
        if self.shared.leaving.load(Ordering::SeqCst) {
            return error; // the others have left
        }
        self.failed.set(true);
        let late = if is_timeout(&format!("{error:#}")) { self.behind() } else { None };
        match late.or_else(|| self.blame()) {
            Some(sentence) => error.context(sentence),
            None => error,
        }
    }

    /// Names the rank that is gone, after a collective failed. Waits for the verdict, at most `silence` and 5 heartbeats.
    pub fn blame(&self) -> Option<String> {
        self.failed.set(true);
        if self.sentence.get().is_none() {
            let sentence = self.verdict.recv_timeout(self.silence + 5 * BEAT).ok()?;
            if self.shared.reported.swap(true, Ordering::SeqCst) {
                std::thread::sleep(END); // the judge was faster: it reports and ends the process
            }
            let _ = self.sentence.set(sentence);
            self.linger();
        }
        self.sentence.get().cloned()
    }

    /// Records the error that ends this rank, for the others to report. Does nothing where another rank failed first.
    pub fn record_failure(&self, reason: &str) {
        self.failed.set(true);
        if self.rendezvous.world > 1 && self.sentence.get().is_none() {
            self.shared.reported.store(true, Ordering::SeqCst); // the caller reports it
            let reason = reason.trim_end_matches(RESUME).trim_end_matches([' ', ';']);
            // If the store is gone, so are the others.
            let _ = post(
                &self.store,
                &self.rendezvous,
                &format!("rank {} failed: {reason}; {RESUME}", self.rendezvous.rank),
            );
            self.linger();
        }
    }

    /// True after a failure: the others must not be waited for.
    pub fn failed(&self) -> bool {
        self.failed.get()
    }

    /// Declares that this rank only waits for the others to end, so that the store may close.
    pub fn leave(&self) {
        self.shared.leaving.store(true, Ordering::SeqCst);
    }

    fn behind(&self) -> Option<String> {
        behind(&self.store, &self.rendezvous, &self.shared)
    }

    fn linger(&self) {
        if self.rendezvous.serves() {
            std::thread::sleep(LINGER);
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.leave();
        let (stops, threads): (Vec<_>, Vec<_>) = self.threads.drain(..).unzip();
        drop(stops);
        // After a failure a thread may hang in the store or in a driver; it ends with the process.
        if !self.failed() {
            for thread in threads {
                let _ = thread.join();
            }
        }
    }
}

/// Starts a thread that ends when the sender is dropped.
fn thread(name: &str, work: impl FnOnce(&Receiver<()>) + Send + 'static) -> Result<(Sender<()>, JoinHandle<()>)> {
    let (stop, stopped) = channel();
    let builder = std::thread::Builder::new().name(name.into());
    Ok((stop, builder.spawn(move || work(&stopped)).context("starting a thread")?))
}

/// True for c10d's text about a collective that took too long.
fn is_timeout(text: &str) -> bool {
    let text = text.to_lowercase();
    text.contains("timed out") || text.contains("timeout")
}

/// Names the ranks that never joined, or have begun fewer collectives than others.
fn behind(store: &Store, own: &Rendezvous, shared: &Shared) -> Option<String> {
    let mut begun = Vec::with_capacity(own.world);
    for rank in 0..own.world {
        let beat = own.secret.get(store, &beat_key(rank)).ok()?;
        begun.push(beat.and_then(|beat| String::from_utf8(beat).ok()?.split_once(' ')?.1.parse::<u64>().ok()));
    }
    // A heartbeat may be a second old.
    begun[own.rank] = Some(shared.under_way.begun());
    laggards(&begun)
}

/// Names the ranks with the fewest collectives, unless all have the same number. `None` is a rank that never joined.
fn laggards(begun: &[Option<u64>]) -> Option<String> {
    let (least, most) = (begun.iter().min()?, begun.iter().max()?);
    if least == most {
        return None;
    }
    let late: Vec<String> = (0..begun.len()).filter(|&rank| begun[rank] == *least).map(|r| r.to_string()).collect();
    let ranks = format!("rank{} {}", if late.len() == 1 { "" } else { "s" }, late.join(", "));
    Some(match least {
        None => format!("{ranks} did not join in time: look at its output, or raise dist.timeout_s"),
        Some(least) => {
            let most = most.unwrap_or_default();
            format!("{ranks} began {least} collectives and others {most}: slow or hung; raise dist.timeout_s if slow")
        }
    })
}

/// Writes the verdict, unless there is one.
fn post(store: &Store, own: &Rendezvous, sentence: &str) -> Result<()> {
    match own.secret.get(store, VERDICT)? {
        Some(_) => Ok(()),
        None => own.secret.set(store, VERDICT, sentence.as_bytes()),
    }
}

fn beat_key(rank: usize) -> String {
    format!("beat/{rank}")
}

fn name_of_store(rendezvous: &Rendezvous) -> String {
    match rendezvous.served {
        true => format!("the store of all ranks at {}:{}", rendezvous.host, rendezvous.port),
        false => "rank 0".into(),
    }
}

/// The heartbeats of another rank.
struct Peer {
    rank: usize,
    beat: Option<Vec<u8>>,
    quiet: Duration,
}

impl Peer {
    fn new(rank: usize) -> Self {
        Self { rank, beat: None, quiet: Duration::ZERO }
    }
}

/// The thread that writes and reads heartbeats.
struct Pulse {
    store: Store,
    rendezvous: Rendezvous,
    silence: Duration,
    timeout: Duration,
    shared: Arc<Shared>,
    /// The time for which this rank's oldest collective has been under way.
    stall: Stall,
    count: u64,
    others: Vec<Peer>,
}

impl Pulse {
    fn run(mut self, stopped: &Receiver<()>, judge: &Sender<PulseMessage>) {
        let mut last = Instant::now();
        loop {
            // Time for which this process itself was stopped or starved does not count against the others.
            let passed = last.elapsed().min(2 * BEAT);
            last = Instant::now();
            let verdict = match self.round(passed) {
                Ok(verdict) => verdict,
                Err(_) if self.shared.leaving.load(Ordering::SeqCst) => return,
                Err(_) => {
                    let store = name_of_store(&self.rendezvous);
                    Some(format!("{store} is gone (killed, ended, or its machine is gone); {RESUME}"))
                }
            };
            let done = verdict.is_some();
            // The judge outlives this thread.
            let _ = judge.send(verdict.map_or(PulseMessage::Alive, PulseMessage::Verdict));
            if done || !matches!(stopped.recv_timeout(BEAT), Err(RecvTimeoutError::Timeout)) {
                return;
            }
        }
    }

    /// Writes a heartbeat and reads the others, `passed` after the last round. Returns the verdict, if there is one.
    fn round(&mut self, passed: Duration) -> Result<Option<String>> {
        self.count += 1;
        let beat = format!("{} {}", self.count, self.shared.under_way.begun());
        let secret = &self.rendezvous.secret;
        secret.set(&self.store, &beat_key(self.rendezvous.rank), beat.as_bytes())?;
        if let Some(sentence) = secret.get(&self.store, VERDICT)? {
            return Ok(Some(printable(&String::from_utf8_lossy(&sentence))));
        }
        for other in &mut self.others {
            let beat = secret.get(&self.store, &beat_key(other.rank))?;
            if beat.is_none() || beat != other.beat {
                (other.beat, other.quiet) = (beat, Duration::ZERO);
                continue;
            }
            other.quiet += passed;
            if other.quiet >= self.silence {
                let sentence = silent(&format!("rank {}", other.rank), self.silence);
                post(&self.store, &self.rendezvous, &sentence)?;
                return Ok(Some(sentence));
            }
        }
        // A rank that is gone is named above, before a collective counts as late or failed.
        let limits = [self.timeout + LATE, self.silence + 5 * BEAT];
        if let Some(late) = self.stall.late(self.shared.under_way.oldest(), passed, limits) {
            let sentence = self.explain(&late);
            post(&self.store, &self.rendezvous, &sentence)?;
            return Ok(Some(sentence));
        }
        Ok(None)
    }

    /// The sentence for a collective of this rank that does not finish.
    fn explain(&self, Collective { number, name, error }: &Collective) -> String {
        let rank = self.rendezvous.rank;
        let error = error.as_ref().filter(|error| !is_timeout(error));
        match (error, behind(&self.store, &self.rendezvous, &self.shared)) {
            (Some(error), _) => format!("{name} {number} failed at rank {rank}: {error}; {RESUME}"),
            (None, Some(behind)) => behind,
            (None, None) => format!(
                "{name} {number} has not finished at rank {rank} in {} s, although all ranks began it: a hung GPU or \
                 network, or slow; raise dist.timeout_s if slow",
                self.timeout.as_secs()
            ),
        }
    }
}

fn silent(who: &str, silence: Duration) -> String {
    format!("{who} has been silent for {} s (killed, stopped, or its machine is gone); {RESUME}", silence.as_secs())
}

/// The thread that ends the process if nothing else does.
struct Judge {
    silence: Duration,
    serves: bool,
    /// Name of the store's server in a sentence.
    store: String,
    /// Prefix of this rank's lines.
    mark: String,
    shared: Arc<Shared>,
    verdict: Sender<String>,
}

impl Judge {
    fn run(self, events: &Receiver<PulseMessage>) {
        let mut quiet = Duration::ZERO;
        let sentence = loop {
            let begin = Instant::now();
            match events.recv_timeout(BEAT) {
                Ok(PulseMessage::Alive) => quiet = Duration::ZERO,
                Ok(PulseMessage::Verdict(sentence)) => break sentence,
                Err(RecvTimeoutError::Timeout) => quiet += begin.elapsed().min(2 * BEAT),
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if quiet >= self.silence {
                break silent(&self.store, self.silence);
            }
        };
        // The main thread may wait for the verdict, hang, or have ended.
        let _ = self.verdict.send(sentence.clone());
        std::thread::sleep(GRACE);
        if self.shared.reported.swap(true, Ordering::SeqCst) {
            std::thread::sleep(END);
        }
        // The main thread may hang instead of reporting: twice is better than never.
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
    fn laggards_are_named() {
        assert_eq!(laggards(&[Some(7), Some(7)]), None);
        let sentence = laggards(&[Some(42), Some(41), Some(43), Some(41)]).expect("two lag");
        assert!(sentence.starts_with("ranks 1, 3 began 41 collectives and others 43"), "{sentence}");
        let sentence = laggards(&[Some(0), None]).expect("one lags");
        assert!(sentence.starts_with("rank 1 did not join in time"), "{sentence}");
    }
}
