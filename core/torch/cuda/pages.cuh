// Places in a cache of pages: keys, then values, (2, P, PAGE, K, D).

#pragma once

#include "device.cuh"

constexpr int PAGE = 16;  // tokens of a page

// The offset of one head's first element, of the token at `place` (page * PAGE + offset).
DEVICE int64_t head_of_token(int64_t place, int kv_heads, int kv_head, int dim) {
  return (place * kv_heads + kv_head) * dim;
}
