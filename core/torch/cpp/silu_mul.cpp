// silu(gate) * up, by kernels or by public operations.

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <torch/csrc/autograd/custom_function.h>

#include "guarded.h"
#include "launch.h"
#include "recorded.h"
#include "self_tests.h"

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

// A block takes a piece of a row of F results.
Launch of_rows(int64_t rows, int64_t width) {
  const auto threads = threads_for(pieces(width, MOST_AT_ONCE), MOST_THREADS / 2);
  return by_row(rows, pieces(width, threads * MOST_AT_ONCE), threads);
}

at::Tensor by_kernel(const at::Tensor& x) {
  return recorded("nestor::silu_mul", {x}, [&] {
    const auto y = at::empty({x.size(0), x.size(1) / 2}, x.options());
    launch_kernel(kernel_name("silu_mul", x.scalar_type()), x.device(), of_rows(y.size(0), y.size(1)), x.const_data_ptr(),
                  y.mutable_data_ptr(), static_cast<int>(y.size(1)));
    return variable_list{y};
  })[0];
}

at::Tensor grad_by_kernel(const at::Tensor& x, const at::Tensor& grad) {
  const auto whole = grad.contiguous();
  return recorded("nestor::silu_mul_backward", {x, whole}, [&] {
    const auto to = at::empty(x.sizes(), x.options());
    launch_kernel(kernel_name("silu_mul_grad", x.scalar_type()), x.device(), of_rows(grad.size(0), grad.size(1)),
                  x.const_data_ptr(), whole.const_data_ptr(), to.mutable_data_ptr(), static_cast<int>(grad.size(1)));
    return variable_list{to};
  })[0];
}

at::Tensor by_operations(const at::Tensor& x) {
  const int64_t width = x.size(1) / 2;
  return at::silu(x.narrow(1, 0, width)).mul_(x.narrow(1, width, width));
}

// Writes both halves in place: autograd would add two tensors that are half zero.
at::Tensor grad_by_operations(const at::Tensor& x, const at::Tensor& grad) {
  const int64_t width = x.size(1) / 2;
  const auto gate = x.narrow(1, 0, width), up = x.narrow(1, width, width);
  auto to = at::empty_like(x);
  auto to_gate = to.narrow(1, 0, width), to_up = to.narrow(1, width, width);
  at::silu_out(to_up, gate).mul_(grad);
  at::silu_backward_out(to_gate, at::mul(grad, up), gate);
  return to;
}

at::Tensor silu_mul(const at::Tensor& x) {
  const bool kernel = x.is_contiguous() && has_kernel(kernel_name("silu_mul", x.scalar_type()), x.device());
  return kernel ? by_kernel(x) : by_operations(x);
}

// Keeps x alone: autograd would keep silu(gate) too.
struct SiluMul : torch::autograd::Function<SiluMul> {
  static Variable forward(AutogradContext* ctx, const Variable& x) {
    ctx->save_for_backward({x});
    return silu_mul(x);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto x = ctx->get_saved_variables()[0];
    const bool kernel = x.is_contiguous() && has_kernel(kernel_name("silu_mul_grad", x.scalar_type()), x.device());
    return {kernel ? grad_by_kernel(x, grads[0]) : grad_by_operations(x, grads[0])};
  }
};

std::string problem(at::ScalarType type, const at::Device& device) {
  const auto x = sample({3, 48}, type, device, 3);
  return difference(by_kernel(x), by_operations(x.to(at::kFloat)));
}

std::string grad_problem(at::ScalarType type, const at::Device& device) {
  const auto x = sample({3, 48}, type, device, 3, 1), grad = sample({3, 24}, type, device, 1, 2);
  return difference(grad_by_kernel(x, grad), grad_by_operations(x.to(at::kFloat), grad.to(at::kFloat)));
}

}  // namespace

std::vector<SelfTest> silu_mul_self_tests() {
  return for_each_type({{"silu_mul", problem}, {"silu_mul_grad", grad_problem}});
}

extern "C" {

// x (T, 2F), gate before up: (T, F).
int nestor_generic_silu_mul(const at::Tensor* x, at::Tensor** y, char* message, size_t message_size) {
  return guarded(message, message_size, [&] {
    *y = new at::Tensor(at::GradMode::is_enabled() && x->requires_grad() ? SiluMul::apply(*x) : silu_mul(*x));
  });
}
}
