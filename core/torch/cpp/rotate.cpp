// The rotary embedding: in place by a kernel, or by public operations in a copy. Where sequences begin alike it also gives each
// of them its keys and values, and sums their gradients.

#include <ATen/core/grad_mode.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>
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

// The layout that kernels read: RotatedHeads in cuda/rotary.cuh.
struct RotatedHeads {
  int64_t token, head;
};

RotatedHeads strides(const at::Tensor& x) {
  return {x.stride(0), x.stride(1)};
}

bool is_aligned(const at::Tensor& x) {
  return reinterpret_cast<uintptr_t>(x.const_data_ptr()) % 16 == 0;
}

// True where kernels read vectors of this (T, N, D).
bool in_vectors(const at::Tensor& x) {
  const int64_t vector = 16 / x.element_size();
  return x.stride(2) == 1 && x.stride(0) % vector == 0 && x.stride(1) % vector == 0 && is_aligned(x);
}

// True where this kernel takes vectors of heads as of x, with tables.
bool has_vector_rotation(const char* kernel, const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  const int64_t vector = 16 / x.element_size();
  const bool aligned = is_aligned(cos) && is_aligned(sin) && cos.stride(0) % vector == 0;
  return x.numel() > 0 && x.size(2) / 2 % vector == 0 && aligned && has_rotation(kernel, x, cos, sin);
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

// Sequences that begin alike, whose tokens each have a row for every sequence that has them.
struct Rows {
  // The token of each row, (S) int64.
  at::Tensor tokens;
  // The rows of each token in their order, `of_tokens` (S) from `starts` (T + 1), int32.
  at::Tensor starts, of_tokens;
};

// RotateGather in cuda/rotate_gather.cu.
struct RotateGather {
  int tokens, heads, kv_heads, half;
  int64_t table_stride;
  RotatedHeads q, k, v;
};

// Queries (T, H, D) in the memory of q, and keys and values (S, K, D) of each row, by the kernel.
variable_list rotate_gather(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& cos,
                            const at::Tensor& sin, const at::Tensor& tokens) {
  const int64_t dim = q.size(2), rows = tokens.numel(), vector = 16 / q.element_size();
  const RotateGather of{static_cast<int>(q.size(0)), static_cast<int>(q.size(1)), static_cast<int>(k.size(1)),
                        static_cast<int>(dim / 2), cos.stride(0), strides(q), strides(k), strides(v)};
  const auto keys = at::empty({rows, k.size(1), dim}, k.options()), values = at::empty_like(keys);
  const int64_t threads = std::max(of.heads * of.half, of.kv_heads * 3 * of.half) / vector;
  recorded("nestor::rotate", {q, k, v, tokens, cos.narrow(2, 0, of.half), sin.narrow(2, 0, of.half)}, [&] {
    launch_kernel(kernel_name("rotate_gather", q.scalar_type()), q.device(), by_row(of.tokens + rows, 1, threads_for(threads)),
                  q.mutable_data_ptr(), k.const_data_ptr(), v.const_data_ptr(), cos.const_data_ptr(), sin.const_data_ptr(),
                  tokens.const_data_ptr(), keys.mutable_data_ptr(), values.mutable_data_ptr(), of);
    return variable_list{q, keys, values};
  });
  return {q, keys, values};
}

// ---- the gradient

// RotateGrad in cuda/rotate_grad.cu.
struct RotateGrad {
  int tokens, heads, kv_heads, values, half;
  int64_t table_stride;
  RotatedHeads q, k, v;
  int64_t x_stride, x_v_stride;
};

// Blocks of the backward pass for each piece of a token: some for each multiprocessor. Each leaves a part of the columns' sums.
constexpr int64_t BACKWARD_BLOCKS = 512;

int64_t backward_blocks(int64_t tokens) {
  return std::min(tokens, BACKWARD_BLOCKS);
}

// The gradient where it is, if the kernel takes its layout; else in a copy.
at::Tensor laid_out(const at::Tensor& grad) {
  return in_vectors(grad) ? grad : grad.clone(at::MemoryFormat::Contiguous);
}

// The gradients of the tensor that held queries and keys, and values too unless `v` was another, (T, N, D) each, and the column
// sums of the first (P, N D) in P parts, which are undefined unless they are wanted.
struct Unrotated {
  at::Tensor x, v, parts;
};
struct RotateBack {
  const at::Tensor &cos, &sin;
  // Undefined where keys and values are those of the tokens.
  const at::Tensor &starts, &rows;
  bool values_apart, parts_too;
};
Unrotated rotate_back(const variable_list& grads, const RotateBack& by) {
  variable_list from;
  for (const auto& grad : grads) from.push_back(laid_out(grad));
  const auto &q = from[0], &k = from[1], &v = from.back();
  const int64_t tokens = q.size(0), dim = q.size(2), blocks = backward_blocks(tokens), vector = 16 / q.element_size();
  const int64_t rotated = q.size(1) + k.size(1), values = from.size() > 2 ? v.size(1) : 0;
  Unrotated to;
  to.x = at::empty({tokens, rotated + (by.values_apart ? 0 : values), dim}, q.options());
  to.v = by.values_apart ? at::empty({tokens, values, dim}, q.options()) : to.x.narrow(1, rotated, values);
  if (by.parts_too) to.parts = at::empty({blocks, (rotated + values) * dim}, q.options().dtype(at::kFloat));
  const RotateGrad of{static_cast<int>(tokens), static_cast<int>(q.size(1)), static_cast<int>(k.size(1)),
                      static_cast<int>(values), static_cast<int>(dim / 2), by.cos.stride(0), strides(q), strides(k),
                      strides(v), to.x.stride(0), to.v.stride(0)};
  // A pair of vectors of queries and keys, or one of values, to a thread.
  const int64_t threads = (rotated * of.half + values * dim) / vector, block = threads_for(threads);
  variable_list reads = from;
  for (const auto& table : {by.cos, by.sin}) reads.push_back(table.narrow(2, 0, dim / 2));
  const auto address = [](const at::Tensor& x) { return x.defined() ? x.const_data_ptr() : nullptr; };
  recorded("nestor::rotate_backward", reads, [&] {
    launch_kernel(kernel_name("rotate_grad", q.scalar_type()), q.device(), by_row(blocks, pieces(threads, block), block),
                  q.const_data_ptr(), k.const_data_ptr(), v.const_data_ptr(), by.cos.const_data_ptr(),
                  by.sin.const_data_ptr(), address(by.starts), address(by.rows), to.x.mutable_data_ptr(),
                  to.v.mutable_data_ptr(), by.parts_too ? to.parts.mutable_data_ptr() : nullptr, of);
    return variable_list{to.x, by.values_apart ? to.v : at::Tensor(), to.parts};
  });
  return to;
}

// Queries and keys of x, and its values or those of `apart`, for rows where there are any.
variable_list rotate_forward(const at::Tensor& x, const std::optional<at::Tensor>& apart, const at::Tensor& cos,
                             const at::Tensor& sin, const Heads& heads, const std::optional<Rows>& rows) {
  if (!rows) return by_heads(rotate_over(x, cos, sin, heads.q + heads.k, 1), heads);
  auto parts = by_heads(x.detach(), heads);
  if (apart) parts.push_back(apart->detach());
  torch::autograd::impl::bump_version(x);
  return rotate_gather(parts[0], parts[1], parts[2], cos, sin, rows->tokens);
}

struct Rotate : torch::autograd::Function<Rotate> {
  static variable_list forward(AutogradContext* ctx, const Variable& x, const std::optional<Variable>& parts,
                               const Variable& cos, const Variable& sin, const std::optional<Variable>& apart,
                               const Heads& heads, const std::optional<Rows>& rows) {
    ctx->save_for_backward({cos, sin, rows ? rows->starts : Variable(), rows ? rows->of_tokens : Variable()});
    ctx->saved_data["by_kernel"] = parts.has_value();
    ctx->saved_data["values_apart"] = apart.has_value();
    return rotate_forward(x, apart, cos, sin, heads, rows);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const auto &cos = saved[0], &sin = saved[1];
    variable_list to(7);
    if (!ctx->saved_data["by_kernel"].toBool()) {
      to[0] = rotate_over(at::cat(grads, 1), cos, sin, grads[0].size(1) + grads[1].size(1), -1);
      return to;
    }
    const bool values_apart = ctx->saved_data["values_apart"].toBool();
    const auto of = rotate_back(grads, {cos, sin, saved[2], saved[3], values_apart, ctx->needs_input_grad(1) && !values_apart});
    to[0] = of.x, to[1] = of.parts;
    if (values_apart) to[4] = of.v;
    return to;
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
  const auto got = rotate_back(by_heads(x, {4, 2, 2}), {cos, sin, {}, {}, false, true});
  const auto why = difference(got.x, want);
  return why.empty() ? difference(got.parts.sum(0), want.sum(0).view({-1})) : why;
}

// Token 1 has two rows, token 2 none, and both kernels read the same rows.
std::string rotation_gather_problem(at::ScalarType type, const at::Device& device) {
  const auto x = sample({3, 8, 32}, type, device, 1, 1), angles = sample({3, 1, 16}, at::kFloat, device, 3, 2).repeat({1, 1, 2});
  const auto cos = angles.cos().to(type), sin = angles.sin().to(type);
  const auto index = [&](std::initializer_list<int64_t> numbers, at::ScalarType kind) {
    return at::tensor(at::ArrayRef<int64_t>(numbers), at::kLong).to(device, kind);
  };
  const auto tokens = index({1, 0, 1}, at::kLong), starts = index({0, 1, 3, 3}, at::kInt), rows = index({1, 0, 2}, at::kInt);
  const Heads heads{4, 2, 2};
  const auto single = [](const at::Tensor& x) { return x.to(at::kFloat); };
  auto want = by_heads(rotate(single(x), single(cos), single(sin), 6, 1), heads);
  for (int i : {1, 2}) want[i] = want[i].index_select(0, tokens);
  const auto of = by_heads(x.clone(), heads);
  const auto got = rotate_gather(of[0], of[1], of[2], cos, sin, tokens);
  for (int i : {0, 1, 2}) {
    const auto why = difference(got[i], want[i]);
    if (!why.empty()) return why;
  }
  auto sums = by_heads(single(x), heads);
  for (int i : {1, 2}) sums[i] = at::zeros_like(sums[i]).index_add(0, tokens, sums[i]);
  const auto back = rotate_back(by_heads(x, heads), {cos, sin, starts, rows, true, false});
  const auto turned = rotate(at::cat(sums, 1), single(cos), single(sin), 6, -1);
  const auto why = difference(back.x, turned.narrow(1, 0, 6));
  return why.empty() ? difference(back.v, turned.narrow(1, 6, 2)) : why;
}

}  // namespace

std::vector<SelfTest> rotate_self_tests() {
  return for_each_type({{"rotate", rotation_problem}, {"rotate_grad", rotation_grad_problem}, {"rotate_gather", rotation_gather_problem}});
}

extern "C" {

// Rotates queries and keys of x (T, H + K, D) or, with as many values as keys in addition, (T, H + 2K, D). x may be strided.
// The results may be in the memory of x, which nobody may read afterwards. `apart` has values that are not in x, (T, K, D), or
// is null. `row_tokens` is null, or names the token of each row of keys and values, with `row_starts` and `token_rows` as in
// Rows. `parts` becomes a leaf whose gradient (P, n) is that of x summed over the tokens, in P parts; null where there is no
// kernel.
int nestor_generic_rotate(const at::Tensor* x, const at::Tensor* apart, const at::Tensor* cos, const at::Tensor* sin,
                          int64_t heads, int64_t kv_heads, const at::Tensor* row_tokens, const at::Tensor* row_starts,
                          const at::Tensor* token_rows, at::Tensor** qkv, at::Tensor** parts, char* message,
                          size_t message_size) {
  return guarded(message, message_size, [&] {
    const Heads of{heads, kv_heads, x->size(1) - heads - kv_heads};
    const bool with_gradients = at::GradMode::is_enabled() && x->requires_grad();
    const bool by_kernel = with_gradients && has_vector_rotation("rotate_grad", *x, *cos, *sin);
    // A kernel gathers rows too, if the gradient's sums them.
    const bool gathers = row_tokens && (by_kernel || !with_gradients) && in_vectors(*x) && (!apart || in_vectors(*apart)) &&
                         has_vector_rotation("rotate_gather", *x, *cos, *sin);
    std::optional<at::Tensor> leaf, values;
    std::optional<Rows> rows;
    if (gathers) rows = Rows{*row_tokens, *row_starts, *token_rows};
    if (gathers && apart) values = *apart;
    variable_list made;
    if (with_gradients) {
      if (by_kernel) leaf = leaf_of_parts(backward_blocks(x->size(0)), {x->size(1) * x->size(2)}, *x);
      made = Rotate::apply(*x, leaf, *cos, *sin, values, of, rows);
    } else {
      made = rotate_forward(*x, values, *cos, *sin, of, rows);
    }
    if (apart && !gathers) made.push_back(*apart);
    if (row_tokens && !gathers) {
      // The gradient of `index_select` would add row by row on a CPU, and on CUDA in an order that changes from run to run.
      const auto gather = [&](const at::Tensor& x) {
        return at::embedding(x.flatten(1, 2), *row_tokens).view({-1, x.size(1), x.size(2)});
      };
      for (size_t i = 1; i < made.size(); ++i) made[i] = gather(made[i]);
    }
    for (const auto& part : made) *qkv++ = new at::Tensor(part);
    *parts = leaf ? new at::Tensor(*leaf) : nullptr;
  });
}
}
