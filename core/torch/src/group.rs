//! Process groups of c10d.

use std::ffi::{CString, c_char, c_int};
use std::time::Duration;

use anyhow::{Context, Result};
use tch::Tensor;

use super::store::{RawStore, Store};
use super::{TensorPtr, call};

/// The library that transfers the tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    /// For tensors on CPUs.
    Gloo,
    /// For tensors on GPUs, one rank each.
    Nccl,
}

/// A process as a member of a group.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Member {
    /// Number of this process, from 0.
    pub rank: usize,
    /// Number of ranks.
    pub world: usize,
    /// Longest wait for the other ranks, when joining and in every collective.
    pub timeout: Duration,
    pub network: Network,
}

/// The network of a group of Gloo. NCCL chooses its own.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Network {
    /// The address that this machine's hostname has.
    #[default]
    Hostname,
    /// An address of this machine.
    Address(String),
    /// Names of interfaces, with commas between.
    Interfaces(String),
}

/// Operation of a reduction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reduce {
    Sum,
    Max,
}

#[repr(C)]
struct RawMember {
    nccl: bool,
    rank: c_int,
    world: c_int,
    timeout_ms: i64,
    interfaces: *const c_char,
    address: *const c_char,
}

/// A group that this process has joined. All ranks must start the same collectives in the same order.
#[derive(Debug)]
pub struct ProcessGroup {
    handle: *mut RawGroup,
}

/// A collective under way; c10d keeps its tensors alive. Dropping it also waits, and discards an error.
#[derive(Debug)]
#[must_use = "tensors of a collective must not be used before `wait`"]
pub struct Work {
    handle: *mut RawWork,
}

/// A view of a collective for another thread, which may outlive the [`Work`]. On a GPU it keeps no tensors alive.
#[derive(Debug)]
pub struct Progress {
    handle: *mut RawProgress,
}

#[repr(C)]
struct RawGroup {
    _private: [u8; 0],
}

#[repr(C)]
struct RawWork {
    _private: [u8; 0],
}

#[repr(C)]
struct RawProgress {
    _private: [u8; 0],
}

unsafe extern "C" {
    fn nestor_group_join(
        store: *mut RawStore,
        at: *const RawMember,
        group: *mut *mut RawGroup,
        message: *mut c_char,
        message_size: usize,
    ) -> c_int;
    fn nestor_group_all_reduce(
        group: *mut RawGroup,
        tensor: TensorPtr,
        largest: bool,
        work: *mut *mut RawWork,
        message: *mut c_char,
        message_size: usize,
    ) -> c_int;
    fn nestor_group_all_gather(
        group: *mut RawGroup,
        whole: TensorPtr,
        part: TensorPtr,
        work: *mut *mut RawWork,
        message: *mut c_char,
        message_size: usize,
    ) -> c_int;
    fn nestor_group_reduce_scatter(
        group: *mut RawGroup,
        part: TensorPtr,
        whole: TensorPtr,
        work: *mut *mut RawWork,
        message: *mut c_char,
        message_size: usize,
    ) -> c_int;
    fn nestor_group_broadcast(
        group: *mut RawGroup,
        tensor: TensorPtr,
        root: c_int,
        work: *mut *mut RawWork,
        message: *mut c_char,
        message_size: usize,
    ) -> c_int;
    fn nestor_work_wait(work: *mut RawWork, message: *mut c_char, message_size: usize) -> c_int;
    fn nestor_work_free(work: *mut RawWork);
    fn nestor_work_progress(
        work: *const RawWork,
        progress: *mut *mut RawProgress,
        message: *mut c_char,
        message_size: usize,
    ) -> c_int;
    fn nestor_progress_done(
        progress: *mut RawProgress,
        done: *mut bool,
        message: *mut c_char,
        message_size: usize,
    ) -> c_int;
    fn nestor_progress_free(progress: *mut RawProgress);
    fn nestor_group_abort(group: *mut RawGroup, message: *mut c_char, message_size: usize) -> c_int;
    fn nestor_group_leave(group: *mut RawGroup);
}

// SAFETY: c10d's groups may move between threads.
unsafe impl Send for ProcessGroup {}

// SAFETY: c10d guards a work's state with a lock, since its own watchdog asks for it from another thread.
unsafe impl Send for Progress {}
// SAFETY: as above.
unsafe impl Sync for Progress {}

impl ProcessGroup {
    /// Joins the group; returns when all ranks have joined.
    pub fn join(backend: Backend, store: &Store, at: &Member) -> Result<Self> {
        let (interfaces, address) = match &at.network {
            Network::Hostname => ("", ""),
            Network::Address(address) => ("", &**address),
            Network::Interfaces(names) => (&**names, ""),
        };
        let (interfaces, address) = (CString::new(interfaces)?, CString::new(address)?);
        let raw = RawMember {
            nccl: backend == Backend::Nccl,
            rank: c_int::try_from(at.rank)?,
            world: c_int::try_from(at.world)?,
            timeout_ms: i64::try_from(at.timeout.as_millis())?,
            interfaces: interfaces.as_ptr(),
            address: address.as_ptr(),
        };
        let mut handle = std::ptr::null_mut();
        // SAFETY: the store and both texts are alive, and the group keeps its own reference; on success the handle is set.
        call(|message, size| unsafe { nestor_group_join(store.handle, &raw, &mut handle, message, size) })
            .with_context(|| format!("joining the group as rank {} of {}", at.rank, at.world))?;
        Ok(Self { handle })
    }

    /// Starts to reduce a tensor over all ranks, in place.
    pub fn all_reduce(&self, tensor: &Tensor, reduce: Reduce) -> Result<Work> {
        // SAFETY: the handle is from `join`, the tensor is alive, and c10d keeps a reference until the work is done.
        Work::start(|work, message, size| unsafe {
            nestor_group_all_reduce(self.handle, tensor.as_ptr(), reduce == Reduce::Max, work, message, size)
        })
    }

    /// Starts to gather every rank's `part` (n), end to end, into `whole` (world n): dense tensors of one type.
    pub fn all_gather(&self, whole: &Tensor, part: &Tensor) -> Result<Work> {
        // SAFETY: as in `all_reduce`.
        Work::start(|work, message, size| unsafe {
            nestor_group_all_gather(self.handle, whole.as_ptr(), part.as_ptr(), work, message, size)
        })
    }

    /// Starts to sum `whole` (world n) over all ranks, and to scatter the sum to each rank's `part` (n): dense tensors.
    pub fn reduce_scatter(&self, part: &Tensor, whole: &Tensor) -> Result<Work> {
        // SAFETY: as in `all_reduce`.
        Work::start(|work, message, size| unsafe {
            nestor_group_reduce_scatter(self.handle, part.as_ptr(), whole.as_ptr(), work, message, size)
        })
    }

    /// Starts to copy the tensor of rank `root` to all others.
    pub fn broadcast(&self, tensor: &Tensor, root: usize) -> Result<Work> {
        let root = c_int::try_from(root)?;
        // SAFETY: as in `all_reduce`.
        Work::start(|work, message, size| unsafe {
            nestor_group_broadcast(self.handle, tensor.as_ptr(), root, work, message, size)
        })
    }

    /// Ends collectives under way with an error, on this and the other ranks.
    pub fn abort(&self) -> Result<()> {
        // SAFETY: the handle is from `join`.
        call(|message, size| unsafe { nestor_group_abort(self.handle, message, size) })
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        // SAFETY: the handle is from `join` and never used again.
        unsafe { nestor_group_leave(self.handle) };
    }
}

impl Work {
    fn start(f: impl FnOnce(*mut *mut RawWork, *mut c_char, usize) -> c_int) -> Result<Self> {
        let mut handle = std::ptr::null_mut();
        call(|message, size| f(&mut handle, message, size))?;
        Ok(Self { handle })
    }

    /// Waits until the collective is done; on a GPU only the current stream waits.
    pub fn wait(self) -> Result<()> {
        // SAFETY: the handle is from `start`.
        call(|message, size| unsafe { nestor_work_wait(self.handle, message, size) })
    }

    /// A view of the collective for another thread.
    pub fn progress(&self) -> Result<Progress> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: the handle is from `start`; on success the view's handle is set, and it keeps its own references.
        call(|message, size| unsafe { nestor_work_progress(self.handle, &mut handle, message, size) })?;
        Ok(Progress { handle })
    }
}

impl Progress {
    /// True if the collective is done. Does not wait; an error if the collective failed.
    pub fn is_done(&self) -> Result<bool> {
        let mut done = false;
        // SAFETY: the handle is from `Work::progress`; writes one flag.
        call(|message, size| unsafe { nestor_progress_done(self.handle, &mut done, message, size) })?;
        Ok(done)
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        // SAFETY: the handle is from `Work::progress` and never used again.
        unsafe { nestor_progress_free(self.handle) };
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        // Waiting twice is allowed. SAFETY: the handle is from `start` and never used again after it was freed.
        let _ = call(|message, size| unsafe { nestor_work_wait(self.handle, message, size) });
        unsafe { nestor_work_free(self.handle) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StoreAddress;
    use tch::{Device, Kind};

    fn address(port: u16) -> StoreAddress {
        StoreAddress { host: "127.0.0.1".into(), port, prefix: "test".into() }
    }

    fn numbers(tensor: &Tensor) -> Vec<f32> {
        Vec::try_from(tensor.to_kind(Kind::Float)).expect("floats")
    }

    /// Two ranks in threads of one process, over loopback.
    #[test]
    fn gloo_carries_tensors_between_ranks() {
        // Below the ports that Linux assigns: no other program is given one of them.
        let begin = 12_000 + (std::process::id() % 2_000) as u16;
        let free = |port: &u16| std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok();
        let port = (begin..15_000).find(free).expect("a port");
        let turn = std::sync::Arc::new(std::sync::Barrier::new(2));
        let play = move |rank: usize| {
            let timeout = Duration::from_secs(30);
            let store = Store::connect(&address(port), rank == 0, timeout).expect("a store");
            let group =
                ProcessGroup::join(Backend::Gloo, &store, &Member { rank, world: 2, timeout, ..Member::default() })
                    .expect("joined");
            for kind in [Kind::Float, Kind::BFloat16] {
                let own = |n: i64| Tensor::arange(n, (kind, Device::Cpu)) + 10 * rank as i64;
                let mut sum = own(3);
                group.all_reduce(&sum, Reduce::Sum).expect("started").wait().expect("summed");
                assert_eq!(numbers(&sum), [10.0, 12.0, 14.0]);
                sum = own(3);
                group.all_reduce(&sum, Reduce::Max).expect("started").wait().expect("compared");
                assert_eq!(numbers(&sum), [10.0, 11.0, 12.0]);
                let whole = Tensor::zeros([4], (kind, Device::Cpu));
                group.all_gather(&whole, &own(2)).expect("started").wait().expect("gathered");
                assert_eq!(numbers(&whole), [0.0, 1.0, 10.0, 11.0]);
                let part = Tensor::zeros([2], (kind, Device::Cpu));
                group.reduce_scatter(&part, &own(4)).expect("started").wait().expect("scattered");
                assert_eq!(numbers(&part), if rank == 0 { [10.0, 12.0] } else { [14.0, 16.0] });
                let copied = own(2);
                group.broadcast(&copied, 1).expect("started").wait().expect("copied");
                assert_eq!(numbers(&copied), [10.0, 11.0]);
            }
            // A collective is under way until every rank has started it.
            if rank == 1 {
                turn.wait();
            }
            let work = group.all_reduce(&Tensor::ones([2], (Kind::Float, Device::Cpu)), Reduce::Sum).expect("started");
            let progress = work.progress().expect("viewed");
            if rank == 0 {
                assert!(!progress.is_done().expect("no failure"));
                turn.wait();
            }
            work.wait().expect("summed");
            assert!(progress.is_done().expect("no failure"));
            let word = format!("word {rank}");
            store.set(&word, word.as_bytes()).expect("set");
            assert_eq!(store.get(&word).expect("asked"), Some(word.into_bytes()));
            assert_eq!(store.get("nothing").expect("asked"), None);
            let last = Tensor::zeros([1], (Kind::Float, Device::Cpu));
            group.all_reduce(&last, Reduce::Sum).expect("started").wait().expect("the server leaves last");
        };
        let other = std::thread::spawn({
            let play = play.clone();
            move || play(1)
        });
        play(0);
        other.join().expect("the other rank");
    }

    /// c10d keeps a map of all groups of a process without a lock; groups that started at once would damage it, and the
    /// process would end with a segmentation fault.
    #[test]
    fn groups_of_several_threads_start_at_once() {
        let timeout = Duration::from_secs(30);
        let store = Store::connect(&address(0), true, timeout).expect("a store");
        let join = |_| {
            ProcessGroup::join(Backend::Gloo, &store, &Member { world: 1, timeout, ..Member::default() })
                .expect("joined")
        };
        for _ in 0..100 {
            let groups: Vec<ProcessGroup> = (0..4).map(join).collect();
            let ready = std::sync::Barrier::new(groups.len());
            std::thread::scope(|scope| {
                for group in groups {
                    let ready = &ready;
                    scope.spawn(move || {
                        let sum = Tensor::ones([2], (Kind::Float, Device::Cpu));
                        ready.wait();
                        group.all_reduce(&sum, Reduce::Sum).expect("started").wait().expect("summed");
                        assert_eq!(numbers(&sum), [1.0, 1.0]);
                    });
                }
            });
        }
    }

    #[test]
    fn a_rank_that_is_left_alone_gives_up() {
        let error = Store::connect(&address(1), false, Duration::from_millis(200)).expect_err("nobody listens");
        assert!(format!("{error:#}").contains("127.0.0.1:1"), "{error:#}");
    }
}
