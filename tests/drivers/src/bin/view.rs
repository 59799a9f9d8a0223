//! Makes the page of run directories: `view OUT RUN... [--max-kib N] [--iterations A..B]`. The iterations include both
//! ends.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use nestor_view::{MetricInfo, Options, page};

fn main() -> ExitCode {
    match run(std::env::args().skip(1).collect()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("view: {message}");
            ExitCode::from(2)
        }
    }
}

fn run(arguments: Vec<String>) -> Result<(), String> {
    let mut options = Options { metrics: metrics(), ..Options::default() };
    let mut paths = Vec::new();
    let mut arguments = arguments.into_iter();
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument}: a value is missing"));
        match argument.as_str() {
            "--max-kib" => options.max_bytes = number(&value()?)? << 10,
            "--iterations" => {
                let range = value()?;
                let (from, to) = range.split_once("..").ok_or(format!("{range}: not A..B"))?;
                options.iterations = Some(number(from)?..=number(to)?);
            }
            _ => paths.push(PathBuf::from(&argument)),
        }
    }
    let (out, runs) = paths.split_first().ok_or("usage: view OUT RUN... [--max-kib N] [--iterations A..B]")?;
    let page = page(runs, &options).map_err(|error| error.to_string())?;
    std::fs::write(out, &page.html).map_err(|error| format!("{}: {error}", out.display()))?;
    println!(
        "{}: {} bytes, turns of {} of {} episodes, {} damaged lines",
        out.display(),
        page.html.len(),
        page.kept,
        page.episodes,
        page.damaged
    );
    Ok(())
}

fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("{text}: not a number"))
}

/// Reads the documentation of the metrics: the table in docs/metrics.md.
fn metrics() -> Vec<MetricInfo> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md");
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let cells = |line: &str| -> Option<Vec<String>> {
        let line = line.strip_prefix("| `")?.replace("\\|", "\u{1}");
        Some(line.split('|').map(|cell| cell.trim().trim_matches('`').replace('\u{1}', "|")).collect())
    };
    let info = |cells: Vec<String>| {
        let cell = |place: usize| cells.get(place).cloned().unwrap_or_default();
        MetricInfo { name: cell(0), unit: cell(1), meaning: cell(2), formula: cell(3) }
    };
    text.lines().filter_map(cells).map(info).collect()
}
