//! Faults of plugins in processes of their own: each is named with its call, and harms no other instance.
//! The plugin is tests/fixtures/plugin_faults.c.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use anyhow::Result;
use nestor_host::{Estimator, Limits, Plugins, Rows, SharedEnv};
use nestor_recipe::{InputError, Isolation, PluginChoice};
use serde_json::{Value, json};

/// The deadline of a call that hangs, and that of any other call, which no slow machine reaches.
const SHORT: Duration = Duration::from_millis(300);
const LONG: Duration = Duration::from_secs(120);

/// The plugin, compiled once for all tests.
fn faults() -> &'static Path {
    static FILE: OnceLock<PathBuf> = OnceLock::new();
    FILE.get_or_init(|| {
        let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("libfaults.so");
        compile(&file, &[]);
        file
    })
}

fn compile(file: &Path, options: &[&str]) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    // A rename, since another process may have the file open.
    let fresh = file.with_extension(format!("{}", std::process::id()));
    let mut cc = Command::new("cc");
    cc.args(["-std=gnu11", "-O1", "-shared", "-fPIC", "-pthread", "-I"]).arg(root.join("plugins/sdk")).args(options);
    let done =
        cc.arg(root.join("tests/fixtures/plugin_faults.c")).arg("-o").arg(&fresh).status().expect("a C compiler");
    assert!(done.success());
    std::fs::rename(&fresh, file).expect("its name");
}

fn choice(config: Value) -> PluginChoice {
    let choice = PluginChoice::new(faults().display().to_string(), config);
    PluginChoice { isolate: Some(Isolation::Process), memory_gib: Some(0.25), ..choice }
}

/// The deadline of a plugin with this config.
fn deadline(config: &Value) -> Duration {
    if config["fault"] == "hang" { SHORT } else { LONG }
}

fn plugins(timeout: Duration) -> Plugins {
    Plugins::default().with_limits(Limits { timeout, ..Limits::default() })
}

fn environment(config: Value) -> Result<SharedEnv> {
    plugins(deadline(&config)).environment(&choice(config))
}

/// Plays one step in an instance of its own.
fn play(shared: &SharedEnv, task: u64) -> Result<f64> {
    let mut env = shared.spawn()?;
    env.reset("train", task, 7)?;
    Ok(env.step("yes")?.reward)
}

fn message<T>(result: Result<T>) -> String {
    format!("{:#}", result.err().expect("a fault"))
}

#[test]
fn a_fault_in_a_step_is_named_in_time_and_harms_no_other_instance() {
    let table = [
        ("hang", "`step` did not return within 0.3 s (recipe key `env.timeout_s`)"),
        ("segv", "`step` died by SIGSEGV"),
        ("abort", "`step` died by SIGABRT"),
        ("ill", "`step` died by SIGILL"),
        ("overflow", "`step` died by SIGSEGV"),
        ("thread_segv", "`step` died by SIGSEGV"),
        ("double_free", "`step` died by SIGABRT"),
        ("exit", "`step` left with exit code 0"),
        ("exit3", "`step` left with exit code 3"),
        ("syscall", "`step` left with exit code 0"),
        ("allocate", "at its memory limit: it held"),
        ("close_all", "`step` closed its connection to nestor"),
        ("write_all", "`step` wrote to nestor's connection"),
        ("nan_reward", "the reward NaN, which is not finite"),
        ("huge_reward", "the reward 1e300, which float32 cannot hold"),
        ("huge_text", "over 4 MiB of text"),
        ("not_utf8", "not UTF-8"),
    ];
    for (fault, words) in table {
        let shared = environment(json!({ "fault": fault, "after": 1 })).expect("it opens");
        // Each process counts its own calls: a fault of act() happens in the second step of an instance.
        let reset =
            |task| shared.spawn().and_then(|mut env| env.reset("train", task, 7).map(|_| env)).expect("a reset");
        let (mut other, mut env) = (reset(0), reset(3));
        let said = env.step("yes").and_then(|_| env.step("yes")).err();
        let said = format!("{:#}", said.unwrap_or_else(|| panic!("no fault: {fault}")));
        assert!(said.contains(words), "{fault}: {said}");
        assert!(said.starts_with("plugin faults: task 3 of split train, seed 7, step "), "{fault}: {said}");
        assert!(other.reset("train", 1, 1).is_ok(), "{fault}");
        reset(2);
    }
}

#[test]
fn a_fault_in_any_function_is_named() {
    for (fault, words) in
        [("hang", "did not return within 0.3 s"), ("segv", "died by SIGSEGV"), ("exit3", "left with exit code 3")]
    {
        for at in ["open", "prompt_template", "tasks", "spawn", "reset", "next_action"] {
            let config = json!({ "fault": fault, "at": at });
            let done = environment(config).and_then(|shared| {
                shared.template()?;
                shared.tasks("train")?;
                let mut env = shared.spawn()?;
                env.reset("train", 0, 0)?;
                env.expert_action(&[])
            });
            let said = message(done);
            assert!(said.starts_with("plugin faults") && said.contains(&format!("`{at}` {words}")), "{said}");
        }
    }
}

#[test]
fn a_shared_part_that_died_is_opened_again() {
    let shared = environment(json!({ "fault": "segv", "at": "tasks" })).unwrap();
    assert!(message(shared.tasks("train")).contains("`tasks` died by SIGSEGV"));
    assert_eq!(play(&shared, 0).unwrap(), 0.0);
}

#[test]
fn a_close_function_that_hangs_costs_one_deadline() {
    let shared = environment(json!({ "fault": "hang", "at": "close" })).unwrap();
    let envs: Vec<_> = (0..40).map(|_| shared.spawn().unwrap()).collect();
    let begin = Instant::now();
    drop(envs);
    drop(shared);
    // Each of the forty would cost one.
    assert!(begin.elapsed() < 30 * SHORT, "{:?}", begin.elapsed());
}

#[test]
fn harmless_habits_are_harmless() {
    for fault in ["stdout", "chdir", "slow", "fork", "leak", "close_stdout", "signals"] {
        let shared = environment(json!({ "fault": fault })).unwrap();
        assert_eq!(play(&shared, 0).map_err(|e| format!("{e:#}")), Ok(0.0), "{fault}");
        assert!(std::env::current_dir().unwrap() != Path::new("/"), "{fault}");
    }
}

#[test]
fn no_process_of_a_plugin_outlives_it() {
    let folder = tempfile::tempdir().unwrap();
    let run = |at: &str| {
        let config = json!({ "fault": "daemon", "at": at, "folder": folder.path() });
        let shared = environment(config).unwrap();
        play(&shared, 0).unwrap();
        drop(shared);
    };
    for at in ["open", "reset", "step", "close"] {
        run(at);
        let noted: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert!(!noted.is_empty(), "{at}");
        for pid in noted {
            assert!(!Path::new("/proc").join(&pid).exists(), "{at}");
            std::fs::remove_file(folder.path().join(pid)).unwrap();
        }
    }
}

#[test]
fn a_world_with_threads_or_files_is_opened_by_each_instance() {
    for fault in ["world_thread", "world_file", "nothing"] {
        let shared = environment(json!({ "fault": fault })).unwrap();
        let (mut first, mut second) = (shared.spawn().unwrap(), shared.spawn().unwrap());
        first.reset("train", 0, 0).unwrap();
        second.reset("train", 0, 0).unwrap();
        assert_eq!((first.step("").unwrap().reward, first.step("").unwrap().reward), (0.0, 1.0), "{fault}");
        assert_eq!(second.step("").unwrap().reward, 0.0, "{fault}");
    }
}

#[test]
fn long_texts_cross_unchanged() {
    let shared = environment(json!({ "fault": "echo" })).unwrap();
    let mut env = shared.spawn().unwrap();
    env.reset("train", 0, 0).unwrap();
    for length in [0, 2, 16 << 10, (16 << 10) + 2, (4 << 20) - 2] {
        let text = "é".repeat(length / 2);
        assert!(env.step(&text).unwrap().text == text, "{length}");
    }
    assert!(message(env.step(&"x".repeat((4 << 20) + 1))).contains("over 4 MiB of text"));
    assert_eq!(env.step("again").unwrap().text, "again");
}

/// The plugin in a process of its own, and in this one.
fn both_ways(config: Value) -> [SharedEnv; 2] {
    [Isolation::Process, Isolation::None].map(|isolation| {
        let choice = PluginChoice { isolate: Some(isolation), memory_gib: Some(1.0), ..choice(config.clone()) };
        plugins(LONG).environment(&choice).expect("it opens")
    })
}

#[test]
fn images_cross_unchanged() {
    // Within a message, in the shared file, and the largest that there may be.
    for side in [4u32, 100, 4096] {
        for shared in both_ways(json!({ "fault": "image", "side": side })) {
            let mut env = shared.spawn().unwrap();
            assert!(env.reset("train", 0, 0).unwrap().images.is_empty());
            let seen = env.step("yes").unwrap();
            let [image] = &seen.images[..] else { panic!("{seen:?}") };
            assert_eq!((image.width(), image.height(), seen.text.as_str()), (side, side, "go on"));
            let is_its = |(i, pixel): (usize, &[u8])| (0..3).all(|j| pixel[j] == (i + j) as u8);
            let every = side as usize / 40 + 1; // all of 16 Mi would take seconds
            assert!(image.rgb().chunks(3).enumerate().step_by(every).all(is_its), "{side}");
        }
    }
}

#[test]
fn a_wrong_image_is_refused_with_cause_and_remedy() {
    let table = [
        (
            "image_short",
            "the plugin's image 1 says 4x4 pixels and has 47 bytes after its 8 bytes of size; it must have 48, 3 for each \
             pixel",
        ),
        ("image_rgba", "these are 4 channels, so leave out the alpha channel"),
        ("image_grey", "this is 1 channel, so write each grey value three times"),
        ("image_empty", "the plugin's image 1 says 0x4 pixels; both sides must be at least 1"),
        ("image_no_size", "the plugin's image 1 has 7 bytes; it must begin with 8 bytes of size"),
        ("image_huge", "says 2139062143x2139062143 pixels; all images of one call may have 16777216 together"),
        ("image_many", "the plugin put over 64 images in one call"),
    ];
    for (fault, words) in table {
        for shared in both_ways(json!({ "fault": fault })) {
            let mut env = shared.spawn().unwrap();
            env.reset("train", 3, 7).unwrap();
            let said = message(env.step("yes"));
            assert!(said.starts_with("plugin faults: task 3 of split train, seed 7, step 0: the plugin"), "{said}");
            assert!(said.contains(words), "{fault}: {said}");
            assert!(env.reset("train", 3, 7).is_ok(), "{fault}");
        }
    }
}

#[test]
fn cpu_time_is_limited_per_call() {
    let limited = PluginChoice { cpu_s: Some(1), ..choice(json!({ "fault": "busy" })) };
    let shared = plugins(LONG).environment(&limited).unwrap();
    assert!(message(play(&shared, 0)).contains("`step` used more than 1 s of CPU time (recipe key `env.cpu_s`)"));
}

fn rows() -> Rows {
    Rows {
        group: vec![0, 0],
        episode: vec![0, 1],
        step: vec![0, 0],
        sequence: vec![0, 1],
        span_start: vec![0, 0],
        reward: vec![1.0, 0.0],
        penalty: vec![0.0; 2],
        valid: vec![true; 2],
        terminated: vec![true; 2],
        truncated: vec![false; 2],
        anchor: vec![b"a".to_vec(), Vec::new()],
        duplicate_of: vec![-1, -1],
        token_offsets: vec![0, 20_000, 20_003],
        token_rewards: vec![0.0; 20_003],
        logprobs: vec![0.5; 20_003],
        ..Rows::default()
    }
}

fn estimator(config: Value) -> Result<Estimator> {
    plugins(deadline(&config)).estimator(&choice(config))
}

#[test]
fn an_estimator_scores_in_its_process() {
    let mut scored = rows();
    estimator(json!({ "fault": "none" })).unwrap().score(&mut scored).unwrap();
    assert!(scored.advantages == vec![0.0; 20_003] && scored.returns.len() == 20_003);
    let said = |config: Value| message(estimator(config).and_then(|estimator| estimator.score(&mut rows())));
    assert!(said(json!({ "fault": "hang", "at": "score" })).contains("`score` did not return within 0.3 s"));
    assert!(said(json!({ "fault": "segv", "at": "score" })).contains("`score` died by SIGSEGV"));
    assert!(said(json!({ "fault": "past_the_end" })).contains("wrote behind the end of the advantages"));
}

#[test]
fn a_file_is_refused_for_its_hash_and_for_who_can_change_it() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("libfaults.so");
    std::fs::copy(faults(), &file).unwrap();
    let open = |pin: Option<String>| {
        let plugin = file.display().to_string();
        plugins(LONG).environment(&PluginChoice { plugin, sha256: pin, ..choice(json!({})) })
    };
    let hash = open(None).unwrap().file().sha256.clone();
    assert!(open(Some(hash.clone())).is_ok());
    let refused = open(Some("0".repeat(64))).err().unwrap();
    let said = format!("{refused:#}");
    assert!(refused.is::<InputError>() && said.contains(&hash) && said.contains(&"0".repeat(64)), "{said}");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o757)).unwrap();
    let said = message(open(None));
    assert!(said.ends_with(&format!("chmod o-w {}", file.display())), "{said}");
}

#[test]
fn a_description_that_lies_about_sizes_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("liblies.so");
    compile(&file, &["-DENTRY=plugin.size_rows += 8"]);
    let refused = plugins(LONG).environment(&PluginChoice { plugin: file.display().to_string(), ..choice(json!({})) });
    let refused = refused.err().unwrap();
    assert!(refused.is::<InputError>() && format!("{refused:#}").contains("structs of other sizes"), "{refused:#}");
}
