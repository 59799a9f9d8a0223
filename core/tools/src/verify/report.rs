//! The report of a verification: a table for the console, JSON, and a page in Markdown.

use std::fmt::{self, Display, Formatter, Write};
use std::path::{Path, PathBuf};

use anyhow::Result;
use nestor_args::Play;
use serde_json::{Map, Value, json};

use super::compare::{Contents, Finding, PARTS, Part};
use super::lines::column;
use super::plays::Played;
use crate::files::write_whole;
use crate::recipe::Dtype;

/// Digits of a checksum that are shown.
const DIGITS: usize = 12;

/// Largest difference between log-probs of rollout and update in float32: both compute the same sums in another order.
const LOGPROBS_FLOAT32: f64 = 1e-4;

/// The meaning of the table's words.
const EXPLANATION: &str = "
Columns from `weights` to `episodes` have the first digits of a SHA-256: of policy, critic and moments, of counters, of \
metrics without times, memory and speed, and of every episode by token. Weights and state are those of the newest checkpoint; \
the comparison reads all checkpoints. `log-probs` is the largest difference between rollout and update, in nats.

- `equal`: every bit is that of the first run.
- `within rounding`: the first iteration's episodes are equal, and its first optimizer step differs by the order of sums alone.
- `-`: not compared. The run without deterministic mode only shows what that mode costs.

";

/// One run of the table.
#[derive(Debug, Clone)]
pub struct RunSummary {
    name: &'static str,
    dir: PathBuf,
    commands: Vec<String>,
    note: String,
    /// The newest checkpoint.
    checkpoint: Option<String>,
    /// SHA-256 of each part, where there is something.
    sums: Vec<(Part, Option<String>)>,
    /// Largest difference between log-probs of rollout and update over all iterations.
    logprob_diff: Option<f64>,
    seconds: Option<f64>,
}

impl RunSummary {
    /// A run that exists.
    pub fn of(name: &'static str, contents: &Contents) -> Result<Self> {
        let differences = column(contents.dir(), "rollout/logprob_diff_max")?;
        Ok(Self {
            name,
            dir: contents.dir().into(),
            commands: Vec::new(),
            note: String::new(),
            checkpoint: contents.newest().map(str::to_string),
            sums: PARTS.into_iter().map(|part| (part, contents.sum(part))).collect(),
            logprob_diff: differences.into_iter().map(|(_, apart)| apart).reduce(f64::max),
            seconds: None,
        })
    }

    /// A run of this verification.
    pub fn of_played(played: &Played, contents: &Contents) -> Result<Self> {
        let Played { name, commands, note, seconds, .. } = played;
        let (commands, note) = (commands.clone(), note.clone());
        Ok(Self { commands, note, seconds: Some(*seconds), ..Self::of(name, contents)? })
    }

    fn to_json(&self) -> Value {
        let sums: Map<String, Value> = self.sums.iter().map(|(part, sum)| (part.name().into(), json!(sum))).collect();
        json!({
            "name": self.name,
            "dir": self.dir,
            "commands": self.commands,
            "note": self.note,
            "checkpoint": self.checkpoint,
            "sha256": sums,
            "logprob_diff_max": self.logprob_diff,
            "seconds": self.seconds,
        })
    }
}

/// The comparison of one part of a run with the first run's.
#[derive(Debug, Clone)]
pub struct Check {
    pub run: &'static str,
    pub part: Part,
    pub finding: Finding,
}

/// A run that could not be made.
#[derive(Debug, Clone)]
pub struct NotRun {
    pub play: Play,
    pub why: String,
}

/// Seconds of a verification.
#[derive(Debug, Clone, Copy)]
pub struct Cost {
    /// Wall time of all runs.
    pub seconds: f64,
    /// Iterations of the first run, or of the second if that was faster.
    pub deterministic: f64,
    /// The same without deterministic mode.
    pub plain: Option<f64>,
}

/// Results of a verification.
#[derive(Debug, Clone)]
pub struct Report {
    pub recipe: Option<PathBuf>,
    pub not_run: Vec<NotRun>,
    pub cost: Option<Cost>,
    runs: Vec<RunSummary>,
    checks: Vec<Check>,
    /// None where the runs' recipe cannot be read.
    dtype: Option<Dtype>,
    /// The page, once it is written.
    page: Option<PathBuf>,
}

impl Report {
    pub fn new(runs: Vec<RunSummary>, checks: Vec<Check>, dtype: Option<Dtype>) -> Self {
        Self { recipe: None, not_run: Vec::new(), cost: None, runs, checks, dtype, page: None }
    }

    /// True if no check found a difference beyond rounding.
    pub fn agrees(&self) -> bool {
        let different = |check: &Check| matches!(check.finding, Finding::Different(_));
        !self.checks.iter().any(different) && self.logprobs_agree()
    }

    fn logprobs_agree(&self) -> bool {
        self.dtype != Some(Dtype::Float32) || self.logprob_diff().is_none_or(|apart| apart <= LOGPROBS_FLOAT32)
    }

    /// Largest difference between log-probs of rollout and update over all runs.
    fn logprob_diff(&self) -> Option<f64> {
        self.runs.iter().filter_map(|run| run.logprob_diff).reduce(f64::max)
    }

    pub fn to_json(&self) -> Value {
        let check = |check: &Check| {
            let (result, detail, difference) = match &check.finding {
                Finding::Equal => ("equal", None, None),
                Finding::Within(text) => ("within rounding", Some(text.clone()), None),
                Finding::Different(found) => ("different", Some(found.to_string()), Some(found.to_json())),
            };
            let part = check.part.name();
            json!({ "run": check.run, "part": part, "result": result, "detail": detail, "difference": difference })
        };
        let not_run = |left: &NotRun| json!({ "run": name(left.play), "why": left.why });
        json!({
            "agrees": self.agrees(),
            "recipe": self.recipe,
            "nestor": env!("CARGO_PKG_VERSION"),
            "runs": self.runs.iter().map(RunSummary::to_json).collect::<Vec<_>>(),
            "checks": self.checks.iter().map(check).collect::<Vec<_>>(),
            "not_run": self.not_run.iter().map(not_run).collect::<Vec<_>>(),
            "logprob_diff_max": self.logprob_diff(),
            "cost": self.cost.map(|cost| json!({
                "seconds": cost.seconds,
                "iterations_deterministic_s": cost.deterministic,
                "iterations_plain_s": cost.plain,
                "ratio": cost.plain.map(|plain| cost.deterministic / plain),
            })),
            "page": self.page,
        })
    }

    /// Writes the page.
    pub fn write(&mut self, path: &Path) -> Result<()> {
        write_whole(path, self.markdown())?;
        self.page = Some(path.into());
        Ok(())
    }

    /// Rows of the table: names, checksums, log-probs, seconds and result of each run.
    fn rows(&self) -> Vec<Vec<String>> {
        let head = ["run", "weights", "state", "metrics", "episodes", "log-probs", "seconds", "result"];
        let mut rows = vec![head.map(str::to_string).to_vec()];
        for run in &self.runs {
            let mut row = vec![run.name.to_string()];
            row.extend(run.sums.iter().map(|(_, sum)| sum.as_deref().map_or("-".into(), |sum| sum[..DIGITS].into())));
            row.push(run.logprob_diff.map_or("-".into(), |apart| format!("{apart:.1e}")));
            row.push(run.seconds.map_or("-".into(), |seconds| format!("{seconds:.1}")));
            row.push(self.result(run.name).into());
            rows.push(row);
        }
        rows
    }

    /// One word for the checks of a run.
    fn result(&self, run: &str) -> &'static str {
        let own: Vec<&Finding> =
            self.checks.iter().filter(|check| check.run == run).map(|check| &check.finding).collect();
        match own {
            own if own.is_empty() => "-",
            own if own.iter().any(|finding| matches!(finding, Finding::Different(_))) => "different",
            own if own.iter().any(|finding| matches!(finding, Finding::Within(_))) => "within rounding",
            _ => "equal",
        }
    }

    /// One line for each check that is not equal, each run left out, and the log-probs.
    fn details(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for Check { run, part, finding } in &self.checks {
            let part = part.name();
            match finding {
                Finding::Equal => {}
                Finding::Within(text) => lines.push(format!("{run}, {part}: within rounding: {text}")),
                Finding::Different(found) => lines.push(format!("{run}, {part}: different: {found}")),
            }
        }
        lines.extend(
            self.runs.iter().filter(|run| !run.note.is_empty()).map(|run| format!("{}: {}", run.name, run.note)),
        );
        lines.extend(self.not_run.iter().map(|left| format!("{}: not run: {}", name(left.play), left.why)));
        if let Some(apart) = self.logprob_diff() {
            let bound = match (self.dtype, self.logprobs_agree()) {
                (Some(Dtype::Float32), true) => format!("at most {LOGPROBS_FLOAT32:.0e} in float32"),
                (Some(Dtype::Float32), false) => {
                    format!("different: more than {LOGPROBS_FLOAT32:.0e}, which float32 explains")
                }
                (Some(_), _) => "no bound in a half type, whose rounding decides".into(),
                (None, _) => "the recipe's dtype is not known".into(),
            };
            lines.push(format!("log-probs of rollout and update: {apart:.1e} apart at most ({bound})"));
        }
        lines
    }

    fn cost_line(&self) -> Option<String> {
        let Cost { seconds, deterministic, plain } = self.cost?;
        let runs = self.runs.len();
        Some(match plain {
            Some(plain) => format!(
                "{runs} runs in {seconds:.1} s; iterations take {deterministic:.2} s in deterministic mode and {plain:.2} s \
                 without: {:.2} times",
                deterministic / plain
            ),
            None => format!("{runs} runs in {seconds:.1} s"),
        })
    }

    fn verdict(&self) -> &'static str {
        if self.agrees() { "the runs agree" } else { "the runs differ" }
    }

    fn markdown(&self) -> String {
        let mut page = String::from("# Verification\n\n");
        if let Some(recipe) = &self.recipe {
            let _ = writeln!(page, "Recipe: `{}`  ", recipe.display());
        }
        let _ = write!(page, "Program: nestor {}  \nResult: **{}**\n\n", env!("CARGO_PKG_VERSION"), self.verdict());
        for (number, row) in self.rows().iter().enumerate() {
            let _ = writeln!(page, "| {} |", row.join(" | "));
            if number == 0 {
                let _ = writeln!(page, "|{}", "---|".repeat(row.len()));
            }
        }
        page += EXPLANATION;
        for line in self.details() {
            let _ = writeln!(page, "- {line}");
        }
        if let Some(line) = self.cost_line() {
            let _ = write!(page, "\n## Cost\n\n{line}.\n");
        }
        page += "\n## Runs\n";
        for run in &self.runs {
            let _ = write!(
                page,
                "\n`{}`, in `{}`:\n\n```text\n{}\n```\n",
                run.name,
                run.dir.display(),
                run.commands.join("\n")
            );
        }
        page
    }
}

/// A run's name on the command line.
fn name(play: Play) -> &'static str {
    match play {
        Play::Again => "again",
        Play::Resumed => "resumed",
        Play::Ranks => "ranks",
        Play::Plain => "plain",
    }
}

impl Display for Report {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        let rows = self.rows();
        let widths: Vec<usize> =
            (0..rows[0].len()).map(|column| rows.iter().map(|row| row[column].len()).max().unwrap_or(0)).collect();
        for row in &rows {
            let cells = row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:width$}"));
            writeln!(f, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
        }
        for line in self.details() {
            writeln!(f, "{line}")?;
        }
        if let Some(line) = self.cost_line() {
            writeln!(f, "{line}")?;
        }
        write!(f, "{}", self.verdict())?;
        self.page.as_ref().map_or(Ok(()), |page| write!(f, "; the report is {}", page.display()))
    }
}
