//! The table of a sweep: a row for each run.

use super::job::Job;
use super::progress::{Progress, State};

/// The rows of all runs.
pub fn rows(jobs: &[Job]) -> Vec<Progress> {
    jobs.iter().map(Progress::of).collect()
}

/// The rows as aligned columns, below them the number of runs in each state.
pub fn text(rows: &[Progress]) -> String {
    let head = ["run", "state", "iteration", "eval", "success", "minutes"].map(str::to_string);
    let cells: Vec<[String; 6]> = std::iter::once(head).chain(rows.iter().map(cells)).collect();
    let width = |column: usize| cells.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; 6] = std::array::from_fn(width);
    let line = |row: &[String; 6]| {
        let columns = row.iter().zip(widths).enumerate().map(|(column, (cell, width))| match column {
            0 | 1 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        columns.collect::<Vec<_>>().join("  ").trim_end().to_string()
    };
    let mut lines: Vec<String> = cells.iter().map(line).collect();
    lines.push(counts(rows));
    lines.join("\n")
}

/// The number of runs in each state.
pub fn counts(rows: &[Progress]) -> String {
    let count = |state: State| rows.iter().filter(|row| row.state == state).count();
    let named = [State::Done, State::Running, State::Stopped, State::Failed, State::Waiting];
    let parts = named.into_iter().filter(|&state| state == State::Done || count(state) > 0);
    let parts: Vec<String> = parts.map(|state| format!("{} {}", count(state), word(state))).collect();
    format!("{} runs: {}", rows.len(), parts.join(", "))
}

fn cells(row: &Progress) -> [String; 6] {
    let share = |value: Option<f64>| value.map_or(String::new(), |value| format!("{value:.3}"));
    [
        row.name.clone(),
        word(row.state).to_string(),
        format!("{}/{}", row.iteration, row.iterations),
        share(row.eval),
        share(row.success),
        if row.seconds > 0.0 { format!("{:.1}", row.seconds / 60.0) } else { String::new() },
    ]
}

pub fn word(state: State) -> &'static str {
    match state {
        State::Waiting => "waiting",
        State::Running => "running",
        State::Stopped => "stopped",
        State::Failed => "failed",
        State::Done => "done",
    }
}
