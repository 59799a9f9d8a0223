//! The tables and sentences of a comparison.

use serde::Serialize;

use crate::comparison::{Comparison, Difference, GroupResult};
use crate::stats::Estimate;
use crate::table::Table;
use crate::words::{points, signed};

/// A comparison to read: tables, and the verdicts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    pub tables: Vec<Table>,
    /// One sentence for each difference.
    pub verdicts: Vec<String>,
    /// Sentences that restrict the comparison.
    pub notes: Vec<String>,
}

const NONE: &str = "–";

impl Report {
    /// The tables of a comparison.
    pub fn of(comparison: &Comparison) -> Self {
        let mut tables = vec![success(comparison)];
        if !comparison.differences.is_empty() {
            tables.push(differences(comparison));
        }
        if !comparison.groups[0].types.is_empty() {
            tables.push(types(comparison));
        }
        tables.push(used(comparison));
        let obstacles = comparison.obstacles.iter().map(|obstacle| format!("Not comparable: {obstacle}."));
        let recipes = comparison.recipe_differences.iter().map(|key| format!("The recipes differ in {key}."));
        Self {
            tables,
            verdicts: comparison.differences.iter().map(|difference| difference.words.clone()).collect(),
            notes: obstacles.chain(recipes).collect(),
        }
    }

    /// The report in lines of at most `width`.
    pub fn text(&self, width: usize) -> String {
        let folded = |text: &String| format!("{}\n", textwrap::fill(text, width.max(20)));
        let sentences = |of: &[String]| of.iter().map(folded).collect::<String>();
        let mut parts: Vec<String> = self.tables.iter().map(|table| table.text(width)).collect();
        parts.extend([sentences(&self.verdicts), sentences(&self.notes)].into_iter().filter(|part| !part.is_empty()));
        parts.join("\n").trim_end().to_owned()
    }

    /// The report in Markdown.
    pub fn markdown(&self) -> String {
        let list = |of: &[String]| of.iter().map(|item| format!("- {item}\n")).collect::<String>();
        let mut parts: Vec<String> = self.tables.iter().map(Table::markdown).collect();
        parts.extend([list(&self.verdicts), list(&self.notes)].into_iter().filter(|part| !part.is_empty()));
        parts.join("\n").trim_end().to_owned()
    }
}

fn table(title: String, columns: &[&str], rows: Vec<Vec<String>>, notes: &[&str]) -> Table {
    let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
    Table { title, columns: owned(columns), rows, notes: owned(notes) }
}

fn interval(at: f64, interval: Option<[f64; 2]>, text: fn(f64) -> String) -> String {
    match interval {
        Some([low, high]) => format!("{} ({} to {})", text(at), text(low), text(high)),
        None => text(at),
    }
}

fn estimate(estimate: &Estimate) -> String {
    match estimate.interval {
        None if estimate.values.len() > 1 => format!("{} (too few seeds)", points(estimate.mean)),
        known => interval(estimate.mean, known, points),
    }
}

fn window(comparison: &Comparison) -> String {
    let window = &comparison.window;
    match window.evaluations {
        1 => format!("evaluation at iteration {}", window.to),
        count => format!("{count} evaluations of iterations {} to {}", window.from, window.to),
    }
}

fn success(comparison: &Comparison) -> Table {
    let row = |group: &GroupResult| {
        let reached = &group.threshold;
        let median = reached.median.map_or("not reached".into(), |median| format!("median {median}"));
        let best =
            group.best.map_or(NONE.into(), |best| format!("{}, bias {}", points(best.success), signed(best.bias)));
        vec![
            group.name.clone(),
            group.seeds.len().to_string(),
            estimate(&group.window),
            estimate(&group.last),
            estimate(&group.area),
            format!("{} of {}, {median}", reached.seeds, reached.of),
            best,
        ]
    };
    let Comparison { panel, tasks, samples, .. } = comparison;
    let episodes = if *samples == 1 { String::new() } else { format!(" of {samples} episodes") };
    let reached = format!("iterations to {} %", points(comparison.threshold).trim_end_matches(".0"));
    table(
        format!(
            "Success on {panel} ({tasks} tasks{episodes}, hash {:.8}) in %: mean over seeds, 95 % t interval; \
             window: {}",
            comparison.panel_sha256,
            window(comparison)
        ),
        &["group", "seeds", "window", "last", "area", &reached, "best of run"],
        comparison.groups.iter().map(row).collect(),
        &["The best of a run is chosen by noise, too. Bias: the evaluation that is best on half of the tasks has so \
             much more success on them than on the other half."],
    )
}

fn differences(comparison: &Comparison) -> Table {
    let p = |p: Option<f64>| match p {
        Some(p) if p < 0.001 => "<0.001".into(),
        Some(p) => format!("{p:.3}"),
        None => NONE.to_owned(),
    };
    let row = |difference: &Difference| {
        let seeds = match (difference.paired, difference.seeds) {
            (true, [pairs, _]) => format!("{pairs} pairs"),
            (false, [own, other]) => format!("{own} and {other}"),
        };
        vec![
            difference.group.clone(),
            seeds,
            interval(difference.window, difference.interval, signed),
            p(difference.p_holm),
            difference.bootstrap.map_or(NONE.into(), |[low, high]| format!("{} to {}", signed(low), signed(high))),
            interval(difference.last, difference.last_interval, signed),
            difference.discordant.map_or(NONE.into(), |[more, fewer]| format!("{more} : {fewer}")),
            p(difference.p_mcnemar),
        ]
    };
    table(
        format!("Difference from {} in points", comparison.against),
        &["group", "seeds", "window", "p", "bootstrap", "last", "won : lost", "p of them"],
        comparison.differences.iter().map(row).collect(),
        &["Both p after Holm's correction. Won and lost: pairs of seed and task in the last evaluation, McNemar's \
             exact test. The verdicts rest on the window's interval over seeds and its p."],
    )
}

fn types(comparison: &Comparison) -> Table {
    let names: Vec<&str> = comparison.groups.iter().map(|group| group.name.as_str()).collect();
    let row = |kind: &String| {
        let of = |group: &GroupResult| group.types.get(kind).map_or(NONE.into(), estimate);
        std::iter::once(kind.clone()).chain(comparison.groups.iter().map(of)).collect()
    };
    table(
        format!("Success by kind of task in %: {}", window(comparison)),
        &[&["kind"], names.as_slice()].concat(),
        comparison.groups[0].types.keys().map(row).collect(),
        &[],
    )
}

fn used(comparison: &Comparison) -> Table {
    let number = |value: Option<f64>, decimals: usize| value.map_or(NONE.into(), |v| format!("{v:.decimals$}"));
    let row = |group: &GroupResult| {
        let used = &group.used;
        vec![
            group.name.clone(),
            number(used.iterations, 0),
            number(used.episodes, 0),
            number(used.turns, 2),
            number(used.tokens.map(|tokens| tokens / 1e6), 3),
            number(used.hours, 2),
            number(used.advantage_share.map(|share| 100.0 * share), 3),
            number(used.peak_rss_bytes.map(|bytes| bytes / f64::from(1 << 20)), 0),
        ]
    };
    table(
        "Used in training: mean over seeds".into(),
        &["group", "iterations", "episodes", "turns", "Mtokens", "hours", "advantages %", "peak MiB"],
        comparison.groups.iter().map(row).collect(),
        &[],
    )
}
