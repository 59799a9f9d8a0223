// Building blocks of the fused operations' loops: float32 and bfloat16 elements, and e^x.

#pragma once

#include <ATen/core/Tensor.h>

#include <cmath>
#include <cstring>

// One binary runs on any x86-64: the loader picks the widest vectors of the machine.
#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) && !defined(__clang__)
#define VECTORS __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define VECTORS
#endif
#define INLINE static inline __attribute__((always_inline))

// bfloat16 as its bits: the upper half of a float32.
struct Bf16 {
  uint16_t bits;
};

namespace {

INLINE float get(float x) {
  return x;
}

INLINE float get(Bf16 x) {
  const uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
  float wide;
  std::memcpy(&wide, &bits, sizeof wide);
  return wide;
}

INLINE void put(float& to, float x) {
  to = x;
}

// Rounds to nearest, ties to even.
INLINE void put(Bf16& to, float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  to.bits = static_cast<uint16_t>(x != x ? 0x7fc0u : rounded);
}

// x rounded to the type T.
template <typename T>
INLINE float as(float x) {
  T held;
  put(held, x);
  return get(held);
}

// e^r within 2 units of the last place for |r| up to ln 2 / 2: a number or a vector of them. (Cephes' expf.)
template <typename X>
INLINE X exponential_near_zero(X r) {
  X p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  return p * r * r + r + 1.0f;
}

// e^x within 2 units of the last place; below -87 it is 1e-38 rather than 0.
INLINE float exponential(float x) {
  x = x < -87.0f ? -87.0f : x;
  x = x > 88.0f ? 88.0f : x;
  const float shifted = x * 1.44269504f + 12582912.0f;  // 1.5 * 2^23: the last bits are the rounded integer
  int32_t n;
  std::memcpy(&n, &shifted, sizeof n);
  const float whole = shifted - 12582912.0f;
  const float r = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;
  const int32_t power = (n + 127) << 23;  // the upper bits of n fall out
  float scale;
  std::memcpy(&scale, &power, sizeof scale);
  return exponential_near_zero(r) * scale;
}

// Calls `f` with a null pointer of the tensor's own element type.
template <typename F>
void with_type(const at::Tensor& tensor, F&& f) {
  if (tensor.scalar_type() == at::kBFloat16) {
    f(static_cast<Bf16*>(nullptr));
  } else {
    TORCH_CHECK(tensor.scalar_type() == at::kFloat, "fused operations want float32 or bfloat16");
    f(static_cast<float*>(nullptr));
  }
}

template <typename T>
T* data(const at::Tensor& tensor) {
  return static_cast<T*>(tensor.data_ptr());
}

}  // namespace
