// The gradient of rotated queries, keys and values: each pair (i, i + half) of queries and keys is rotated back, values are
// copied, and all go into one tensor. Columns of the result are summed on the way, which is the gradient of a bias.

#include "floats.cuh"

// Strides in elements, all multiples of VECTOR<T>; heads have 2 * half elements.
struct RotatedHeads {
  int64_t token, head;
};

struct RotateGrad {
  // `values` are the heads of v.
  int tokens, heads, kv_heads, values, half;
  int64_t table_stride;
  RotatedHeads q, k, v;
};

// q (T, H, D), k (T, K, D) and v (T, values, D) to `grad` (T, H + K + values, D), by tables as of `rotate`; all aligned, and
// `half` is a multiple of VECTOR<T>. A thread has a vector of values or two of a pair, in every gridDim.x'th token, and leaves
// their sums in `parts` (gridDim.x, (H + K + values) D), where that is not null.
template <class T>
DEVICE void rotate_grad(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v,
                        const T* __restrict__ cos, const T* __restrict__ sin, T* __restrict__ grad,
                        float* __restrict__ parts, const RotateGrad& of) {
  const int each = of.half / VECTOR<T>, rotated = of.heads + of.kv_heads, dim = 2 * of.half;
  const int item = blockIdx.y * blockDim.x + threadIdx.x, value = item - rotated * each;
  const bool pair = value < 0;
  const int head = pair ? item / each : rotated + value / (2 * each);
  const int i = (pair ? item % each : value % (2 * each)) * VECTOR<T>;
  const int64_t width = static_cast<int64_t>(rotated + of.values) * dim, at = head * dim + i;
  if (at >= width) return;
  const T* from = head < of.heads ? q + head * of.q.head
                  : pair          ? k + (head - of.heads) * of.k.head
                                  : v + (head - rotated) * of.v.head;
  const int64_t stride = head < of.heads ? of.q.token : pair ? of.k.token : of.v.token;
  Floats<T> sums[2] = {};
  for (int token = blockIdx.x; token < of.tokens; token += gridDim.x) {
    const T* x = from + token * stride + i;
    T* to = grad + token * width + at;
    Floats<T> a = load_floats(x);
    if (pair) {
      Floats<T> b = load_floats(x + of.half);
      const Floats<T> c = load_floats(cos + token * of.table_stride + i), s = load_floats(sin + token * of.table_stride + i);
#pragma unroll
      for (int j = 0; j < VECTOR<T>; ++j) {
        const float first = a.at[j], second = b.at[j];
        a.at[j] = first * c.at[j] + second * s.at[j];
        b.at[j] = second * c.at[j] - first * s.at[j];
        sums[1].at[j] += b.at[j];
      }
      store_floats(to + of.half, b);
    }
#pragma unroll
    for (int j = 0; j < VECTOR<T>; ++j) sums[0].at[j] += a.at[j];
    store_floats(to, a);
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

#define DEFINE(suffix, T)                                                                                          \
  extern "C" __global__ void __launch_bounds__(MOST_THREADS) rotate_grad_##suffix(                                 \
      const T* q, const T* k, const T* v, const T* cos, const T* sin, T* grad, float* parts, RotateGrad of) {      \
    rotate_grad<T>(q, k, v, cos, sin, grad, parts, of);                                                            \
  }
FOR_EACH_TYPE(DEFINE)
#undef DEFINE
