// The gradient of rotated queries, keys and values: each pair (i, i + half) of queries and keys is rotated back, and values are
// copied. Those of a token that several sequences have are summed. Columns of the result are summed on the way, which is the
// gradient of a bias.

#include "rotary.cuh"

struct RotateGrad {
  // `values` are the heads of v. `half` is a multiple of VECTOR<T>.
  int tokens, heads, kv_heads, values, half;
  int64_t table_stride;
  RotatedHeads q, k, v;
  // Elements between tokens of the results.
  int64_t x_stride, x_v_stride;
};

// Adds a vector in memory to a sum.
template <class T>
DEVICE void add_floats(Floats<T>& sum, const T* x) {
  const Floats<T> more = load_floats(x);
#pragma unroll
  for (int j = 0; j < VECTOR<T>; ++j) sum.at[j] += more.at[j];
}

// q (T, H, D), k (S, K, D) and v (S, values, D) to `x` (T, H + K, D) and `x_v` (T, values, D), by tables as of `rotate`; all
// aligned. The rows of k and v of token t are rows[starts[t]] to rows[starts[t + 1] - 1]; where `starts` is null, row t alone.
// A thread has a vector of values or two of a pair, in every gridDim.x'th token, and leaves their sums in `parts`
// (gridDim.x, (H + K + values) D), where that is not null.
template <class T>
DEVICE void rotate_grad(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v,
                        const T* __restrict__ cos, const T* __restrict__ sin, const int* __restrict__ starts,
                        const int* __restrict__ rows, T* __restrict__ x, T* __restrict__ x_v, float* __restrict__ parts,
                        const RotateGrad& of) {
  const int each = of.half / VECTOR<T>, rotated = of.heads + of.kv_heads, dim = 2 * of.half;
  const int item = blockIdx.y * blockDim.x + threadIdx.x, value = item - rotated * each;
  const bool pair = value < 0;
  const int head = pair ? item / each : rotated + value / (2 * each);
  const int i = (pair ? item % each : value % (2 * each)) * VECTOR<T>;
  const int64_t width = static_cast<int64_t>(rotated + of.values) * dim, at = head * dim + i;
  if (at >= width) return;
  const bool query = head < of.heads, gathered = starts != nullptr && !query;
  const T* from = query ? q + head * of.q.head : pair ? k + (head - of.heads) * of.k.head : v + (head - rotated) * of.v.head;
  const int64_t stride = query ? of.q.token : pair ? of.k.token : of.v.token;
  T* to = pair ? x + at : x_v + at - rotated * dim;
  const int64_t to_stride = pair ? of.x_stride : of.x_v_stride;
  Floats<T> sums[2] = {};
  for (int token = blockIdx.x; token < of.tokens; token += gridDim.x) {
    Floats<T> a = {}, b = {};
    const auto add = [&](int64_t row) {
      const T* at_row = from + row * stride + i;
      add_floats(a, at_row);
      if (pair) add_floats(b, at_row + of.half);
    };
    if (gathered) {
#pragma unroll 1
      for (int n = starts[token], end = starts[token + 1]; n < end; ++n) add(rows[n]);
    } else {
      add(token);
    }
    if (pair) {
      turn(a, b, load_floats(cos + token * of.table_stride + i), load_floats(sin + token * of.table_stride + i), -1);
#pragma unroll
      for (int j = 0; j < VECTOR<T>; ++j) sums[1].at[j] += b.at[j];
      store_floats(to + token * to_stride + of.half, b);
    }
#pragma unroll
    for (int j = 0; j < VECTOR<T>; ++j) sums[0].at[j] += a.at[j];
    store_floats(to + token * to_stride, a);
  }
  if (!parts) return;
  float* part = parts + blockIdx.x * width + at;
#pragma unroll
  for (int j = 0; j < VECTOR<T>; j += VECTOR<float>) {
    Floats<float> first, second;
#pragma unroll
    for (int l = 0; l < VECTOR<float>; ++l) first.at[l] = sums[0].at[j + l], second.at[l] = sums[1].at[j + l];
    store_floats(part + j, first);
    if (pair) store_floats(part + of.half + j, second);
  }
}

// One block at least: the registers of two would not hold all sums.
#define DEFINE(suffix, T)                                                                                              \
  extern "C" __global__ void __launch_bounds__(MOST_THREADS, 1) rotate_grad_##suffix(                                     \
      const T* q, const T* k, const T* v, const T* cos, const T* sin, const int* starts, const int* rows, T* x, T* x_v, \
      float* parts, RotateGrad of) {                                                                                   \
    rotate_grad<T>(q, k, v, cos, sin, starts, rows, x, x_v, parts, of);                                                \
  }
FOR_EACH_TYPE(DEFINE)
#undef DEFINE
