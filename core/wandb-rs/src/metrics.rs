//! Metric definitions, and the summary computed from them and from the rows.
//!
//! `wandb sync` takes the summary from the file and derives none from the rows: W&B's own client computes it while
//! writing, and so does this crate.

use crate::Error;
use crate::record::{Item, Kind, MetricOptions, MetricRecord, MetricSummary};
use crate::value;
use std::collections::{BTreeMap, HashMap};
use std::slice;

/// Definition of a metric: its horizontal axis, and its aggregates in the summary.
#[derive(Clone, Debug, Default)]
pub struct Metric {
    name: String,
    step: String,
    summary: Vec<Aggregate>,
}

/// Aggregate that the summary keeps of a metric, under `<metric>.<min, max, …>`. Values that are not finite are
/// ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aggregate {
    /// The smallest value.
    Min,
    /// The largest value.
    Max,
    /// The mean of all values.
    Mean,
    /// The first value.
    First,
    /// The last value.
    Last,
}

impl Metric {
    /// Defines a metric by its name, or all metrics whose names begin alike: `train/*`.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    /// Draws the metric over another one instead of over the step. Log both in the same row.
    pub fn step(mut self, metric: impl Into<String>) -> Self {
        self.step = metric.into();
        self
    }

    /// Keeps these aggregates in the summary, instead of the last value under the metric's own name.
    pub fn summary(mut self, aggregates: impl IntoIterator<Item = Aggregate>) -> Self {
        self.summary.extend(aggregates);
        self
    }

    fn record(&self) -> MetricRecord {
        let has = |aggregate| self.summary.contains(&aggregate);
        let glob = self.name.ends_with('*');
        MetricRecord {
            name: if glob { String::new() } else { self.name.clone() },
            glob_name: if glob { self.name.clone() } else { String::new() },
            step_metric: self.step.clone(),
            options: Some(MetricOptions { defined: true }),
            summary: (!self.summary.is_empty()).then(|| MetricSummary {
                min: has(Aggregate::Min),
                max: has(Aggregate::Max),
                mean: has(Aggregate::Mean),
                first: has(Aggregate::First),
                last: has(Aggregate::Last),
            }),
        }
    }

    fn from_record(record: &MetricRecord) -> Self {
        let summary = record.summary.unwrap_or_default();
        let kept = [
            (summary.min, Aggregate::Min),
            (summary.max, Aggregate::Max),
            (summary.mean, Aggregate::Mean),
            (summary.first, Aggregate::First),
            (summary.last, Aggregate::Last),
        ];
        Self {
            name: format!("{}{}", record.name, record.glob_name),
            step: record.step_metric.clone(),
            summary: kept.into_iter().filter(|(is_kept, _)| *is_kept).map(|(_, aggregate)| aggregate).collect(),
        }
    }
}

/// Running aggregates of one metric.
#[derive(Clone, Copy)]
struct Aggregates {
    count: f64,
    min: f64,
    max: f64,
    sum: f64,
    first: f64,
    last: f64,
}

/// All metrics of a run.
#[derive(Default)]
pub(crate) struct RunMetrics {
    /// By exact name; copied from a glob at a key's first row. `None`: no definition matches the key.
    exact: HashMap<String, Option<Metric>>,
    globs: Vec<Metric>,
    seen: HashMap<String, Aggregates>,
    summary: BTreeMap<Vec<String>, SummaryValue>,
}

/// A value of the summary.
struct SummaryValue {
    json: String,
    /// The file lacks this value.
    is_new: bool,
}

impl RunMetrics {
    /// Defines a metric and returns the records of the definition.
    pub fn define(&mut self, metric: Metric) -> Result<Vec<Kind>, Error> {
        let stem = metric.name.strip_suffix('*').unwrap_or(&metric.name);
        if metric.name.is_empty() || stem.contains('*') {
            return Err(Error::MetricName { name: metric.name });
        }
        let mut records = Vec::new();
        // A step metric without a record of its own could not be referred to.
        if !metric.step.is_empty() && self.exact.get(&metric.step).is_none_or(Option::is_none) {
            let step = Metric::new(metric.step.clone());
            records.push(Kind::Metric(step.record()));
            self.remember(step);
        }
        records.push(Kind::Metric(metric.record()));
        self.remember(metric);
        Ok(records)
    }

    fn remember(&mut self, metric: Metric) {
        if metric.name.ends_with('*') {
            // Keys without a definition so far may match it.
            self.exact.retain(|_, known| known.is_some());
            self.globs.push(metric);
        } else {
            self.exact.insert(metric.name.clone(), Some(metric));
        }
    }

    fn log(&mut self, item: &Item) {
        if !self.exact.contains_key(&item.key) {
            let key = &item.key;
            let glob = self.globs.iter().find(|m| m.name.strip_suffix('*').is_some_and(|stem| key.starts_with(stem)));
            self.exact.insert(key.clone(), glob.cloned());
        }
        let definition = self.exact.get(&item.key).and_then(Option::as_ref).filter(|m| !m.summary.is_empty());
        let Some(metric) = definition else {
            let path = if item.nested_key.is_empty() { slice::from_ref(&item.key) } else { &item.nested_key };
            self.set(path, &item.value_json);
            return;
        };
        let Some(number) = item.value_json.parse::<f64>().ok().filter(|number| number.is_finite()) else { return };
        let new = Aggregates { count: 0.0, min: number, max: number, sum: 0.0, first: number, last: number };
        let seen = self.seen.entry(item.key.clone()).or_insert(new);
        seen.count += 1.0;
        seen.sum += number;
        seen.min = seen.min.min(number);
        seen.max = seen.max.max(number);
        seen.last = number;
        let values: Vec<_> = metric.summary.iter().map(|aggregate| aggregate.of(seen)).collect();
        for (name, value) in values {
            self.set(&[item.key.clone(), name.to_string()], &value::float(value));
        }
    }

    pub fn set(&mut self, path: &[String], json: &str) {
        match self.summary.get_mut(path) {
            Some(entry) if entry.json == json => {}
            Some(entry) => {
                entry.json.replace_range(.., json);
                entry.is_new = true;
            }
            None => {
                self.summary.insert(path.to_vec(), SummaryValue { json: json.to_string(), is_new: true });
            }
        }
    }

    /// Returns the values that have changed since the summary was last written.
    pub fn changes(&self) -> Vec<Item> {
        let changed = self.summary.iter().filter(|(_, entry)| entry.is_new);
        changed.map(|(path, entry)| Item::new(path.clone(), entry.json.clone())).collect()
    }

    /// Marks the changes as written.
    pub fn written(&mut self) {
        self.summary.values_mut().for_each(|entry| entry.is_new = false);
    }

    /// Applies a record of the file, a new row or one from before a resume.
    pub fn take_up(&mut self, record: &Kind) {
        match record {
            Kind::Metric(metric) => self.remember(Metric::from_record(metric)),
            Kind::History(row) => row.item.iter().for_each(|item| self.log(item)),
            Kind::Summary(summary) => {
                for item in &summary.update {
                    self.set(&item.path(), &item.value_json);
                }
                self.written();
            }
            _ => {}
        }
    }
}

impl Aggregate {
    fn of(self, seen: &Aggregates) -> (&'static str, f64) {
        match self {
            Aggregate::Min => ("min", seen.min),
            Aggregate::Max => ("max", seen.max),
            Aggregate::Mean => ("mean", seen.sum / seen.count),
            Aggregate::First => ("first", seen.first),
            Aggregate::Last => ("last", seen.last),
        }
    }
}
