use std::path::Path;

use console::{measure_text_width, strip_ansi_codes};
use nestor_args::terminal::fold;
use serde_json::{Value, json};

use super::columns::{ConsoleTable, IterationRow};
use super::{Metrics, find};
use crate::data::PluginFile;
use crate::event::{Event, Status};

const WIDTHS: std::ops::RangeInclusive<usize> = 20..=250;

/// Rows that a run may write: the first of a long run, a usual one, and ones with extreme numbers.
fn rows() -> Vec<(u64, u64, Metrics, Option<f64>)> {
    let metrics = |factor: f64, names: &[&str]| {
        let mut metrics = Metrics::new();
        names.iter().enumerate().for_each(|(i, name)| metrics.set(*name, factor * (i as f64 - 2.3)));
        metrics
    };
    let all = [
        "eval/success",
        "episode/success",
        "episode/return",
        "episode/length",
        "loss/total",
        "loss/kl",
        "policy/approx_kl",
        "policy/entropy",
        "policy/clip_fraction",
        "grad/norm",
        "grad/skipped",
        "env/errors",
        "rollout/tokens_per_s",
        "update/tokens_per_s",
        "perf/tree_factor",
        "time/iteration_s",
    ];
    assert!(all.iter().all(|name| find(name).is_some()));
    vec![
        (0, 1_000_000, metrics(0.1, &all[..1]), None),
        (7, 40, metrics(0.123, &all), Some(200.0)),
        (39, 40, metrics(-1.234e12, &all), Some(1e9)),
        (40, 40, metrics(f64::NAN, &all), Some(0.0)),
        (1, 1, metrics(f64::INFINITY, &all), Some(86_400.0 * 365.0)),
    ]
}

fn lines(
    table: &mut ConsoleTable,
    (iteration, iterations, metrics, to_go): &(u64, u64, Metrics, Option<f64>),
    width: usize,
) -> Vec<String> {
    let row = IterationRow { iteration: *iteration, iterations: *iterations, metrics, to_go: *to_go };
    table.lines(&row, (24, width))
}

#[test]
fn no_line_of_the_table_is_wider_than_the_terminal() {
    for width in WIDTHS {
        for row in rows() {
            for line in lines(&mut ConsoleTable::default(), &row, width) {
                assert!(measure_text_width(&line) <= width, "{width}: {line:?}");
            }
        }
    }
}

#[test]
fn no_other_line_is_wider_than_the_terminal() {
    let said = [
        "118272 parameters in float32 on cpu, environment maze, estimator stars, run directory /tmp/some/where/runs/quickstart-12",
        "warning: 環境の説明はここにあります。とても長い行なので折り返す必要があります。 Übermäßig naïve façade 🙂🙂🙂🙂🙂🙂🙂🙂🙂🙂🙂🙂🙂🙂",
        "a\ttab, a\nnew line and an \x1b[31mescape",
        &"x".repeat(1000),
    ];
    for width in WIDTHS {
        for line in said {
            let folded = fold(line, width);
            assert!(folded.lines().all(|part| measure_text_width(part) <= width), "{width}: {folded}");
            let letters =
                |text: &str| text.chars().filter(|c| !c.is_whitespace() && !c.is_control()).collect::<String>();
            assert_eq!(letters(&folded), letters(line), "nothing is lost");
        }
    }
}

#[test]
fn values_stand_under_their_headers() {
    let mut table = ConsoleTable::default();
    let [_, usual, wild, ..] = &rows()[..] else { unreachable!() };
    let first = lines(&mut table, usual, 200);
    let second = lines(&mut table, wild, 200);
    assert_eq!((first.len(), second.len()), (2, 1), "one header for both");
    let ends = |line: &str| -> Vec<usize> {
        let line = strip_ansi_codes(line).into_owned() + " ";
        let pairs = line.as_bytes().windows(2).enumerate();
        pairs.filter(|(_, pair)| pair[0] != b' ' && pair[1] == b' ').map(|(i, _)| i).collect()
    };
    for row in [&first[1], &second[0]] {
        let missing: Vec<_> = ends(row).into_iter().filter(|end| !ends(&first[0]).contains(end)).collect();
        // "7/40  18%" has an inner end of its own.
        assert!(missing.len() <= 1, "{missing:?}\n{}\n{row}", first[0]);
    }
    let header = |width| strip_ansi_codes(&lines(&mut ConsoleTable::default(), usual, width)[0]).into_owned();
    assert_eq!(header(79), " iteration   eval  success   return     loss      kl  entropy  skipped   to go");
    for name in ["eval", "clip", "grad", "rollout t/s", "update t/s", "seconds", "to go"] {
        assert!(header(200).contains(name), "{name}");
    }
    assert_eq!(header(20), " iteration   eval");
}

#[test]
fn a_run_with_a_kl_has_one_header() {
    let mut table = ConsoleTable::default();
    table.expect_kl();
    let mut before = Metrics::new();
    before.set("eval/success", 0.5);
    let mut after = before.clone();
    after.set("loss/kl", 0.1);
    let mut printed = |iteration, metrics: Metrics| lines(&mut table, &(iteration, 9, metrics, None), 80).len();
    assert_eq!((printed(0, before), printed(1, after)), (2, 1));
}

#[test]
fn a_zero_has_no_sign() {
    let mut metrics = Metrics::new();
    metrics.set("grad/norm", -0.0);
    metrics.set("policy/entropy", -5e-9);
    metrics.set("loss/total", -0.25);
    let line = IterationRow { iteration: 1, iterations: 9, metrics: &metrics, to_go: None }.line();
    assert!(line.contains("| loss -0.2500 | entropy 0.000 | grad 0.000"), "{line}");
    let table = lines(&mut ConsoleTable::default(), &(1, 9, metrics, None), 200).join("");
    assert!(!table.contains("-0.000"), "{table}");
}

#[test]
fn a_path_with_a_blank_is_quoted_in_the_next_command() {
    let run_dir = Path::new("my runs/a");
    let done = Event::End { status: Status::Done, run_dir }.line();
    assert!(done.starts_with("done: my runs/a; next: nestor view 'my runs/a' | nestor eval 'my runs/a' |"), "{done}");
    let stopped = Event::End { status: Status::Stopped, run_dir }.line();
    assert_eq!(stopped, "stopped by a signal; resume with: nestor train --resume --run-dir 'my runs/a'");
}

#[test]
fn the_header_comes_again_before_it_has_scrolled_away() {
    let mut table = ConsoleTable::default();
    let printed: Vec<usize> = (0..50).map(|_| lines(&mut table, &rows()[1], 80).len()).collect();
    let headers: Vec<usize> = (0..50).filter(|&i| printed[i] == 2).collect();
    assert_eq!(headers, [0, 21, 42], "24 lines: a header, 21 rows, the bar and the prompt");
}

#[test]
fn events_are_json_objects() {
    let run_dir = Path::new("runs/a \"quoted\" name");
    let start = Event::Start {
        run_dir,
        parameters: 3,
        adapters: None,
        dtype: "float32",
        device: "cuda:1".into(),
        products: Some("onednn"),
        kernels: Some("sm_90a".into()),
        environment: "maze",
        estimator: "stars",
        plugins: &[PluginFile { id: "maze".into(), path: "m.so".into(), sha256: "ab".into(), border: "1.1".into() }],
        iterations: 2,
        world: 1,
        resumed_from: None,
    };
    let cases: [(Event, Value); 6] = [
        (
            start,
            json!({
                "event": "start", "run_dir": run_dir, "parameters": 3, "dtype": "float32", "device": "cuda:1",
                "products": "onednn", "kernels": "sm_90a", "environment": "maze", "estimator": "stars", "iterations": 2, "world": 1,
                "plugins": [{ "id": "maze", "path": "m.so", "sha256": "ab", "border": "1.1" }],
            }),
        ),
        (
            Event::WarmStart { step: 3, steps: 10, loss: f64::NAN, validation_loss: None },
            json!({ "event": "warm_start", "step": 3, "steps": 10, "loss": null }),
        ),
        (Event::Log { message: "a\nb" }, json!({ "event": "say", "message": "a\nb" })),
        (Event::Error { message: "x" }, json!({ "event": "error", "message": "x" })),
        (
            Event::End { status: Status::Stopped, run_dir },
            json!({ "event": "end", "status": "stopped", "run_dir": run_dir }),
        ),
        (
            Event::Iteration([("iteration".to_string(), json!(2))].into_iter().collect()),
            json!({ "event": "iteration", "iteration": 2 }),
        ),
    ];
    for (event, expected) in cases {
        let text = serde_json::to_string(&event).expect("JSON");
        assert!(!text.contains('\n'));
        assert_eq!(serde_json::from_str::<Value>(&text).expect("JSON"), expected);
    }
}
