//! Work that is recorded once and then repeated with one call: a graph on a GPU, a closure elsewhere. Also copies that the
//! host does not wait for. `cpp/graph.cpp`.

use std::ffi::{c_char, c_int};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use anyhow::Result;
use tch::{Device, Tensor};
use torch_sys::C_tensor;

use super::{TensorPtr, call, made};

#[repr(C)]
struct RawPool {
    _private: [u8; 0],
}

#[repr(C)]
struct RawCapture {
    _private: [u8; 0],
}

#[repr(C)]
struct RawGraph {
    _private: [u8; 0],
}

#[repr(C)]
struct RawReadBack {
    _private: [u8; 0],
}

unsafe extern "C" {
    fn nestor_graph_pool_new(index: i64, pool: *mut *mut RawPool, message: *mut c_char, size: usize) -> c_int;
    fn nestor_graph_pool_free(pool: *mut RawPool);
    fn nestor_capture_begin(
        pool: *const RawPool,
        capture: *mut *mut RawCapture,
        message: *mut c_char,
        size: usize,
    ) -> c_int;
    fn nestor_capture_end(
        capture: *mut RawCapture,
        graph: *mut *mut RawGraph,
        message: *mut c_char,
        size: usize,
    ) -> c_int;
    fn nestor_graph_replay(graph: *mut RawGraph, message: *mut c_char, size: usize) -> c_int;
    fn nestor_graph_free(graph: *mut RawGraph);
    fn nestor_copy_into(host: TensorPtr, to: TensorPtr, message: *mut c_char, size: usize) -> c_int;
    fn nestor_read_back_begin(from: TensorPtr, copy: *mut *mut RawReadBack, message: *mut c_char, size: usize)
    -> c_int;
    fn nestor_read_back_wait(
        copy: *const RawReadBack,
        host: *mut *mut C_tensor,
        message: *mut c_char,
        size: usize,
    ) -> c_int;
    fn nestor_read_back_free(copy: *mut RawReadBack);
}

/// Memory that the graphs of one owner share for their temporaries: no two of them run at once.
#[derive(Debug)]
pub struct GraphPool {
    handle: *mut RawPool,
}

impl GraphPool {
    /// A pool of a GPU; none for other devices, where closures allocate as any code does.
    pub fn new(device: Device) -> Result<Option<Self>> {
        let Device::Cuda(index) = device else { return Ok(None) };
        let mut handle = std::ptr::null_mut();
        // SAFETY: on success the handle is set.
        call(|message, size| unsafe { nestor_graph_pool_new(index as i64, &mut handle, message, size) })?;
        Ok(Some(Self { handle }))
    }
}

impl Drop for GraphPool {
    fn drop(&mut self) {
        // SAFETY: the handle is from `new` and never used again.
        unsafe { nestor_graph_pool_free(self.handle) };
    }
}

/// A recorded graph of a GPU. It holds the addresses of the tensors that it reads and writes, not the tensors.
#[derive(Debug)]
pub struct CudaGraph {
    handle: *mut RawGraph,
}

impl CudaGraph {
    /// Records what `work` enqueues on this thread, without running it.
    fn record(pool: &GraphPool, work: &dyn Fn() -> Result<()>) -> Result<Self> {
        let (mut capture, mut handle) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the pool lives through the call; on success the handle is set.
        call(|message, size| unsafe { nestor_capture_begin(pool.handle, &mut capture, message, size) })?;
        and_end(work, || {
            // SAFETY: the capture is from the call above and never used again; on success the graph is set.
            let ended = call(|message, size| unsafe { nestor_capture_end(capture, &mut handle, message, size) });
            // Owned before the return, so that it is freed on every way out.
            let graph = Self { handle };
            ended.map(|()| graph)
        })
    }

    /// Enqueues the recorded work on the current stream.
    fn replay(&self) -> Result<()> {
        // SAFETY: the handle is from `record`; the owner of this graph holds the tensors that it reads and writes.
        call(|message, size| unsafe { nestor_graph_replay(self.handle, message, size) })
    }
}

/// Runs `work`, then `end` whatever happened. tch panics where an operation fails; a capture that stays open would then fail
/// every later call of CUDA.
fn and_end<T>(work: &dyn Fn() -> Result<()>, end: impl FnOnce() -> Result<T>) -> Result<T> {
    let done = catch_unwind(AssertUnwindSafe(work));
    let ended = end();
    done.unwrap_or_else(|panic| resume_unwind(panic)).and(ended)
}

impl Drop for CudaGraph {
    fn drop(&mut self) {
        // SAFETY: the handle is from `record`, or null where the recording failed, and never used again.
        unsafe { nestor_graph_free(self.handle) };
    }
}

/// Work over tensors that a closure owns. Between two runs only the contents of those tensors change.
pub type Work = Box<dyn Fn() -> Result<()>>;

/// Recorded work.
pub enum Recording {
    /// On a GPU. The closure is kept because it owns the tensors whose addresses the graph holds.
    Graph(CudaGraph, Work),
    /// Elsewhere.
    Closure(Work),
}

impl Recording {
    /// Runs the work once and records it. On a GPU it must not wait for results, and its shapes must not depend on them.
    pub fn new(pool: Option<&GraphPool>, work: Work) -> Result<Self> {
        // The run before the recording also loads kernels and opens libraries, which cannot be recorded.
        work()?;
        Ok(match pool {
            Some(pool) => Self::Graph(CudaGraph::record(pool, &work)?, work),
            None => Self::Closure(work),
        })
    }

    /// Runs the recorded work again; a GPU's host does not wait for it.
    pub fn replay(&self) -> Result<()> {
        match self {
            Self::Graph(graph, _) => graph.replay(),
            Self::Closure(work) => work(),
        }
    }
}

impl fmt::Debug for Recording {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            Self::Graph(..) => "Graph",
            Self::Closure(_) => "Closure",
        })
    }
}

/// Copies numbers into a tensor of as many elements of their type. On CUDA they go through pinned memory, and the host does
/// not wait.
pub fn copy_into<T: tch::kind::Element>(numbers: &[T], to: &Tensor) -> Result<()> {
    let host = Tensor::from_slice(numbers).view(&to.size()[..]);
    // SAFETY: both tensors live through the call, and libtorch copies between types and checks shapes.
    call(|message, size| unsafe { nestor_copy_into(host.as_ptr(), to.as_ptr(), message, size) })
}

/// A copy of a tensor on its way to the host.
#[derive(Debug)]
pub struct ReadBack {
    handle: *mut RawReadBack,
}

impl ReadBack {
    /// Starts a copy of what the tensor holds after all work enqueued so far.
    pub fn begin(from: &Tensor) -> Result<Self> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: the tensor lives through the call; on success the handle is set.
        call(|message, size| unsafe { nestor_read_back_begin(from.as_ptr(), &mut handle, message, size) })?;
        Ok(Self { handle })
    }

    /// Waits for the copy.
    pub fn wait(self) -> Tensor {
        // SAFETY: the handle is from `begin`; the call makes one tensor, which shares the copy's memory.
        let [host] = made(|host, message, size| unsafe { nestor_read_back_wait(self.handle, host, message, size) });
        host
    }
}

impl Drop for ReadBack {
    fn drop(&mut self) {
        // SAFETY: the handle is from `begin` and never used again.
        unsafe { nestor_read_back_free(self.handle) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::Kind;

    #[test]
    fn a_recording_repeats_its_work_on_new_contents() {
        let (input, sum) =
            (Tensor::zeros([2], (Kind::Float, Device::Cpu)), Tensor::zeros([2], (Kind::Float, Device::Cpu)));
        let (from, to) = (input.shallow_clone(), sum.shallow_clone());
        copy_into(&[1f32, 2.], &input).expect("copied");
        let work: Work = Box::new(move || {
            let _ = to.shallow_clone().g_add_(&from);
            Ok(())
        });
        let recording = Recording::new(None, work).expect("recorded");
        let first = ReadBack::begin(&sum).expect("a copy");
        copy_into(&[10f32, 20.], &input).expect("copied");
        recording.replay().expect("replayed");
        assert_eq!(Vec::<f32>::try_from(first.wait()).expect("values"), [1., 2.]);
        assert_eq!(Vec::<f32>::try_from(&sum).expect("values"), [11., 22.]);
    }

    #[test]
    fn a_capture_ends_whatever_its_work_does() {
        let ended = std::cell::Cell::new(0);
        let end = || {
            ended.set(ended.get() + 1);
            Ok(7)
        };
        assert_eq!(and_end(&|| Ok(()), end).expect("recorded"), 7);
        assert!(and_end(&|| anyhow::bail!("no room"), end).is_err());
        let panics = || and_end(&|| panic!("an operation failed"), end);
        assert!(catch_unwind(AssertUnwindSafe(panics)).is_err());
        assert_eq!(ended.get(), 3);
    }
}
