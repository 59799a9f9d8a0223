//! An estimator of a plugin. A guard checks that it fills every advantage and every return with a finite number.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use nestor_plugin::{Asked, Needs, ffi};
use serde_json::Value;

use crate::call::{Out, Texts};
use crate::estimator_call::{EstimatorCall as Request, MARGIN, Scoring, UNTOUCHED};
use crate::isolate::Process;
use crate::library::EstimatorTables;
use crate::observation::metrics;
use crate::opened::Opened;
use crate::supervise::Limits;
use crate::{PluginFile, Rows};

/// The estimator wrote behind the end of an array.
#[derive(Debug, thiserror::Error)]
#[error("plugin {plugin} wrote behind the end of the {name}; it has one number per token")]
pub(crate) struct WroteTooFar {
    plugin: &'static str,
    name: String,
}

/// An open estimator.
pub struct Estimator {
    opened: Opened<EstimatorTables>,
    has_parts: bool,
    has_columns: bool,
    has_state: bool,
    needs: Needs,
    asked: Vec<Asked>,
}

/// Components of the advantages of rows, by name, from the estimator.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Parts(Vec<(String, Vec<f64>)>);

impl Parts {
    /// Names and values of a row's components; NaN where it lacks one.
    pub fn of(&self, row: usize) -> impl Iterator<Item = (&str, f64)> {
        self.0.iter().map(move |(name, column)| (name.as_str(), column[row]))
    }

    /// True if the estimator has none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Drop for Estimator {
    fn drop(&mut self) {
        self.opened.close(|| self.call(Request::Close));
    }
}

impl Estimator {
    pub(super) fn open(
        named: (&'static str, PluginFile),
        tables: EstimatorTables,
        config: &Value,
        limits: &Limits,
    ) -> Result<Self> {
        let has = [tables.parts.is_some(), tables.columns.is_some(), tables.state.is_some()];
        Self::of(Opened::here(named, (tables, tables.functions.open), config, limits)?, has)
    }

    /// An estimator in a process of its own, which is open. `has` says whether it has parts, columns and a state.
    pub(super) fn elsewhere(named: (&'static str, PluginFile), has: [bool; 3], process: Process) -> Result<Self> {
        Self::of(Opened::elsewhere(named, process), has)
    }

    fn of(opened: Opened<EstimatorTables>, has: [bool; 3]) -> Result<Self> {
        let ([has_parts, has_columns, has_state], id) = (has, opened.id);
        let (needs, asked) = (Needs::default(), Vec::new());
        let mut estimator = Self { opened, has_parts, has_columns, has_state, needs, asked };
        let flags = estimator
            .call(Request::Needs)
            .and_then(|(_, out)| out.flags())
            .with_context(|| format!("plugin {id}: needs"))?;
        estimator.needs = Needs::from_flags(flags)
            .with_context(|| format!("plugin {id} needs what this program does not have (flags {flags:#x})"))?;
        estimator.asked = estimator.read_asked().with_context(|| format!("plugin {id}: columns"))?;
        Ok(estimator)
    }

    fn read_asked(&self) -> Result<Vec<Asked>> {
        if !self.has_columns {
            return Ok(Vec::new());
        }
        let (mut texts, _) = self.call(Request::Columns)?;
        let asked: Vec<Asked> =
            texts.all(ffi::COLUMN, "name of a column")?.iter().map(|name| name.parse()).collect::<Result<_>>()?;
        for (at, one) in asked.iter().enumerate() {
            ensure!(
                asked[..at].iter().all(|other| other.column != one.column),
                "column {} is asked for twice",
                one.column
            );
        }
        Ok(asked)
    }

    fn call(&self, request: Request) -> Result<(Texts, Out)> {
        // SAFETY: the handle is open, one thread at a time uses an estimator, and `scoring` has checked the rows.
        let here = |request: &Request, tables: EstimatorTables, handle| unsafe { request.perform(&tables, handle) };
        self.opened.call((request.function(), request), here, Process::estimator)
    }

    /// The rows of a call, which owns all that it reads and writes: it may be given up, and then continues.
    fn scoring(&self, rows: &Rows) -> Result<Box<Scoring>> {
        self.check_columns(rows)?;
        let asked = self.asked.iter().map(|one| one.column.to_string()).collect();
        let rows = Rows { advantages: Vec::new(), returns: Vec::new(), ..rows.clone() };
        Ok(Box::new(Scoring { rows, needs: self.needs.flags(), asked }))
    }

    pub fn id(&self) -> &str {
        self.opened.id
    }

    /// The plugin file.
    pub fn file(&self) -> &PluginFile {
        &self.opened.file
    }

    /// Columns that the estimator reads.
    pub fn needs(&self) -> Needs {
        self.needs
    }

    /// Columns that the estimator asks for by name (`rows.columns`).
    pub fn asked(&self) -> &[Asked] {
        &self.asked
    }

    /// True if the estimator remembers something between iterations.
    pub fn has_state(&self) -> bool {
        self.has_state
    }

    /// All that later scores depend on; empty for an estimator without a state.
    pub fn save(&self) -> Result<Vec<u8>> {
        if !self.has_state {
            return Ok(Vec::new());
        }
        self.call(Request::Save)
            .and_then(|(mut texts, _)| texts.required_bytes(ffi::STATE, "state", "NESTOR_STATE"))
            .with_context(|| format!("plugin {}: save", self.opened.id))
    }

    /// Takes a state that [`Estimator::save`] returned, before the first score.
    pub fn load(&self, state: &[u8]) -> Result<()> {
        ensure!(self.has_state, "plugin {} has no state (extension nestor.estimator.state/1)", self.opened.id);
        self.call(Request::Load(state.to_vec())).map(|_| ()).with_context(|| format!("plugin {}: load", self.opened.id))
    }

    /// Fills `rows.advantages` and `rows.returns`. Returns the estimator's own metrics by name.
    pub fn score(&self, rows: &mut Rows) -> Result<BTreeMap<String, f64>> {
        let request = Request::Score(self.scoring(rows)?);
        let (mut texts, (advantages, returns)) = self
            .call(request)
            .and_then(|(texts, out)| Ok((texts, out.scores()?)))
            .with_context(|| format!("plugin {}: score of {} rows", self.opened.id, rows.len()))?;
        let tokens = rows.token_rewards.len();
        rows.advantages = self.without_margin(advantages, tokens, "advantages")?;
        rows.returns = self.without_margin(returns, tokens, "returns")?;
        self.check(rows, &rows.advantages, "advantage")?;
        self.check(rows, &rows.returns, "return")?;
        metrics(&mut texts).with_context(|| format!("plugin {}: score", self.opened.id))
    }

    /// The components of the advantages of scored rows; empty from an estimator without this extension.
    pub fn parts(&self, rows: &Rows) -> Result<Parts> {
        if !self.has_parts {
            return Ok(Parts::default());
        }
        let (mut texts, _) =
            self.call(Request::Names).with_context(|| format!("plugin {}: names of parts", self.opened.id))?;
        let names = texts.all(ffi::PART, "name of a part")?;
        let numbers = self
            .call(Request::Fill(self.scoring(rows)?, names.len()))
            .and_then(|(_, out)| out.parts())
            .with_context(|| format!("plugin {}: parts of {} rows", self.opened.id, rows.len()))?;
        ensure!(
            numbers.len() == names.len() * rows.len(),
            "plugin {} gave {} numbers for {} parts of {} rows",
            self.opened.id,
            numbers.len(),
            names.len(),
            rows.len()
        );
        let columns = numbers.chunks(rows.len().max(1)).map(<[f64]>::to_vec);
        Ok(Parts(names.into_iter().zip(columns).collect()))
    }

    /// Checks that every column has the length that the border promises the plugin.
    fn check_columns(&self, rows: &Rows) -> Result<()> {
        let context = || format!("rows for plugin {}", self.opened.id);
        let tokens = check_columns(rows, self.needs).with_context(context)?;
        for Asked { column, optional } in &self.asked {
            match rows.columns.get(&column.to_string()) {
                Some(values) => values.view().check(column, rows.len(), tokens).with_context(context)?,
                None => {
                    ensure!(*optional, "plugin {} asks for the column `{column}`, and there is none", self.opened.id)
                }
            }
        }
        Ok(())
    }

    fn without_margin(&self, mut numbers: Vec<f32>, tokens: usize, name: &str) -> Result<Vec<f32>> {
        ensure!(numbers.len() == tokens + MARGIN, "plugin {} gave {name} of another length", self.opened.id);
        let margin = numbers.split_off(tokens);
        let untouched = margin.iter().all(|x| x.to_bits() == UNTOUCHED);
        ensure!(untouched, WroteTooFar { plugin: self.opened.id, name: name.to_string() });
        Ok(numbers)
    }

    /// Checks that every number is present and finite.
    fn check(&self, rows: &Rows, numbers: &[f32], name: &str) -> Result<()> {
        let Some(at) = numbers.iter().position(|x| !x.is_finite()) else { return Ok(()) };
        let row = rows.token_offsets.partition_point(|&offset| offset <= at as u64) - 1;
        let token = at as u64 - rows.token_offsets[row];
        let described = format!(
            "{name} of token {token} of row {row} (group {}, episode {}, step {})",
            rows.group[row], rows.episode[row], rows.step[row]
        );
        if numbers[at].to_bits() == UNTOUCHED {
            bail!("plugin {} left the {described} unwritten; an estimator must fill every token", self.opened.id);
        }
        bail!("plugin {} gave {} as the {described}; it must be finite", self.opened.id, numbers[at])
    }
}

/// Checks the columns of [`ffi::Rows`].
fn check_columns(rows: &Rows, needs: Needs) -> Result<usize> {
    let (b, t) = (rows.len(), rows.token_rewards.len());
    let by_row = [
        ("episode", rows.episode.len()),
        ("step", rows.step.len()),
        ("sequence", rows.sequence.len()),
        ("span_start", rows.span_start.len()),
        ("reward", rows.reward.len()),
        ("penalty", rows.penalty.len()),
        ("valid", rows.valid.len()),
        ("terminated", rows.terminated.len()),
        ("truncated", rows.truncated.len()),
        ("duplicate_of", rows.duplicate_of.len()),
    ];
    for (name, length) in by_row {
        ensure!(length == b, "column {name} has {length} entries for {b} rows");
    }
    ensure!(!needs.anchors || rows.anchor.len() == b, "column anchor has {} entries for {b} rows", rows.anchor.len());
    ensure!(rows.token_offsets.len() == b + 1, "token_offsets has {} entries, not {}", rows.token_offsets.len(), b + 1);
    let ascending = rows.token_offsets.is_sorted() && rows.token_offsets[0] == 0;
    ensure!(ascending && rows.token_offsets[b] == t as u64, "token_offsets do not run from 0 to the {t} tokens");
    ensure!(rows.logprobs.is_empty() || rows.logprobs.len() == t, "{} log-probs for {t} tokens", rows.logprobs.len());
    check_asked("critic values", needs.values, &rows.values, t + b)?;
    check_asked("reference log-probs", needs.reference, &rows.ref_logprobs, t)?;
    Ok(t)
}

fn check_asked(name: &str, asked: bool, column: &Option<Vec<f32>>, length: usize) -> Result<()> {
    if !asked {
        return Ok(());
    }
    let found = column.as_ref().with_context(|| format!("the plugin needs {name}, and there are none"))?.len();
    ensure!(found == length, "{found} {name}, not {length}");
    Ok(())
}
