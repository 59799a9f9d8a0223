// Everything that kernels share: element types, vectors of 16 bytes, and reductions over a warp and a block.
//
// The bodies are compiled by NVRTC for GPUs, and by g++ for the emulator of a block (emulator/emulator.h), which checks
// them on a CPU. So a body keeps to these rules:
// - blocks have one dimension, and a multiple of 32 threads, at most MOST_THREADS;
// - shared memory is made by SHARED and DYNAMIC_SHARED and passed on as Shared<T>, which the emulator checks access by
//   access. So an element of it is read into a variable of a named type, not `auto`, and its members are reached there;
// - all 32 lanes of a warp take part in a shuffle.

#pragma once

#ifdef NESTOR_EMULATOR
#include "emulator/emulator.h"
#else
using int8_t = signed char;
using uint8_t = unsigned char;
using int16_t = short;
using uint16_t = unsigned short;
using int32_t = int;
using uint32_t = unsigned int;
using int64_t = long;
using uint64_t = unsigned long;

#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif

// An array in shared memory, aligned to 16 bytes. One array per place in the code, as in all of CUDA.
#define SHARED(type, name, count) __shared__ __align__(16) type name[count]
// The dynamic shared memory of the launch.
#define DYNAMIC_SHARED(type, name)             \
  extern __shared__ uint4 nestor_dynamic_shared[]; \
  type* name = reinterpret_cast<type*>(nestor_dynamic_shared)

// A pointer to shared memory.
template <class T>
using Shared = T*;

// The same memory as elements of another type.
template <class U, class T>
__device__ __forceinline__ U* recast(T* p) {
  return reinterpret_cast<U*>(p);
}
#endif

#define DEVICE static __device__ __forceinline__

// Most threads of a block.
constexpr int MOST_THREADS = 512;
constexpr int WARP = 32;
constexpr unsigned ALL_LANES = 0xffffffffu;

// ---- element types

struct f16 {
  uint16_t bits;
};
struct bf16 {
  uint16_t bits;
};

DEVICE float to_float(float x) {
  return x;
}

#ifdef NESTOR_EMULATOR
DEVICE float to_float(f16 x) {
  return emulator::of_half(x.bits);
}
DEVICE uint16_t half_bits(float x) {
  return emulator::to_half(x);
}
DEVICE uint16_t bfloat_bits(float x) {
  return emulator::to_bfloat(x);
}
#else
DEVICE float to_float(f16 x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
}
DEVICE uint16_t half_bits(float x) {
  uint16_t y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
  return y;
}
DEVICE uint16_t bfloat_bits(float x) {
  uint16_t y;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x));
  return y;
}
#endif

DEVICE float to_float(bf16 x) {
  return __uint_as_float(static_cast<uint32_t>(x.bits) << 16);
}

// Rounds to the nearest T, ties to even.
template <class T>
DEVICE T from_float(float x);
template <>
__device__ __forceinline__ float from_float<float>(float x) {
  return x;
}
template <>
__device__ __forceinline__ f16 from_float<f16>(float x) {
  return {half_bits(x)};
}
template <>
__device__ __forceinline__ bf16 from_float<bf16>(float x) {
  return {bfloat_bits(x)};
}

// ---- 16 bytes at a time

// Elements of 16 bytes.
template <class T>
constexpr int VECTOR = 16 / sizeof(T);

template <class T>
struct alignas(16) Vector {
  T at[VECTOR<T>];
};

// Reads VECTOR<T> elements from global memory, aligned to 16 bytes, in one instruction.
template <class T>
DEVICE Vector<T> load_vector(const T* p) {
  Vector<T> v;
  *reinterpret_cast<uint4*>(&v) = *reinterpret_cast<const uint4*>(p);
  return v;
}

template <class T>
DEVICE void store_vector(T* p, const Vector<T>& v) {
  *reinterpret_cast<uint4*>(p) = *reinterpret_cast<const uint4*>(&v);
}

#ifdef NESTOR_EMULATOR
template <class T>
DEVICE Vector<T> load_vector(emulator::Shared<T> p) {
  return p.template read_as<Vector<T>>();
}
template <class T>
DEVICE void store_vector(emulator::Shared<T> p, const Vector<T>& v) {
  p.write_as(v);
}
#endif

// ---- reductions

DEVICE int lane() {
  return threadIdx.x % WARP;
}
DEVICE int warp() {
  return threadIdx.x / WARP;
}
// Warps of the block.
DEVICE int warps() {
  return blockDim.x / WARP;
}

// The sum of all lanes, in each lane.
DEVICE float warp_sum(float x) {
#pragma unroll
  for (int offset = WARP / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(ALL_LANES, x, offset);
  return x;
}

// The largest of all lanes, in each lane.
DEVICE float warp_max(float x) {
#pragma unroll
  for (int offset = WARP / 2; offset > 0; offset /= 2) x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, offset));
  return x;
}

// The sum over all threads of the block, in each thread. All threads must call it.
DEVICE float block_sum(float x) {
  SHARED(float, sums, WARP);
  x = warp_sum(x);
  if (blockDim.x == WARP) return x;
  if (lane() == 0) sums[warp()] = x;
  __syncthreads();
  x = warp_sum(lane() < warps() ? static_cast<float>(sums[lane()]) : 0.0f);
  // The next reduction writes the same memory.
  __syncthreads();
  return x;
}

// The largest over all threads of the block, in each thread. All threads must call it.
DEVICE float block_max(float x) {
  SHARED(float, largest, WARP);
  x = warp_max(x);
  if (blockDim.x == WARP) return x;
  if (lane() == 0) largest[warp()] = x;
  __syncthreads();
  x = warp_max(lane() < warps() ? static_cast<float>(largest[lane()]) : -INFINITY);
  __syncthreads();
  return x;
}

// ---- definitions per element type

// Calls DEFINE(suffix, type) for each element type.
#define FOR_EACH_TYPE(DEFINE) DEFINE(f32, float) DEFINE(f16, f16) DEFINE(bf16, bf16)
