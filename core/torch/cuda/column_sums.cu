// The sums of the columns of float32 parts (rows, columns), which are written to `sum` or added to it: a vector's gradient of
// which a backward pass has left parts. A block takes COLUMNS_OF_BLOCK columns, in an order that is the same in each run.

#include "device.cuh"

// 64 bytes of a row: few enough that vectors of some thousand elements occupy most multiprocessors.
constexpr int COLUMNS_OF_BLOCK = 16;

// `columns` is a multiple of 4, and the parts are aligned.
extern "C" __global__ void __launch_bounds__(MOST_THREADS)
    column_sums_f32(const float* parts, float* sum, int rows, int columns, int first) {
  constexpr int LANES = COLUMNS_OF_BLOCK / VECTOR<float>;
  SHARED(float, of_warps, MOST_THREADS / WARP * COLUMNS_OF_BLOCK);
  const int begin = blockIdx.x * COLUMNS_OF_BLOCK, column = begin + threadIdx.x % LANES * VECTOR<float>;
  float own[VECTOR<float>] = {};
  if (column < columns) {
    for (int row = threadIdx.x / LANES; row < rows; row += blockDim.x / LANES) {
      const auto part = load_vector(parts + static_cast<int64_t>(row) * columns + column);
#pragma unroll
      for (int k = 0; k < VECTOR<float>; ++k) own[k] += part.at[k];
    }
  }
#pragma unroll
  for (int k = 0; k < VECTOR<float>; ++k) {
#pragma unroll
    for (int offset = WARP / 2; offset >= LANES; offset /= 2) own[k] += __shfl_xor_sync(ALL_LANES, own[k], offset);
    if (lane() < LANES) of_warps[warp() * COLUMNS_OF_BLOCK + lane() * VECTOR<float> + k] = own[k];
  }
  __syncthreads();
  const int at = threadIdx.x, to = begin + at;
  if (at >= COLUMNS_OF_BLOCK || to >= columns) return;
  float all = first ? 0.0f : sum[to];
  for (int i = 0; i < warps(); ++i) {
    const float of_warp = of_warps[i * COLUMNS_OF_BLOCK + at];
    all += of_warp;
  }
  sum[to] = all;
}
