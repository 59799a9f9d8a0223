// silu(gate) * up, with gate before up in rows of 2F, and its gradient. Block (r, p) computes piece p of row r.

#include "floats.cuh"

// The logistic function of x and of -x. Each keeps its digits where the other is nearly 1.
struct Logistic {
  float of, of_minus;
};

DEVICE Logistic logistic(float x) {
  const float e = expf(-fabsf(x)), large = 1.0f / (1.0f + e), small = e * large;
  return x < 0 ? Logistic{small, large} : Logistic{large, small};
}

DEVICE float silu_times(float gate, float up) {
  return gate * logistic(gate).of * up;
}

DEVICE void silu_gradient(float gate, float up, float grad, float& to_gate, float& to_up) {
  const Logistic s = logistic(gate);
  to_gate = grad * up * (s.of * (1.0f + gate * s.of_minus));
  to_up = grad * (gate * s.of);
}

template <class T>
DEVICE void silu_mul(const T* x, T* y, int width) {
  const T *gate = x + int64_t(2) * width * blockIdx.x, *up = gate + width;
  y += int64_t(width) * blockIdx.x;
  const int first = blockIdx.y * blockDim.x + threadIdx.x, step = gridDim.y * blockDim.x;
  if (width % VECTOR<T> == 0 && is_aligned(x) && is_aligned(y)) {
    for (int i = first * VECTOR<T>; i < width; i += step * VECTOR<T>) {
      Floats<T> a = load_floats(gate + i);
      const Floats<T> b = load_floats(up + i);
#pragma unroll
      for (int j = 0; j < VECTOR<T>; ++j) a.at[j] = silu_times(a.at[j], b.at[j]);
      store_floats(y + i, a);
    }
    return;
  }
  for (int i = first; i < width; i += step) y[i] = from_float<T>(silu_times(to_float(gate[i]), to_float(up[i])));
}

// Writes the gradients of gate and up to rows of 2F, as those of x.
template <class T>
DEVICE void silu_mul_grad(const T* x, const T* grad, T* grad_x, int width) {
  const T *gate = x + int64_t(2) * width * blockIdx.x, *up = gate + width;
  T *to_gate = grad_x + int64_t(2) * width * blockIdx.x, *to_up = to_gate + width;
  grad += int64_t(width) * blockIdx.x;
  const int first = blockIdx.y * blockDim.x + threadIdx.x, step = gridDim.y * blockDim.x;
  if (width % VECTOR<T> == 0 && is_aligned(x) && is_aligned(grad) && is_aligned(grad_x)) {
    for (int i = first * VECTOR<T>; i < width; i += step * VECTOR<T>) {
      const Floats<T> a = load_floats(gate + i), b = load_floats(up + i), g = load_floats(grad + i);
      Floats<T> by_gate, by_up;
#pragma unroll
      for (int j = 0; j < VECTOR<T>; ++j) silu_gradient(a.at[j], b.at[j], g.at[j], by_gate.at[j], by_up.at[j]);
      store_floats(to_gate + i, by_gate);
      store_floats(to_up + i, by_up);
    }
    return;
  }
  for (int i = first; i < width; i += step) {
    float by_gate, by_up;
    silu_gradient(to_float(gate[i]), to_float(up[i]), to_float(grad[i]), by_gate, by_up);
    to_gate[i] = from_float<T>(by_gate);
    to_up[i] = from_float<T>(by_up);
  }
}

#define SILU_MUL(suffix, T)                                                                                  \
  extern "C" __global__ void silu_mul_##suffix(const T* x, T* y, int width) { silu_mul(x, y, width); }       \
  extern "C" __global__ void silu_mul_grad_##suffix(const T* x, const T* grad, T* grad_x, int width) {   \
    silu_mul_grad(x, grad, grad_x, width);                                                               \
  }
FOR_EACH_TYPE(SILU_MUL)
#undef SILU_MUL
