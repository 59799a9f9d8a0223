use std::fs::OpenOptions;
use std::time::Duration;

use super::*;
use crate::stop_notice::CurrentPhase;

fn row(success: f64) -> Metrics {
    let mut metrics = Metrics::new();
    metrics.set("episode/success", success);
    metrics.set("loss/policy", f64::NAN);
    metrics.set("time/iteration_s", 2.0);
    metrics
}

#[test]
fn names_are_in_the_table() {
    for name in ["eval/success", "eval/success/pick_and_place", "time/rollout_s", "time/iteration_s", "lr"] {
        assert!(find(name).is_some(), "{name}");
    }
    for name in ["eval/sucess", "eval/success/", "time/_s", "time/rollout", "rollout/logprob_diff", ""] {
        assert!(find(name).is_none(), "{name}");
    }
    let unique: std::collections::HashSet<_> = METRICS.iter().map(|m| m.name).collect();
    assert_eq!(unique.len(), METRICS.len());
    assert!(std::panic::catch_unwind(|| Metrics::new().set("grad/nrom", 0.0)).is_err());
}

#[test]
fn rows_after_the_checkpoint_are_cut_off() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("metrics.jsonl");
    let mut tracker = Tracker::open(folder.path(), 5, Kept::Nothing)?;
    let mut before = Metrics::new();
    before.set("eval/success", 0.25);
    tracker.record(0, &before)?;
    for iteration in 1..=3 {
        tracker.record(iteration, &row(0.5))?;
    }
    drop(tracker);
    std::fs::write(&path, std::fs::read_to_string(&path)? + "{\"iteration\": 4, \"epis")?;

    let mut tracker = Tracker::open(folder.path(), 5, Kept::Rows(2))?;
    assert_eq!(tracker.seconds, [2.0, 2.0]);
    let mut slow = row(0.75);
    slow.set("time/iteration_s", 105.0);
    slow.set("time/start_s", 100.0);
    tracker.record(3, &slow)?;
    let text = std::fs::read_to_string(&path)?;
    let rows: Vec<serde_json::Value> = text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    assert_eq!(rows.iter().map(|r| r["iteration"].as_u64()).collect::<Vec<_>>(), [0, 1, 2, 3].map(Some));
    assert_eq!(rows[3]["episode/success"], 0.75);
    assert!(rows[3]["loss/policy"].is_null());
    let log = std::fs::read_to_string(folder.path().join("log.txt"))?;
    assert!(log.lines().last().is_some_and(|line| line.starts_with("3/5  60 % | success 0.750")), "{log}");
    // The time to go is estimated from the rows before too, without the start of the resumed run.
    assert!(log.ends_with("105.0 s | 6 s to go\n"), "{log}");

    Tracker::open(folder.path(), 5, Kept::WarmStart(2))?;
    assert_eq!(std::fs::read_to_string(&path)?, "");
    assert!(std::fs::read_to_string(folder.path().join("log.txt"))?.len() >= log.len());
    Tracker::open(folder.path(), 5, Kept::Nothing)?;
    assert_eq!(std::fs::read_to_string(folder.path().join("log.txt"))?, "");
    Ok(())
}

#[test]
fn phases_do_not_overlap_and_leave_no_gap() {
    let mut phases = Phases::new("start", CurrentPhase::default());
    for name in ["rollout", "update", "rollout"] {
        phases.start(name);
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut metrics = Metrics::new();
    phases.finish(&mut metrics, "track");
    let seconds = |name: &str| metrics.get(name).unwrap_or_default();
    let sum = seconds("time/start_s") + seconds("time/rollout_s") + seconds("time/update_s");
    assert!(seconds("time/rollout_s") > 0.01);
    assert!((sum - seconds("time/iteration_s")).abs() < 1e-9);
    let mut next = Metrics::new();
    phases.finish(&mut next, "track");
    assert_eq!(next.get("time/track_s"), next.get("time/iteration_s"));

    // A resumed row counts the time before.
    phases.start("update");
    let so_far = phases.so_far();
    let current = CurrentPhase::default();
    let mut resumed = Phases::new("start", current.clone());
    resumed.resume(vec![("rollout".into(), 40.0), ("update".into(), 2.0), ("track".into(), f64::NAN)]);
    resumed.resume(so_far);
    resumed.start("update");
    assert_eq!(current.name(), "update");
    let mut row = Metrics::new();
    resumed.finish(&mut row, "track");
    let at_least = [("time/rollout_s", 40.0), ("time/update_s", 2.0), ("time/iteration_s", 42.0)];
    assert!(at_least.iter().all(|(name, seconds)| row.get(name) >= Some(*seconds)), "{row:?}");
}

#[test]
fn a_full_disk_is_named_with_the_file() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let full = || OpenOptions::new().append(true).open("/dev/full"); // a device that is always full
    for file in ["metrics.jsonl", "log.txt"] {
        let mut tracker = Tracker::open(folder.path(), 5, Kept::Nothing)?;
        let files = tracker.files.as_mut().expect("files");
        files.replace((file == "metrics.jsonl").then_some(RowFile::Metrics), full()?);
        let text = crate::error::message(&tracker.record(1, &row(0.5)).expect_err("a full disk"));
        assert!(text.contains(&folder.path().join(file).display().to_string()), "{text}");
        assert!(text.contains("the disk is full"), "{text}");
    }
    Ok(())
}
