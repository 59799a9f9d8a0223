//! A record of the operations that a thread dispatches and of the memory that they hold, for tests: `cpp/record.cpp`.

use std::ffi::{CStr, c_char, c_int};
use std::marker::PhantomData;

use super::must;

#[repr(C)]
struct RawRecord {
    _private: [u8; 0],
}

unsafe extern "C" {
    fn nestor_record_begin(record: *mut *mut RawRecord, message: *mut c_char, message_size: usize) -> c_int;
    fn nestor_record_live(record: *const RawRecord) -> i64;
    fn nestor_record_count(record: *const RawRecord) -> usize;
    fn nestor_record_entry(
        record: *const RawRecord,
        index: usize,
        largest: *mut i64,
        tensors: *mut *const c_char,
    ) -> *const c_char;
    fn nestor_record_end(record: *mut RawRecord);
}

/// An operation that computed something: no view, no allocation, and no wrapper of others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operation {
    /// libtorch's name, such as `aten::mm`.
    pub name: String,
    /// Elements of the largest tensor that it read or wrote.
    pub largest: i64,
    /// The tensors that it read ("r") and wrote ("w"), with types and sizes: `r BFloat16 4 64;w BFloat16 4 64`.
    pub tensors: String,
}

/// A record of this thread, from its creation on. A thread has one at a time.
#[derive(Debug)]
pub struct Record {
    handle: *mut RawRecord,
    /// It belongs to its thread.
    _thread: PhantomData<*const ()>,
}

impl Record {
    /// Starts to record.
    pub fn begin() -> Self {
        let mut handle = std::ptr::null_mut();
        // SAFETY: on success the handle is set.
        must(|message, size| unsafe { nestor_record_begin(&mut handle, message, size) });
        Self { handle, _thread: PhantomData }
    }

    /// Bytes on the CPU that were allocated since the record began and are not freed yet.
    pub fn live_bytes(&self) -> i64 {
        // SAFETY: the handle is from `begin`.
        unsafe { nestor_record_live(self.handle) }
    }

    /// The operations so far.
    pub fn operations(&self) -> Vec<Operation> {
        // SAFETY: the handle is from `begin`.
        let count = unsafe { nestor_record_count(self.handle) };
        let entry = |index| {
            let (mut largest, mut tensors) = (0, std::ptr::null());
            // SAFETY: the index is less than the count, and both texts are copied before the record changes.
            let [name, tensors] = unsafe {
                let name = nestor_record_entry(self.handle, index, &mut largest, &mut tensors);
                [name, tensors].map(|text| CStr::from_ptr(text).to_string_lossy().into_owned())
            };
            Operation { name, largest, tensors }
        };
        (0..count).map(entry).collect()
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        // SAFETY: the handle is from `begin`, on this thread, and never used again.
        unsafe { nestor_record_end(self.handle) };
    }
}
