// The network's operations by libtorch's own, for tensors on any device: what a GPU runs, and a CPU where the fused
// operations do not take the type. Operations that only CUDA has are in cuda_ops.cpp; on a CPU a public one takes their
// place, so that all other code of this path is the same on both.

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_rms_norm.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>
#include <optional>

#include "cuda_ops.h"
#include "guarded.h"

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

bool needs_grad(const at::Tensor& a) {
  return at::GradMode::is_enabled() && a.requires_grad();
}

// ---- x / rms(x) * weight

at::Tensor rms_norm_on_cpu(const at::Tensor& x, const std::optional<at::Tensor>& weight, double eps) {
  return std::get<0>(at::_fused_rms_norm(x, {x.size(-1)}, weight, eps));
}

// libtorch composes it of many operations on a CPU; here they are one, as on CUDA.
struct RmsNormOnCpu : torch::autograd::Function<RmsNormOnCpu> {
  static Variable forward(AutogradContext* ctx, const Variable& x, const std::optional<Variable>& weight, double eps) {
    ctx->save_for_backward({x, weight.value_or(Variable())});
    ctx->saved_data["eps"] = eps;
    RECORD_FUNCTION("nestor::rms_norm", std::vector<c10::IValue>({x}));
    at::DisableRecordFunctionGuard unseen;
    return rms_norm_on_cpu(x, weight, eps);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    RECORD_FUNCTION("nestor::rms_norm_backward", std::vector<c10::IValue>({saved[0]}));
    at::DisableRecordFunctionGuard unseen;
    at::AutoGradMode again(true);
    variable_list inputs{saved[0].detach().requires_grad_(true)};
    if (saved[1].defined()) inputs.push_back(saved[1].detach().requires_grad_(true));
    const auto weight = inputs.size() > 1 ? std::optional<Variable>(inputs[1]) : std::nullopt;
    auto gradients = torch::autograd::grad({rms_norm_on_cpu(inputs[0], weight, ctx->saved_data["eps"].toDouble())}, inputs,
                                           {grads[0]});
    gradients.resize(3);
    return gradients;
  }
};

// ---- rotary embedding

// Rotates the pairs (i, i + half) of the first `rotated` heads of x (T, N, D), by the angles of cos and sin (T, 1, D) or, with
// `sign` -1, back. Copies the other heads.
at::Tensor rotate(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, int64_t rotated, double sign) {
  const int64_t half = x.size(2) / 2;
  auto out = at::empty(x.sizes(), x.options());
  const auto part = [&](const at::Tensor& whole, int64_t at) { return whole.narrow(1, 0, rotated).narrow(2, at, half); };
  // Both halves of the tables are equal.
  const auto c = cos.narrow(2, 0, half), s = sin.narrow(2, 0, half);
  const auto a = part(x, 0), b = part(x, half);
  auto to_a = part(out, 0), to_b = part(out, half);
  at::mul_out(to_a, a, c).addcmul_(b, s, -sign);
  at::mul_out(to_b, b, c).addcmul_(a, s, sign);
  const int64_t rest = x.size(1) - rotated;
  if (rest > 0) out.narrow(1, rotated, rest).copy_(x.narrow(1, rotated, rest));
  return out;
}

struct Rotate : torch::autograd::Function<Rotate> {
  static Variable forward(AutogradContext* ctx, const Variable& x, const Variable& cos, const Variable& sin,
                          int64_t rotated) {
    ctx->save_for_backward({cos, sin});
    ctx->saved_data["rotated"] = rotated;
    return rotate(x, cos, sin, rotated, 1);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    return {rotate(grads[0], saved[0], saved[1], ctx->saved_data["rotated"].toInt(), -1), Variable(), Variable(),
            Variable()};
  }
};

// ---- silu(gate) * up

at::Tensor silu_mul(const at::Tensor& x) {
  const int64_t width = x.size(1) / 2;
  return at::silu(x.narrow(1, 0, width)).mul_(x.narrow(1, width, width));
}

// Keeps x alone, and writes both halves of the gradient in place: autograd would keep silu(gate) too, and add two tensors
// that are half zero.
struct SiluMul : torch::autograd::Function<SiluMul> {
  static Variable forward(AutogradContext* ctx, const Variable& x) {
    ctx->save_for_backward({x});
    return silu_mul(x);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto x = ctx->get_saved_variables()[0];
    const int64_t width = x.size(1) / 2;
    const auto gate = x.narrow(1, 0, width), up = x.narrow(1, width, width);
    auto grad = at::empty_like(x);
    auto to_gate = grad.narrow(1, 0, width), to_up = grad.narrow(1, width, width);
    at::silu_out(to_up, gate).mul_(grads[0]);
    at::silu_backward_out(to_gate, at::mul(grads[0], up), gate);
    return {grad};
  }
};

// ---- attention

// The result of the kernel in cuda_ops.cpp, sequence by sequence and without gradients of its own.
at::Tensor attention_on_cpu(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Sequences& queries,
                            const Sequences& keys, double scale) {
  std::vector<at::Tensor> outs;
  const int32_t *from = queries.starts.const_data_ptr<int32_t>(), *at = keys.starts.const_data_ptr<int32_t>();
  const int32_t* used = keys.used.defined() ? keys.used.const_data_ptr<int32_t>() : nullptr;
  const int64_t n = queries.starts.numel() - 1;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t rows = from[i + 1] - from[i], seen = used ? used[i] : at[i + 1] - at[i];
    const auto heads = [&](const at::Tensor& x, int64_t start, int64_t length) {
      return x.narrow(0, start, length).transpose(0, 1).unsqueeze(0);
    };
    std::optional<at::Tensor> mask;
    if (rows > 1 && rows != seen) mask = at::ones({rows, seen}, q.options().dtype(at::kBool)).tril(seen - rows);
    const auto out = at::scaled_dot_product_attention(heads(q, from[i], rows), heads(k, at[i], seen), heads(v, at[i], seen),
                                                      mask, 0.0, /*is_causal=*/rows > 1 && !mask, scale,
                                                      /*enable_gqa=*/true);
    outs.push_back(out.squeeze(0).transpose(0, 1));
  }
  // Rows behind the last sequence are undefined.
  if (from[n] < q.size(0)) outs.push_back(at::zeros({q.size(0) - from[n], q.size(1), q.size(2)}, q.options()));
  return at::cat(outs, 0);
}

// The same as one operation, forward and backward, as it is on CUDA: a recorder of operations (record.cpp) sees no part of it.
struct AttentionOnCpu : torch::autograd::Function<AttentionOnCpu> {
  static Variable forward(AutogradContext* ctx, const Variable& q, const Variable& k, const Variable& v,
                          Sequences queries, Sequences keys, double scale) {
    ctx->save_for_backward({q, k, v, queries.starts, keys.starts});
    ctx->saved_data["scale"] = scale;
    RECORD_FUNCTION("nestor::varlen_attention", std::vector<c10::IValue>({q, k, v}));
    at::DisableRecordFunctionGuard unseen;
    return attention_on_cpu(q, k, v, queries, keys, scale);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    RECORD_FUNCTION("nestor::varlen_attention_backward", std::vector<c10::IValue>({saved[0], saved[1], saved[2]}));
    at::DisableRecordFunctionGuard unseen;
    at::AutoGradMode again(true);
    variable_list inputs;
    for (int i = 0; i < 3; ++i) inputs.push_back(saved[i].detach().requires_grad_(true));
    const auto out = attention_on_cpu(inputs[0], inputs[1], inputs[2], {saved[3], {}, 0}, {saved[4], {}, 0},
                                      ctx->saved_data["scale"].toDouble());
    auto gradients = torch::autograd::grad({out}, inputs, {grads[0]});
    gradients.resize(6);
    return gradients;
  }
};

}  // namespace

extern "C" {

// x / rms(x) over the last dimension, times `weight` unless that is null.
int nestor_generic_rms_norm(const at::Tensor* x, const at::Tensor* weight, double eps, at::Tensor** y, char* message,
                            size_t message_size) {
  return guarded(message, message_size, [&] {
    const auto by = weight ? std::optional<at::Tensor>(*weight) : std::nullopt;
    *y = new at::Tensor(x->is_cuda() ? cuda_rms_norm(*x, by, eps) : RmsNormOnCpu::apply(*x, by, eps));
  });
}

// Rotates the first `rotated` heads of x (T, N, D), which may be strided, and copies the others: (T, N, D).
int nestor_generic_rotate(const at::Tensor* x, const at::Tensor* cos, const at::Tensor* sin, int64_t rotated,
                          at::Tensor** y, char* message, size_t message_size) {
  return guarded(message, message_size, [&] {
    *y = new at::Tensor(needs_grad(*x) ? Rotate::apply(*x, *cos, *sin, rotated) : rotate(*x, *cos, *sin, rotated, 1));
  });
}

// x (T, 2F), gate before up: (T, F).
int nestor_generic_silu_mul(const at::Tensor* x, at::Tensor** y, char* message, size_t message_size) {
  return guarded(message, message_size,
                 [&] { *y = new at::Tensor(needs_grad(*x) ? SiluMul::apply(*x) : silu_mul(*x)); });
}

// Causal attention of packed queries to packed keys and values, aligned at the sequences' ends: (T, H, D). `key_used` may be
// null; without gradients where it is not.
int nestor_varlen_attention(const at::Tensor* q, const at::Tensor* k, const at::Tensor* v, const at::Tensor* query_starts,
                            int64_t longest_query, const at::Tensor* key_starts, const at::Tensor* key_used,
                            int64_t longest_key, at::Tensor** out, char* message, size_t message_size) {
  return guarded(message, message_size, [&] {
    const Sequences queries{*query_starts, {}, longest_query};
    const Sequences keys{*key_starts, key_used ? *key_used : at::Tensor(), longest_key};
    const double scale = 1.0 / std::sqrt(static_cast<double>(q->size(2)));
    *out = new at::Tensor(q->is_cuda() ? cuda_attention(*q, *k, *v, queries, keys, scale)
                                       : AttentionOnCpu::apply(*q, *k, *v, queries, keys, scale));
  });
}

// A copy of a host tensor on the GPU of this number.
int nestor_cuda_upload(const at::Tensor* host, int64_t index, at::Tensor** copy, char* message, size_t message_size) {
  return guarded(message, message_size, [&] { *copy = new at::Tensor(cuda_upload(*host, index)); });
}

// sum (n, m) float32 = a (T, n) transposed * b (T, m), added to what it holds unless `first`.
int nestor_generic_add_product(const at::Tensor* sum, const at::Tensor* a, const at::Tensor* b, bool first, char* message,
                               size_t message_size) {
  return guarded(message, message_size, [&] {
    const double beta = first ? 0.0 : 1.0;
    if (a->is_cuda() && a->scalar_type() != at::kFloat) {
      cuda_add_product(*sum, *a, *b, beta);
    } else {
      RECORD_FUNCTION("nestor::add_product", std::vector<c10::IValue>({*sum, *a, *b}));
      at::DisableRecordFunctionGuard unseen;
      auto out = *sum;
      at::addmm_out(out, out, a->t().to(at::kFloat), b->to(at::kFloat), beta);
    }
  });
}
}
