// Log-prob of the target and entropy of each row of logits (R, V) over a temperature, in one reading. One block for each row.
//
// A thread keeps the largest x of its part, s = sum of e^(x - largest) and w = sum of e^(x - largest) (x - largest), and
// rescales both when the largest grows: with d = old - new, s becomes e^d s and w becomes e^d (w + d s). M. Milakov and N.
// Gimelshein, "Online normalizer calculation for softmax", arXiv 1805.02867. The log-prob of target t is x_t - largest - log
// s; the entropy is log s - w / s.

#include "floats.cuh"

struct SoftmaxSums {
  float largest, sum, weighted;
};

DEVICE SoftmaxSums rescaled(const SoftmaxSums& a, float largest) {
  // Nothing yet, or only logits of -inf.
  if (a.sum == 0) return {largest, 0, 0};
  const float d = a.largest - largest, e = expf(d);
  return {largest, e * a.sum, e * (a.weighted + d * a.sum)};
}

DEVICE void add_logit(SoftmaxSums& a, float x) {
  // It adds nothing, but its distance from the largest is infinite, or no number.
  if (x == -INFINITY) return;
  // Wrong by 2 + 1.2 |d| units of the last place: much only where e is next to nothing in the sum.
  const float d = x - a.largest, e = __expf(d);
  a.sum += e;
  a.weighted += e * d;
}

DEVICE SoftmaxSums warp_sums(SoftmaxSums a) {
#pragma unroll
  for (int offset = WARP / 2; offset > 0; offset /= 2) {
    const SoftmaxSums b{__shfl_xor_sync(ALL_LANES, a.largest, offset), __shfl_xor_sync(ALL_LANES, a.sum, offset),
                        __shfl_xor_sync(ALL_LANES, a.weighted, offset)};
    const float largest = fmaxf(a.largest, b.largest);
    const SoftmaxSums mine = rescaled(a, largest), other = rescaled(b, largest);
    a = {largest, mine.sum + other.sum, mine.weighted + other.weighted};
  }
  return a;
}

// Writes log-probs (R), and `statistics` (R, 3): the largest logit over the temperature, log s, and the entropy. `inverse` is
// 1 / temperature.
template <class T>
DEVICE void head_statistics(const T* logits, const int64_t* targets, float inverse, float* logprobs, float* statistics,
                            int width) {
  SHARED(SoftmaxSums, parts, WARP);
  const T* row = logits + int64_t(width) * blockIdx.x;
  const RowParts at = row_parts(row, width);
  const int thread = threadIdx.x, threads = blockDim.x;

  SoftmaxSums own{-INFINITY, 0, 0};
  const T* vectors = row + at.lead;
  // The next vector is under way while this one is summed.
  Vector<T> next{};
  if (thread < at.vectors) next = load_vector(vectors + thread * VECTOR<T>);
  for (int i = thread; i < at.vectors; i += threads) {
    Floats<T> x = floats_of(next);
    if (i + threads < at.vectors) next = load_vector(vectors + (i + threads) * VECTOR<T>);
    float largest = own.largest;
#pragma unroll
    for (int j = 0; j < VECTOR<T>; ++j) {
      x.at[j] *= inverse;
      largest = fmaxf(largest, x.at[j]);
    }
    if (largest > own.largest) own = rescaled(own, largest);
#pragma unroll
    for (int j = 0; j < VECTOR<T>; ++j) add_logit(own, x.at[j]);
  }
  if (thread < at.loose(width)) {
    const float x = to_float(row[at.loose_at(thread)]) * inverse;
    if (x > own.largest) own = rescaled(own, x);
    add_logit(own, x);
  }

  own = warp_sums(own);
  if (lane() == 0) parts[warp()] = own;
  __syncthreads();
  if (warp() > 0) return;
  own = {-INFINITY, 0, 0};
  if (lane() < warps()) own = parts[lane()];
  own = warp_sums(own);
  if (lane() > 0) return;
  const float log_sum = logf(own.sum), target = to_float(row[targets[blockIdx.x]]) * inverse;
  logprobs[blockIdx.x] = target - own.largest - log_sum;
  float* to = statistics + int64_t(3) * blockIdx.x;
  to[0] = own.largest;
  to[1] = log_sum;
  to[2] = log_sum - own.weighted / own.sum;
}

#define HEAD_STATISTICS(suffix, T)                                                                                        \
  extern "C" __global__ void head_statistics_##suffix(const T* logits, const int64_t* targets, float inverse,             \
                                                      float* logprobs, float* statistics, int width) {                    \
    head_statistics(logits, targets, inverse, logprobs, statistics, width);                                               \
  }
FOR_EACH_TYPE(HEAD_STATISTICS)
#undef HEAD_STATISTICS
