// RMS norm for tensors on any device, with or without a residual: by own kernels where the device has them, else by public
// operations.

#include "norm.h"
#include "recorded.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_rms_norm.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sum.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <optional>

#include "column_sums.h"
#include "cuda_ops.h"
#include "guarded.h"
#include "kernels.h"
#include "self_tests.h"

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

// ---- by public operations

at::Tensor rms_norm_on_cpu(const at::Tensor& x, const std::optional<at::Tensor>& weight, double eps) {
  return std::get<0>(at::_fused_rms_norm(x, {x.size(-1)}, weight, eps));
}

// The tensors that the norm reads.
variable_list with(const Variable& x, const std::optional<Variable>& weight) {
  return weight ? variable_list{x, *weight} : variable_list{x};
}

// libtorch composes it of many operations on a CPU; here they are one, as on CUDA.
struct RmsNormOnCpu : torch::autograd::Function<RmsNormOnCpu> {
  static Variable forward(AutogradContext* ctx, const Variable& x, const std::optional<Variable>& weight, double eps) {
    ctx->save_for_backward({x, weight.value_or(Variable())});
    ctx->saved_data["eps"] = eps;
    return recorded("nestor::rms_norm", with(x, weight), [&] {
      return variable_list{rms_norm_on_cpu(x, weight, eps)};
    })[0];
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const auto scale = saved[1].defined() ? std::optional<Variable>(saved[1]) : std::nullopt;
    variable_list reads = with(saved[0], scale);
    reads.push_back(grads[0]);
    auto gradients = recorded("nestor::rms_norm_backward", reads, [&] {
      at::AutoGradMode again(true);
      variable_list inputs{saved[0].detach().requires_grad_(true)};
      if (scale) inputs.push_back(scale->detach().requires_grad_(true));
      const auto weight = scale ? std::optional<Variable>(inputs[1]) : std::nullopt;
      return torch::autograd::grad({rms_norm_on_cpu(inputs[0], weight, ctx->saved_data["eps"].toDouble())}, inputs,
                                   {grads[0]});
    });
    gradients.resize(3);
    return gradients;
  }
};

at::Tensor public_rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  // libtorch's norm has one weight for all heads.
  const auto by = weight.dim() == 1 ? std::optional<at::Tensor>(weight) : std::nullopt;
  const auto y = x.is_cuda() ? cuda_rms_norm(x, by, eps) : RmsNormOnCpu::apply(x, by, eps);
  return by ? y : at::mul(y, weight);
}

// ---- by own kernels

// RmsNormRows in rms_norm.cu.
struct Rows {
  int tokens, heads, width, per_row;
  int64_t stride;
  float eps;
};

constexpr int WARP = 32, MOST_THREADS = 512;
// Vectors of a row that a thread of the backward kernel has, as in rms_norm.cu.
constexpr int MOST_OF_ROW = 2;
// Warps of a block whose warps have a row each.
constexpr int ROWS_TO_BLOCK = 4;
// Blocks of a backward pass: some for each multiprocessor, since each waits for its sums. Each leaves a part of the weight's
// gradient.
constexpr int BACKWARD_BLOCKS = 512;

struct Shape {
  Rows rows;
  int block, groups;
};

// Elements of 16 bytes.
int64_t vector_of(const at::Tensor& x) {
  return 16 / x.element_size();
}

Shape shape_of(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const auto heads = static_cast<int>(weight.dim() == 2 ? weight.size(0) : 1);
  const auto width = static_cast<int>(x.size(-1));
  const int vectors = static_cast<int>(width / vector_of(x));
  const bool by_warps = vectors <= WARP * MOST_OF_ROW;
  const int per_row = by_warps ? WARP : std::min((vectors + WARP - 1) / WARP * WARP, MOST_THREADS);
  const int block = by_warps ? WARP * ROWS_TO_BLOCK : per_row;
  return {{static_cast<int>(x.size(0)), heads, width, per_row, x.stride(0), static_cast<float>(eps)}, block, block / per_row};
}

bool is_aligned(const at::Tensor& x) {
  return reinterpret_cast<uintptr_t>(x.const_data_ptr()) % 16 == 0;
}

// True for tokens of dense rows, which may be apart.
bool is_taken(const at::Tensor& x) {
  const auto vector = vector_of(x);
  const bool dense = x.stride(-1) == 1 && (x.dim() == 2 || x.stride(1) == x.size(2));
  return dense && is_aligned(x) && x.stride(0) % vector == 0 && x.size(-1) % vector == 0 &&
         x.size(-1) <= MOST_THREADS * MOST_OF_ROW * vector;
}

bool has_norm(const char* kernel, const at::Tensor& x, const at::Tensor& weight) {
  if (!has_kernel(kernel_name(kernel, x.scalar_type()), x.device())) return false;
  const bool fits = x.dim() == weight.dim() + 1 && x.sizes().slice(1) == weight.sizes() && x.numel() > 0;
  return fits && x.scalar_type() == weight.scalar_type() && is_taken(x) && weight.is_contiguous() && is_aligned(weight);
}

void* pointer(const at::Tensor& x) {
  return x.defined() ? x.data_ptr() : nullptr;
}

// A dense gradient at a multiple of 16 bytes.
at::Tensor dense(const at::Tensor& grad) {
  const auto all = grad.contiguous();
  return is_aligned(all) ? all : all.clone();
}

}  // namespace

Normed launch_rms_norm(const at::Tensor& x, const at::Tensor& y, const at::Tensor& weight, double eps, bool keep_scales) {
  const auto [rows, block, groups] = shape_of(x, weight, eps);
  const auto room = [&] { return at::empty(x.sizes(), x.options()); };
  const int64_t n = static_cast<int64_t>(rows.tokens) * rows.heads;
  Normed to{y.defined() ? room() : at::Tensor(), room(),
            keep_scales ? at::empty({n}, x.options().dtype(at::kFloat)) : at::Tensor()};
  const Launch launch{static_cast<unsigned>((n + groups - 1) / groups), 1, static_cast<unsigned>(block)};
  if (y.defined()) {
    const auto more = dense(y);
    recorded("nestor::add_norm", {x, more, weight}, [&] {
      launch_kernel(kernel_name("add_norm", x.scalar_type()), x.device(), launch, pointer(x), pointer(more),
                    pointer(weight), pointer(to.sum), pointer(to.out), pointer(to.scales), rows);
      return variable_list{to.sum, to.out, to.scales};
    });
  } else {
    recorded("nestor::rms_norm", {x, weight}, [&] {
      launch_kernel(kernel_name("rms_norm", x.scalar_type()), x.device(), launch, pointer(x), pointer(weight),
                    pointer(to.out), pointer(to.scales), rows);
      return variable_list{to.out, to.scales};
    });
  }
  return to;
}

namespace {

// Blocks of a backward pass for each head.
int backward_blocks(const Shape& shape) {
  const auto& [rows, block, groups] = shape;
  return std::max(1, std::min(BACKWARD_BLOCKS / rows.heads, (rows.tokens + groups - 1) / groups));
}

// Parts of the weight's gradient that a backward pass leaves.
int64_t backward_parts(const Shape& shape) {
  return static_cast<int64_t>(backward_blocks(shape)) * shape.groups;
}

}  // namespace

NormGradients launch_rms_norm_grad(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& scales,
                                   const at::Tensor& grad, const at::Tensor& grad_sum, bool weight_too) {
  const auto shape = shape_of(x, weight, 0.0);
  const auto from = dense(grad), more = grad_sum.defined() ? dense(grad_sum) : at::Tensor();
  NormGradients to{at::empty(x.sizes(), x.options()), {}};
  if (weight_too) {
    std::vector<int64_t> sizes = weight.sizes().vec();
    sizes.insert(sizes.begin(), backward_parts(shape));
    to.weight_parts = at::empty(sizes, x.options().dtype(at::kFloat));
  }
  const Launch launch{static_cast<unsigned>(backward_blocks(shape)), static_cast<unsigned>(shape.rows.heads),
                      static_cast<unsigned>(shape.block)};
  variable_list reads{x, weight, scales, from};
  if (more.defined()) reads.push_back(more);
  recorded("nestor::rms_norm_backward", reads, [&] {
    launch_kernel(kernel_name("rms_norm_grad", x.scalar_type()), x.device(), launch, pointer(x), pointer(weight),
                  pointer(scales), pointer(from), pointer(more), pointer(to.x), pointer(to.weight_parts), shape.rows);
    return variable_list{to.x, to.weight_parts};
  });
  return to;
}

namespace {

// The sum of x and perhaps y, and its norm. `parts`, for a weight that is trained, is a leaf whose gradient is the weight's in
// parts.
struct Norm : torch::autograd::Function<Norm> {
  static variable_list forward(AutogradContext* ctx, const Variable& x, const std::optional<Variable>& y,
                               const Variable& weight, const std::optional<Variable>& parts, double eps) {
    ctx->set_materialize_grads(false);
    ctx->saved_data["adds"] = y.has_value();
    ctx->saved_data["in_parts"] = parts.has_value();
    const auto normed = launch_rms_norm(x, y.value_or(Variable()), weight, eps, true);
    ctx->save_for_backward({y ? normed.sum : x, weight, normed.scales});
    return {y ? normed.sum : x.detach(), normed.out};
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const auto& weight = saved[1];
    const bool adds = ctx->saved_data["adds"].toBool();
    const auto of_both = [&](const Variable& x) { return variable_list{x, adds ? x : Variable()}; };
    auto made = of_both(grads[0]);
    Variable of_weight, of_parts;
    if (grads[1].defined()) {
      // The gradients that are asked for, by the places of the tensors among the arguments.
      const size_t place = adds ? 2 : 1;
      const bool whole = ctx->needs_input_grad(place);
      const bool in_parts = ctx->saved_data["in_parts"].toBool() && ctx->needs_input_grad(place + 1);
      const auto to = launch_rms_norm_grad(saved[0], weight, saved[2], grads[1], grads[0], whole || in_parts);
      made = of_both(to.x);
      if (whole) of_weight = at::sum(to.weight_parts, {0}).to(weight.scalar_type());
      if (in_parts) of_parts = to.weight_parts;
    }
    made.insert(made.end(), {of_weight, of_parts, Variable()});
    return made;
  }
};

}  // namespace

// ---- self-tests

namespace {

// Rows for each form of the kernels: a block to a row, and a warp to a row, with a part of a token's heads.
struct Sample {
  at::Tensor x, weight;
};
std::vector<Sample> samples(at::ScalarType type, const at::Device& device) {
  const auto heads = sample({5, 6, 64}, type, device);
  return {{sample({5, 896}, type, device), sample({896}, type, device, 1.0, 2)},
          {heads.narrow(1, 0, 4), sample({4, 64}, type, device, 1.0, 2)}};
}

at::Tensor reference(const at::Tensor& x, const at::Tensor& weight) {
  return public_rms_norm(x.to(at::kFloat), weight.to(at::kFloat), 1e-6);
}

std::string rms_norm_problem(at::ScalarType type, const at::Device& device) {
  for (const auto& [x, weight] : samples(type, device)) {
    const auto why = difference(launch_rms_norm(x, {}, weight, 1e-6, false).out, reference(x, weight));
    if (!why.empty()) return why;
  }
  return "";
}

std::string add_norm_problem(at::ScalarType type, const at::Device& device) {
  const auto [x, weight] = samples(type, device)[0];
  const auto y = sample(x.sizes(), type, device, 1.0, 3), sum = at::add(x, y);
  const auto normed = launch_rms_norm(x, y, weight, 1e-6, false);
  const auto why = difference(normed.sum, sum);
  return why.empty() ? difference(normed.out, reference(sum, weight)) : why;
}

std::string rms_norm_grad_problem(at::ScalarType type, const at::Device& device) {
  for (const auto& [x, weight] : samples(type, device)) {
    const auto grad = sample(x.sizes(), type, device, 1.0, 3), of_sum = sample(x.sizes(), type, device, 1.0, 4);
    const auto scales = (x.to(at::kFloat).square().mean(-1) + 1e-6).rsqrt().view({-1});
    const auto got = launch_rms_norm_grad(x, weight, scales, grad, of_sum, true);
    const at::AutoGradMode on(true);
    const auto input = x.to(at::kFloat).detach().requires_grad_(true);
    const auto by = weight.to(at::kFloat).detach().requires_grad_(true);
    const auto want = torch::autograd::grad({public_rms_norm(input, by, 1e-6)}, {input, by}, {grad.to(at::kFloat)});
    const at::NoGradGuard off;
    const auto why = difference(got.x, want[0] + of_sum.to(at::kFloat));
    if (!why.empty()) return why;
    const auto of_weight = difference(got.weight_parts.sum(0).to(type), want[1]);
    if (!of_weight.empty()) return of_weight;
  }
  return "";
}

}  // namespace

std::vector<SelfTest> norm_self_tests() {
  return for_each_type({{"rms_norm", rms_norm_problem},
                        {"add_norm", add_norm_problem},
                        {"rms_norm_grad", rms_norm_grad_problem}});
}

extern "C" {

// x, or x + y where y is not null, and its norm by the weight: (T, E) with weight (E), or without y also (T, N, D) with weight
// (N, D). The third tensor is the leaf that has the weight's gradient: the weight, or a stand-in of float32 (P, ...) whose
// gradient is the weight's in P parts.
int nestor_generic_norm(const at::Tensor* x, const at::Tensor* y, const at::Tensor* weight, double eps, at::Tensor** made,
                        char* message, size_t message_size) {
  return guarded(message, message_size, [&] {
    const bool fits = !y || (x->sizes() == y->sizes() && x->scalar_type() == y->scalar_type() && x->is_contiguous());
    const bool needs = x->requires_grad() || weight->requires_grad() || (y && y->requires_grad());
    const bool grad = at::GradMode::is_enabled() && needs;
    at::Tensor sum = *x, norm, scale = *weight;
    if (!fits || !has_norm(y ? "add_norm" : "rms_norm", *x, *weight) ||
        (grad && !has_norm("rms_norm_grad", *x, *weight))) {
      if (y) sum = at::add(*x, *y);
      norm = public_rms_norm(sum, *weight, eps);
    } else if (grad) {
      std::optional<Variable> added, parts;
      if (y) added = *y;
      if (weight->requires_grad()) {
        parts = leaf_of_parts(backward_parts(shape_of(*x, *weight, eps)), weight->sizes(), *x);
        scale = *parts;
      }
      const auto both = Norm::apply(*x, added, *weight, parts, eps);
      sum = both[0], norm = both[1];
    } else {
      const auto normed = launch_rms_norm(*x, y ? *y : at::Tensor(), *weight, eps, false);
      if (y) sum = normed.sum;
      norm = normed.out;
    }
    for (const auto& tensor : {sum, norm, scale}) *made++ = new at::Tensor(tensor);
  });
}
}
