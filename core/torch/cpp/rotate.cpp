// The rotary embedding: in place by a kernel, or by public operations in a copy.

#include <ATen/core/grad_mode.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>

#include "column_sums.h"
#include "guarded.h"
#include "launch.h"
#include "recorded.h"
#include "self_tests.h"

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

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

bool has_rotation(const char* kernel, const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  const bool typed = cos.scalar_type() == x.scalar_type() && sin.scalar_type() == x.scalar_type();
  const bool laid_out = cos.stride(2) == 1 && sin.stride(2) == 1 && cos.stride(0) == sin.stride(0);
  return typed && laid_out && has_kernel(kernel_name(kernel, x.scalar_type()), x.device());
}

// Launches the kernel. Rows of x have their elements next to each other, and no two share memory.
void rotate_in_place(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, int64_t rotated, double sign) {
  const auto touched = x.narrow(1, 0, rotated);
  const int64_t token_stride = x.stride(0), head_stride = x.stride(1), table_stride = cos.stride(0);
  const int heads = static_cast<int>(rotated), half = static_cast<int>(x.size(2) / 2);
  const auto vectors = pieces(int64_t(heads) * half, 16 / x.element_size());
  recorded("nestor::rotate", {touched, cos.narrow(2, 0, half), sin.narrow(2, 0, half)}, [&] {
    launch_kernel(kernel_name("rotate", x.scalar_type()), x.device(), by_row(x.size(0), 1, threads_for(vectors)),
                  x.mutable_data_ptr(), cos.const_data_ptr(), sin.const_data_ptr(), token_stride, head_stride, table_stride,
                  heads, half, static_cast<float>(sign));
    return variable_list{touched};
  });
}

// The same as `rotate`, in x itself where that is possible. Nobody may read x afterwards.
at::Tensor rotate_over(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, int64_t rotated, double sign) {
  const bool laid_out = x.stride(2) == 1 && x.stride(1) >= x.size(2) && x.stride(0) >= x.size(1) * x.stride(1);
  if (!has_rotation("rotate", x, cos, sin)) return rotate(x, cos, sin, rotated, sign);
  const auto out = laid_out ? x.detach() : x.detach().clone(at::MemoryFormat::Contiguous);
  rotate_in_place(out, cos, sin, rotated, sign);
  // An operation that has kept x for its own gradient fails then, instead of reading what it did not keep.
  if (laid_out) torch::autograd::impl::bump_version(x);
  return out;
}

// ---- the gradient

// RotateGrad in cuda/rotate_grad.cu.
struct RotateGrad {
  int tokens, heads, kv_heads, values, half;
  int64_t table_stride;
  struct {
    int64_t token, head;
  } q, k, v;
};

// Blocks of the backward pass for each piece of a token: some for each multiprocessor. Each leaves a part of the columns' sums.
constexpr int64_t BACKWARD_BLOCKS = 512;

int64_t backward_blocks(int64_t tokens) {
  return std::min(tokens, BACKWARD_BLOCKS);
}

bool is_aligned(const at::Tensor& x) {
  return reinterpret_cast<uintptr_t>(x.const_data_ptr()) % 16 == 0;
}

// True where the kernel takes gradients of x.
bool has_rotation_grad(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  const int64_t vector = 16 / x.element_size();
  const bool aligned = is_aligned(cos) && is_aligned(sin) && cos.stride(0) % vector == 0;
  return x.numel() > 0 && x.size(2) / 2 % vector == 0 && aligned && has_rotation("rotate_grad", x, cos, sin);
}

// The gradient where it is, if the kernel takes its layout; else in a copy.
at::Tensor laid_out(const at::Tensor& grad) {
  const int64_t vector = 16 / grad.element_size();
  const bool fits = grad.stride(2) == 1 && grad.stride(0) % vector == 0 && grad.stride(1) % vector == 0 && is_aligned(grad);
  return fits ? grad : grad.clone(at::MemoryFormat::Contiguous);
}

// The gradient (T, N, D) of the tensor that held queries, keys and perhaps values, by theirs, and its column sums (P, N D) in
// P parts, which are undefined unless they are wanted.
struct Unrotated {
  at::Tensor x, parts;
};
Unrotated rotate_back(const variable_list& grads, const at::Tensor& cos, const at::Tensor& sin, bool parts_too) {
  variable_list from;
  int64_t all = 0;
  for (const auto& grad : grads) {
    from.push_back(laid_out(grad));
    all += grad.size(1);
  }
  const auto &q = from[0], &k = from[1], &v = from.back();
  const int64_t tokens = q.size(0), dim = q.size(2), blocks = backward_blocks(tokens), vector = 16 / q.element_size();
  const int values = from.size() > 2 ? static_cast<int>(v.size(1)) : 0;
  const RotateGrad of{static_cast<int>(tokens), static_cast<int>(q.size(1)), static_cast<int>(k.size(1)), values,
                      static_cast<int>(dim / 2), cos.stride(0), {q.stride(0), q.stride(1)}, {k.stride(0), k.stride(1)},
                      {v.stride(0), v.stride(1)}};
  Unrotated to{at::empty({tokens, all, dim}, q.options()), {}};
  if (parts_too) to.parts = at::empty({blocks, all * dim}, q.options().dtype(at::kFloat));
  // A pair of vectors of queries and keys, or one of values, to a thread.
  const int64_t threads = ((of.heads + of.kv_heads) * of.half + values * dim) / vector, block = threads_for(threads);
  variable_list reads = from;
  for (const auto& table : {cos, sin}) reads.push_back(table.narrow(2, 0, dim / 2));
  recorded("nestor::rotate_backward", reads, [&] {
    launch_kernel(kernel_name("rotate_grad", q.scalar_type()), q.device(), by_row(blocks, pieces(threads, block), block),
                  q.const_data_ptr(), k.const_data_ptr(), v.const_data_ptr(), cos.const_data_ptr(), sin.const_data_ptr(),
                  to.x.mutable_data_ptr(), parts_too ? to.parts.mutable_data_ptr() : nullptr, of);
    return variable_list{to.x, to.parts};
  });
  return to;
}

// The numbers of heads of queries, keys and values.
struct Heads {
  int64_t q, k, v;
};

// Queries, keys and values of one tensor. They share its version, but are no views of it for autograd.
variable_list by_heads(const at::Tensor& x, const Heads& heads) {
  variable_list parts{x.narrow(1, 0, heads.q).detach(), x.narrow(1, heads.q, heads.k).detach()};
  if (heads.v > 0) parts.push_back(x.narrow(1, heads.q + heads.k, heads.v).detach());
  return parts;
}

struct Rotate : torch::autograd::Function<Rotate> {
  static variable_list forward(AutogradContext* ctx, const Variable& x, const Variable& cos, const Variable& sin,
                               const Heads& heads, const std::optional<Variable>& parts) {
    ctx->save_for_backward({cos, sin});
    ctx->saved_data["by_kernel"] = parts.has_value();
    return by_heads(rotate_over(x, cos, sin, heads.q + heads.k, 1), heads);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const auto &cos = saved[0], &sin = saved[1];
    if (!ctx->saved_data["by_kernel"].toBool()) {
      const auto x = rotate_over(at::cat(grads, 1), cos, sin, grads[0].size(1) + grads[1].size(1), -1);
      return {x, Variable(), Variable(), Variable(), Variable()};
    }
    const auto [x, parts] = rotate_back(grads, cos, sin, ctx->needs_input_grad(3));
    return {x, Variable(), Variable(), Variable(), parts};
  }
};

std::string rotation_problem(at::ScalarType type, const at::Device& device) {
  const auto x = sample({3, 4, 16}, type, device, 1, 1), angles = sample({3, 1, 8}, at::kFloat, device, 3, 2).repeat({1, 1, 2});
  const auto cos = angles.cos().to(type), sin = angles.sin().to(type);
  const auto want = rotate(x.to(at::kFloat), cos.to(at::kFloat), sin.to(at::kFloat), 3, -1);
  rotate_in_place(x, cos, sin, 3, -1);
  return difference(x, want);
}

std::string rotation_grad_problem(at::ScalarType type, const at::Device& device) {
  const auto x = sample({3, 8, 32}, type, device, 1, 1), angles = sample({3, 1, 16}, at::kFloat, device, 3, 2).repeat({1, 1, 2});
  const auto cos = angles.cos().to(type), sin = angles.sin().to(type);
  const auto want = rotate(x.to(at::kFloat), cos.to(at::kFloat), sin.to(at::kFloat), 6, -1);
  const auto got = rotate_back(by_heads(x, {4, 2, 2}), cos, sin, true);
  const auto why = difference(got.x, want);
  return why.empty() ? difference(got.parts.sum(0), want.sum(0).view({-1})) : why;
}

}  // namespace

std::vector<SelfTest> rotate_self_tests() {
  return for_each_type({{"rotate", rotation_problem}, {"rotate_grad", rotation_grad_problem}});
}

extern "C" {

// Rotates queries and keys of x (T, H + K, D) or, with as many values as keys in addition, (T, H + 2K, D). x may be strided.
// The results may be in the memory of x, which nobody may read afterwards. `parts` becomes a leaf whose gradient (P, n) is
// that of x summed over the tokens, in P parts; null where there is no kernel.
int nestor_generic_rotate(const at::Tensor* x, const at::Tensor* cos, const at::Tensor* sin, int64_t heads,
                          int64_t kv_heads, at::Tensor** qkv, at::Tensor** parts, char* message, size_t message_size) {
  return guarded(message, message_size, [&] {
    const Heads of{heads, kv_heads, x->size(1) - heads - kv_heads};
    variable_list made;
    std::optional<at::Tensor> leaf;
    if (at::GradMode::is_enabled() && x->requires_grad()) {
      const bool by_kernel = has_rotation_grad(*x, *cos, *sin);
      if (by_kernel) leaf = leaf_of_parts(backward_blocks(x->size(0)), {x->size(1) * x->size(2)}, *x);
      made = Rotate::apply(*x, *cos, *sin, of, leaf);
    } else {
      made = by_heads(rotate_over(*x, *cos, *sin, heads + kv_heads, 1), of);
    }
    for (const auto& part : made) *qkv++ = new at::Tensor(part);
    *parts = leaf ? new at::Tensor(*leaf) : nullptr;
  });
}
}
