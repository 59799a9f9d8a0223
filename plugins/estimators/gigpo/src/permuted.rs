//! A control for experiments: GiGPO's advantages, dealt to the rows in random order. The numbers that train the policy
//! keep their distribution but no longer depend on its actions. A run that gains with this estimator gains for another
//! reason than credit assignment, a constant action for example.

use anyhow::Result;
use nestor_plugin::{Asked, Columns, Estimator, Needs, Rows, Scores};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::{Config, Gigpo};

/// The control; takes GiGPO's keys.
pub struct Permuted(Gigpo);

impl Estimator for Permuted {
    const ID: &'static str = "gigpo_permuted";
    const DOC: &'static str = "a control: GiGPO's advantages permuted over the rows of the batch";
    type Config = Config;

    fn open(config: Config) -> Result<Self> {
        Gigpo::open(config).map(Self)
    }

    fn needs(&self) -> Needs {
        self.0.needs()
    }

    fn score(&mut self, rows: &Rows<'_>, out: &mut Scores<'_>) -> Result<()> {
        let mut advantages = self.0.advantages(rows)?;
        // An estimator keeps no state, so the order comes from the batch itself: another one in every iteration.
        let mut rng = ChaCha8Rng::seed_from_u64(fingerprint(rows));
        for last in (1..advantages.len()).rev() {
            advantages.swap(last, (rng.next_u64() % (last as u64 + 1)) as usize);
        }
        out.broadcast(rows, &advantages);
        Ok(())
    }
}

impl Columns for Permuted {
    fn columns(&self) -> Vec<Asked> {
        self.0.columns()
    }
}

/// Returns a number that differs from batch to batch: FNV-1a over the bits of the behaviour log-probs.
fn fingerprint(rows: &Rows<'_>) -> u64 {
    rows.logprobs.unwrap_or_default().iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, logprob| {
        (hash ^ u64::from(logprob.to_bits())).wrapping_mul(0x0100_0000_01b3)
    })
}
