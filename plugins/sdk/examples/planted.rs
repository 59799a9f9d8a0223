//! A sound environment and a sound estimator, each with one planted fault on demand, for the tests of the kit: every fault
//! must be found by the check that is named for it, and by no other.

#[path = "planted/environment.rs"]
mod environment;
#[path = "planted/estimator.rs"]
mod estimator;

use environment::Planted;
use estimator::PlantedEstimator;

nestor_plugin::export! {
    environments: [Planted + expert + snapshot],
    estimators: [PlantedEstimator + columns + parts + state],
}
