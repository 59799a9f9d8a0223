//! A profile of one piece of work, by libtorch's profiler: `cpp/profile.cpp`.

use std::ffi::{CStr, c_char, c_int, c_void};

use anyhow::Result;

use super::call;

unsafe extern "C" {
    fn nestor_profile_start(cuda: bool, message: *mut c_char, message_size: usize) -> c_int;
    fn nestor_profile_stop(
        cuda: bool,
        list: *mut c_void,
        each: unsafe extern "C" fn(*mut c_void, *const c_char, u64, u64),
        launches: *mut u64,
        syncs: *mut u64,
        message: *mut c_char,
        message_size: usize,
    ) -> c_int;
}

/// All calls of one kernel or operation.
#[derive(Debug, Clone, PartialEq)]
pub struct Dear {
    pub name: String,
    /// Time in total; for an operation of a CPU without that of the operations inside it.
    pub seconds: f64,
    pub calls: u64,
}

/// The work between start and end of a profile.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Profile {
    /// The kernels of a GPU, or the operations of a CPU, the dearest first.
    pub dearest: Vec<Dear>,
    /// Kernels, copies and fills of a GPU; on a CPU the operations that call no other.
    pub launches: u64,
    /// Calls in which the host waited for the GPU.
    pub syncs: u64,
}

/// Profiles the kernels of `work` (`cuda`), or the operations that this thread ran on the CPU. On CUDA `work` must wait for
/// its kernels. libtorch allows one profile at a time.
pub fn profile<T>(cuda: bool, work: impl FnOnce() -> Result<T>) -> Result<(T, Profile)> {
    // SAFETY: starts the profiler of libtorch; the message buffer is ours.
    call(|message, size| unsafe { nestor_profile_start(cuda, message, size) })?;
    let done = work();
    let mut profile = Profile::default();
    let list: *mut Vec<Dear> = &mut profile.dearest;
    let (launches, syncs) = (&raw mut profile.launches, &raw mut profile.syncs);
    // SAFETY: `add` gets the list that it expects, which nobody else uses during the call; the counts are ours.
    call(|message, size| unsafe { nestor_profile_stop(cuda, list.cast(), add, launches, syncs, message, size) })?;
    profile.dearest.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    Ok((done?, profile))
}

/// Adds an entry to a list.
///
/// # Safety
/// `list` points to a `Vec<Dear>` that nobody else uses, `name` to a text that ends with a zero.
unsafe extern "C" fn add(list: *mut c_void, name: *const c_char, ns: u64, calls: u64) {
    // SAFETY: by the contract of this function.
    let (list, name) = unsafe { (&mut *list.cast::<Vec<Dear>>(), CStr::from_ptr(name)) };
    list.push(Dear { name: name.to_string_lossy().into_owned(), seconds: ns as f64 / 1e9, calls });
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::{Device, Kind, Tensor};

    #[test]
    fn a_profile_counts_the_operations_of_its_work_alone() {
        let a = Tensor::ones([64, 64], (Kind::Float, Device::Cpu)).set_requires_grad(true);
        let step = || {
            (a.matmul(&a) + 1.0).sum(Kind::Float).backward();
            Ok(())
        };
        step().expect("unprofiled work");
        let ((), found) = profile(false, step).expect("a profile");
        let calls = |name: &str| found.dearest.iter().find(|dear| dear.name == name).map(|dear| dear.calls);
        // The product itself and the two of its gradient; `matmul` wraps the first.
        assert_eq!(calls("aten::mm"), Some(3));
        assert_eq!(calls("aten::matmul"), Some(1));
        assert!(found.dearest.windows(2).all(|pair| pair[0].seconds >= pair[1].seconds));
        let every: u64 = found.dearest.iter().map(|dear| dear.calls).sum();
        assert!((3..every).contains(&found.launches), "{found:?}");
        assert_eq!(found.syncs, 0);
        // A failure ends the profile, so that the next one can start.
        assert!(profile(false, || Err::<(), _>(anyhow::anyhow!("it fails"))).is_err());
        assert!(profile(false, || Ok(())).is_ok());
    }
}
