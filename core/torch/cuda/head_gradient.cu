// Overwrites logits (R, V) with the gradient of the sum of by_logprob * logprob + by_entropy * entropy, from the statistics
// of head_statistics.cu, in one reading. Block (r, p) computes piece p of row r. With p the softmax of the logits over the
// temperature τ, x the log-prob of the target and H the entropy:
//
//   dx / dlogit_j = ([j is the target] - p_j) / τ      dH / dlogit_j = -p_j (log p_j + H) / τ

#include "floats.cuh"

struct HeadRow {
  float inverse, largest, log_sum, entropy, by_logprob, by_entropy;
};

DEVICE float logit_gradient(float logit, const HeadRow& row, bool is_target) {
  const float logprob = logit * row.inverse - row.largest - row.log_sum, p = expf(logprob);
  // The target's entry has its 1 before it is rounded, since afterwards most digits would be lost.
  const float by_logprob = is_target ? row.by_logprob * -expm1f(logprob) : -row.by_logprob * p;
  // The log-prob of an impossible token may be -inf, whose product with 0 would not be 0.
  const float by_entropy = p == 0 ? 0 : row.by_entropy * p * (logprob + row.entropy);
  return row.inverse * (by_logprob - by_entropy);
}

// `by_entropy` may be null. `inverse` is 1 / temperature.
template <class T>
DEVICE void head_gradient(T* logits, const int64_t* targets, float inverse, const float* statistics, const float* by_logprob,
                          const float* by_entropy, int width) {
  const int64_t r = blockIdx.x, target = targets[r];
  const HeadRow by{inverse,       statistics[3 * r], statistics[3 * r + 1], statistics[3 * r + 2],
                   by_logprob[r], by_entropy ? by_entropy[r] : 0.0f};
  T* row = logits + width * r;
  const RowParts at = row_parts(row, width);
  const int first = blockIdx.y * blockDim.x + threadIdx.x, step = gridDim.y * blockDim.x;
  for (int i = first; i < at.vectors; i += step) {
    const int start = at.lead + i * VECTOR<T>;
    Floats<T> x = load_floats(row + start);
#pragma unroll
    for (int j = 0; j < VECTOR<T>; ++j) x.at[j] = logit_gradient(x.at[j], by, start + j == target);
    store_floats(row + start, x);
  }
  if (first < at.loose(width)) {
    const int i = at.loose_at(first);
    row[i] = from_float<T>(logit_gradient(to_float(row[i]), by, i == target));
  }
}

#define HEAD_GRADIENT(suffix, T)                                                                                          \
  extern "C" __global__ void head_gradient_##suffix(T* logits, const int64_t* targets, float inverse,                     \
                                                    const float* statistics, const float* by_logprob,                     \
                                                    const float* by_entropy, int width) {                                 \
    head_gradient(logits, targets, inverse, statistics, by_logprob, by_entropy, width);                                   \
  }
FOR_EACH_TYPE(HEAD_GRADIENT)
#undef HEAD_GRADIENT
