// The rotary embedding of a pass's queries, in place, and of its keys, which go to their places in the cache with the values.

#include "device.cuh"
#include "pages.cuh"

struct RotateIntoCache {
  int64_t query_stride, key_stride, value_stride;  // elements between rows
  int64_t pages;                                   // of the cache
  int32_t heads, kv_heads, dim;
};

// Rotates the pairs (i, i + dim / 2) of one vector each. Without tables the pairs stay as they are.
template <class T>
DEVICE void rotate_pairs(Vector<T>& a, Vector<T>& b, const T* cos, const T* sin) {
  if (cos == nullptr) return;
  const Vector<T> c = load_vector(cos), s = load_vector(sin);
#pragma unroll
  for (int i = 0; i < VECTOR<T>; ++i) {
    const float x = to_float(a.at[i]), y = to_float(b.at[i]), cosine = to_float(c.at[i]), sine = to_float(s.at[i]);
    a.at[i] = from_float<T>(x * cosine - y * sine);
    b.at[i] = from_float<T>(y * cosine + x * sine);
  }
}

// q (T, H, D), k and v (T, K, D), cos and sin (T, D) with equal halves, or null; cache (2, P, PAGE, K, D); places (T): page *
// PAGE + offset. Rows without a place (-1) and of page 0, which is filling, are not written. A block for each row.
template <class T>
DEVICE void rotate_into_cache(T* q, const T* k, const T* v, const T* cos, const T* sin, T* cache, const int64_t* places,
                              const RotateIntoCache& a) {
  const int64_t row = blockIdx.x, place = places[row];
  const int half = a.dim / 2, pairs = half / VECTOR<T>, vectors = a.dim / VECTOR<T>;
  const int queries = a.heads * pairs, keys = a.kv_heads * pairs, values = a.kv_heads * vectors;
  const bool written = place >= PAGE;
  for (int i = threadIdx.x; i < queries + (written ? keys + values : 0); i += blockDim.x) {
    if (i >= queries + keys) {
      const int at = (i - queries - keys) * VECTOR<T>;
      store_vector(cache + head_of_token(a.pages * PAGE + place, a.kv_heads, 0, a.dim) + at,
                   load_vector(v + row * a.value_stride + at));
      continue;
    }
    const bool of_query = i < queries;
    const int pair = of_query ? i : i - queries, column = pair % pairs * VECTOR<T>;
    const int64_t at = pair / pairs * a.dim + column;
    const T* from = of_query ? q + row * a.query_stride + at : k + row * a.key_stride + at;
    T* to = of_query ? q + row * a.query_stride + at : cache + head_of_token(place, a.kv_heads, 0, a.dim) + at;
    Vector<T> x = load_vector(from), y = load_vector(from + half);
    const T* row_cos = cos == nullptr ? nullptr : cos + row * a.dim + column;
    rotate_pairs(x, y, row_cos, sin + row * a.dim + column);
    store_vector(to, x);
    store_vector(to + half, y);
  }
}

#define ROTATE_INTO_CACHE(SUFFIX, T)                                                                                  \
  extern "C" __global__ void __launch_bounds__(MOST_THREADS)                                                          \
      rotate_into_cache_##SUFFIX(T* q, const T* k, const T* v, const T* cos, const T* sin, T* cache,                  \
                                 const int64_t* places, RotateIntoCache a) {                                          \
    rotate_into_cache<T>(q, k, v, cos, sin, cache, places, a);                                                        \
  }
FOR_EACH_TYPE(ROTATE_INTO_CACHE)
