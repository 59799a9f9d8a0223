//! `nestor view`: draws runs on one HTML page with the crate `nestor-view`, and adds units and meanings of the metrics.

use std::io::Write;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nestor_args::ViewArgs;
use nestor_view::{MetricInfo, Options, Server, page};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::files::write_whole;
use crate::input_error;
use crate::terminal;
use crate::track::METRICS;

/// Time between two looks at signals.
const POLL: Duration = Duration::from_millis(100);

/// Writes the page, or serves it until a signal; returns the line to end with.
pub fn view(args: &ViewArgs) -> Result<String> {
    let known = METRICS.iter().map(|metric| MetricInfo {
        name: metric.name.into(),
        unit: metric.unit.into(),
        meaning: metric.meaning.into(),
        formula: metric.formula.into(),
    });
    let options =
        Options { metrics: known.collect(), max_bytes: args.max_mib << 20, iterations: args.iterations.clone() };
    if args.serve {
        return serve(args, options);
    }
    let page = page(&args.runs, &options).map_err(|error| input_error!("{error}"))?;
    let out = args.out.clone().unwrap_or_else(|| page.dir.join("view.html"));
    let folder = out.parent().map_or(Ok(()), std::fs::create_dir_all);
    folder.map_err(|error| input_error!("--out {}: {error}", out.display()))?;
    write_whole(&out, &page.html)?;
    let mib = page.html.len() as f64 / f64::from(1 << 20);
    let mut line = format!("{}: {mib:.1} MiB, turns of {} of {} episodes", out.display(), page.kept, page.episodes);
    match page.images {
        0 => {}
        1 => line += ", 1 image",
        count => line += &format!(", {count} images"),
    }
    if page.damaged > 0 {
        line += &format!(", {} lines of rollouts could not be read", page.damaged);
    }
    Ok(line)
}

/// Serves the page until SIGINT or SIGTERM, which end it as asked: exit code 0. The page is made in a thread of its own, so that a
/// signal ends the program at once, however long that takes.
fn serve(args: &ViewArgs, options: Options) -> Result<String> {
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("watching for signals")?;
    let server = Server::bind(args.port, &args.runs, options).map_err(|error| input_error!("{error}"))?;
    let mut out = terminal::out();
    writeln!(
        out,
        "{}\nThe page follows the runs. Other users of this machine cannot open it: the address holds a key. ^C ends it.",
        server.address()
    )?;
    out.flush()?;
    let serving =
        thread::Builder::new().name("page".into()).spawn(move || server.run()).context("starting a thread")?;
    while signals.pending().next().is_none() {
        // It ends by a panic alone, which says its reason itself.
        ensure!(!serving.is_finished(), "the page's server has failed");
        thread::sleep(POLL);
    }
    Ok("ended".into())
}
