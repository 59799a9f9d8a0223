//! An estimator of a plugin. A guard checks that it fills every advantage and every return with a finite number.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use nestor_plugin::{Asked, Needs, ffi};
use serde_json::Value;

use crate::call::{Handle, HandleSlot, Texts, call};
use crate::calls::{Call, Function, Name};
use crate::library::EstimatorTables;
use crate::observation::metrics;
use crate::shared_env::close;
use crate::supervise::{Limits, Supervisor};
use crate::{PluginFile, Rows};

/// Numbers behind the end of each array that an estimator fills. A plugin that writes there has written too far.
const MARGIN: usize = 64;
/// The value in the margin: a NaN that no arithmetic makes.
const UNTOUCHED: u32 = 0x7fc5_a3d1;

/// The estimator wrote behind the end of an array.
#[derive(Debug, thiserror::Error)]
#[error("plugin {plugin} wrote behind the end of the {name}; it has one number per token")]
pub(crate) struct WroteTooFar {
    plugin: &'static str,
    name: String,
}

/// An open estimator.
pub struct Estimator {
    id: &'static str,
    file: PluginFile,
    tables: EstimatorTables,
    handle: Handle,
    needs: Needs,
    asked: Vec<Asked>,
    supervisor: Supervisor,
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
        let (close_estimator, handle) = (self.tables.functions.close, self.handle);
        // SAFETY: the handle is from `open` and never used again.
        close(&self.supervisor, self.under(Function::Close), move |sink| unsafe {
            close_estimator(handle.pointer(), sink)
        });
    }
}

impl Estimator {
    pub(super) fn open(
        (id, file): (&'static str, PluginFile),
        tables: EstimatorTables,
        config: &Value,
        limits: &Limits,
    ) -> Result<Self> {
        let (text, supervisor) = (config.to_string(), Supervisor::new(limits.clone()));
        let (open, under) =
            (tables.functions.open, Call { plugin: Name::of_opened(id), function: Function::Open, position: None });
        let handle = supervisor
            .run(under, move || {
                // SAFETY: a checked table; the room for the handle outlives the call.
                call(HandleSlot::empty(), |sink, slot| unsafe {
                    open(ffi::Str::new(text.as_bytes()), sink, &mut slot.0)
                })
            })
            .and_then(|(_, slot)| slot.taken())
            .with_context(|| format!("plugin {id}"))?;
        let mut estimator = Self { id, file, tables, handle, needs: Needs::default(), asked: Vec::new(), supervisor };
        let needs = tables.functions.needs;
        // SAFETY: the handle is open; `flags` outlives the call.
        let (_, flags) = estimator
            .call(Function::Needs, 0, move |handle, sink, flags| unsafe { needs(handle.pointer(), sink, flags) })
            .with_context(|| format!("plugin {id}: needs"))?;
        estimator.needs = Needs::from_flags(flags)
            .with_context(|| format!("plugin {id} needs what this program does not have (flags {flags:#x})"))?;
        estimator.asked = estimator.read_asked().with_context(|| format!("plugin {id}: columns"))?;
        Ok(estimator)
    }

    fn read_asked(&self) -> Result<Vec<Asked>> {
        let Some(columns) = self.tables.columns else { return Ok(Vec::new()) };
        let names = columns.names;
        // SAFETY: the handle is open.
        let (mut texts, ()) =
            self.call(Function::Columns, (), move |handle, sink, _| unsafe { names(handle.pointer(), sink) })?;
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

    fn under(&self, function: Function) -> Call {
        Call { plugin: Name::of(self.id), function, position: None }
    }

    fn call<T: Send + 'static>(
        &self,
        function: Function,
        out: T,
        body: impl FnOnce(Handle, *mut ffi::Sink, &mut T) -> i32 + Send + 'static,
    ) -> Result<(Texts, T)> {
        let handle = self.handle;
        let body = move || call(out, move |sink, out| body(handle, sink, out));
        self.supervisor.run(self.under(function), body)
    }

    pub fn id(&self) -> &str {
        self.id
    }

    /// The plugin file.
    pub fn file(&self) -> &PluginFile {
        &self.file
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
        self.tables.state.is_some()
    }

    /// All that later scores depend on; empty for an estimator without a state.
    pub fn save(&self) -> Result<Vec<u8>> {
        let Some(table) = self.tables.state else { return Ok(Vec::new()) };
        let save = table.save;
        // SAFETY: the handle is open.
        self.call(Function::Save, (), move |handle, sink, _| unsafe { save(handle.pointer(), sink) })
            .and_then(|(mut texts, ())| texts.required_bytes(ffi::STATE, "state", "NESTOR_STATE"))
            .with_context(|| format!("plugin {}: save", self.id))
    }

    /// Takes a state that [`Estimator::save`] returned, before the first score.
    pub fn load(&self, state: &[u8]) -> Result<()> {
        let load = self.tables.state.context("the plugin has no state (extension nestor.estimator.state/1)")?.load;
        let state = state.to_vec();
        self.call(Function::Load, (), move |handle, sink, _| {
            // SAFETY: the handle is open; the bytes outlive the call.
            unsafe { load(handle.pointer(), ffi::Str::new(&state), sink) }
        })
        .map(|_| ())
        .with_context(|| format!("plugin {}: load", self.id))
    }

    /// Fills `rows.advantages` and `rows.returns`. Returns the estimator's own metrics by name.
    pub fn score(&self, rows: &mut Rows) -> Result<BTreeMap<String, f64>> {
        let tokens = self.check_columns(rows)?;
        let (tables, needs, own, asked) = (self.tables, self.needs, rows.clone(), self.asked.clone());
        let room = (with_margin(vec![f32::NAN; tokens]), with_margin(vec![f32::NAN; tokens]));
        // The call owns all that it reads and writes: it may be given up, and then continues.
        let (mut texts, (advantages, returns)) = self
            .call(Function::Score, room, move |handle, sink, (advantages, returns)| {
                let extra = Extra::of(&own, needs);
                let columns = columns(&own, &extra, needs);
                let (rows, advantages, returns) = (&columns, advantages.as_mut_ptr(), returns.as_mut_ptr());
                // SAFETY: the handle is open; columns and arrays have the lengths the header gives (`check_columns`) and
                // outlive the call.
                unsafe {
                    match tables.columns {
                        None => (tables.functions.score)(handle.pointer(), rows, sink, advantages, returns),
                        Some(table) => {
                            let named = named_columns(&own, &asked);
                            (table.score)(handle.pointer(), rows, named.as_ptr(), sink, advantages, returns)
                        }
                    }
                }
            })
            .with_context(|| format!("plugin {}: score of {} rows", self.id, rows.len()))?;
        rows.advantages = self.without_margin(advantages, "advantages")?;
        rows.returns = self.without_margin(returns, "returns")?;
        self.check(rows, &rows.advantages, "advantage")?;
        self.check(rows, &rows.returns, "return")?;
        metrics(&mut texts).with_context(|| format!("plugin {}: score", self.id))
    }

    /// The components of the advantages of scored rows; empty from an estimator without this extension.
    pub fn parts(&self, rows: &Rows) -> Result<Parts> {
        let Some(parts) = self.tables.parts else { return Ok(Parts::default()) };
        self.check_columns(rows)?;
        let (names, fill, needs, own) = (parts.names, parts.fill, self.needs, rows.clone());
        let (fill_columns, asked) = (self.tables.columns.and_then(|table| table.fill), self.asked.clone());
        // SAFETY: the handle is open.
        let (mut texts, ()) = self
            .call(Function::Names, (), move |handle, sink, _| unsafe { names(handle.pointer(), sink) })
            .with_context(|| format!("plugin {}: names of parts", self.id))?;
        let names = texts.all(ffi::PART, "name of a part")?;
        let room = vec![f64::NAN; names.len() * rows.len()];
        let (_, numbers) = self
            .call(Function::Fill, room, move |handle, sink, numbers| {
                let extra = Extra::of(&own, needs);
                let columns = columns(&own, &extra, needs);
                // SAFETY: the handle is open; columns and array have the lengths the header gives and outlive the call.
                unsafe {
                    match fill_columns {
                        None => fill(handle.pointer(), &columns, sink, numbers.as_mut_ptr()),
                        Some(fill) => {
                            let named = named_columns(&own, &asked);
                            fill(handle.pointer(), &columns, named.as_ptr(), sink, numbers.as_mut_ptr())
                        }
                    }
                }
            })
            .with_context(|| format!("plugin {}: parts of {} rows", self.id, rows.len()))?;
        let columns = numbers.chunks(rows.len().max(1)).map(<[f64]>::to_vec);
        Ok(Parts(names.into_iter().zip(columns).collect()))
    }

    /// Checks that every column has the length that the border promises the plugin; returns the number of tokens T.
    fn check_columns(&self, rows: &Rows) -> Result<usize> {
        let context = || format!("rows for plugin {}", self.id);
        let tokens = check_columns(rows, self.needs).with_context(context)?;
        for Asked { column, optional } in &self.asked {
            match rows.columns.get(&column.to_string()) {
                Some(values) => values.view().check(column, rows.len(), tokens).with_context(context)?,
                None => ensure!(*optional, "plugin {} asks for the column `{column}`, and there is none", self.id),
            }
        }
        Ok(tokens)
    }

    fn without_margin(&self, mut numbers: Vec<f32>, name: &str) -> Result<Vec<f32>> {
        let margin = numbers.split_off(numbers.len() - MARGIN);
        let untouched = margin.iter().all(|x| x.to_bits() == UNTOUCHED);
        ensure!(untouched, WroteTooFar { plugin: self.id, name: name.to_string() });
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
        if numbers[at].is_nan() {
            bail!("plugin {} left the {described} unwritten; an estimator must fill every token", self.id);
        }
        bail!("plugin {} gave {} as the {described}; it must be finite", self.id, numbers[at])
    }
}

fn with_margin(mut numbers: Vec<f32>) -> Vec<f32> {
    numbers.extend([f32::from_bits(UNTOUCHED); MARGIN]);
    numbers
}

/// Columns of the border that [`Rows`] stores in another form.
struct Extra {
    span_length: Vec<u32>,
    anchor_data: Vec<u8>,
    anchor_offsets: Vec<u64>,
}

impl Extra {
    fn of(rows: &Rows, needs: Needs) -> Self {
        let span_length = rows.token_offsets.windows(2).map(|w| (w[1] - w[0]) as u32).collect();
        let mut extra = Self { span_length, anchor_data: Vec::new(), anchor_offsets: vec![0] };
        if needs.anchors {
            for anchor in &rows.anchor {
                extra.anchor_data.extend_from_slice(anchor);
                extra.anchor_offsets.push(extra.anchor_data.len() as u64);
            }
        }
        extra
    }
}

/// The columns that the estimator asks for, in its order. One that is missing is null.
fn named_columns(rows: &Rows, asked: &[Asked]) -> Vec<ffi::Column> {
    let missing = ffi::Column { kind: 0, count: 0, data: std::ptr::null(), offsets: std::ptr::null() };
    let column =
        |one: &Asked| rows.columns.get(&one.column.to_string()).map_or(missing, |column| column.view().to_ffi());
    asked.iter().map(column).collect()
}

fn columns(rows: &Rows, extra: &Extra, needs: Needs) -> ffi::Rows {
    let asked = |column: &Option<Vec<f32>>, asked: bool| match column {
        Some(column) if asked => column.as_ptr(),
        _ => std::ptr::null(),
    };
    ffi::Rows {
        rows: rows.len() as u64,
        tokens: rows.token_rewards.len() as u64,
        group: rows.group.as_ptr(),
        episode: rows.episode.as_ptr(),
        step: rows.step.as_ptr(),
        sequence: rows.sequence.as_ptr(),
        span_start: rows.span_start.as_ptr(),
        span_length: extra.span_length.as_ptr(),
        reward: rows.reward.as_ptr(),
        penalty: rows.penalty.as_ptr(),
        // A bool is one byte, 0 or 1.
        valid: rows.valid.as_ptr().cast(),
        terminated: rows.terminated.as_ptr().cast(),
        truncated: rows.truncated.as_ptr().cast(),
        anchor_data: if needs.anchors { extra.anchor_data.as_ptr() } else { std::ptr::null() },
        anchor_offsets: if needs.anchors { extra.anchor_offsets.as_ptr() } else { std::ptr::null() },
        duplicate_of: rows.duplicate_of.as_ptr(),
        token_offsets: rows.token_offsets.as_ptr(),
        token_rewards: rows.token_rewards.as_ptr(),
        values: asked(&rows.values, needs.values),
        logprobs: if rows.logprobs.is_empty() { std::ptr::null() } else { rows.logprobs.as_ptr() },
        ref_logprobs: asked(&rows.ref_logprobs, needs.reference),
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
