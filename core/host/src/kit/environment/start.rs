//! Opening and closing, and configs to refuse.

use anyhow::{Context, Result, ensure};

use super::Loaded;
use crate::kit::{Finding, Subject, config, passed};

/// Two worlds at once, and one after both were closed.
pub fn startup(subject: &Subject) -> Result<Finding> {
    let loaded = Loaded::new(subject)?;
    let first = loaded.open()?;
    let second = Loaded::new(subject)?.open().context("a second time in one process")?;
    let template = first.template()?;
    ensure!(!template.trim().is_empty(), "the default prompt template is empty");
    ensure!(second.template()? == template, "the default prompt template is another one when opened again");
    let (a, b) = (first.spawn()?, first.spawn()?);
    drop((second.spawn()?, second));
    drop((a, b, first));
    loaded.open().and_then(|again| again.spawn().map(drop)).context("again after it was closed")?;
    passed(format!("opened three times, template of {} bytes", template.len()))
}

/// Configs to refuse.
pub fn config_errors(subject: &Subject) -> Result<Finding> {
    let loaded = Loaded::new(subject)?;
    config::check(&subject.config, &subject.found.schema, |config| loaded.open_with(config).map(drop))
}
