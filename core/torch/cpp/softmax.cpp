// Log-probs and entropies of logits on a CPU, and their gradient in place, in one pass each.

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <cmath>

#include "guarded.h"
#include "vectors.h"

namespace {

// Fewest elements for another thread.
constexpr int64_t GRAIN = 8192;
// Elements that are summed in float32 before a sum in float64 takes them: one float32 sum of a whole vocabulary loses the small
// terms, which biases every log-prob upwards by up to 2e-5.
constexpr int64_t BLOCK = 2048;

// Statistics of a row: its largest logit (over the temperature), the log of the sum of exp(logit - largest), the entropy.
struct RowStats {
  float largest, log_sum, entropy;
};

template <typename T>
INLINE RowStats softmax_row(const T* logits, int64_t n, float inverse) {
  float largest = -INFINITY;
#pragma omp simd reduction(max : largest)
  for (int64_t i = 0; i < n; ++i) {
    const float x = get(logits[i]);
    largest = x > largest ? x : largest;
  }
  largest *= inverse;
  double blocks_sum = 0, blocks_weighted = 0;
  for (int64_t start = 0; start < n; start += BLOCK) {
    const int64_t end = start + BLOCK < n ? start + BLOCK : n;
    float block_sum = 0, block_weighted = 0;
#pragma omp simd reduction(+ : block_sum, block_weighted)
    for (int64_t i = start; i < end; ++i) {
      const float x = get(logits[i]) * inverse - largest, e = exponential(x);
      block_sum += e;
      block_weighted += e * x;
    }
    blocks_sum += block_sum;
    blocks_weighted += block_weighted;
  }
  const float sum = static_cast<float>(blocks_sum), weighted = static_cast<float>(blocks_weighted);
  return {largest, std::log(sum), std::log(sum) - weighted / sum};
}

// Turns logits into the gradient of grad_logprob * logprob(target) + grad_entropy * entropy, without the target's own 1.
template <typename T>
INLINE void softmax_row_grad(T* logits, int64_t n, float inverse, RowStats row, float grad_logprob,
                             float grad_entropy) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float logprob = get(logits[i]) * inverse - row.largest - row.log_sum;
    put(logits[i], -inverse * exponential(logprob) * (grad_logprob + grad_entropy * (logprob + row.entropy)));
  }
}

VECTORS RowStats softmax_f32(const float* logits, int64_t n, float inverse) {
  return softmax_row(logits, n, inverse);
}
VECTORS RowStats softmax_bf16(const Bf16* logits, int64_t n, float inverse) {
  return softmax_row(logits, n, inverse);
}
VECTORS void softmax_grad_f32(float* logits, int64_t n, float inverse, RowStats row, float grad_logprob,
                              float grad_entropy) {
  softmax_row_grad(logits, n, inverse, row, grad_logprob, grad_entropy);
}
VECTORS void softmax_grad_bf16(Bf16* logits, int64_t n, float inverse, RowStats row, float grad_logprob,
                               float grad_entropy) {
  softmax_row_grad(logits, n, inverse, row, grad_logprob, grad_entropy);
}

}  // namespace

extern "C" {

// Computes from logits (n, V) the log-probs of the targets (n), and the statistics that `nestor_softmax_grad` needs,
// float32 (n, 3); the last of the three is the entropy.
int nestor_softmax(const at::Tensor* logits, const at::Tensor* targets, double temperature, const at::Tensor* logprobs,
                   const at::Tensor* stats, char* message, size_t message_size) {
  return guarded(message, message_size, [&] {
    const int64_t width = logits->size(1);
    const float inverse = static_cast<float>(1.0 / temperature);
    auto* rows = data<RowStats>(*stats);
    with_type(*logits, [&](auto* type) {
      using T = std::remove_pointer_t<decltype(type)>;
      at::parallel_for(0, logits->size(0), std::max<int64_t>(1, GRAIN / width), [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) {
          const T* row = data<T>(*logits) + r * width;
          if constexpr (std::is_same_v<T, float>) {
            rows[r] = softmax_f32(row, width, inverse);
          } else {
            rows[r] = softmax_bf16(row, width, inverse);
          }
          const float target = get(row[data<int64_t>(*targets)[r]]) * inverse;
          data<float>(*logprobs)[r] = target - rows[r].largest - rows[r].log_sum;
        }
      });
    });
  });
}

// Turns logits (n, V) into the gradient of the sum of grad_logprobs * logprobs + grad_entropy * entropy, in place.
int nestor_softmax_grad(const at::Tensor* logits, const at::Tensor* targets, double temperature,
                        const at::Tensor* stats, const at::Tensor* grad_logprobs, const at::Tensor* grad_entropy,
                        char* message, size_t message_size) {
  return guarded(message, message_size, [&] {
    const int64_t width = logits->size(1);
    const float inverse = static_cast<float>(1.0 / temperature);
    const auto* rows = data<RowStats>(*stats);
    with_type(*logits, [&](auto* type) {
      using T = std::remove_pointer_t<decltype(type)>;
      at::parallel_for(0, logits->size(0), std::max<int64_t>(1, GRAIN / width), [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) {
          T* row = data<T>(*logits) + r * width;
          T& target = row[data<int64_t>(*targets)[r]];
          const float by_logprob = data<float>(*grad_logprobs)[r];
          const float by_entropy = grad_entropy ? data<float>(*grad_entropy)[r] : 0.0f;
          // The target's entry in float32, with its 1: the rounded entry would lose most of its digits.
          const float logprob = get(target) * inverse - rows[r].largest - rows[r].log_sum, p = std::exp(logprob);
          const float own = inverse * (by_logprob * (1.0f - p) - by_entropy * p * (logprob + rows[r].entropy));
          if constexpr (std::is_same_v<T, float>) {
            softmax_grad_f32(row, width, inverse, rows[r], by_logprob, by_entropy);
          } else {
            softmax_grad_bf16(row, width, inverse, rows[r], by_logprob, by_entropy);
          }
          put(target, own);
        }
      });
    });
  });
}
}
