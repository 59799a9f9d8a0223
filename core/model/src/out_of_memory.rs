//! A failed allocation as one message: the phase, the bytes, and the recipe keys that lower the need.
//!
//! libtorch throws a C++ exception, which tch turns into an error or a panic with the exception's text.

use std::fmt::{self, Display, Formatter};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use anyhow::{Error, Result};
use nestor_torch::fused::free_bytes;
use tch::Device;

use crate::error::panic_text;

/// An allocation that failed. Sizes are in bytes, where libtorch's text names them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OutOfMemory {
    /// The GPU's number; none for the memory of the machine.
    gpu: Option<u64>,
    wanted: Option<u64>,
    free: Option<u64>,
    capacity: Option<u64>,
    /// Memory that libtorch holds of the GPU without using it, in pieces too small for the allocation.
    unused: Option<u64>,
    /// The phase of the run, as in the metric `time/<phase>_s`.
    phase: Option<&'static str>,
}

impl OutOfMemory {
    /// Reads libtorch's text about a failed allocation; none for any other text.
    fn parse(text: &str) -> Option<Self> {
        if text.contains("CUDA out of memory") {
            return Some(Self {
                gpu: after(text, ". GPU ").and_then(number),
                wanted: after(text, "Tried to allocate ").and_then(size),
                free: after(text, " of which ").and_then(size),
                capacity: after(text, " has a total capacity of ").and_then(size),
                unused: unused(text),
                phase: None,
            });
        }
        let wanted = after(text, "DefaultCPUAllocator: can't allocate memory: you tried to allocate ").and_then(number);
        // cuBLAS, NCCL and CUDA itself name no sizes, nor does C++'s own allocator.
        let unnamed = ["CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "std::bad_alloc"];
        if wanted.is_none() && !unnamed.iter().any(|mark| text.contains(mark)) {
            return None;
        }
        Some(Self { wanted, ..Self::default() })
    }
}

impl Display for OutOfMemory {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        let Self { gpu, wanted, free, capacity, unused, phase } = self;
        write!(f, "out of memory")?;
        if let Some(phase) = phase {
            write!(f, " in phase {phase}")?;
        }
        if let Some(gpu) = gpu {
            write!(f, " on GPU {gpu}")?;
        }
        if let Some(wanted) = wanted {
            write!(f, ": {} asked for", formatted(*wanted))?;
        }
        if let Some(free) = free {
            write!(f, ", {} free", formatted(*free))?;
        }
        if let Some(capacity) = capacity {
            write!(f, " of {}", formatted(*capacity))?;
        }
        if let Some(unused) = unused {
            write!(f, ", {} in libtorch's reserve in smaller pieces", formatted(*unused))?;
        }
        write!(f, "; {}", remedy(*phase))
    }
}

impl std::error::Error for OutOfMemory {}

/// The recipe keys that lower a phase's need.
fn remedy(phase: Option<&str>) -> &'static str {
    match phase {
        Some("rollout" | "evaluate") => "lower `rollout.slots` or `rollout.cache_tokens`",
        Some("old_logprobs" | "reference" | "values") => "lower `update.micro_batch_tokens`",
        Some("warm_start" | "critic" | "update") => {
            "lower `update.micro_batch_tokens`, or set `update.recompute` to all"
        }
        Some(_) => {
            "set `dtype` to bfloat16, train adapters (`model.lora`), let the optimizer's tensors rest on the host of a GPU \
             (`update.offload`), or use more ranks with `sharding` full"
        }
        None => "give the command less work at once, or compute in bfloat16",
    }
}

/// Runs `work`, and returns an [`OutOfMemory`] instead of its error or panic where an allocation failed. The caller must
/// only report the failure afterwards, since a panic leaves things half done.
pub fn caught<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Err(error)) if !error.is::<OutOfMemory>() => Err(match OutOfMemory::parse(&format!("{error:#}")) {
            Some(failure) => failure.on_this_machine().into(),
            None => error,
        }),
        Ok(result) => result,
        Err(panic) => match panic_text(&*panic).and_then(OutOfMemory::parse) {
            Some(failure) => Err(failure.on_this_machine().into()),
            None => resume_unwind(panic),
        },
    }
}

/// Adds the phase to a failed allocation. Other errors stay as they are.
pub fn in_phase(mut error: Error, phase: &'static str) -> Error {
    if let Some(failure) = error.downcast_mut::<OutOfMemory>() {
        failure.phase.get_or_insert(phase);
    }
    error
}

/// True for a panic that [`caught`] turns into an error: the panic itself needs no message.
pub fn will_be_caught(text: &str) -> bool {
    std::thread::current().name() == Some("main") && OutOfMemory::parse(text).is_some()
}

impl OutOfMemory {
    /// Adds what the machine has free where the text names no device.
    fn on_this_machine(self) -> Self {
        match self.gpu.or(self.free) {
            Some(_) => self,
            None => Self { free: self.wanted.and_then(|_| free_bytes(Device::Cpu)), ..self },
        }
    }
}

fn after<'a>(text: &'a str, mark: &str) -> Option<&'a str> {
    text.split_once(mark).map(|(_, rest)| rest)
}

/// The size that ends the part about memory without use: `…, and 1.25 GiB is reserved by PyTorch but unallocated`. Graphs
/// add a size of their own before it.
fn unused(text: &str) -> Option<u64> {
    let (before, _) = text.split_once(" is reserved by PyTorch but unallocated")?;
    before.rsplit_once(" and ").and_then(|(_, rest)| size(rest))
}

/// The whole number that begins a text.
fn number(text: &str) -> Option<u64> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text[..end].parse().ok()
}

const UNITS: [(&str, u32); 4] = [("GiB", 30), ("MiB", 20), ("KiB", 10), ("bytes", 0)];

/// The bytes of a size that begins a text, such as `20.00 MiB`.
fn size(text: &str) -> Option<u64> {
    let (value, rest) = text.split_once(' ')?;
    let (_, shift) = UNITS.iter().find(|(unit, _)| rest.starts_with(unit))?;
    Some((value.parse::<f64>().ok()? * (1u64 << shift) as f64).round() as u64)
}

/// A size as libtorch writes it.
fn formatted(bytes: u64) -> String {
    match UNITS.iter().find(|(_, shift)| *shift > 0 && bytes > 1 << shift) {
        Some((unit, shift)) => format!("{:.2} {unit}", bytes as f64 / (1u64 << shift) as f64),
        None => format!("{bytes} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::keys;

    /// libtorch 2.11 composes its text in c10/cuda/CUDACachingAllocator.cpp, here with the sizes of an H100.
    const CUDA: &str = "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 3 has a total capacity of 79.10 GiB of which \
                        5.31 MiB is free. Including non-PyTorch memory, this process has 79.08 GiB memory in use. Of the \
                        allocated memory 77.00 GiB is allocated by PyTorch, and 1.25 GiB is reserved by PyTorch but \
                        unallocated. If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=";
    /// From libtorch 2.11 on a CPU.
    const CPU: &str = "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried \
                       to allocate 281474976710656 bytes. Error code 12 (Cannot allocate memory)";

    fn failure(text: &str) -> OutOfMemory {
        OutOfMemory::parse(text).unwrap_or_else(|| panic!("not parsed: {text}"))
    }

    #[test]
    fn sizes_come_from_libtorchs_text() {
        let error = in_phase(failure(CUDA).into(), "update");
        let wanted = "out of memory in phase update on GPU 3: 20.00 MiB asked for, 5.31 MiB free of 79.10 GiB, 1.25 GiB in \
                      libtorch's reserve in smaller pieces; lower `update.micro_batch_tokens`, or set `update.recompute` \
                      to all";
        assert_eq!(error.to_string(), wanted);
        // With graphs the text has one size more.
        let (graphs, one) = (
            " is allocated by PyTorch, with 2.00 GiB allocated in private pools (e.g., CUDA Graphs), and ",
            " is allocated by PyTorch, and ",
        );
        assert_eq!(failure(&CUDA.replace(one, graphs)), failure(CUDA));
        // tch's panic quotes the text.
        let panic = format!("called `Result::unwrap()` on an `Err` value: Torch({CUDA:?})");
        assert_eq!(failure(&panic), failure(CUDA));
        assert_eq!(failure(CPU).wanted, Some(1 << 48));
        assert_eq!(failure("CUDA out of memory. Tried to allocate more than 1EB memory."), OutOfMemory::default());
        for text in
            ["CUDA error: out of memory", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling", "std::bad_alloc"]
        {
            assert_eq!(failure(text), OutOfMemory::default(), "{text}");
        }
        for text in ["the size of tensor a (3) must match", "CUDA error: an illegal memory access was encountered"] {
            assert_eq!(OutOfMemory::parse(text), None, "{text}");
        }
    }

    #[test]
    fn errors_and_panics_become_one_error() {
        let error = caught(|| -> Result<()> { panic!("{CPU}") }).expect_err("a panic");
        let error = in_phase(in_phase(error, "rollout"), "update");
        let text = error.to_string();
        assert!(text.starts_with("out of memory in phase rollout: 262144.00 GiB asked for, "), "{text}");
        let error = caught(|| -> Result<()> { Err(anyhow::anyhow!("libtorch: {CUDA}").context("loading")) });
        assert_eq!(error.expect_err("an error").downcast_ref(), Some(&failure(CUDA)));
        let error = caught(|| -> Result<()> { anyhow::bail!("another") }).expect_err("an error");
        assert_eq!(in_phase(error, "update").to_string(), "another");
        assert_eq!(caught(|| Ok(1)).expect("no failure"), 1);
        let panic = std::panic::catch_unwind(|| caught(|| -> Result<()> { panic!("another") }));
        assert!(panic.is_err(), "other panics continue");
    }

    #[test]
    fn remedies_name_keys_of_a_recipe() {
        let keys = keys();
        for phase in ["start", "rollout", "reference", "update"] {
            for name in remedy(Some(phase)).split('`').skip(1).step_by(2) {
                assert!(keys.iter().any(|key| key.path == name), "{name} is no key");
            }
        }
    }
}
