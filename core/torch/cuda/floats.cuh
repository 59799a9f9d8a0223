// Vectors of 16 bytes as floats, for rows of any alignment.

#pragma once

#include "device.cuh"

template <class T>
struct Floats {
  float at[VECTOR<T>];
};

template <class T>
DEVICE bool is_aligned(const T* p) {
  return reinterpret_cast<uint64_t>(p) % 16 == 0;
}

// A GPU faults where vectors are not aligned; most CPUs do not.
template <class T>
DEVICE void check_aligned([[maybe_unused]] const T* p) {
#ifdef NESTOR_EMULATOR
  if (!is_aligned(p)) emulator::fail("16 bytes at %p, which is not aligned", static_cast<const void*>(p));
#endif
}

template <class T>
DEVICE Floats<T> floats_of(const Vector<T>& v) {
  Floats<T> x;
#pragma unroll
  for (int i = 0; i < VECTOR<T>; ++i) x.at[i] = to_float(v.at[i]);
  return x;
}

// Reads VECTOR<T> elements, aligned to 16 bytes.
template <class T>
DEVICE Floats<T> load_floats(const T* p) {
  check_aligned(p);
  return floats_of(load_vector(p));
}

template <class T>
DEVICE void store_floats(T* p, const Floats<T>& x) {
  check_aligned(p);
  Vector<T> v;
#pragma unroll
  for (int i = 0; i < VECTOR<T>; ++i) v.at[i] = from_float<T>(x.at[i]);
  store_vector(p, v);
}

// A row of `width` elements as some before the first aligned one, whole vectors, and some behind them.
struct RowParts {
  int lead, vectors, rest;

  // Elements outside of whole vectors.
  __device__ __forceinline__ int loose(int width) const { return lead + width - rest; }
  // The place of one of them.
  __device__ __forceinline__ int loose_at(int i) const { return i < lead ? i : rest + i - lead; }
};

template <class T>
DEVICE RowParts row_parts(const T* row, int width) {
  const int past = reinterpret_cast<uint64_t>(row) % 16 / sizeof(T);
  const int lead = min(past == 0 ? 0 : VECTOR<T> - past, width), vectors = (width - lead) / VECTOR<T>;
  return {lead, vectors, lead + vectors * VECTOR<T>};
}
