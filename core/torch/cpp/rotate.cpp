// The rotary embedding: in place by a kernel, or by public operations in a copy.

#include <ATen/core/grad_mode.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <torch/csrc/autograd/custom_function.h>

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

bool has_rotation(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  const bool typed = cos.scalar_type() == x.scalar_type() && sin.scalar_type() == x.scalar_type();
  const bool laid_out = cos.stride(2) == 1 && sin.stride(2) == 1 && cos.stride(0) == sin.stride(0);
  return typed && laid_out && has_kernel(kernel_name("rotate", x.scalar_type()), x.device());
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

// The same as `rotate`, in a copy of x.
at::Tensor rotate_apart(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, int64_t rotated, double sign) {
  if (!has_rotation(x, cos, sin)) return rotate(x, cos, sin, rotated, sign);
  const auto out = x.detach().clone(at::MemoryFormat::Contiguous);
  rotate_in_place(out, cos, sin, rotated, sign);
  return out;
}

// The same in x itself where that is possible. Nobody may read x afterwards.
at::Tensor rotate_over(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, int64_t rotated, double sign) {
  const bool laid_out = x.stride(2) == 1 && x.stride(1) >= x.size(2) && x.stride(0) >= x.size(1) * x.stride(1);
  if (!laid_out || !has_rotation(x, cos, sin)) return rotate_apart(x, cos, sin, rotated, sign);
  const auto out = x.detach();
  rotate_in_place(out, cos, sin, rotated, sign);
  // An operation that has kept x for its own gradient fails then, instead of reading what it did not keep.
  torch::autograd::impl::bump_version(x);
  return out;
}

struct Rotate : torch::autograd::Function<Rotate> {
  static Variable forward(AutogradContext* ctx, const Variable& x, const Variable& cos, const Variable& sin,
                          int64_t rotated) {
    ctx->save_for_backward({cos, sin});
    ctx->saved_data["rotated"] = rotated;
    return rotate_over(x, cos, sin, rotated, 1);
  }

  // By reference, since a copy of the list would hold the gradient a second time.
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const auto& grad = grads[0];
    const bool own = grad.use_count() == 1 && grad.storage().use_count() == 1 && !at::GradMode::is_enabled();
    const auto back = own ? rotate_over : rotate_apart;
    return {back(grad, saved[0], saved[1], ctx->saved_data["rotated"].toInt(), -1), Variable(), Variable(), Variable()};
  }
};

std::string rotation_problem(at::ScalarType type, const at::Device& device) {
  const auto x = sample({3, 4, 16}, type, device, 1, 1), angles = sample({3, 1, 8}, at::kFloat, device, 3, 2).repeat({1, 1, 2});
  const auto cos = angles.cos().to(type), sin = angles.sin().to(type);
  const auto want = rotate(x.to(at::kFloat), cos.to(at::kFloat), sin.to(at::kFloat), 3, -1);
  rotate_in_place(x, cos, sin, 3, -1);
  return difference(x, want);
}

}  // namespace

std::vector<SelfTest> rotate_self_tests() {
  return for_each_type("rotate", rotation_problem);
}

extern "C" {

// Rotates the first `rotated` heads of x (T, N, D), which may be strided: (T, N, D) with the others as they are. The result
// may be in the memory of x, which nobody may read afterwards.
int nestor_generic_rotate(const at::Tensor* x, const at::Tensor* cos, const at::Tensor* sin, int64_t rotated,
                          at::Tensor** y, char* message, size_t message_size) {
  return guarded(message, message_size, [&] {
    const bool records = at::GradMode::is_enabled() && x->requires_grad();
    *y = new at::Tensor(records ? Rotate::apply(*x, *cos, *sin, rotated) : rotate_over(*x, *cos, *sin, rotated, 1));
  });
}
}
