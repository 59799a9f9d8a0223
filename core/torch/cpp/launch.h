// Sizes of launches that take rows of a tensor.

#pragma once

#include <algorithm>

#include "kernels.h"

// Most threads of a block, as in cuda/device.cuh, and the elements that a thread takes at once, at most.
constexpr int64_t MOST_THREADS = 512, MOST_AT_ONCE = 8;

// The number of pieces of `each` items, at least one.
inline int64_t pieces(int64_t items, int64_t each) {
  return std::max<int64_t>(1, (items + each - 1) / each);
}

// Threads for this many items: whole warps.
inline int64_t threads_for(int64_t items, int64_t most = MOST_THREADS) {
  return std::min(most, pieces(items, 32) * 32);
}

// One block for each row, or for each of `pieces` of it.
inline Launch by_row(int64_t rows, int64_t pieces, int64_t threads) {
  return {static_cast<unsigned>(rows), static_cast<unsigned>(pieces), static_cast<unsigned>(threads)};
}
