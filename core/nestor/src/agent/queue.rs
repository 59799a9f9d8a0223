//! A queue of work that several threads take from, and that can be emptied.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Work that waits for a thread.
#[derive(Debug)]
pub struct Queue<T> {
    waiting: Mutex<Waiting<T>>,
    changed: Condvar,
}

#[derive(Debug)]
struct Waiting<T> {
    items: VecDeque<T>,
    closed: bool,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self { waiting: Mutex::new(Waiting { items: VecDeque::new(), closed: false }), changed: Condvar::new() }
    }
}

impl<T> Queue<T> {
    pub fn push(&self, item: T) {
        self.waiting().items.push_back(item);
        self.changed.notify_one();
    }

    /// The oldest item, as soon as there is one. None once the queue is closed.
    pub fn pop(&self) -> Option<T> {
        let mut waiting = self.waiting();
        loop {
            if waiting.closed {
                return None;
            }
            if let Some(item) = waiting.items.pop_front() {
                return Some(item);
            }
            waiting = self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Removes all items.
    pub fn take(&self) -> VecDeque<T> {
        std::mem::take(&mut self.waiting().items)
    }

    /// Ends all threads that wait in [`Queue::pop`].
    pub fn close(&self) {
        self.waiting().closed = true;
        self.changed.notify_all();
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting<T>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
