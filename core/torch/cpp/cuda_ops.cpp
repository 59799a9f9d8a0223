// Every operation that only CUDA has. Nothing here runs on a CPU: the callers in generic.cpp put public operations in its
// place there.

#include "cuda_ops.h"

#include <ATen/ops/_efficient_attention_forward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/_fused_rms_norm.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/repeat_interleave.h>

at::Tensor cuda_rms_norm(const at::Tensor& x, const std::optional<at::Tensor>& weight, double eps) {
  return std::get<0>(at::_fused_rms_norm(x, {x.size(-1)}, weight, eps));
}

at::Tensor cuda_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Sequences& queries,
                          const Sequences& keys, double scale) {
  const auto used = keys.used.defined() ? std::optional<at::Tensor>(keys.used) : std::nullopt;
  if (q.scalar_type() == at::kFloat) {
    // Flash attention takes two bytes an element only. This kernel wants as many heads of keys as of queries; float32 serves
    // comparisons, not speed.
    constexpr int64_t CAUSAL_FROM_BOTTOM_RIGHT = 2;
    const int64_t sharing = q.size(1) / k.size(1);
    const auto all = [&](const at::Tensor& x) {
      return (sharing == 1 ? x : at::repeat_interleave(x, sharing, 1)).unsqueeze(0);
    };
    return std::get<0>(at::_efficient_attention_forward(
                           q.unsqueeze(0), all(k), all(v), /*bias=*/{}, queries.starts, keys.starts, queries.longest,
                           keys.longest, /*dropout_p=*/0.0, CAUSAL_FROM_BOTTOM_RIGHT, /*compute_log_sumexp=*/true, scale,
                           used, /*window_size=*/{}))
        .squeeze(0);
  }
  // The kernel wants heads of a multiple of 8 elements; zeros change no product.
  const int64_t dim = q.size(2), padding = (8 - dim % 8) % 8;
  const auto padded = [&](const at::Tensor& x) { return padding == 0 ? x : at::constant_pad_nd(x, {0, padding}); };
  const auto out = std::get<0>(at::_flash_attention_forward(
      padded(q), padded(k), padded(v), queries.starts, keys.starts, queries.longest, keys.longest, /*dropout_p=*/0.0,
      /*is_causal=*/true, /*return_debug_mask=*/false, scale, /*window_size_left=*/{}, /*window_size_right=*/{}, used,
      /*alibi_slopes=*/{}));
  return padding == 0 ? out : out.narrow(2, 0, dim);
}

void cuda_add_product(const at::Tensor& sum, const at::Tensor& a, const at::Tensor& b, double beta) {
  auto out = sum;
  at::addmm_out(out, out, a.t(), b, at::kFloat, beta, /*alpha=*/1);
}

at::Tensor cuda_logits(const at::Tensor& x, const at::Tensor& weight) {
  return at::mm(x, weight.t(), at::kFloat);
}

at::Tensor cuda_upload(const at::Tensor& host, int64_t index) {
  // The allocator of pinned memory reuses a block only once the copies from it are done.
  const auto pinned = at::empty(host.sizes(), host.options().pinned_memory(true)).copy_(host);
  return pinned.to(at::Device(at::kCUDA, static_cast<at::DeviceIndex>(index)), host.scalar_type(), /*non_blocking=*/true);
}
