// The optimizer's step: one kernel for each parameter, or libtorch's fused operation.

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "guarded.h"
#include "launch.h"
#include "recorded.h"
#include "self_tests.h"

namespace {

struct Options {
  double lr, beta1, beta2, weight_decay, eps;
};

// As in cuda/adamw.cu.
struct AdamWFactors {
  float divisor, step, decay, beta1, rest1, beta2, rest2, root, eps;
};

struct Lists {
  std::vector<at::Tensor> params, grads, exp_avgs, exp_avg_sqs, copies;
};

std::vector<at::Tensor> tensors(at::Tensor* const* pointers, size_t n) {
  std::vector<at::Tensor> list;
  list.reserve(n);
  for (size_t i = 0; i < n; ++i) list.push_back(*pointers[i]);
  return list;
}

// Returns true where these tensors have a kernel.
bool has_step(const Lists& of) {
  const auto device = of.params[0].device();
  const auto type = of.copies.empty() ? at::kFloat : of.copies[0].scalar_type();
  const auto all = [&](const std::vector<at::Tensor>& list, at::ScalarType of_type) {
    return std::all_of(list.begin(), list.end(), [&](const at::Tensor& x) {
      return x.scalar_type() == of_type && x.is_contiguous() && x.device() == device;
    });
  };
  return has_kernel(kernel_name("adamw", type), device) && all(of.params, at::kFloat) && all(of.grads, at::kFloat) &&
         all(of.exp_avgs, at::kFloat) && all(of.exp_avg_sqs, at::kFloat) && all(of.copies, type);
}

void step_by_kernel(const Lists& of, double divisor, int64_t steps, const Options& options) {
  const double n = static_cast<double>(steps), bias1 = 1 - std::pow(options.beta1, n), bias2 = 1 - std::pow(options.beta2, n);
  const AdamWFactors factors{static_cast<float>(divisor),
                             static_cast<float>(options.lr / bias1),
                             static_cast<float>(options.lr * options.weight_decay),
                             static_cast<float>(options.beta1),
                             static_cast<float>(1 - options.beta1),
                             static_cast<float>(options.beta2),
                             static_cast<float>(1 - options.beta2),
                             static_cast<float>(std::sqrt(bias2)),
                             static_cast<float>(options.eps)};
  const auto name = kernel_name("adamw", of.copies.empty() ? at::kFloat : of.copies[0].scalar_type());
  for (size_t i = 0; i < of.params.size(); ++i) {
    const auto& param = of.params[i];
    if (param.numel() == 0) continue;
    // Four elements for each thread, and in the largest grid more.
    constexpr int64_t THREADS = 256, MOST_BLOCKS = 1 << 20;
    const auto blocks = std::min(MOST_BLOCKS, pieces(param.numel(), 4 * THREADS));
    recorded("nestor::adamw", {param, of.grads[i], of.exp_avgs[i], of.exp_avg_sqs[i]}, [&] {
      std::vector<at::Tensor> written{param, of.exp_avgs[i], of.exp_avg_sqs[i]};
      if (!of.copies.empty()) written.push_back(of.copies[i]);
      launch_kernel(name, param.device(), by_row(blocks, 1, THREADS), param.mutable_data_ptr(), of.grads[i].const_data_ptr(),
                    of.exp_avgs[i].mutable_data_ptr(), of.exp_avg_sqs[i].mutable_data_ptr(),
                    of.copies.empty() ? nullptr : of.copies[i].mutable_data_ptr(), param.numel(), factors);
      return written;
    });
  }
}

void step_by_operations(const Lists& of, double divisor, int64_t steps, const Options& options) {
  const auto scalar = [&](double x) { return at::full({}, x, of.params[0].options().dtype(at::kFloat)); };
  const auto by = divisor == 1 ? std::nullopt : std::optional<at::Tensor>(scalar(divisor));
  const std::vector<at::Tensor> counts(of.params.size(), scalar(static_cast<double>(steps)));
  at::_fused_adamw_(of.params, of.grads, of.exp_avgs, of.exp_avg_sqs, /*max_exp_avg_sqs=*/{}, counts, options.lr, options.beta1,
                    options.beta2, options.weight_decay, options.eps, /*amsgrad=*/false, /*maximize=*/false, by);
  for (size_t i = 0; i < of.copies.size(); ++i) of.copies[i].copy_(of.params[i]);
}

std::string problem(at::ScalarType type, const at::Device& device) {
  const auto make = [&] {
    const auto of = [&](uint64_t seed) { return sample({70}, at::kFloat, device, 1, seed); };
    return Lists{{of(1)}, {of(2)}, {of(3)}, {of(4).abs()}, {of(1).to(type)}};
  };
  const Options options{1e-2, 0.9, 0.99, 0.1, 1e-8};
  const auto got = make(), want = make();
  step_by_kernel(got, 2, 3, options);
  step_by_operations(want, 2, 3, options);
  const std::pair<at::Tensor, at::Tensor> pairs[] = {{got.params[0], want.params[0]},
                                                     {got.exp_avgs[0], want.exp_avgs[0]},
                                                     {got.exp_avg_sqs[0], want.exp_avg_sqs[0]},
                                                     {got.copies[0], want.params[0]}};
  for (const auto& [of_kernel, of_operation] : pairs) {
    const auto differs = difference(of_kernel, of_operation);
    if (!differs.empty()) return differs;
  }
  return "";
}

}  // namespace

std::vector<SelfTest> adamw_self_tests() {
  return for_each_type({{"adamw", problem}});
}

extern "C" {

// Makes AdamW step number `steps` on n parameters. Gradients are divided by `divisor` first, and may be overwritten. `copies`
// get the parameters in their own type, unless it is null.
int nestor_adamw(size_t n, at::Tensor* const* params, at::Tensor* const* grads, at::Tensor* const* exp_avgs,
                 at::Tensor* const* exp_avg_sqs, at::Tensor* const* copies, double divisor, int64_t steps,
                 const Options* options, char* message, size_t message_size) {
  return guarded(message, message_size, [&] {
    const Lists of{tensors(params, n), tensors(grads, n), tensors(exp_avgs, n), tensors(exp_avg_sqs, n),
             copies ? tensors(copies, n) : std::vector<at::Tensor>()};
    if (n == 0) return;
    (has_step(of) ? step_by_kernel : step_by_operations)(of, divisor, steps, *options);
  });
}
}
