//! The collectives that this rank has begun and not yet seen finished. On a GPU `wait` returns at once, and the main
//! thread hangs later, in a call that synchronises. So a thread asks each second how far the oldest collective is.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nestor_torch::Progress;

/// A collective of this rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Collective {
    /// Counts from 1, in the order in which the rank began them.
    pub number: u64,
    pub name: &'static str,
    /// The error with which it failed.
    pub error: Option<String>,
}

#[derive(Debug)]
struct Entry {
    collective: Collective,
    /// None while the rank starts it: NCCL waits for the other ranks in the first one.
    progress: Option<Arc<Progress>>,
}

/// A queue of collectives, which the main thread and the watching thread share.
#[derive(Debug, Default)]
pub struct UnderWay(Mutex<Queue>);

#[derive(Debug, Default)]
struct Queue {
    entries: VecDeque<Entry>,
    begun: u64,
}

impl UnderWay {
    /// Counts a collective that the rank begins, and returns its number.
    pub fn begin(&self, name: &'static str) -> u64 {
        let mut queue = self.queue();
        queue.begun += 1;
        let number = queue.begun;
        let collective = Collective { number, name, error: None };
        queue.entries.push_back(Entry { collective, progress: None });
        number
    }

    /// The rank has started a collective.
    pub fn started(&self, number: u64, progress: Progress) {
        if let Some(entry) = self.queue().entries.iter_mut().find(|entry| entry.collective.number == number) {
            entry.progress = Some(Arc::new(progress));
        }
    }

    /// Forgets a collective.
    pub fn forget(&self, number: u64) {
        self.queue().entries.retain(|entry| entry.collective.number != number);
    }

    /// Number of collectives begun.
    pub fn begun(&self) -> u64 {
        self.queue().begun
    }

    /// The oldest collective that was under way at the last [`Self::look`].
    pub fn oldest(&self) -> Option<Collective> {
        self.queue().entries.front().map(|entry| entry.collective.clone())
    }

    /// Forgets the oldest collectives that are done, and notes the failure of the next one.
    fn look(&self) {
        while let Some((number, progress)) = self.front() {
            // Without the lock: a driver that hangs must not stop the main thread here too.
            match progress.is_done() {
                Ok(true) => self.forget(number),
                Ok(false) => return,
                Err(error) => {
                    let mut queue = self.queue();
                    let front = queue.entries.front_mut().filter(|entry| entry.collective.number == number);
                    if let Some(entry) = front {
                        entry.collective.error = Some(format!("{error:#}"));
                    }
                    return;
                }
            }
        }
    }

    /// The oldest collective that has started.
    fn front(&self) -> Option<(u64, Arc<Progress>)> {
        let queue = self.queue();
        let entry = queue.entries.front()?;
        Some((entry.collective.number, entry.progress.clone()?))
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks every `interval` until the sender of `stopped` is dropped.
    pub fn watch(&self, stopped: &Receiver<()>, interval: Duration) {
        while matches!(stopped.recv_timeout(interval), Err(RecvTimeoutError::Timeout)) {
            self.look();
        }
    }
}

/// The time for which the same collective has been the oldest.
#[derive(Debug, Default)]
pub struct Stall {
    number: u64,
    time: Duration,
}

impl Stall {
    /// Adds the time since the last call; a new oldest collective starts at zero. Returns the collective if it has been
    /// the oldest for `limit`, or for `failed_limit` after it failed.
    pub fn late(
        &mut self,
        oldest: Option<Collective>,
        passed: Duration,
        [limit, failed_limit]: [Duration; 2],
    ) -> Option<Collective> {
        let Some(collective) = oldest else {
            *self = Self::default();
            return None;
        };
        match collective.number == self.number {
            true => self.time += passed,
            false => *self = Self { number: collective.number, time: Duration::ZERO },
        }
        let limit = if collective.error.is_some() { limit.min(failed_limit) } else { limit };
        (self.time >= limit).then_some(collective)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_collective_that_stays_the_oldest_is_late() {
        let second = Duration::from_secs(1);
        let limits = [3 * second, 2 * second];
        let mut stall = Stall::default();
        let oldest = |number| Some(Collective { number, name: "all-reduce", error: None });
        let mut late = |oldest| stall.late(oldest, second, limits).map(|collective| collective.number);
        // Progress, or nothing under way, starts the time anew.
        let seen = [Some(1), Some(1), Some(1), Some(2), Some(2), None, Some(2), Some(2), Some(2)];
        assert_eq!(seen.map(|number| late(number.and_then(oldest))), [None; 9]);
        assert_eq!(late(oldest(2)), Some(2));
        // A failure is reported sooner, but the heartbeats first get time to name a rank that is gone.
        let failed = || Some(Collective { number: 3, name: "all-reduce", error: Some("NCCL error".into()) });
        assert_eq!([late(failed()), late(failed()), late(failed())], [None, None, Some(3)]);
    }

    #[test]
    fn a_collective_is_under_way_from_its_beginning_until_it_is_forgotten() {
        let under_way = UnderWay::default();
        assert_eq!([under_way.begin("all-gather"), under_way.begin("broadcast")], [1, 2]);
        under_way.look(); // neither has started, so that there is nothing to ask
        assert_eq!(under_way.oldest().map(|oldest| (oldest.number, oldest.name)), Some((1, "all-gather")));
        under_way.forget(1);
        assert_eq!(under_way.oldest().map(|oldest| oldest.name), Some("broadcast"));
        under_way.forget(2);
        assert_eq!((under_way.oldest(), under_way.begun()), (None, 2));
    }
}
