// Draws one token per row from the whole distribution at the row's temperature, or takes the likeliest. The logits are read
// once; then the chunk that holds the token is read again. Rows that truncate have their token from sample_truncated.cu.
//
// Every sum has the order of the CPU's sampler (`draw` of cpp/sample.cpp): 16 lanes over a chunk of 512 logits in float32,
// then chunk after chunk in float64. So the token is the one that the CPU draws from the same logits.

#include "device.cuh"
#include "truncation.cuh"

constexpr int CHUNK = 512;         // logits that share one mass and maximum
constexpr int CHUNK_LANES = 16;    // lanes that sum a chunk: those of the CPU's vectors
constexpr int MOST_CHUNKS = 1024;  // of a row
constexpr int SAMPLE_THREADS = 128;
constexpr int CHUNKS_PER_WARP = WARP / CHUNK_LANES;
constexpr int CHUNKS_PER_BLOCK = SAMPLE_THREADS / CHUNK_LANES;
// The chunks of a warp begin in different banks.
constexpr int CHUNK_STRIDE = CHUNK + CHUNK_LANES;

// Reads the logits of a chunk at the row's temperature, with `threads` threads of which this is `thread`. Entries beyond the
// vocabulary have no mass.
template <class T>
DEVICE void read_chunk(const T* logits, int64_t vocabulary, int chunk, float inverse_temperature, Shared<float> to, int thread,
                       int threads) {
  const int64_t first = static_cast<int64_t>(chunk) * CHUNK;
  const int n = static_cast<int>(max(static_cast<int64_t>(0), min(vocabulary - first, static_cast<int64_t>(CHUNK))));
  const T* from = logits + first;
  if (n == CHUNK && reinterpret_cast<uint64_t>(from) % 16 == 0) {
#pragma unroll 4
    for (int i = thread * VECTOR<T>; i < CHUNK; i += threads * VECTOR<T>) {
      const Vector<T> x = load_vector(from + i);
#pragma unroll
      for (int k = 0; k < VECTOR<T>; ++k) to[i + k] = rounded_product(to_float(x.at[k]), inverse_temperature);
    }
  } else {
    for (int i = thread; i < CHUNK; i += threads)
      to[i] = i < n ? rounded_product(to_float(from[i]), inverse_temperature) : -INFINITY;
  }
}

// The largest logit and the mass, relative to it, of each chunk: statistics (R, 2, chunks). Block x: chunks; block y: row.
template <class T>
DEVICE void sample_chunks(const T* logits, const float* inverse_temperatures, float* statistics, int64_t vocabulary,
                          int32_t chunks) {
  SHARED(float, buffer, CHUNKS_PER_BLOCK * CHUNK_STRIDE);
  const int64_t row = blockIdx.y;
  const int first = blockIdx.x * CHUNKS_PER_BLOCK + warp() * CHUNKS_PER_WARP;
  const Shared<float> of_warp = buffer + warp() * CHUNKS_PER_WARP * CHUNK_STRIDE;
#pragma unroll
  for (int c = 0; c < CHUNKS_PER_WARP; ++c)
    read_chunk(logits + row * vocabulary, vocabulary, first + c, inverse_temperatures[row], of_warp + c * CHUNK_STRIDE,
               lane(), WARP);
  __syncwarp();
  const Shared<float> own = of_warp + lane() / CHUNK_LANES * CHUNK_STRIDE + lane() % CHUNK_LANES;
  float largest = -INFINITY;
#pragma unroll 8
  for (int i = 0; i < CHUNK; i += CHUNK_LANES) largest = fmaxf(largest, own[i]);
#pragma unroll
  for (int offset = CHUNK_LANES / 2; offset > 0; offset /= 2)
    largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, offset));
  const float base = largest == -INFINITY ? 0.0f : largest;
  float mass = 0;
#pragma unroll 8
  for (int i = 0; i < CHUNK; i += CHUNK_LANES) mass += exponential_of_lane(own[i] - base);
#pragma unroll
  for (int offset = CHUNK_LANES / 2; offset > 0; offset /= 2) mass += __shfl_xor_sync(ALL_LANES, mass, offset);
  const int chunk = first + lane() / CHUNK_LANES;
  if (lane() % CHUNK_LANES == 0 && chunk < chunks) {
    statistics[2 * row * chunks + chunk] = largest;
    statistics[(2 * row + 1) * chunks + chunk] = mass;
  }
}

// The token and its log-prob at the sampling temperature; NaN where the row's logits are not finite. A block for each row.
// A row that truncates has its token already. `top_k`, `top_p` and `log_min_p` are null where
// none does.
template <class T>
DEVICE void sample_token(const T* logits, const float* statistics, const float* inverse_temperatures, const float* uniforms,
                         const int32_t* greedy, const int32_t* top_k, const float* top_p, const float* log_min_p,
                         int64_t* tokens, float* logprobs, int64_t vocabulary, int32_t chunks) {
  SHARED(float, largest, MOST_CHUNKS);
  SHARED(float, masses, MOST_CHUNKS);
  SHARED(double, scales, MOST_CHUNKS);  // e^(the chunk's largest logit - the row's)
  SHARED(float, buffer, CHUNK);
  SHARED(float, weights, CHUNK);
  SHARED(int32_t, chosen, 1);
  const int64_t row = blockIdx.x;
  const float inverse_temperature = inverse_temperatures[row];
  const bool is_drawn = top_k && truncates(greedy[row], top_k[row], top_p[row], log_min_p[row], vocabulary);
  float top = -INFINITY;
  for (int c = threadIdx.x; c < chunks; c += blockDim.x) {
    largest[c] = statistics[2 * row * chunks + c];
    masses[c] = statistics[(2 * row + 1) * chunks + c];
    top = fmaxf(top, statistics[2 * row * chunks + c]);
  }
  top = block_max(top);
  for (int c = threadIdx.x; c < chunks; c += blockDim.x)
    scales[c] = exponential_of_difference(static_cast<double>(largest[c]) - static_cast<double>(top));
  __syncthreads();

  // Sums in the CPU's order are one thread's: some hundred steps, of a few cycles each.
  double whole = 0, threshold = 0, before = 0;
  if (threadIdx.x == 0) {
    for (int c = 0; c < chunks; ++c) whole = fused(static_cast<double>(masses[c]), scales[c], whole);
    int found = 0;
    if (!(whole < INFINITY) || !(fabsf(top) < INFINITY)) {
      found = -1;
    } else if (greedy[row]) {
      while (largest[found] != top) ++found;
    } else if (!is_drawn) {
      threshold = uniforms[row] * whole;
      // Rounding may lift the threshold to the whole; the last chunk with mass is then drawn.
      double sum = 0;
      for (int c = 0; c < chunks && !(sum > threshold); ++c) {
        const double after = fused(static_cast<double>(masses[c]), scales[c], sum);
        if (after > sum) found = c, before = sum;
        sum = after;
      }
    }
    chosen[0] = found;
  }
  __syncthreads();
  const int32_t chunk = chosen[0];
  if (chunk < 0) {
    if (threadIdx.x == 0) tokens[row] = 0, logprobs[row] = __int_as_float(0x7fc00000);
    return;
  }
  const auto logprob = [&](float x) {
    return static_cast<float>(static_cast<double>(x) - static_cast<double>(top) - log(whole));
  };
  if (is_drawn) {
    if (threadIdx.x == 0)
      logprobs[row] = logprob(rounded_product(to_float(logits[row * vocabulary + tokens[row]]), inverse_temperature));
    return;
  }
  read_chunk<T>(logits + row * vocabulary, vocabulary, chunk, inverse_temperature, buffer, threadIdx.x, blockDim.x);
  __syncthreads();
  const float base = largest[chunk];
  for (int i = threadIdx.x; i < CHUNK; i += blockDim.x) weights[i] = exponential_of_lane(buffer[i] - base);
  __syncthreads();
  if (threadIdx.x != 0) return;
  int found = -1;
  if (greedy[row]) {
    do ++found;
    while (buffer[found] != top);
  } else {
    const double scale = scales[chunk];
    for (int i = 0; i < CHUNK; ++i) {
      const float weight = weights[i];
      if (!(weight > 0)) continue;
      if (found >= 0 && before > threshold) break;
      found = i;
      before = fused(static_cast<double>(weight), scale, before);
    }
  }
  tokens[row] = static_cast<int64_t>(chunk) * CHUNK + found;
  logprobs[row] = logprob(buffer[found]);
}

#define SAMPLE(SUFFIX, T)                                                                                              \
  extern "C" __global__ void __launch_bounds__(SAMPLE_THREADS)                                                         \
      sample_chunks_##SUFFIX(const T* logits, const float* inverse_temperatures, float* statistics, int64_t vocabulary, \
                             int32_t chunks) {                                                                         \
    sample_chunks<T>(logits, inverse_temperatures, statistics, vocabulary, chunks);                                    \
  }                                                                                                                    \
  extern "C" __global__ void __launch_bounds__(SAMPLE_THREADS)                                                         \
      sample_token_##SUFFIX(const T* logits, const float* statistics, const float* inverse_temperatures,               \
                            const float* uniforms, const int32_t* greedy, const int32_t* top_k, const float* top_p,    \
                            const float* log_min_p, int64_t* tokens, float* logprobs, int64_t vocabulary,              \
                            int32_t chunks) {                                                                          \
    sample_token<T>(logits, statistics, inverse_temperatures, uniforms, greedy, top_k, top_p, log_min_p, tokens,       \
                    logprobs, vocabulary, chunks);                                                                     \
  }
FOR_EACH_TYPE(SAMPLE)
