//! A control for experiments: GiGPO's advantages, dealt to the rows in random order. The numbers that train the policy
//! keep their distribution but no longer depend on its actions. A run that gains with this estimator gains for another
//! reason than credit assignment, a constant action for example.

use anyhow::Result;
use nestor_plugin::{Asked, Columns, Estimator, Needs, Parts, Rows, Scores, WeightedParts};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::Gigpo;

/// The control; takes GiGPO's keys.
pub struct Permuted(Gigpo);

impl Estimator for Permuted {
    const ID: &'static str = "gigpo_permuted";
    const DOC: &'static str = "a control: GiGPO's advantages permuted over the rows of the batch";
    type Config = Gigpo;

    fn open(config: Gigpo) -> Result<Self> {
        Gigpo::open(config).map(Self)
    }

    fn needs(&self) -> Needs {
        self.0.needs()
    }

    fn score(&mut self, rows: &Rows<'_>, out: &mut Scores<'_>) -> Result<()> {
        out.weighted_sum::<Self>(rows, &self.parts(rows)?, &self.0.weights())
    }
}

impl Parts for Permuted {
    const NAMES: &'static [&'static str] = Gigpo::NAMES;

    /// The advantages are those that the row was dealt; return and state are its own.
    fn parts(&self, rows: &Rows<'_>) -> Result<Vec<Vec<f64>>> {
        let mut parts = WeightedParts::parts(&self.0, rows)?;
        // An estimator keeps no state, so the order comes from the batch itself: another one in every iteration.
        let mut rng = ChaCha8Rng::seed_from_u64(fingerprint(rows));
        for last in (1..rows.len()).rev() {
            let other = (rng.next_u64() % (last as u64 + 1)) as usize;
            parts[..2].iter_mut().for_each(|advantages| advantages.swap(last, other));
        }
        Ok(parts)
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
