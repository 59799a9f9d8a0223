//! Measures the cost of a call with an echo environment and 64 instances: direct, in this process, and in processes of their
//! own. Then how much throughput the others lose while one instance hangs and one crashes again and again, and how long it
//! takes until such a fault is named.
//!
//!     cargo run --release -p nestor-host --example isolation_overhead

use std::ffi::c_void;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use nestor_host::{Env, Limits, Plugins, SharedEnv, supervise_this_thread};
use nestor_plugin::ffi;
use nestor_recipe::{Isolation, PluginChoice};
use serde_json::{Value, json};

const INSTANCES: usize = 64;
const STEPS: usize = 400;
/// Length of one measurement of throughput, and their number with and without faults, in turn.
const WINDOW: Duration = Duration::from_secs(2);
const ROUNDS: usize = 5;
/// Time that a call may take.
const DEADLINE: Duration = Duration::from_secs(1);
const RESPONSE: &str = "<action>up</action>";

fn main() -> Result<()> {
    supervise_this_thread(); // as the threads of a run: calls are made directly
    let dir = tempfile::tempdir()?;
    let plugin = compile(dir.path())?;
    println!("median of a step in microseconds, {INSTANCES} instances in turn");
    println!("  direct call         {:8.2}", direct(&plugin)?);
    println!("  in this process     {:8.2}", calls(&open(&plugin, Isolation::None, json!({ "fault": "echo" }))?)?);
    println!("  in its own process  {:8.2}", calls(&open(&plugin, Isolation::Process, json!({ "fault": "echo" }))?)?);
    throughput(&plugin)
}

fn compile(dir: &Path) -> Result<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let (file, include) = (dir.join("libfaults.so"), root.join("plugins/sdk"));
    let mut cc = Command::new("cc");
    cc.args(["-std=gnu11", "-O1", "-shared", "-fPIC", "-pthread", "-I"]).arg(include).arg("-o").arg(&file);
    ensure!(cc.arg(root.join("tests/fixtures/plugin_faults.c")).status()?.success(), "the plugin does not compile");
    Ok(file)
}

fn open(plugin: &Path, isolation: Isolation, config: Value) -> Result<SharedEnv> {
    let choice = PluginChoice::new(plugin.display().to_string(), config);
    let limits = Limits { timeout: DEADLINE, ..Limits::default() };
    Plugins::default().with_limits(limits).environment(&PluginChoice { isolate: Some(isolation), ..choice })
}

fn instance(shared: &SharedEnv) -> Result<Env> {
    let mut env = shared.spawn()?;
    env.reset("train", 0, 0)?;
    Ok(env)
}

/// The median of the steps of all instances.
fn calls(shared: &SharedEnv) -> Result<f64> {
    let mut envs = (0..INSTANCES).map(|_| instance(shared)).collect::<Result<Vec<_>>>()?;
    let mut times = Vec::new();
    for _ in 0..STEPS {
        for env in &mut envs {
            let begin = Instant::now();
            env.step(RESPONSE)?;
            times.push(begin.elapsed());
        }
    }
    Ok(median(times))
}

/// The function of the plugin itself, with a sink that copies as any host must.
fn direct(plugin: &Path) -> Result<f64> {
    unsafe extern "C" fn put(context: *mut c_void, _field: u32, text: ffi::Str) {
        // SAFETY: `context` is the vector of the call; the text is borrowed for it.
        unsafe { (*context.cast::<Vec<Vec<u8>>>()).push(text.bytes().to_vec()) }
    }
    // SAFETY: the plugin was compiled above, from nestor_plugin.h; each call gets what that file asks for.
    unsafe {
        let library = Library::open(Some(plugin), RTLD_NOW | RTLD_LOCAL)?;
        let entry = *library.get::<unsafe extern "C" fn() -> *const ffi::Plugin>(ffi::ENTRY)?;
        std::mem::forget(library);
        let table = &*(*(*entry()).components).functions.cast::<ffi::Environment>();
        let mut texts: Vec<Vec<u8>> = Vec::new();
        let mut sink = ffi::Sink { context: (&raw mut texts).cast(), put };
        let config = ffi::Str::new(b"{\"fault\":\"echo\"}");
        let (mut world, mut env, mut out) = (std::ptr::null_mut(), std::ptr::null_mut(), ffi::Step::default());
        (table.open)(config, &mut sink, &mut world);
        (table.spawn)(world, &mut sink, &mut env);
        let mut times = Vec::new();
        for _ in 0..INSTANCES * STEPS {
            let begin = Instant::now();
            texts.clear();
            (table.step)(env, ffi::Str::new(RESPONSE.as_bytes()), &mut sink, &mut out);
            times.push(begin.elapsed());
        }
        Ok(median(times))
    }
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64() * 1e6
}

/// Steps per second of healthy instances, alone and beside one that hangs and one that crashes.
fn throughput(plugin: &Path) -> Result<()> {
    let healthy = open(plugin, Isolation::Process, json!({ "fault": "echo" }))?;
    let hanging = open(plugin, Isolation::Process, json!({ "fault": "hang" }))?;
    let crashing = open(plugin, Isolation::Process, json!({ "fault": "segv" }))?;
    let envs = (0..INSTANCES).map(|_| instance(&healthy)).collect::<Result<Vec<_>>>()?;
    let (count, stop, faulty) = (AtomicU64::new(0), AtomicBool::new(false), AtomicBool::new(false));
    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    let (caught, longest) = (AtomicU64::new(0), AtomicU64::new(0));
    let (count, stop, faulty, caught) = (&count, &stop, &faulty, &caught);
    std::thread::scope(|scope| {
        let (mut envs, stop, count) = (envs.into_iter(), &stop, &count);
        let (caught, longest, faulty) = (&caught, &longest, &faulty);
        for _ in 0..2 {
            let mut mine: Vec<Env> = envs.by_ref().take(INSTANCES / 2).collect();
            scope.spawn(move || {
                supervise_this_thread();
                while !stop.load(Ordering::Relaxed) {
                    for env in &mut mine {
                        if env.step(RESPONSE).is_ok() {
                            count.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
            });
        }
        for shared in [&hanging, &crashing] {
            scope.spawn(move || {
                supervise_this_thread();
                while !stop.load(Ordering::Relaxed) {
                    // A run asks for a step some times a second.
                    std::thread::sleep(Duration::from_millis(100));
                    if faulty.load(Ordering::Relaxed) {
                        let begin = Instant::now();
                        let played = instance(shared).and_then(|mut env| env.step(RESPONSE));
                        longest.fetch_max(begin.elapsed().as_millis() as u64, Ordering::Relaxed);
                        caught.fetch_add(u64::from(played.is_err()), Ordering::Relaxed);
                    }
                }
            });
        }
        for round in 0..2 * ROUNDS {
            faulty.store(round % 2 == 1, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(200));
            let before = count.load(Ordering::Relaxed);
            let begin = Instant::now();
            std::thread::sleep(WINDOW);
            let rate = (count.load(Ordering::Relaxed) - before) as f64 / begin.elapsed().as_secs_f64();
            if round % 2 == 1 { &mut beside } else { &mut alone }.push(rate);
        }
        stop.store(true, Ordering::Relaxed);
    });
    let middle = |rates: &mut Vec<f64>| {
        rates.sort_by(f64::total_cmp);
        rates.get(rates.len() / 2).copied().context("a rate")
    };
    let (alone, beside) = (middle(&mut alone)?, middle(&mut beside)?);
    println!("steps per second of {INSTANCES} instances, medians of {ROUNDS} windows of {} s", WINDOW.as_secs());
    println!("  alone                                    {alone:9.0}");
    println!("  beside one that hangs and one that dies  {beside:9.0}  ({:+.1} %)", (beside / alone - 1.0) * 100.0);
    println!("  faults named meanwhile                   {:9}", caught.load(Ordering::Relaxed));
    let longest = longest.load(Ordering::Relaxed);
    println!("  longest time to a named fault, in ms     {longest:9}  (deadline {} ms)", DEADLINE.as_millis());
    Ok(())
}
