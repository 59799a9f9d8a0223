//! A key-value store over TCP, through which ranks find each other and exchange messages.

use std::ffi::{CString, c_char, c_int};
use std::net::{TcpListener, ToSocketAddrs};
use std::os::fd::IntoRawFd;
use std::time::Duration;

use anyhow::{Context, Result};

use super::call;

/// The address of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreAddress {
    pub host: String,
    pub port: u16,
    /// Prefix of every key.
    pub prefix: String,
}

#[repr(C)]
struct RawAddress {
    host: *const c_char,
    port: u16,
    serve: bool,
    listener: c_int,
    prefix: *const c_char,
    timeout_ms: i64,
}

/// A connection to a store.
#[derive(Debug)]
pub struct Store {
    pub(super) handle: *mut RawStore,
}

#[repr(C)]
pub(super) struct RawStore {
    _private: [u8; 0],
}

unsafe extern "C" {
    fn nestor_store_connect(
        at: *const RawAddress,
        store: *mut *mut RawStore,
        message: *mut c_char,
        message_size: usize,
    ) -> c_int;
    fn nestor_store_set(
        store: *mut RawStore,
        key: *const c_char,
        value: *const u8,
        size: usize,
        message: *mut c_char,
        message_size: usize,
    ) -> c_int;
    fn nestor_store_get(
        store: *mut RawStore,
        key: *const c_char,
        value: *mut u8,
        capacity: usize,
        size: *mut i64,
        message: *mut c_char,
        message_size: usize,
    ) -> c_int;
    fn nestor_store_close(store: *mut RawStore);
    fn nestor_exit_now(code: c_int) -> !;
}

// SAFETY: a store's connection is guarded by a lock of its own.
unsafe impl Send for Store {}

/// Longest value that [`Store::get`] returns whole.
const MOST_BYTES: usize = 4096;

impl Store {
    /// Connects; with `serve` this process is also the server, for as long as the store lives. `timeout` applies to
    /// connecting and to every call. A server on a loopback address hears its own machine only.
    pub fn connect(at: &StoreAddress, serve: bool, timeout: Duration) -> Result<Self> {
        let host = text(&at.host)?;
        let prefix = text(&at.prefix)?;
        let raw = RawAddress {
            host: host.as_ptr(),
            port: at.port,
            serve,
            listener: if serve { loopback_listener(at)?.map_or(-1, IntoRawFd::into_raw_fd) } else { -1 },
            prefix: prefix.as_ptr(),
            timeout_ms: i64::try_from(timeout.as_millis())?,
        };
        let mut handle = std::ptr::null_mut();
        // SAFETY: `raw` and what it points at outlive the call, which copies them; on success the handle is set.
        call(|message, size| unsafe { nestor_store_connect(&raw, &mut handle, message, size) })
            .with_context(|| format!("meeting the other ranks at {}:{}", at.host, at.port))?;
        Ok(Self { handle })
    }

    pub fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        let key = text(key)?;
        // SAFETY: the handle is from `connect`; key and value outlive the call, which copies them.
        call(|message, size| unsafe {
            nestor_store_set(self.handle, key.as_ptr(), value.as_ptr(), value.len(), message, size)
        })
    }

    /// The first 4,096 bytes of a key's value; none if it was never set.
    pub fn get(&self, key: &str) -> Result<Option<Vec<u8>>> {
        let key = text(key)?;
        let (mut value, mut whole) = (vec![0; MOST_BYTES], -1);
        // SAFETY: the handle is from `connect`, the key outlives the call, and `value` has the stated capacity.
        call(|message, size| unsafe {
            nestor_store_get(self.handle, key.as_ptr(), value.as_mut_ptr(), MOST_BYTES, &mut whole, message, size)
        })?;
        let size = usize::try_from(whole).ok();
        Ok(size.map(|size| {
            value.truncate(size);
            value
        }))
    }
}

/// A socket for the server that hears this machine only; none where its host is not a loopback address.
fn loopback_listener(at: &StoreAddress) -> Result<Option<TcpListener>> {
    if !at.is_loopback() {
        return Ok(None);
    }
    let listener = TcpListener::bind((at.host.as_str(), at.port));
    listener.map(Some).with_context(|| format!("serving the other ranks at {}:{}", at.host, at.port))
}

impl StoreAddress {
    /// True if only processes of this machine reach the address.
    pub fn is_loopback(&self) -> bool {
        let found = (self.host.as_str(), self.port).to_socket_addrs();
        found.is_ok_and(|addresses| addresses.map(|address| address.ip()).all(|ip| ip.is_loopback()))
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // SAFETY: the handle is from `connect` and never used again.
        unsafe { nestor_store_close(self.handle) };
    }
}

fn text(text: &str) -> Result<CString> {
    CString::new(text).context("the name of a host or key holds a zero byte")
}

/// Ends the process at once and without cleaning up, even if other threads hang inside a library.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: `_exit` may be called from any thread at any time.
    unsafe { nestor_exit_now(code) }
}
