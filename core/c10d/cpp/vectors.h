// Sixteen float32 lanes as GCC and clang vectors: one source for every x86-64, cloned per instruction set by NESTOR_CLONES.

#pragma once

#include <c10/util/BFloat16.h>

#include <cstdint>
#include <cstring>
#include <limits>

#define NESTOR_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#define NESTOR_INLINE inline __attribute__((always_inline))

namespace nestor {

constexpr int LANES = 16;
typedef float Floats __attribute__((vector_size(64)));
typedef int32_t Ints __attribute__((vector_size(64)));
typedef uint32_t Words __attribute__((vector_size(64)));
typedef uint16_t Halves __attribute__((vector_size(32)));

NESTOR_INLINE Floats load(const float* p) {
  Floats x;
  std::memcpy(&x, p, sizeof x);
  return x;
}

NESTOR_INLINE Floats load(const c10::BFloat16* p) {
  Halves h;
  std::memcpy(&h, p, sizeof h);
  return (Floats)(__builtin_convertvector(h, Words) << 16);
}

NESTOR_INLINE void store(float* p, Floats x) { std::memcpy(p, &x, sizeof x); }

// Rounds to nearest, ties to even, as ATen does for numbers; a NaN stays one.
NESTOR_INLINE void store(c10::BFloat16* p, Floats x) {
  Words bits = (Words)x;
  Words rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  Ints number = x == x;
  rounded = (Words)(((Ints)rounded & number) | (~number & 0x7fc0));
  Halves h = __builtin_convertvector(rounded, Halves);
  std::memcpy(p, &h, sizeof h);
}

NESTOR_INLINE Floats all(float x) { return Floats{} + x; }

NESTOR_INLINE Floats choose(Ints condition, Floats yes, Floats no) {
  return (Floats)((condition & (Ints)yes) | (~condition & (Ints)no));
}

// The larger of two; a NaN in `a` is dropped, one in `b` too where `a` is a number.
NESTOR_INLINE Floats larger(Floats a, Floats b) { return choose(a > b, a, b); }

// e^x to 2 units in the last place; exactly 0 below -87, NaN stays NaN. (Cephes' expf.)
NESTOR_INLINE Floats exponential(Floats x) {
  Ints tiny = x < -87.0f;
  Floats y = choose(x > 88.0f, all(88.0f), choose(tiny, all(-87.0f), x));
  Floats n = y * 1.44269504088896341f;
  // Adding and taking away 1.5 * 2^23 rounds to the nearest whole number.
  n = (n + 12582912.0f) - 12582912.0f;
  Floats r = y - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  Floats p = all(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  Floats finite = choose(n == n, n, Floats{});
  Floats power = (Floats)((__builtin_convertvector(finite, Ints) + 127) << 23);
  return choose(tiny, Floats{}, p * power);
}

NESTOR_INLINE float sum(Floats x) {
  float parts[LANES];
  std::memcpy(parts, &x, sizeof parts);
  for (int width = LANES / 2; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) parts[i] += parts[i + width];
  return parts[0];
}

NESTOR_INLINE float most(Floats x) {
  float parts[LANES];
  std::memcpy(parts, &x, sizeof parts);
  for (int i = 1; i < LANES; ++i) parts[0] = parts[0] > parts[i] ? parts[0] : parts[i];
  return parts[0];
}

}  // namespace nestor
