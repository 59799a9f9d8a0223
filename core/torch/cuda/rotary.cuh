// The rotary embedding of vectors, and the layout of tensors that it reads and writes.

#pragma once

#include "floats.cuh"

// Strides in elements, all multiples of VECTOR<T>, of a tensor (T, N, D).
struct RotatedHeads {
  int64_t token, head;
};

// Rotates the pairs (a, b) by angles with these cosines and sines, or with `sign` -1 back.
template <class T>
DEVICE void turn(Floats<T>& a, Floats<T>& b, const Floats<T>& cos, const Floats<T>& sin, float sign) {
#pragma unroll
  for (int j = 0; j < VECTOR<T>; ++j) {
    const float first = a.at[j], second = b.at[j], by = sign * sin.at[j];
    a.at[j] = first * cos.at[j] - second * by;
    b.at[j] = second * cos.at[j] + first * by;
  }
}
