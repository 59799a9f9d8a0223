//! Completions of a reward function that are scored in one call (`batch: true`): those that finished while the worker was busy with the
//! call before.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};

use anyhow::{Result, anyhow, ensure};
use serde_json::{Value, json};

use crate::pool::{Held, Pool, Seat};
use crate::reply::{Body, Score};
use crate::worker::Fault;

/// The completions that wait.
#[derive(Debug, Default)]
pub struct Batch(Mutex<Vec<Waiting>>);

#[derive(Debug)]
struct Waiting {
    /// Split, task and response.
    item: Value,
    answer: Sender<Result<(Score, usize), String>>,
}

impl Batch {
    /// Scores a completion, alone or with others. Returns the score and the number of completions in its call.
    pub fn score(&self, pool: &Pool, seat: &Seat, item: Value) -> Result<(Score, usize)> {
        let answer = self.wait(item);
        let mut held = pool.hold(seat);
        // Another thread may have taken this one's completion meanwhile.
        let taken = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        if !taken.is_empty() {
            let count = taken.len();
            let scores = scores(&mut held, taken.iter().map(|one| one.item.clone()).collect());
            let scores = scores.map_err(|error| format!("{error:#}"));
            for (at, waiting) in taken.into_iter().enumerate() {
                let own = scores.as_ref().map(|all| (all[at].clone(), count)).map_err(Clone::clone);
                // Its thread may have been given up.
                let _ = waiting.answer.send(own);
            }
        }
        drop(held);
        let answer = answer.recv().map_err(|_| anyhow!("a completion was taken and not scored"))?;
        answer.map_err(|message| anyhow!(message))
    }

    fn wait(&self, item: Value) -> Receiver<Result<(Score, usize), String>> {
        let (sender, receiver) = channel();
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(Waiting { item, answer: sender });
        receiver
    }
}

/// One call for these completions.
fn scores(held: &mut Held<'_>, items: Vec<Value>) -> Result<Vec<Score>> {
    let count = items.len();
    held.ready()?;
    let scores = match held.call("score", json!({ "items": items })) {
        Ok(Body::Scores(scores)) => scores,
        Ok(_) => return Err(anyhow!("the worker replied to `score` with something else")),
        Err(Fault::Raised(message)) => return Err(anyhow!(message)),
        Err(Fault::Lost(error)) => return Err(error),
    };
    ensure!(scores.len() == count, "the worker gave {} scores for {count} completions", scores.len());
    Ok(scores)
}
