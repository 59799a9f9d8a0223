// Operations that only CUDA has, one thin function each.

#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

// Sequences that lie end to end: sequence i has the rows starts[i] to starts[i + 1], of which the first used[i] are used
// where `used` is defined. All int32, on the tensors' device.
struct Sequences {
  at::Tensor starts, used;
  int64_t longest;
};

// x / rms(x) over the last dimension, times `weight` where there is one.
at::Tensor cuda_rms_norm(const at::Tensor& x, const std::optional<at::Tensor>& weight, double eps);

// Causal attention of packed queries (T, H, D) to packed keys and values (S, K, D), aligned at the sequences' ends:
// (T, H, D). Differentiable where `keys.used` is undefined.
at::Tensor cuda_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Sequences& queries,
                          const Sequences& keys, double scale);

// sum (n, m) float32 = beta * sum + a (T, n) transposed * b (T, m), without a product in the type of a and b.
void cuda_add_product(const at::Tensor& sum, const at::Tensor& a, const at::Tensor& b, double beta);

// x (T, E) times weight (V, E) transposed, both float16 or bfloat16: (T, V) float32, rounded once.
at::Tensor cuda_logits(const at::Tensor& x, const at::Tensor& weight);

// A copy of a host tensor on a GPU, through pinned memory, so that the host does not wait for it.
at::Tensor cuda_upload(const at::Tensor& host, int64_t index);
