// The rotary embedding where sequences begin alike: of queries in place, and of keys, which go to each sequence that has their
// token. So do the values.

#include "rotary.cuh"

struct RotateGather {
  // `half` is a multiple of VECTOR<T>.
  int tokens, heads, kv_heads, half;
  int64_t table_stride;
  RotatedHeads q, k, v;
};

// q (T, H, D), k and v (T, K, D), cos and sin as of `rotate`, all aligned. Row s of `keys` and `values` (S, K, D) is that of
// token places[s]. A block for each token's queries, then one for each row.
template <class T>
DEVICE void rotate_gather(T* q, const T* k, const T* v, const T* cos, const T* sin, const int64_t* places, T* keys, T* values,
                          const RotateGather& of) {
  const int block = blockIdx.x;
  const bool queries = block < of.tokens;
  const int64_t row = queries ? block : block - of.tokens, token = queries ? row : places[row];
  const int each = of.half / VECTOR<T>, width = of.kv_heads * 2 * of.half;
  const int pairs = (queries ? of.heads : of.kv_heads) * each, vectors = queries ? 0 : width / VECTOR<T>;
  const int64_t token_stride = queries ? of.q.token : of.k.token, head_stride = queries ? of.q.head : of.k.head;
  const T* from = queries ? q : k;
  for (int item = threadIdx.x; item < pairs + vectors; item += blockDim.x) {
    if (item >= pairs) {
      const int at = (item - pairs) * VECTOR<T>, head = at / (2 * of.half), i = at % (2 * of.half);
      store_vector(values + row * width + at, load_vector(v + token * of.v.token + head * of.v.head + i));
      continue;
    }
    const int head = item / each, i = item % each * VECTOR<T>;
    const int64_t at = token * token_stride + head * head_stride + i;
    T* to = queries ? q + at : keys + row * width + head * 2 * of.half + i;
    Floats<T> a = load_floats(from + at), b = load_floats(from + at + of.half);
    turn(a, b, load_floats(cos + token * of.table_stride + i), load_floats(sin + token * of.table_stride + i), 1);
    store_floats(to, a);
    store_floats(to + of.half, b);
  }
}

#define DEFINE(suffix, T)                                                                                               \
  extern "C" __global__ void __launch_bounds__(MOST_THREADS)                                                            \
      rotate_gather_##suffix(T* q, const T* k, const T* v, const T* cos, const T* sin, const int64_t* places, T* keys,  \
                             T* values, RotateGather of) {                                                              \
    rotate_gather<T>(q, k, v, cos, sin, places, keys, values, of);                                                      \
  }
FOR_EACH_TYPE(DEFINE)
#undef DEFINE
