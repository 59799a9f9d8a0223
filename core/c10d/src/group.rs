//! Process groups of c10d.

use std::ffi::{CString, c_char, c_int};
use std::time::Duration;

use anyhow::{Context, Result};
use tch::Tensor;

use super::{TensorPtr, call};

/// Which library carries the tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    /// Tensors on CPUs.
    Gloo,
    /// Tensors on GPUs, one rank each.
    Nccl,
}

/// Where the ranks of a group meet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendezvous {
    /// Where rank 0 listens.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// This process, from 0.
    pub rank: u32,
    /// Number of ranks.
    pub world: u32,
    /// How long to wait for the others, now and in every collective.
    pub timeout: Duration,
}

#[repr(C)]
struct RawRendezvous {
    host: *const c_char,
    port: u16,
    rank: c_int,
    world: c_int,
    timeout_ms: i64,
}

/// A group this process has joined.
#[derive(Debug)]
pub struct Group {
    handle: *mut RawGroup,
}

#[repr(C)]
struct RawGroup {
    _private: [u8; 0],
}

unsafe extern "C" {
    fn nestor_group_join(
        nccl: bool,
        at: *const RawRendezvous,
        group: *mut *mut RawGroup,
        message: *mut c_char,
        message_size: usize,
    ) -> c_int;
    fn nestor_group_all_reduce(
        group: *mut RawGroup,
        tensor: TensorPtr,
        message: *mut c_char,
        message_size: usize,
    ) -> c_int;
    fn nestor_group_leave(group: *mut RawGroup);
}

// SAFETY: c10d's groups may move between threads; `&mut` keeps collectives on one at a time.
unsafe impl Send for Group {}

impl Group {
    /// Joins; returns when all ranks are there.
    pub fn join(backend: Backend, at: &Rendezvous) -> Result<Self> {
        let host = CString::new(at.host.as_str()).context("the host's name holds a zero byte")?;
        let raw = RawRendezvous {
            host: host.as_ptr(),
            port: at.port,
            rank: c_int::try_from(at.rank)?,
            world: c_int::try_from(at.world)?,
            timeout_ms: i64::try_from(at.timeout.as_millis())?,
        };
        let mut handle = std::ptr::null_mut();
        // SAFETY: `raw` and what it points at outlive the call, which copies them; on success the handle is set.
        call(|message, size| unsafe { nestor_group_join(backend == Backend::Nccl, &raw, &mut handle, message, size) })
            .with_context(|| {
                format!("joining the group at {}:{} as rank {} of {}", at.host, at.port, at.rank, at.world)
            })?;
        Ok(Self { handle })
    }

    /// Sums a tensor over all ranks, in place.
    pub fn all_reduce(&mut self, tensor: &mut Tensor) -> Result<()> {
        // SAFETY: the handle is from `join`; the tensor is alive and used by nobody else during the call.
        call(|message, size| unsafe { nestor_group_all_reduce(self.handle, tensor.as_ptr(), message, size) })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // SAFETY: the handle is from `join` and never used again.
        unsafe { nestor_group_leave(self.handle) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::Kind;

    /// Two ranks in threads of one process, over loopback.
    #[test]
    fn gloo_sums_over_ranks() {
        let port =
            std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("its address").port();
        let sum = move |rank: u32| {
            let timeout = Duration::from_secs(30);
            let at = Rendezvous { host: "127.0.0.1".into(), port, rank, world: 2, timeout };
            let mut group = Group::join(Backend::Gloo, &at).expect("joined");
            for kind in [Kind::Float, Kind::BFloat16] {
                let mut tensor = Tensor::from_slice(&[1.0f32, -2.0, 0.5]).to_kind(kind) * f64::from(rank + 1);
                group.all_reduce(&mut tensor).expect("reduced");
                let got = Vec::<f32>::try_from(tensor.to_kind(Kind::Float)).expect("floats");
                assert_eq!(got, [3.0, -6.0, 1.5]);
            }
        };
        let other = std::thread::spawn(move || sum(1));
        sum(0);
        other.join().expect("the other rank");
    }

    #[test]
    fn a_rank_that_is_left_alone_gives_up() {
        let timeout = Duration::from_millis(200);
        let at = Rendezvous { host: "127.0.0.1".into(), port: 1, rank: 1, world: 2, timeout };
        let error = format!("{:#}", Group::join(Backend::Gloo, &at).expect_err("nobody listens"));
        assert!(error.contains("rank 1 of 2"), "{error}");
    }
}
