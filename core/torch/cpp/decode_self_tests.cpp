// Self-tests of the kernels of generation.

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>

#include <cmath>
#include <limits>

#include "decode_kernels.h"
#include "self_tests.h"

namespace {

constexpr int64_t PAGE = 16, PAGES = 40;

// Three requests: in two pieces, at a page's end, and without tokens. Seven query heads share a key head.
std::string attention_problem(at::ScalarType type, const at::Device& device, int64_t dim) {
  const auto q = sample({3, 14, dim}, type, device, 1.0, 2), cache = sample({2, PAGES, PAGE, 2, dim}, type, device, 1.0, 3);
  const auto numbers = at::TensorOptions().dtype(at::kInt).device(device);
  const auto table = (at::arange(60, numbers) * 7 % (PAGES - 1) + 1).view({3, 20}).contiguous();
  const auto lengths = at::tensor({300, 32, 0}, at::kInt).to(device);
  const auto seen = cache.to(at::kFloat).index_select(1, table.view({-1})).view({2, 3, 20 * PAGE, 2, dim});
  const auto shared = seen.repeat_interleave(7, 3);
  const auto hidden = at::arange(20 * PAGE, numbers).unsqueeze(0).ge(lengths.unsqueeze(1)).unsqueeze(2);
  const auto products = (q.to(at::kFloat).unsqueeze(1) * shared.select(0, 0)).sum(-1) / std::sqrt(static_cast<double>(dim));
  const auto weights = at::softmax(products.masked_fill(hidden, -1e30), 1).unsqueeze(3);
  const auto want = (weights * shared.select(0, 1)).sum(1).masked_fill(lengths.eq(0).view({3, 1, 1}), 0);
  return difference(attend_pages(q, cache, table, lengths), want);
}

std::string attention_64_problem(at::ScalarType type, const at::Device& device) {
  return attention_problem(type, device, 64);
}

std::string attention_128_problem(at::ScalarType type, const at::Device& device) {
  return attention_problem(type, device, 128);
}

std::string rotation_problem(at::ScalarType type, const at::Device& device) {
  const auto x = sample({3, 8, 64}, type, device, 1.0, 4);
  const auto angles = sample({3, 1, 32}, at::kFloat, device, 2.0, 5).repeat({1, 1, 2});
  const auto cos = angles.cos().to(type), sin = angles.sin().to(type);
  const auto places = at::tensor({17, 33, 47}, at::kLong).to(device);
  const auto start = sample({2, 4, PAGE, 2, 64}, type, device, 1.0, 6);
  const auto results = [&](bool by_kernel) {
    const auto wide = by_kernel ? type : at::kFloat;
    const auto own = x.to(wide, false, /*copy=*/true), cache = start.to(wide, false, /*copy=*/true);
    const auto c = cos.to(wide), s = sin.to(wide);
    const auto q = own.narrow(1, 0, 4), k = own.narrow(1, 4, 2), v = own.narrow(1, 6, 2);
    (by_kernel ? rotate_into_cache : rotate_into_cache_by_operations)({q, k, v, &c, &s}, cache, places);
    return at::cat({q.reshape({-1}), cache.view({-1})});
  };
  return difference(results(true), results(false));
}

// Rows of three chunks, of which some draw by each rule and one has tokens that are never drawn.
std::string sampling_problem(at::ScalarType type, const at::Device& device) {
  auto logits = sample({6, 1100}, type, device, 4.0, 7);
  logits[2].narrow(0, 0, 600).fill_(-std::numeric_limits<double>::infinity());
  const auto column = [&](at::ArrayRef<float> numbers) { return at::tensor(numbers).to(device); };
  const auto temperatures = column({1.0f, 0.7f, 1.0f, 1.0f, 1.0f, 0.5f});
  const auto uniforms = column({0.1f, 0.5f, 0.9f, 0.3f, 0.6f, 0.8f}), top_p = column({0.9f, 1.0f, 1.0f, 1.0f, 1.0f, 0.8f});
  const auto greedy = at::tensor({0, 0, 0, 1, 0, 0}, at::kInt).to(device);
  const auto top_k = at::tensor({0, 0, 0, 0, 20, 50}, at::kInt).to(device);
  const float off = -std::numeric_limits<float>::infinity();
  const auto log_min_p = column({off, -1.0f, off, -1.0f, -2.0f, off});
  const DrawColumns draws{temperatures, uniforms, greedy, &top_k, &top_p, &log_min_p};
  const auto got = draw_tokens(logits, draws), want = draw_tokens_by_operations(logits, draws);
  if (!got.tokens.equal(want.tokens)) return "it draws other tokens";
  return difference(got.logprobs, want.logprobs);
}

}  // namespace

std::vector<SelfTest> decode_self_tests() {
  return for_each_type({{"paged_attention_64", attention_64_problem},
                        {"paged_attention_128", attention_128_problem},
                        {"paged_attention_combine", attention_64_problem},
                        {"rotate_into_cache", rotation_problem},
                        {"sample_chunks", sampling_problem},
                        {"sample_token", sampling_problem},
                        {"sample_truncated", sampling_problem}});
}
