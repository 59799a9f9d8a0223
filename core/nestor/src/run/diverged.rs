//! The error of a run that diverged: the recipe key to change, and the last good checkpoint.

use anyhow::Result;

use super::divergence::{Updated, rates};
use super::{Learner, Meter, Run, report};
use crate::error::{Diverged, message};
use crate::model::{StoredType, kind};

impl Run {
    /// Refuses to call a run done, also a resumed one, if a network skipped all optimizer steps of its last iteration.
    pub(super) fn check_last_steps(&self) -> Result<()> {
        let Learner { policy, critic, .. } = &self.learner;
        let mut networks = [Some(policy), critic.as_ref()].into_iter().flatten();
        match networks.find(|network| self.ledger.state.stuck && network.skipped_in_a_row > 0) {
            Some(network) => Err(network.diverged("").context("the last iteration made no optimizer step")),
            None => Ok(()),
        }
    }

    /// Completes the error of a run that diverged: warnings of the update under way, the recipe key to change, and the last
    /// good checkpoint. Other errors stay as they are.
    pub fn explained(&mut self, error: anyhow::Error) -> anyhow::Error {
        let Some(&Diverged { critic: of_critic, .. }) = error.downcast_ref::<Diverged>() else { return error };
        if let (Some(iteration), Some(update)) = (self.next_iteration(), &self.ledger.update) {
            let Meter { metrics, tracker, alarms, .. } = &mut self.meter;
            let rows = &update.batch.rows;
            report::rows(metrics, rows);
            report::update(metrics, &update.reports, rows);
            let updated = Updated { recipe: &self.recipe, metrics, rows, reports: &update.reports };
            for alarm in alarms.of(iteration, updated) {
                let _ = tracker.alarm(alarm.cause, &alarm.message); // the error itself is the one to report
            }
        }
        let remedy = self.remedy(of_critic);
        let Learner { policy, critic, .. } = &self.learner;
        let good =
            self.ledger.state.last_good(policy, critic.as_ref()).map(|moment| self.ledger.checkpoints.path(moment));
        let good = match good.filter(|path| path.exists()) {
            Some(path) => format!("the last good checkpoint is {}", path.display()),
            None => "no checkpoint of the run has proved good".into(),
        };
        Diverged { critic: of_critic, message: format!("{}; {remedy}; {good}", message(&error)) }.into()
    }

    /// The recipe key to change after a divergence.
    fn remedy(&self, of_critic: bool) -> String {
        let (recipe, steps) = (&self.recipe, self.learner.policy.optimizer.steps);
        if let (true, Some(critic)) = (of_critic, &recipe.critic) {
            return format!("lower critic.lr ({:e}) or critic.grad_clip ({:e})", critic.lr, critic.grad_clip);
        }
        if let Some(remedy) = &self.meter.alarms.remedy {
            return remedy.clone();
        }
        match &recipe.warm_start {
            _ if self.ledger.warm_start.is_none() && steps > 0 => rates(recipe, ("update.lr", recipe.update.lr)),
            Some(warm_start) => rates(recipe, ("warm_start.lr", warm_start.lr)),
            None => format!(
                "no optimizer step has been made: the weights that the run began with are damaged, or overflow in dtype {}",
                StoredType::of(kind(recipe.dtype)).map_or("this type", |stored| stored.name)
            ),
        }
    }
}
