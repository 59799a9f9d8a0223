// Sixteen float32 lanes as GCC and clang vectors: one source for every x86-64, cloned per instruction set by VECTORS.

#pragma once

#include <cstdint>
#include <cstring>
#include <limits>

#include "vectors.h"

namespace {

constexpr int LANES = 16;
typedef float Floats __attribute__((vector_size(64)));
typedef int32_t Ints __attribute__((vector_size(64)));
typedef uint32_t Words __attribute__((vector_size(64)));
typedef uint16_t Halves __attribute__((vector_size(32)));

// Two vectors stored in one stretch of 32 elements. The type decides which elements go to which vector: halves for float32;
// even and odd elements for bfloat16, because a word holds one of each and takes one operation to widen.
struct Pair {
  Floats a, b;
};

INLINE Floats load(const float* p) {
  Floats x;
  std::memcpy(&x, p, sizeof x);
  return x;
}

INLINE Floats load(const Bf16* p) {
  Halves h;
  std::memcpy(&h, p, sizeof h);
  return (Floats)(__builtin_convertvector(h, Words) << 16);
}

INLINE Pair load_pair(const float* p) { return {load(p), load(p + LANES)}; }

INLINE Pair load_pair(const Bf16* p) {
  Words w;
  std::memcpy(&w, p, sizeof w);
  return {(Floats)(w << 16), (Floats)(w & 0xffff0000u)};
}

INLINE void store(float* p, Floats x) { std::memcpy(p, &x, sizeof x); }

// The upper half rounds to nearest, ties to even, as ATen does for numbers; a NaN stays one.
INLINE Words round_to_upper(Floats x) {
  const Words bits = (Words)x;
  const Ints number = x == x;
  const Words rounded = bits + 0x7fff + ((bits >> 16) & 1);
  return (Words)(((Ints)rounded & number) | (~number & 0x7fc00000));
}

// x rounded to the type.
INLINE Floats held(const float*, Floats x) { return x; }
INLINE Floats held(const Bf16*, Floats x) { return (Floats)(round_to_upper(x) & 0xffff0000u); }

INLINE void store_pair(float* p, Pair x) {
  store(p, x.a);
  store(p + LANES, x.b);
}

INLINE void store_pair(Bf16* p, Pair x) {
  const Words w = (round_to_upper(x.a) >> 16) | (round_to_upper(x.b) & 0xffff0000u);
  std::memcpy(p, &w, sizeof w);
}

// Place of element `column` of two rows that are stored as the stretches that `load_pair` reads.
INLINE int64_t paired(const float*, int64_t row, int64_t column) { return row * LANES + column; }
INLINE int64_t paired(const Bf16*, int64_t row, int64_t column) { return column * 2 + row; }

INLINE Floats all(float x) { return Floats{} + x; }

INLINE Floats choose(Ints condition, Floats yes, Floats no) {
  return (Floats)((condition & (Ints)yes) | (~condition & (Ints)no));
}

// The larger of two; a NaN in `a` is dropped, one in `b` too where `a` is a number.
INLINE Floats larger(Floats a, Floats b) { return choose(a > b, a, b); }

// e^x; exactly 0 below -87, and NaN stays NaN.
INLINE Floats exponential(Floats x) {
  Ints tiny = x < -87.0f;
  Floats y = choose(x > 88.0f, all(88.0f), choose(tiny, all(-87.0f), x));
  Floats n = y * 1.44269504088896341f;
  // Adding and taking away 1.5 * 2^23 rounds to the nearest whole number.
  n = (n + 12582912.0f) - 12582912.0f;
  Floats r = y - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  Floats finite = choose(n == n, n, Floats{});
  Floats power = (Floats)((__builtin_convertvector(finite, Ints) + 127) << 23);
  return choose(tiny, Floats{}, exponential_near_zero(r) * power);
}

INLINE float sum(Floats x) {
  float parts[LANES];
  std::memcpy(parts, &x, sizeof parts);
  for (int width = LANES / 2; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) parts[i] += parts[i + width];
  return parts[0];
}

INLINE float most(Floats x) {
  float parts[LANES];
  std::memcpy(parts, &x, sizeof parts);
  for (int i = 1; i < LANES; ++i) parts[0] = parts[0] > parts[i] ? parts[0] : parts[i];
  return parts[0];
}

}  // namespace
