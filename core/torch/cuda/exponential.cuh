// e^x in a fixed order of single operations: the CPU's sampler and the kernels get the same bits, so they draw the same token.

#pragma once

#ifdef __CUDACC_RTC__
#define EXACT static __device__ __forceinline__
#else
#include <cmath>
#include <cstdint>
#include <cstring>
#define EXACT static inline __attribute__((always_inline))
#endif

// a * b + c, rounded once.
#ifdef __CUDACC_RTC__
EXACT float fused(float a, float b, float c) { return __fmaf_rn(a, b, c); }
EXACT double fused(double a, double b, double c) { return __fma_rn(a, b, c); }
EXACT float rounded_product(float a, float b) { return __fmul_rn(a, b); }
EXACT float as_float(int x) { return __int_as_float(x); }
EXACT int as_bits(float x) { return __float_as_int(x); }
EXACT double as_double(long long x) { return __longlong_as_double(x); }
#else
EXACT float fused(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
EXACT double fused(double a, double b, double c) { return __builtin_fma(a, b, c); }
EXACT float rounded_product(float a, float b) { return a * b; }
EXACT float as_float(int x) {
  float y;
  std::memcpy(&y, &x, sizeof y);
  return y;
}
EXACT int as_bits(float x) {
  int y;
  std::memcpy(&y, &x, sizeof y);
  return y;
}
EXACT double as_double(long long x) {
  double y;
  std::memcpy(&y, &x, sizeof y);
  return y;
}
#endif

// e^x for x <= 0 within 2 units of the last place; exactly 0 below -708, and NaN stays NaN.
EXACT double exponential_of_difference(double x) {
  if (x < -708.0) return 0.0;
  if (x != x) return x;
  // Adding and taking away 1.5 * 2^52 rounds to the nearest whole number.
  const double n = fused(x, 1.4426950408889634, 6755399441055744.0) - 6755399441055744.0;
  double r = fused(n, -6.93147180369123816490e-1, x);
  r = fused(n, -1.90821492927058770002e-10, r);
  double p = 1.0 / 6227020800.0;
  p = fused(p, r, 1.0 / 479001600.0);
  p = fused(p, r, 1.0 / 39916800.0);
  p = fused(p, r, 1.0 / 3628800.0);
  p = fused(p, r, 1.0 / 362880.0);
  p = fused(p, r, 1.0 / 40320.0);
  p = fused(p, r, 1.0 / 5040.0);
  p = fused(p, r, 1.0 / 720.0);
  p = fused(p, r, 1.0 / 120.0);
  p = fused(p, r, 1.0 / 24.0);
  p = fused(p, r, 1.0 / 6.0);
  p = fused(p, r, 0.5);
  p = fused(p, r, 1.0);
  p = fused(p, r, 1.0);
  return p * as_double((static_cast<long long>(n) + 1023) << 52);
}

// `exponential` of cpp/lanes.h for one number, as a processor with fused multiply-add computes it.
EXACT float exponential_of_lane(float x) {
  const bool tiny = x < -87.0f;
  const float y = x > 88.0f ? 88.0f : tiny ? -87.0f : x;
  const float n = fused(y, 1.44269504088896341f, 12582912.0f) - 12582912.0f;
  float r = fused(n, -0.693359375f, y);
  r = fused(n, 2.12194440e-4f, r);
  float p = fused(r, 1.9875691500e-4f, 1.3981999507e-3f);
  p = fused(p, r, 8.3334519073e-3f);
  p = fused(p, r, 4.1665795894e-2f);
  p = fused(p, r, 1.6666665459e-1f);
  p = fused(p, r, 5.0000001201e-1f);
  const float near_one = fused(rounded_product(p, r), r, r) + 1.0f;
  const int whole = n == n ? static_cast<int>(n) : 0;
  return tiny ? 0.0f : rounded_product(near_one, as_float((whole + 127) << 23));
}
