//! `nestor-torch` and the libtorch that it finds.

use std::env;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::Check;
use crate::libtorch::{self, Wheel};
use crate::torch::PROGRAM;

/// Longest time that `nestor-torch` may take to start and to ask for GPUs.
const PATIENCE: Duration = Duration::from_secs(120);

/// Answers of libtorch about CUDA, as far as it could be asked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cuda {
    /// The CUDA of the wheel, such as `13.0`.
    pub wheel: Option<String>,
    /// The GPUs that libtorch sees; none if it could not be asked.
    pub devices: Option<u64>,
    /// The code of Nestor's kernels that these run, such as `sm_90a`, without repetitions; `none` for a GPU where none loads.
    pub kernels: Vec<String>,
    /// The version of NCCL in the wheel's environment.
    pub nccl: Option<String>,
}

/// Checks program and library.
pub fn checks() -> (Vec<Check>, Option<Cuda>) {
    let own = env::current_exe().unwrap_or_default();
    let program = own.with_file_name(PROGRAM);
    if !program.is_file() {
        let found = format!("there is no {PROGRAM} beside {}", own.display());
        let remedy = "keep both programs in one folder, or build both: cargo build --release --workspace";
        return (vec![Check::fail("libtorch", found, remedy)], None);
    }
    let folder = libtorch::folder(&program);
    let wheel = folder.as_deref().and_then(Wheel::of);
    let cuda = Cuda {
        wheel: wheel.as_ref().and_then(|wheel| wheel.cuda.clone()),
        devices: None,
        kernels: Vec::new(),
        nccl: folder.as_deref().and_then(nccl),
    };
    let missing = libtorch::missing(&program);
    if !missing.is_empty() {
        let found = format!("{PROGRAM} lacks {}", missing.join(", "));
        return (vec![Check::fail("libtorch", found, libtorch::remedy())], Some(cuda));
    }
    let place = folder.as_deref().map_or("the system's libraries".into(), |folder| folder.display().to_string());
    let version = wheel.as_ref().map_or("unknown version", |wheel| wheel.version.as_str());
    if wheel.as_ref().is_some_and(|wheel| !wheel.fits()) {
        let found = format!("{version} in {place}, and {PROGRAM} was linked against {}", libtorch::VERSION);
        return (vec![Check::fail("libtorch", found, libtorch::remedy())], Some(cuda));
    }
    match ask(&program) {
        Ok(answer) => {
            let (threads, half) = (&answer["threads"], answer["cuda_half"].as_str().unwrap_or("unknown"));
            let found = format!("{version} in {place}, {threads} threads; CUDA half {half}");
            let check = if half.starts_with("cannot") {
                Check::fail("libtorch", found, libtorch::remedy())
            } else {
                Check::ok("libtorch", found)
            };
            let codes = answer["kernels"].as_array().into_iter().flatten();
            let mut kernels: Vec<_> = codes.map(|code| code.as_str().unwrap_or("none").to_string()).collect();
            kernels.sort();
            kernels.dedup();
            (vec![check], Some(Cuda { devices: answer["cuda_devices"].as_u64(), kernels, ..cuda }))
        }
        Err(error) => {
            let found = format!("{version} in {place}, but {PROGRAM} does not start: {error:#}");
            (vec![Check::fail("libtorch", found, libtorch::remedy())], Some(cuda))
        }
    }
}

/// Asks `nestor-torch` about its libtorch.
fn ask(program: &Path) -> Result<Value> {
    let mut child = Command::new(program).arg("torch-report").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let begin = Instant::now();
    let status = loop {
        match child.try_wait()? {
            Some(status) => break status,
            None if begin.elapsed() > PATIENCE => {
                child.kill()?;
                child.wait()?;
                bail!("no answer within {} s", PATIENCE.as_secs());
            }
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    let (mut out, mut error) = (String::new(), String::new());
    child.stdout.take().context("a pipe")?.read_to_string(&mut out)?;
    child.stderr.take().context("a pipe")?.read_to_string(&mut error)?;
    if !status.success() {
        bail!("{status}: {}", error.lines().last().unwrap_or("no message"));
    }
    serde_json::from_str(&out).context("reading its answer")
}

/// The version of the NCCL that pip installed beside torch.
fn nccl(folder: &Path) -> Option<String> {
    let packages = folder.canonicalize().ok()?.ancestors().nth(2)?.to_path_buf();
    let names = packages.read_dir().ok()?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut versions = names.filter_map(|name| {
        let rest = name.strip_prefix("nvidia_nccl_")?.strip_suffix(".dist-info")?;
        rest.split_once('-').map(|(_, version)| version.to_string())
    });
    versions.next()
}
