// Rotary embedding in place: rotates the pairs (i, i + half) of the first heads of each token.
//
// x (T, N, D) has tokens `token_stride` and heads `head_stride` elements apart. cos and sin have rows of D, `table_stride`
// apart, whose halves are equal. One block for each token. `sign` -1 rotates back, which is the gradient.

#include "rotary.cuh"

template <class T>
DEVICE void rotate(T* x, const T* cos, const T* sin, int64_t token_stride, int64_t head_stride, int64_t table_stride,
                   int rotated, int half, float sign) {
  x += blockIdx.x * token_stride;
  cos += blockIdx.x * table_stride;
  sin += blockIdx.x * table_stride;
  const bool whole = half % VECTOR<T> == 0 && head_stride % VECTOR<T> == 0;
  if (whole && is_aligned(x) && is_aligned(cos) && is_aligned(sin)) {
    const int each = half / VECTOR<T>;
    for (int item = threadIdx.x; item < rotated * each; item += blockDim.x) {
      const int head = item / each, i = item % each * VECTOR<T>;
      T* to = x + head * head_stride + i;
      Floats<T> a = load_floats(to), b = load_floats(to + half);
      turn(a, b, load_floats(cos + i), load_floats(sin + i), sign);
      store_floats(to, a);
      store_floats(to + half, b);
    }
    return;
  }
  for (int item = threadIdx.x; item < rotated * half; item += blockDim.x) {
    const int head = item / half, i = item % half;
    T* to = x + head * head_stride + i;
    const float a = to_float(to[0]), b = to_float(to[half]), c = to_float(cos[i]), by = sign * to_float(sin[i]);
    to[0] = from_float<T>(a * c - b * by);
    to[half] = from_float<T>(b * c + a * by);
  }
}

#define ROTATE(suffix, T)                                                                                                  \
  extern "C" __global__ void rotate_##suffix(T* x, const T* cos, const T* sin, int64_t token_stride, int64_t head_stride,  \
                                             int64_t table_stride, int rotated, int half, float sign) {                    \
    rotate(x, cos, sin, token_stride, head_stride, table_stride, rotated, half, sign);                                     \
  }
FOR_EACH_TYPE(ROTATE)
#undef ROTATE
