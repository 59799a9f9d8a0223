// RMS norm of rows: y = x / rms(x) * weight, in float32 and rounded once. `add_norm` first adds a residual. The gradient needs
// 1 / rms(x), which the forward kernels keep.
//
// Rows are T tokens of N heads of `width` elements, a multiple of VECTOR<T>, with one weight per head. The first head of a
// token starts `stride` elements behind that of the token before; results are dense. `per_row` threads share a row: all
// of the block, or a warp.

struct RmsNormRows {
  int tokens, heads, width, per_row;
  int64_t stride;
  float eps;
};

// The sum over the threads of a row, in each of them.
DEVICE float row_sum(float x, int per_row) {
  return per_row == WARP ? warp_sum(x) : block_sum(x);
}

// One row per group of `per_row` threads. With ADD, x + y is stored in `sum` and normalised. `scales` (T * N) gets
// 1 / rms where it is not null.
template <class T, bool ADD>
DEVICE void rms_norm_rows(const T* __restrict__ x, const T* __restrict__ y, const T* __restrict__ weight, T* sum,
                          T* __restrict__ out, float* __restrict__ scales, const RmsNormRows& rows) {
  const int row = blockIdx.x * (blockDim.x / rows.per_row) + threadIdx.x / rows.per_row;
  // A warp has a row of its own here: the other warps need not be here.
  if (row >= rows.tokens * rows.heads) return;
  const int head = row % rows.heads, first = threadIdx.x % rows.per_row * VECTOR<T>, step = rows.per_row * VECTOR<T>;
  const int64_t dense = static_cast<int64_t>(row) * rows.width;
  const T* from = x + row / rows.heads * rows.stride + static_cast<int64_t>(head) * rows.width;
  float squares = 0.0f;
#pragma unroll 1
  for (int i = first; i < rows.width; i += step) {
    auto v = load_vector(from + i);
    if (ADD) {
      const auto other = load_vector(y + dense + i);
#pragma unroll
      for (int k = 0; k < VECTOR<T>; ++k) v.at[k] = from_float<T>(to_float(v.at[k]) + to_float(other.at[k]));
      store_vector(sum + dense + i, v);
    }
#pragma unroll
    for (int k = 0; k < VECTOR<T>; ++k) squares += to_float(v.at[k]) * to_float(v.at[k]);
  }
  const float scale = rsqrtf(__fdividef(row_sum(squares, rows.per_row), rows.width) + rows.eps);
  if (scales && first == 0) scales[row] = scale;
  // This thread wrote what it now reads of `sum`.
  const T* again = ADD ? sum + dense : from;
#pragma unroll 1
  for (int i = first; i < rows.width; i += step) {
    auto v = load_vector(again + i);
    const auto w = load_vector(weight + head * rows.width + i);
#pragma unroll
    for (int k = 0; k < VECTOR<T>; ++k) v.at[k] = from_float<T>(to_float(v.at[k]) * scale * to_float(w.at[k]));
    store_vector(out + dense + i, v);
  }
}

// Vectors of a row that a thread of the backward kernel has.
constexpr int MOST_OF_ROW = 2;

// Gradient of x (dense): the norm's, by its output's gradient, plus `grad_sum` where that is not null. A group of `per_row`
// threads takes every (gridDim.x * groups)th token of head blockIdx.y, and leaves its part of the weight's gradient in
// `partial` (gridDim.x * groups, N, width).
template <class T>
DEVICE void rms_norm_grad_rows(const T* __restrict__ x, const T* __restrict__ weight, const float* __restrict__ scales,
                               const T* __restrict__ grad, const T* __restrict__ grad_sum, T* __restrict__ grad_x,
                               float* __restrict__ partial, const RmsNormRows& rows) {
  const int groups = blockDim.x / rows.per_row, group = blockIdx.x * groups + threadIdx.x / rows.per_row;
  const int head = blockIdx.y, first = threadIdx.x % rows.per_row * VECTOR<T>, step = rows.per_row * VECTOR<T>;
  const int own = rows.width - first;
  float of_weight[MOST_OF_ROW][VECTOR<T>] = {};
  for (int token = group; token < rows.tokens; token += gridDim.x * groups) {
    const int64_t row = static_cast<int64_t>(token) * rows.heads + head, dense = row * rows.width + first;
    const T* from = x + token * rows.stride + head * rows.width + first;
    const float scale = scales[row];
    float normal[MOST_OF_ROW][VECTOR<T>], back[MOST_OF_ROW][VECTOR<T>], along = 0.0f;
#pragma unroll
    for (int j = 0; j < MOST_OF_ROW; ++j) {
      if (j * step < own) {
        const auto v = load_vector(from + j * step), g = load_vector(grad + dense + j * step);
        const auto w = load_vector(weight + head * rows.width + first + j * step);
#pragma unroll
        for (int k = 0; k < VECTOR<T>; ++k) {
          normal[j][k] = to_float(v.at[k]) * scale;
          of_weight[j][k] += to_float(g.at[k]) * normal[j][k];
          back[j][k] = to_float(g.at[k]) * to_float(w.at[k]);
          along += back[j][k] * normal[j][k];
        }
      }
    }
    along = __fdividef(row_sum(along, rows.per_row), rows.width);
#pragma unroll
    for (int j = 0; j < MOST_OF_ROW; ++j) {
      if (j * step < own) {
        Vector<T> to;
        if (grad_sum) {
          const auto more = load_vector(grad_sum + dense + j * step);
#pragma unroll
          for (int k = 0; k < VECTOR<T>; ++k) {
            to.at[k] = from_float<T>(to_float(more.at[k]) + scale * (back[j][k] - normal[j][k] * along));
          }
        } else {
#pragma unroll
          for (int k = 0; k < VECTOR<T>; ++k) to.at[k] = from_float<T>(scale * (back[j][k] - normal[j][k] * along));
        }
        store_vector(grad_x + dense + j * step, to);
      }
    }
  }
  if (!partial) return;
  float* part = partial + (static_cast<int64_t>(group) * rows.heads + head) * rows.width + first;
#pragma unroll
  for (int j = 0; j < MOST_OF_ROW; ++j) {
    if (j * step < own) {
#pragma unroll
      for (int k = 0; k < VECTOR<T>; k += VECTOR<float>) {
        Vector<float> four;
#pragma unroll
        for (int i = 0; i < VECTOR<float>; ++i) four.at[i] = of_weight[j][k + i];
        store_vector(part + j * step + k, four);
      }
    }
  }
}

#define DEFINE(suffix, T)                                                                                             \
  extern "C" __global__ void __launch_bounds__(MOST_THREADS) rms_norm_##suffix(                                       \
      const T* x, const T* weight, T* out, float* scales, RmsNormRows rows) {                                         \
    rms_norm_rows<T, false>(x, nullptr, weight, nullptr, out, scales, rows);                                          \
  }                                                                                                                   \
  extern "C" __global__ void __launch_bounds__(MOST_THREADS) add_norm_##suffix(                                       \
      const T* x, const T* y, const T* weight, T* sum, T* out, float* scales, RmsNormRows rows) {                     \
    rms_norm_rows<T, true>(x, y, weight, sum, out, scales, rows);                                                     \
  }                                                                                                                   \
  extern "C" __global__ void __launch_bounds__(MOST_THREADS) rms_norm_grad_##suffix(                                  \
      const T* x, const T* weight, const float* scales, const T* grad, const T* grad_sum, T* grad_x, float* partial,  \
      RmsNormRows rows) {                                                                                             \
    rms_norm_grad_rows<T>(x, weight, scales, grad, grad_sum, grad_x, partial, rows);                                  \
  }
FOR_EACH_TYPE(DEFINE)
#undef DEFINE
