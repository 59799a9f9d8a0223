// Statistics of logits and their gradient, by kernels alone: public operations take their place in the caller.

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/zeros_like.h>

#include "guarded.h"
#include "launch.h"
#include "recorded.h"
#include "self_tests.h"

namespace {

struct Head {
  at::Tensor logits, targets;
  double temperature;
  at::Tensor logprobs, statistics;
};

void write_statistics(const Head& head) {
  recorded("nestor::head_statistics", {head.logits, head.targets}, [&] {
    const auto vectors = pieces(head.logits.size(1), 16 / head.logits.element_size());
    launch_kernel(kernel_name("head_statistics", head.logits.scalar_type()), head.logits.device(),
                  by_row(head.logits.size(0), 1, threads_for(vectors)), head.logits.const_data_ptr(),
                  head.targets.const_data_ptr(), static_cast<float>(1.0 / head.temperature),
                  head.logprobs.mutable_data_ptr(), head.statistics.mutable_data_ptr(),
                  static_cast<int>(head.logits.size(1)));
    return std::vector<at::Tensor>{head.logprobs, head.statistics};
  });
}

void write_gradient(const Head& head, const at::Tensor& by_logprob, const at::Tensor* by_entropy) {
  const auto& logits = head.logits;
  recorded("nestor::head_gradient", {logits, head.targets, head.statistics, by_logprob}, [&] {
    const auto threads = threads_for(pieces(logits.size(1), MOST_AT_ONCE), MOST_THREADS / 2);
    // A few vectors for each thread, so that few blocks read the statistics of a row.
    const auto blocks = pieces(logits.size(1), threads * MOST_AT_ONCE * 4);
    const void* entropy = by_entropy ? by_entropy->const_data_ptr() : nullptr;
    launch_kernel(kernel_name("head_gradient", logits.scalar_type()), logits.device(),
                  by_row(logits.size(0), blocks, threads), logits.mutable_data_ptr(), head.targets.const_data_ptr(),
                  static_cast<float>(1.0 / head.temperature), head.statistics.const_data_ptr(), by_logprob.const_data_ptr(),
                  entropy, static_cast<int>(logits.size(1)));
    return std::vector<at::Tensor>{logits};
  });
}

constexpr double TEMPERATURE = 0.8;

// The kernels' input, and the log-probs of all tokens in float32.
struct Case {
  Head head;
  at::Tensor all;
};

Case make_case(at::ScalarType type, const at::Device& device) {
  const auto logits = sample({3, 70}, type, device, 2);
  const auto all = at::log_softmax(logits.to(at::kFloat) / TEMPERATURE, 1);
  const auto targets = at::arange(3, logits.options().dtype(at::kLong)) * 30;
  const auto picked = all.gather(1, targets.unsqueeze(1)), entropy = -(all.exp() * all).sum(1, /*keepdim=*/true);
  const auto largest = logits.to(at::kFloat).amax(1, /*keepdim=*/true) / TEMPERATURE;
  // Statistics that are right, for the gradient.
  const auto log_sum = (logits.to(at::kFloat) / TEMPERATURE - largest).exp().sum(1, /*keepdim=*/true).log();
  return {{logits, targets, TEMPERATURE, picked.squeeze(1), at::cat({largest, log_sum, entropy}, 1)}, all};
}

std::string statistics_problem(at::ScalarType type, const at::Device& device) {
  const auto made = make_case(type, device).head;
  auto own = made;
  own.logprobs = at::empty_like(made.logprobs);
  own.statistics = at::empty_like(made.statistics);
  write_statistics(own);
  const auto problem = difference(own.logprobs, made.logprobs);
  return problem.empty() ? difference(own.statistics, made.statistics) : problem;
}

std::string gradient_problem(at::ScalarType type, const at::Device& device) {
  const auto [head, all] = make_case(type, device);
  const auto by_logprob = sample({3}, at::kFloat, device, 1, 2), by_entropy = sample({3}, at::kFloat, device, 1, 3);
  const auto column = [](const at::Tensor& x) { return x.unsqueeze(1); };
  const auto p = all.exp(), hot = at::zeros_like(all).scatter_(1, column(head.targets), 1.0);
  const auto entropy_part = column(by_entropy) * p * (all + head.statistics.narrow(1, 2, 1));
  const auto want = (column(by_logprob) * (hot - p) - entropy_part) / TEMPERATURE;
  write_gradient(head, by_logprob, &by_entropy);
  return difference(head.logits, want);
}

}  // namespace

std::vector<SelfTest> head_self_tests() {
  return for_each_type({{"head_statistics", statistics_problem}, {"head_gradient", gradient_problem}});
}

extern "C" {

// Computes, from contiguous logits (n, V), the log-probs of the targets, int64 (n), and statistics (n, 3): the largest logit
// over the temperature, the log of the sum of e^(logit / temperature - largest), and the entropy; all float32. Writes to
// `done` whether there are kernels for it.
int nestor_head_statistics(const at::Tensor* logits, const at::Tensor* targets, double temperature,
                           const at::Tensor* logprobs, const at::Tensor* statistics, bool* done, char* message,
                           size_t message_size) {
  return guarded(message, message_size, [&] {
    const auto has = [&](const char* operation) {
      return has_kernel(kernel_name(operation, logits->scalar_type()), logits->device());
    };
    *done = has("head_statistics") && has("head_gradient");
    if (*done) write_statistics({*logits, *targets, temperature, *logprobs, *statistics});
  });
}

// Overwrites the logits with the gradient of the sum of by_logprob * logprob + by_entropy * entropy, both float32 (n);
// `by_entropy` may be null.
int nestor_head_gradient(const at::Tensor* logits, const at::Tensor* targets, double temperature,
                         const at::Tensor* statistics, const at::Tensor* by_logprob, const at::Tensor* by_entropy,
                         char* message, size_t message_size) {
  return guarded(message, message_size, [&] {
    write_gradient({*logits, *targets, temperature, {}, *statistics}, *by_logprob, by_entropy);
  });
}
}
