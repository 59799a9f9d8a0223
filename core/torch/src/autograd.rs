//! Gradients with respect to tensors whose values are not kept, and of products whose values nobody reads.

use std::ffi::{c_char, c_int};

use tch::Tensor;
use torch_sys::C_tensor;

use super::{TensorPtr, made, must};

#[repr(C)]
struct RawEdge {
    _private: [u8; 0],
}

unsafe extern "C" {
    fn nestor_gradient_edge(tensor: TensorPtr, edge: *mut *mut RawEdge, message: *mut c_char, size: usize) -> c_int;
    fn nestor_unread_product(
        x: TensorPtr,
        weight: TensorPtr,
        y: *mut *mut C_tensor,
        message: *mut c_char,
        size: usize,
    ) -> c_int;
    fn nestor_gradient_edge_free(edge: *mut RawEdge);
    fn nestor_gradients(
        output: TensorPtr,
        grad: TensorPtr,
        n: usize,
        inputs: *const *mut RawEdge,
        gradients: *mut *mut C_tensor,
        message: *mut c_char,
        message_size: usize,
    ) -> c_int;
}

/// The place of a tensor in the graph of a backward pass. It does not keep the tensor's values.
#[derive(Debug)]
pub struct GradientEdge {
    handle: *mut RawEdge,
}

impl GradientEdge {
    /// The place of a leaf that requires a gradient, or of a result of such leaves.
    ///
    /// # Panics
    /// When the tensor does not require a gradient.
    pub fn of(tensor: &Tensor) -> Self {
        let mut handle = std::ptr::null_mut();
        // SAFETY: the tensor lives through the call; on success the handle is set.
        must(|message, size| unsafe { nestor_gradient_edge(tensor.as_ptr(), &mut handle, message, size) });
        Self { handle }
    }
}

impl Drop for GradientEdge {
    fn drop(&mut self) {
        // SAFETY: the handle is from `of` and never used again.
        unsafe { nestor_gradient_edge_free(self.handle) };
    }
}

/// The gradients of `output` with respect to the tensors at `inputs`, given its own gradient; on any device. Frees the graph.
///
/// # Panics
/// When `output` does not depend on an input.
pub fn gradients(output: &Tensor, grad: &Tensor, inputs: &[GradientEdge]) -> Vec<Tensor> {
    let handles: Vec<*mut RawEdge> = inputs.iter().map(|edge| edge.handle).collect();
    let mut made = vec![std::ptr::null_mut(); inputs.len()];
    // SAFETY: tensors and edges live through the call, and there is room for one gradient of each input.
    must(|message, size| unsafe {
        let (output, grad) = (output.as_ptr(), grad.as_ptr());
        nestor_gradients(output, grad, handles.len(), handles.as_ptr(), made.as_mut_ptr(), message, size)
    });
    // SAFETY: on success every place holds a tensor made with `new`.
    made.into_iter().map(|tensor| unsafe { Tensor::from_ptr(tensor) }).collect()
}

/// x (T, in) times `weight` (out, in) transposed, for a graph in which nobody reads the result (T, out): its gradient with
/// respect to x is that of the product, its values are zeros.
pub fn unread_product(x: &Tensor, weight: &Tensor) -> Tensor {
    // SAFETY: the tensors live through the call.
    let [y] = made(|y, message, size| unsafe { nestor_unread_product(x.as_ptr(), weight.as_ptr(), y, message, size) });
    y
}
