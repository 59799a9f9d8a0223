//! The checks of an estimator.

mod abilities;
mod numbers;
mod order;
mod rows;
mod state;

use anyhow::{Context, Result};
use serde_json::Value;

use super::usage::repeat;
use super::{Check, Finding, Subject, config, passed};
use crate::library::{self, EstimatorTables, Functions, Kind, PluginFile};
use crate::{Estimator, Rows};

/// The estimator, loaded into this process.
struct Loaded<'a> {
    subject: &'a Subject<'a>,
    id: &'static str,
    file: PluginFile,
    tables: EstimatorTables,
}

impl<'a> Loaded<'a> {
    fn new(subject: &'a Subject<'a>) -> Result<Self> {
        let all = library::load(&subject.found.path)?;
        let is_it = |c: &library::Component| c.kind() == Kind::Estimator && c.id == subject.found.id;
        let component = all.into_iter().find(is_it).context("the file changed while it was checked")?;
        match component.functions {
            Functions::Estimator(tables) => Ok(Self {
                subject,
                id: component.id,
                file: PluginFile::read(component.id, &subject.found.path, None)?.with_border(component.border),
                tables,
            }),
            Functions::Environment(_) | Functions::Loss(_) => unreachable!("looked up by its kind"),
        }
    }

    fn open(&self) -> Result<Estimator> {
        self.open_with(&self.subject.config)
    }

    fn open_with(&self, config: &Value) -> Result<Estimator> {
        Estimator::open((self.id, self.file.clone()), self.tables, config, &self.subject.limits())
    }
}

/// Scores rows, and returns them with their advantages and returns.
fn scored(estimator: &Estimator, mut rows: Rows) -> Result<Rows> {
    estimator.score(&mut rows)?;
    Ok(rows)
}

const WRITTEN: &[&str] = &["finite_and_written"];

/// The checks, in the order in which they run.
pub const CHECKS: &[Check] = &[
    Check {
        name: "startup",
        needs: &[],
        remedy: "open must give an estimator of its own every time, and keep no state in the library",
        body: startup,
    },
    Check {
        name: "config_errors",
        needs: &["startup"],
        remedy: "refuse it in open with a message that names the key (C: NESTOR_INPUT; Rust: deny_unknown_fields)",
        body: config_errors,
    },
    Check {
        name: "writes_inside",
        needs: &["startup"],
        remedy: "write one advantage and one return per token: the tokens of row i are token_offsets[i]..token_offsets[i + 1]",
        body: numbers::writes_inside,
    },
    Check {
        name: "finite_and_written",
        needs: &["writes_inside"],
        remedy: "give every token of every row a finite advantage and a finite return",
        body: numbers::finite_and_written,
    },
    Check {
        name: "equal_rewards",
        needs: WRITTEN,
        remedy: "do not divide by a deviation that is 0",
        body: numbers::equal_rewards,
    },
    Check {
        name: "single_episode_groups",
        needs: WRITTEN,
        remedy: "a group may have one episode, and one row: a deviation with n - 1 has no value there",
        body: numbers::single_episode_groups,
    },
    Check {
        name: "empty_rows",
        needs: WRITTEN,
        remedy: "a row may have no token: its range of tokens is empty",
        body: numbers::empty_rows,
    },
    Check {
        name: "repeatable",
        needs: WRITTEN,
        remedy: "the same rows must give the same numbers; keep what later scores need in the state (nestor.estimator.state/1)",
        body: order::repeatable,
    },
    Check {
        name: "row_order",
        needs: &["repeatable"],
        remedy: "rows have no order: find the steps of an episode by episode and step, not by position",
        body: order::row_order,
    },
    Check {
        name: "copies",
        needs: &["row_order"],
        remedy: "a row with duplicate_of gets what its source gets",
        body: order::copies,
    },
    Check {
        name: "optional_columns",
        needs: WRITTEN,
        remedy: "a column that is asked for with a question mark may be missing",
        body: abilities::optional_columns,
    },
    Check {
        name: "parts",
        needs: WRITTEN,
        remedy: "fill one number per name and row, NaN where a row has no such part",
        body: abilities::parts,
    },
    Check {
        name: "state_round_trip",
        needs: &["repeatable"],
        remedy: "save all that later scores depend on, and refuse other bytes with an error",
        body: state::round_trip,
    },
    Check {
        name: "many_scores",
        needs: WRITTEN,
        remedy: "free what a score took before it returns",
        body: many_scores,
    },
    Check { name: "open_close", needs: &["many_scores"], remedy: "free in close all that open took", body: open_close },
];

/// Two at once, and one after both were closed.
fn startup(subject: &Subject) -> Result<Finding> {
    let loaded = Loaded::new(subject)?;
    let (first, second) = (loaded.open()?, Loaded::new(subject)?.open().context("a second time in one process")?);
    let same = first.needs() == second.needs() && first.asked() == second.asked();
    anyhow::ensure!(same, "it asks for other columns when opened again");
    let asked: Vec<String> = first.asked().iter().map(ToString::to_string).collect();
    drop((first, second));
    loaded.open().context("again after it was closed")?;
    let columns = if asked.is_empty() { "no columns by name".to_string() } else { asked.join(", ") };
    passed(format!("opened three times; asks for {columns}"))
}

fn config_errors(subject: &Subject) -> Result<Finding> {
    let loaded = Loaded::new(subject)?;
    config::check(&subject.config, &subject.found.schema, |config| loaded.open_with(config).map(drop))
}

/// Many scores by one estimator.
fn many_scores(subject: &Subject) -> Result<Finding> {
    let loaded = Loaded::new(subject)?;
    let (estimator, all) = (loaded.open()?, subject.kit.budget.scores);
    let rows = rows::Plan::default().rows(&estimator);
    let (count, mut took) = (rows.len() as u64, std::time::Duration::ZERO);
    let scored = repeat(subject, all, "scores", |_| {
        let mut rows = rows.clone();
        let begin = std::time::Instant::now();
        estimator.score(&mut rows)?;
        took += begin.elapsed();
        Ok(())
    })?;
    let rate = (scored * count) as f64 / took.as_secs_f64().max(1e-9);
    Ok(Finding::Measured(format!("{scored} of {all} scores of {count} rows"), rate, "rows/s on one thread".into()))
}

/// Opened and closed many times.
fn open_close(subject: &Subject) -> Result<Finding> {
    let loaded = Loaded::new(subject)?;
    let all = subject.kit.budget.opens;
    let opened = repeat(subject, all, "times opened and closed", |_| loaded.open().map(drop))?;
    passed(format!("{opened} of {all} times"))
}
