// A product of small matrices by a warp: on a GPU one instruction of its tensor cores, in the emulator the same sums.
//
// (16, 16) rows times (16, 8) columns, added to (16, 8) float32. Each lane has a part of each: with e = lane / 4 and
// f = lane % 4 these are, in this order,
//   rows:    elements (e, 2f) and (e, 2f + 1) in one number, then those of row e + 8, then both again of columns 2f + 8;
//   columns: elements (2f, e) and (2f + 1, e) in one number, then those of rows 2f + 8 and 2f + 9;
//   sums:    elements (e, 2f), (e, 2f + 1), (e + 8, 2f) and (e + 8, 2f + 1).
// That is mma.m16n8k16 of PTX.

#pragma once

#include "device.cuh"

// Two numbers of two bytes in one, the first in the lower half.
template <class T>
DEVICE uint32_t joined(T low, T high) {
  return static_cast<uint32_t>(high.bits) << 16 | low.bits;
}

// Elements 2i and 2i + 1 of a vector in one number.
template <class T>
DEVICE uint32_t two_of(const Vector<T>& v, int i) {
  return joined(v.at[2 * i], v.at[2 * i + 1]);
}

#ifdef NESTOR_EMULATOR
DEVICE float half_of(f16, uint16_t bits) {
  return to_float(f16{bits});
}
DEVICE float half_of(bf16, uint16_t bits) {
  return to_float(bf16{bits});
}

template <class T>
DEVICE void add_product(float (&sums)[4], const uint32_t (&rows)[4], const uint32_t (&columns)[2]) {
  struct Brought {
    uint32_t rows[4], columns[2];
  };
  Brought mine;
  std::memcpy(mine.rows, rows, sizeof(rows));
  std::memcpy(mine.columns, columns, sizeof(columns));
  const auto lanes = emulator::exchange(emulator::Collective::Matrix, mine);
  for (int i = 0; i < 4; ++i) {
    const int row = threadIdx.x % WARP / 4 + i / 2 * 8, column = threadIdx.x % 4 * 2 + i % 2;
    for (int k = 0; k < 16; ++k) {
      const uint32_t a = lanes[row % 8 * 4 + k % 8 / 2].rows[row / 8 + k / 8 * 2];
      const uint32_t b = lanes[column * 4 + k % 8 / 2].columns[k / 8];
      const float left = half_of(T{}, static_cast<uint16_t>(a >> k % 2 * 16));
      sums[i] += left * half_of(T{}, static_cast<uint16_t>(b >> k % 2 * 16));
    }
  }
}
#else
template <class T>
DEVICE void add_product(float (&sums)[4], const uint32_t (&rows)[4], const uint32_t (&columns)[2]);

#define ADD_PRODUCT(T, TYPE)                                                                                        \
  template <>                                                                                                       \
  __device__ __forceinline__ void add_product<T>(float(&sums)[4], const uint32_t(&rows)[4], const uint32_t(&columns)[2]) { \
    asm("mma.sync.aligned.m16n8k16.row.col.f32." TYPE "." TYPE ".f32 "                                              \
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                                           \
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])                                                \
        : "r"(rows[0]), "r"(rows[1]), "r"(rows[2]), "r"(rows[3]), "r"(columns[0]), "r"(columns[1]));                \
  }
ADD_PRODUCT(f16, "f16")
ADD_PRODUCT(bf16, "bf16")
#undef ADD_PRODUCT
#endif
