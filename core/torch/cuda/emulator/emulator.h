// A block of CUDA threads on a CPU: what kernel bodies use of CUDA, for g++.
//
// Each thread of a block is a fibre. A fibre runs until it meets a barrier or a shuffle; then another one of the block runs,
// in a random order. Blocks run one after the other, in a random order too.
//
// Shared memory is checked access by access. An element that is read before it is written, accesses outside an array, and
// two threads' accesses to one element with no barrier between, of which one writes, end the launch with a message. So does
// a barrier that some threads of the block do not reach. Global memory is checked by AddressSanitizer where the library is
// built with it.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(n) alignas(n)

struct uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};

namespace emulator {

struct Index {
  unsigned x = 0, y = 0, z = 0;
};

// Ends the launch with a message as of printf, which it puts behind the kernel's name, block and thread.
[[noreturn]] void fail(const char* format, ...);

void block_barrier();

// An act of a whole warp. All lanes must do the same.
enum class Collective { Barrier, Shuffle, Vote, Matrix };

// Gives each lane what all lanes of its warp brought: 32 places of EXCHANGED bytes. Valid until the lane's next exchange.
constexpr int EXCHANGED = 64;
const char* exchange(Collective kind, const void* mine, int bytes);

// The same for a type.
template <class T>
struct Lanes {
  const char* places;
  T operator[](int lane) const {
    T value;
    std::memcpy(&value, places + lane * EXCHANGED, sizeof(T));
    return value;
  }
};
template <class T>
Lanes<T> exchange(Collective kind, const T& mine) {
  static_assert(sizeof(T) <= EXCHANGED && std::is_trivially_copyable_v<T>);
  return {exchange(kind, &mine, sizeof(T))};
}

// ---- shared memory

struct Granule;

// An array in shared memory.
struct Slot {
  const char* name;
  int64_t bytes = 0;
  char* data = nullptr;
  Granule* granules = nullptr;

  Slot(const char* name, int64_t bytes) : name(name) { resize(bytes); }
  Slot(const Slot&) = delete;
  void resize(int64_t to);
  // Notes an access by the running thread, or ends the launch.
  enum class Access { Read, Write, Atomic };
  char* access(int64_t at, int64_t count, Access access, int64_t element) const;
};

template <class T>
struct Cell;

// A checked pointer to shared memory.
template <class T>
struct Shared {
  static_assert(sizeof(T) % 2 == 0 && std::is_trivially_copyable_v<T>);
  const Slot* slot = nullptr;
  int64_t at = 0;  // in bytes

  Shared() = default;
  explicit Shared(const Slot& slot) : slot(&slot) {}
  Shared(const Slot* slot, int64_t at) : slot(slot), at(at) {}

  Cell<T> operator[](int64_t i) const { return {*this + i}; }
  Cell<T> operator*() const { return {*this}; }
  Shared operator+(int64_t i) const { return {slot, at + i * static_cast<int64_t>(sizeof(T))}; }
  Shared operator-(int64_t i) const { return *this + -i; }
  int64_t operator-(const Shared& other) const { return (at - other.at) / static_cast<int64_t>(sizeof(T)); }
  Shared& operator+=(int64_t i) { return *this = *this + i; }
  Shared& operator++() { return *this += 1; }
  bool operator==(const Shared& other) const { return slot == other.slot && at == other.at; }
  bool operator<(const Shared& other) const { return at < other.at; }

  template <class U>
  U read_as() const {
    U value;
    std::memcpy(&value, slot->access(at, sizeof(U), Slot::Access::Read, sizeof(T)), sizeof(U));
    return value;
  }
  template <class U>
  void write_as(const U& value) const {
    std::memcpy(slot->access(at, sizeof(U), Slot::Access::Write, sizeof(T)), &value, sizeof(U));
  }
  T read() const { return read_as<T>(); }
  void write(const T& value) const { write_as(value); }
  // The place of one atomic operation.
  T* atomic() const {
    return reinterpret_cast<T*>(slot->access(at, sizeof(T), Slot::Access::Atomic, sizeof(T)));
  }
};

// An element of shared memory.
template <class T>
struct Cell {
  Shared<T> place;
  operator T() const { return place.read(); }
  const Cell& operator=(const T& value) const { return place.write(value), *this; }
  const Cell& operator=(const Cell& other) const { return place.write(other.place.read()), *this; }
  const Cell& operator+=(const T& value) const { return place.write(place.read() + value), *this; }
  const Cell& operator-=(const T& value) const { return place.write(place.read() - value), *this; }
  const Cell& operator*=(const T& value) const { return place.write(place.read() * value), *this; }
  Shared<T> operator&() const { return place; }
};

// The dynamic shared memory of the launch.
Slot& dynamic_slot();

// ---- types of two bytes

inline float of_half(uint16_t bits) {
  _Float16 half;
  std::memcpy(&half, &bits, 2);
  return static_cast<float>(half);
}
inline uint16_t to_half(float x) {
  const auto half = static_cast<_Float16>(x);
  uint16_t bits;
  std::memcpy(&bits, &half, 2);
  return bits;
}
inline uint16_t to_bfloat(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  if (x != x) return 0x7fff;
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

template <class U, class T>
U bits_of(const T& x) {
  static_assert(sizeof(T) == sizeof(U));
  U to;
  std::memcpy(&to, &x, sizeof(U));
  return to;
}

}  // namespace emulator

template <class T>
using Shared = emulator::Shared<T>;

#define SHARED(type, name, count)                                                        \
  static emulator::Slot name##_slot(#name, static_cast<int64_t>(sizeof(type)) * (count)); \
  emulator::Shared<type> name(name##_slot)
#define DYNAMIC_SHARED(type, name) emulator::Shared<type> name(emulator::dynamic_slot())

template <class U, class T>
Shared<U> recast(Shared<T> p) {
  return {p.slot, p.at};
}

// ---- CUDA's variables and functions

extern emulator::Index threadIdx, blockIdx, blockDim, gridDim;

inline void __syncthreads() {
  emulator::block_barrier();
}

// Fails unless the mask names all lanes.
inline void check_mask(unsigned mask) {
  if (mask != ~0u) emulator::fail("a mask of %08x: only whole warps are emulated", mask);
}
inline void __syncwarp(unsigned mask = ~0u) {
  check_mask(mask);
  emulator::exchange(emulator::Collective::Barrier, mask);
}

template <class T>
T shuffled(unsigned mask, T x, int from) {
  check_mask(mask);
  return emulator::exchange(emulator::Collective::Shuffle, x)[from];
}
template <class T>
T __shfl_xor_sync(unsigned mask, T x, int by, int width = 32) {
  const int lane = threadIdx.x % 32, from = lane ^ by;
  return shuffled(mask, x, from / width > lane / width ? lane : from);
}
template <class T>
T __shfl_down_sync(unsigned mask, T x, unsigned by, int width = 32) {
  const int lane = threadIdx.x % 32;
  return shuffled(mask, x, lane % width + static_cast<int>(by) < width ? lane + static_cast<int>(by) : lane);
}
template <class T>
T __shfl_up_sync(unsigned mask, T x, unsigned by, int width = 32) {
  const int lane = threadIdx.x % 32;
  return shuffled(mask, x, lane % width >= static_cast<int>(by) ? lane - static_cast<int>(by) : lane);
}
template <class T>
T __shfl_sync(unsigned mask, T x, int from, int width = 32) {
  const int lane = threadIdx.x % 32;
  return shuffled(mask, x, lane / width * width + (from & (width - 1)));
}
inline unsigned __ballot_sync(unsigned mask, int vote) {
  check_mask(mask);
  const auto votes = emulator::exchange(emulator::Collective::Vote, vote);
  unsigned all = 0;
  for (int lane = 0; lane < 32; ++lane) all |= votes[lane] ? 1u << lane : 0u;
  return all;
}
inline int __any_sync(unsigned mask, int vote) {
  return __ballot_sync(mask, vote) != 0;
}
inline int __all_sync(unsigned mask, int vote) {
  return __ballot_sync(mask, vote) == ~0u;
}

// Atomic operations return the old value. One fibre runs at a time, so plain operations are atomic here.
#define NESTOR_ATOMIC(name, with)                 \
  template <class T>                              \
  T name(T* p, std::common_type_t<T> x) {         \
    const T old = *p;                             \
    *p = with;                                    \
    return old;                                   \
  }                                               \
  template <class T>                              \
  T name(Shared<T> p, std::common_type_t<T> x) {  \
    return name(p.atomic(), x);                   \
  }
NESTOR_ATOMIC(atomicAdd, static_cast<T>(old + x))
NESTOR_ATOMIC(atomicMax, old < x ? x : old)
NESTOR_ATOMIC(atomicMin, x < old ? x : old)
NESTOR_ATOMIC(atomicOr, old | x)
NESTOR_ATOMIC(atomicExch, x)
#undef NESTOR_ATOMIC
template <class T>
T atomicCAS(T* p, std::common_type_t<T> is, std::common_type_t<T> to) {
  const T old = *p;
  if (old == is) *p = to;
  return old;
}
inline void __threadfence() {}
inline void __threadfence_block() {}

template <class T>
T __ldg(const T* p) {
  return *p;
}
template <class T>
T __ldcs(const T* p) {
  return *p;
}
template <class T>
void __stcs(T* p, T x) {
  *p = x;
}

inline unsigned __float_as_uint(float x) {
  return emulator::bits_of<unsigned>(x);
}
inline int __float_as_int(float x) {
  return emulator::bits_of<int>(x);
}
inline float __uint_as_float(unsigned x) {
  return emulator::bits_of<float>(x);
}
inline float __int_as_float(int x) {
  return emulator::bits_of<float>(x);
}
inline int __popc(unsigned x) {
  return __builtin_popcount(x);
}
inline int __ffs(int x) {
  return __builtin_ffs(x);
}
inline int __clz(int x) {
  return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x));
}

#define NESTOR_LEAST_AND_MOST(type)                          \
  inline type min(type a, type b) { return b < a ? b : a; } \
  inline type max(type a, type b) { return a < b ? b : a; }
NESTOR_LEAST_AND_MOST(int)
NESTOR_LEAST_AND_MOST(unsigned)
NESTOR_LEAST_AND_MOST(long)
NESTOR_LEAST_AND_MOST(unsigned long)
#undef NESTOR_LEAST_AND_MOST
inline float min(float a, float b) {
  return std::fmin(a, b);
}
inline float max(float a, float b) {
  return std::fmax(a, b);
}

inline float rsqrtf(float x) {
  return 1.0f / std::sqrt(x);
}
inline float __expf(float x) {
  return std::exp(x);
}
inline float __logf(float x) {
  return std::log(x);
}
inline float __fdividef(float a, float b) {
  return a / b;
}
inline float __frcp_rn(float x) {
  return 1.0f / x;
}
inline float __fsqrt_rn(float x) {
  return std::sqrt(x);
}
// Never joined with an addition into one rounding.
inline float __fmul_rn(float a, float b) {
  return a * b;
}
inline float __fadd_rn(float a, float b) {
  return a + b;
}
inline float __fmaf_rn(float a, float b, float c) {
  return std::fma(a, b, c);
}
inline float __fdiv_rn(float a, float b) {
  return a / b;
}
inline float4 make_float4(float x, float y, float z, float w) {
  return {x, y, z, w};
}
inline float2 make_float2(float x, float y) {
  return {x, y};
}
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) {
  return {x, y, z, w};
}
inline uint2 make_uint2(unsigned x, unsigned y) {
  return {x, y};
}
