//! `nestor init` for every bundled environment and estimator writes a recipe that passes the checks of `nestor train`; it
//! refuses to write one that does not.

use nestor_args::InitArgs;

use crate::support;
use anyhow::{Context, Result, ensure};
use nestor_host::{Kind, Plugins};
use nestor_tools::init::init;

#[test]
fn every_bundled_plugin_gives_a_recipe_that_passes() -> Result<()> {
    support::build(&[]);
    let folder = tempfile::tempdir()?;
    let mut estimators = Plugins::discover()?.list()?;
    // `opd` needs a teacher, which only the user can name.
    estimators.retain(|found| found.kind == Kind::Estimator && found.id != "opd");
    for env in support::bundled_plugins("environments") {
        // All pairs would take minutes: an estimator's part of a recipe does not depend on the environment.
        for estimator in estimators.iter().filter(|one| env == "numberline" || ["grpo", "ppo"].contains(&&*one.id)) {
            let out = folder.path().join(format!("{env}_{}.yaml", estimator.id));
            let args = InitArgs {
                reward: Vec::new(),
                data: None,
                env: Some(env.clone()),
                config: None,
                estimator: Some(estimator.id.clone()),
                model: Some("new".into()),
                out: Some(out.clone()),
            };
            init(&args).with_context(|| format!("{env} with {}", estimator.id))?;
            let text = std::fs::read_to_string(&out)?;
            let comments = text.lines().filter(|line| line.contains('#')).count();
            ensure!(comments * 3 > text.lines().count() * 2, "few comments:\n{text}");
            nestor_recipe::load(&out, &[])?;
            let again = init(&args).expect_err("the file is there").to_string();
            ensure!(again.contains("is there already"), "{again}");
        }
    }
    Ok(())
}
