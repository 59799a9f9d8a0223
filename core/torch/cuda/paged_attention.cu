// Attention of one query row per request to the keys and values of its pages. A block reads one piece of a request's context
// once, for all query heads that share its key head; `paged_attention_combine` joins the pieces. The grid depends on the most
// pieces alone, not on the lengths, so that a captured graph stays right.
//
// Types of two bytes are multiplied by tensor cores: with plain instructions a multiprocessor issues as many as it has
// time for while it reads, and reached 40 % of an H200's bandwidth. Float32 takes plain instructions, which round less.

#include "device.cuh"
#include "matrix.cuh"
#include "pages.cuh"

constexpr int MOST_PIECE = 512;  // tokens of a block, at most
constexpr int GROUP = 8;    // query heads that share a reading
constexpr int ATTENTION_THREADS = 128;
constexpr int ATTENTION_WARPS = ATTENTION_THREADS / WARP;
constexpr int ATTENTION_BLOCKS = 4;  // of a multiprocessor, at least: so the compiler may use 128 registers, and spills none
constexpr int MATRIX_BLOCKS = 2;  // the same by matrices: 182 registers on sm_90; with 168 for three, sm_100 spills
constexpr int AHEAD = 4;  // vectors that a thread asks for before it uses the first

struct PagedAttention {
  const int32_t* page_table;  // (R, most_pages)
  const int32_t* lengths;     // (R): tokens seen, the row's own included
  float* partial;             // (R, H, pieces, D + 2): sum of weighted values, then the largest score and the sum of weights
  int64_t pages;              // of the cache
  int64_t query_stride;       // elements between rows of queries
  int32_t heads, kv_heads, most_pages;
  int32_t piece;              // tokens of a block
  float scale;
};

// The part of a request's attention that a block computes. Block x: request, key head, group of query heads; block y: piece.
struct Piece {
  int64_t row;
  int kv_head;
  int head, heads;    // the first query head of the group, and how many it has
  int first, tokens;  // the first token, and how many there are; 0 or less behind the request's end

  __device__ __forceinline__ explicit Piece(const PagedAttention& a) {
    const int sharing = a.heads / a.kv_heads, groups = (sharing + GROUP - 1) / GROUP, group = blockIdx.x % groups;
    kv_head = blockIdx.x / groups % a.kv_heads;
    row = blockIdx.x / (groups * a.kv_heads);
    head = kv_head * sharing + group * GROUP;
    heads = min(sharing - group * GROUP, GROUP);
    first = blockIdx.y * a.piece;
    tokens = min(a.lengths[row] - first, a.piece);
  }
};

// Adds GROUP numbers over LANES neighbouring lanes, and returns the sum that the lane's place selects:
// place / (LANES / GROUP). Lanes exchange halves of what is left, so 7 exchanges take the place of 8 for each halving.
template <int LANES>
DEVICE float sum_scattered(float (&x)[GROUP], int place) {
  int offset = LANES / 2;
#pragma unroll
  for (int width = GROUP / 2; width > 0; width /= 2, offset /= 2) {
    const bool upper = place & offset;
#pragma unroll
    for (int i = 0; i < width; ++i) {
      const float sent = upper ? x[i] : x[i + width], kept = upper ? x[i + width] : x[i];
      x[i] = kept + __shfl_xor_sync(ALL_LANES, sent, offset);
    }
  }
#pragma unroll
  for (; offset > 0; offset /= 2) x[0] += __shfl_xor_sync(ALL_LANES, x[0], offset);
  return x[0];
}

// q (R, H, D); keys, then values, (2, P, PAGE, K, D).
template <class T, int D>
DEVICE void paged_attention(const T* q, const T* keys, const PagedAttention& a) {
  constexpr int WIDTH = VECTOR<T>;
  constexpr int LANES = D / WIDTH;                   // lanes that share a token
  constexpr int STEP = WARP / LANES;                 // tokens that a warp reads at once
  constexpr int TOKENS = ATTENTION_THREADS / LANES;  // tokens that the block reads at once
  SHARED(float, scores, MOST_PIECE * GROUP);         // by token, then head
  SHARED(int32_t, pages, MOST_PIECE / PAGE);
  SHARED(float, largest_by_warp, ATTENTION_WARPS * GROUP);
  SHARED(float, totals_by_warp, ATTENTION_WARPS * GROUP);
  SHARED(float, sums, ATTENTION_WARPS * GROUP * D);

  const Piece piece(a);
  const int n = piece.tokens, count = piece.heads, kv_head = piece.kv_head, head = piece.head;
  const int64_t row = piece.row;
  if (n <= 0) return;

  const int thread = threadIdx.x, place = lane() % LANES, part = place * WIDTH;
  if (thread * PAGE < n) pages[thread] = a.page_table[row * a.most_pages + piece.first / PAGE + thread];
  // The part of token t's key or value that this lane reads. Tokens beyond the length repeat the last one.
  const auto part_of = [&](int t) {
    const int seen = min(t, n - 1);
    const int32_t page = pages[seen / PAGE];
    return head_of_token(static_cast<int64_t>(page) * PAGE + seen % PAGE, a.kv_heads, kv_head, D) + part;
  };

  {
    float query[GROUP][WIDTH];
#pragma unroll
    for (int h = 0; h < GROUP; ++h) {
      // Missing heads repeat the last one.
      const auto loaded = load_vector(q + row * a.query_stride + (head + min(h, count - 1)) * D + part);
#pragma unroll
      for (int i = 0; i < WIDTH; ++i) query[h][i] = to_float(loaded.at[i]) * a.scale;
    }
    __syncthreads();
    for (int from = warp() * STEP * AHEAD; from < n; from += ATTENTION_WARPS * STEP * AHEAD) {
      const int t = from + lane() / LANES;
      Vector<T> loaded[AHEAD];
#pragma unroll
      for (int u = 0; u < AHEAD; ++u) loaded[u] = load_vector(keys + part_of(t + u * STEP));
#pragma unroll
      for (int u = 0; u < AHEAD; ++u) {
        float dots[GROUP];
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) {
          const float key = to_float(loaded[u].at[i]);
#pragma unroll
          for (int h = 0; h < GROUP; ++h) dots[h] = i == 0 ? query[h][i] * key : dots[h] + query[h][i] * key;
        }
        const float score = sum_scattered<LANES>(dots, place);
        const int own = (t + u * STEP) * GROUP + place / (LANES / GROUP);
        if (t + u * STEP < n && place % (LANES / GROUP) == 0) scores[own] = score;
      }
    }
  }
  __syncthreads();

  // Each thread has one head and every 16th token.
  {
    const int h = thread % GROUP;
    float largest = -INFINITY, total = 0;
    for (int i = thread; i < n * GROUP; i += ATTENTION_THREADS) largest = fmaxf(largest, scores[i]);
#pragma unroll
    for (int offset = GROUP; offset < WARP; offset *= 2)
      largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, offset));
    if (lane() < GROUP) largest_by_warp[warp() * GROUP + h] = largest;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < ATTENTION_WARPS; ++w) largest = fmaxf(largest, largest_by_warp[w * GROUP + h]);
    for (int i = thread; i < n * GROUP; i += ATTENTION_THREADS) {
      const float weight = expf(scores[i] - largest);
      scores[i] = weight;
      total += weight;
    }
#pragma unroll
    for (int offset = GROUP; offset < WARP; offset *= 2) total += __shfl_xor_sync(ALL_LANES, total, offset);
    if (lane() < GROUP) totals_by_warp[warp() * GROUP + h] = total;
  }
  __syncthreads();

  const T* values = keys + a.pages * PAGE * a.kv_heads * D;
  float out[GROUP][WIDTH] = {};
  for (int from = thread / LANES; from < n; from += TOKENS * AHEAD) {
    Vector<T> loaded[AHEAD];
#pragma unroll
    for (int u = 0; u < AHEAD; ++u) loaded[u] = load_vector(values + part_of(from + u * TOKENS));
#pragma unroll
    for (int u = 0; u < AHEAD; ++u) {
      const int t = from + u * TOKENS;
      if (t >= n) break;
      const Vector<float> weights[2] = {load_vector(scores + t * GROUP), load_vector(scores + t * GROUP + VECTOR<float>)};
#pragma unroll
      for (int i = 0; i < WIDTH; ++i) {
        const float value = to_float(loaded[u].at[i]);
#pragma unroll
        for (int h = 0; h < GROUP; ++h) out[h][i] += weights[h / VECTOR<float>].at[h % VECTOR<float>] * value;
      }
    }
  }
#pragma unroll
  for (int h = 0; h < GROUP; ++h) {
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) {
#pragma unroll
      for (int offset = LANES; offset < WARP; offset *= 2) out[h][i] += __shfl_xor_sync(ALL_LANES, out[h][i], offset);
      if (lane() < LANES) sums[(warp() * GROUP + h) * D + part + i] = out[h][i];
    }
  }
  __syncthreads();

  float* partial = a.partial + ((row * a.heads + head) * gridDim.y + blockIdx.y) * (D + 2);
  const int64_t by_head = static_cast<int64_t>(gridDim.y) * (D + 2);
  for (int i = thread; i < count * D; i += ATTENTION_THREADS) {
    float sum = 0;
#pragma unroll
    for (int w = 0; w < ATTENTION_WARPS; ++w) sum += sums[w * GROUP * D + i];
    partial[i / D * by_head + i % D] = sum;
  }
  if (thread < count) {
    float largest = -INFINITY, total = 0;
#pragma unroll
    for (int w = 0; w < ATTENTION_WARPS; ++w) {
      largest = fmaxf(largest, largest_by_warp[w * GROUP + thread]);
      total += totals_by_warp[w * GROUP + thread];
    }
    partial[thread * by_head + D] = largest;
    partial[thread * by_head + D + 1] = total;
  }
}

// The same by products of matrices. Each warp takes a page of 16 tokens at a time and needs no other warp until the end: it
// keeps the largest score so far, and scales its sums where that grows.
template <class T, int D>
DEVICE void paged_attention_by_matrices(const T* q, const T* keys, const PagedAttention& a) {
  constexpr int HALF = PAGE / 2;  // tokens of a product's scores
  constexpr int KEYS = D / 32;    // vectors of a key that a lane reads; 4 lanes share a token
  constexpr int VALUES = D / 64;  // vectors of a value that a lane reads; 8 lanes share a token
  SHARED(int32_t, pages, MOST_PIECE / PAGE);
  SHARED(float, largest_by_warp, ATTENTION_WARPS * GROUP);
  SHARED(float, totals_by_warp, ATTENTION_WARPS * GROUP);
  SHARED(float, sums, ATTENTION_WARPS * GROUP * D);

  const Piece piece(a);
  const int n = piece.tokens, count = piece.heads, kv_head = piece.kv_head, head = piece.head;
  const int64_t row = piece.row;
  if (n <= 0) return;

  const int thread = threadIdx.x, eighth = lane() / 4, fourth = lane() % 4;
  if (thread * PAGE < n) pages[thread] = a.page_table[row * a.most_pages + piece.first / PAGE + thread];
  // The queries, one head for each row of the first half of a matrix. Missing heads repeat the last one.
  Vector<T> query[KEYS];
#pragma unroll
  for (int j = 0; j < KEYS; ++j) {
    query[j] = load_vector(q + row * a.query_stride + (head + min(eighth, count - 1)) * D + j * 32 + fourth * VECTOR<T>);
  }
  __syncthreads();

  // For this lane's head: the largest score so far, and its own tokens' part of the sum of weights.
  float largest = -INFINITY, total = 0;
  float out[VALUES][VECTOR<T>][4] = {};
  const T* values = keys + a.pages * PAGE * a.kv_heads * D;
  for (int from = warp() * PAGE; from < n; from += ATTENTION_WARPS * PAGE) {
    const int64_t page = pages[from / PAGE];
    // Tokens beyond the length repeat the last one.
    const auto part_of = [&](int t) { return head_of_token(page * PAGE + min(t, n - 1 - from), a.kv_heads, kv_head, D); };
    Vector<T> key[2][KEYS], value[2][2][VALUES];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const T* own = keys + part_of(half * HALF + eighth) + fourth * VECTOR<T>;
#pragma unroll
      for (int j = 0; j < KEYS; ++j) key[half][j] = load_vector(own + j * 32);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        const T* own = values + part_of(half * HALF + 2 * fourth + odd) + eighth * VECTOR<T>;
#pragma unroll
        for (int j = 0; j < VALUES; ++j) value[half][odd][j] = load_vector(own + j * 64);
      }
    }

    // Scores of the lane's head with tokens 2 fourth and 2 fourth + 1 of each half.
    float scores[2][2], most = -INFINITY;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float product[4] = {};
#pragma unroll
      for (int j = 0; j < KEYS; ++j) {
#pragma unroll
        for (int pair = 0; pair < 4; pair += 2) {
          // The order of a head's elements is free, so each lane takes those of its vectors.
          const uint32_t rows[4] = {two_of(query[j], pair), 0, two_of(query[j], pair + 1), 0};
          const uint32_t columns[2] = {two_of(key[half][j], pair), two_of(key[half][j], pair + 1)};
          add_product<T>(product, rows, columns);
        }
      }
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        const bool seen = from + half * HALF + 2 * fourth + odd < n;
        scores[half][odd] = seen ? product[odd] * a.scale : -INFINITY;
        most = fmaxf(most, scores[half][odd]);
      }
    }
#pragma unroll
    for (int offset = 1; offset < 4; offset *= 2) most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, offset));
    if (__any_sync(ALL_LANES, most > largest)) {
      const float before = largest;
      largest = fmaxf(largest, most);
      const float factor = expf(before - largest);
      total *= factor;
#pragma unroll
      for (int j = 0; j < VALUES; ++j) {
#pragma unroll
        for (int e = 0; e < VECTOR<T>; ++e) {
#pragma unroll
          for (int i = 0; i < 4; ++i) out[j][e][i] *= factor;
        }
      }
    }

    // The second half of the matrix has what the weights lose by rounding, so that none is lost.
    uint32_t weights[4];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float low = expf(scores[half][0] - largest), high = expf(scores[half][1] - largest);
      total += low + high;
      const T rounded[2] = {from_float<T>(low), from_float<T>(high)};
      weights[2 * half] = joined(rounded[0], rounded[1]);
      weights[2 * half + 1] = joined(from_float<T>(low - to_float(rounded[0])), from_float<T>(high - to_float(rounded[1])));
    }
#pragma unroll
    for (int j = 0; j < VALUES; ++j) {
#pragma unroll
      for (int e = 0; e < VECTOR<T>; ++e) {
        uint32_t columns[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) columns[half] = joined(value[half][0][j].at[e], value[half][1][j].at[e]);
        add_product<T>(out[j][e], weights, columns);
      }
    }
  }

#pragma unroll
  for (int offset = 1; offset < 4; offset *= 2) total += __shfl_xor_sync(ALL_LANES, total, offset);
  const int own = warp() * GROUP + eighth;
  if (fourth == 0) {
    largest_by_warp[own] = largest;
    totals_by_warp[own] = total;
  }
#pragma unroll
  for (int j = 0; j < VALUES; ++j) {
#pragma unroll
    for (int e = 0; e < VECTOR<T>; ++e) {
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        sums[own * D + j * 64 + (2 * fourth + odd) * VECTOR<T> + e] = out[j][e][odd] + out[j][e][2 + odd];
      }
    }
  }
  __syncthreads();

  float* partial = a.partial + ((row * a.heads + head) * gridDim.y + blockIdx.y) * (D + 2);
  const int64_t by_head = static_cast<int64_t>(gridDim.y) * (D + 2);
  // Warps without a token have the weight 0.
  const auto largest_of = [&](int h) {
    float most = -INFINITY;
#pragma unroll
    for (int w = 0; w < ATTENTION_WARPS; ++w) most = fmaxf(most, largest_by_warp[w * GROUP + h]);
    return most;
  };
  for (int i = thread; i < count * D; i += ATTENTION_THREADS) {
    const float most = largest_of(i / D);
    float sum = 0;
#pragma unroll
    for (int w = 0; w < ATTENTION_WARPS; ++w) {
      sum += expf(largest_by_warp[w * GROUP + i / D] - most) * sums[w * GROUP * D + i];
    }
    partial[i / D * by_head + i % D] = sum;
  }
  if (thread < count) {
    const float most = largest_of(thread);
    float sum = 0;
#pragma unroll
    for (int w = 0; w < ATTENTION_WARPS; ++w) {
      sum += expf(largest_by_warp[w * GROUP + thread] - most) * totals_by_warp[w * GROUP + thread];
    }
    partial[thread * by_head + D] = most;
    partial[thread * by_head + D + 1] = sum;
  }
}

// out (R, H, D) from the pieces. Block x: query head; block y: request; a thread for each element. Length 0 gives zeros.
template <class T>
DEVICE void paged_attention_combine(const float* partial, const int32_t* lengths, T* out, int32_t most_pieces, int32_t piece) {
  const int dim = blockDim.x, d = threadIdx.x, pieces = (lengths[blockIdx.y] + piece - 1) / piece;
  const int64_t at = static_cast<int64_t>(blockIdx.y) * gridDim.x + blockIdx.x;
  const float* own = partial + at * most_pieces * (dim + 2);
  float largest = -INFINITY, total = 0, sum = 0;
  for (int p = 0; p < pieces; ++p) largest = fmaxf(largest, own[p * (dim + 2) + dim]);
  for (int p = 0; p < pieces; ++p) {
    const float* part = own + p * (dim + 2);
    const float weight = expf(part[dim] - largest);
    sum += weight * part[d];
    total += weight * part[dim + 1];
  }
  out[at * dim + d] = from_float<T>(pieces > 0 ? sum / total : 0.0f);
}

#define ATTENTION_OF(NAME, BLOCKS, BODY, SUFFIX, T, D)                                                       \
  extern "C" __global__ void __launch_bounds__(ATTENTION_THREADS, BLOCKS)                                   \
      NAME##_##SUFFIX(const T* q, const T* keys, PagedAttention a) {                                        \
    BODY<T, D>(q, keys, a);                                                                                 \
  }
ATTENTION_OF(paged_attention_64, ATTENTION_BLOCKS, paged_attention, f32, float, 64)
ATTENTION_OF(paged_attention_128, ATTENTION_BLOCKS, paged_attention, f32, float, 128)
ATTENTION_OF(paged_attention_64, MATRIX_BLOCKS, paged_attention_by_matrices, f16, f16, 64)
ATTENTION_OF(paged_attention_128, MATRIX_BLOCKS, paged_attention_by_matrices, f16, f16, 128)
ATTENTION_OF(paged_attention_64, MATRIX_BLOCKS, paged_attention_by_matrices, bf16, bf16, 64)
ATTENTION_OF(paged_attention_128, MATRIX_BLOCKS, paged_attention_by_matrices, bf16, bf16, 128)

#define COMBINE(SUFFIX, T)                                                                                  \
  extern "C" __global__ void paged_attention_combine_##SUFFIX(const float* partial, const int32_t* lengths, \
                                                              T* out, int32_t most_pieces, int32_t piece) { \
    paged_attention_combine<T>(partial, lengths, out, most_pieces, piece);                                  \
  }
FOR_EACH_TYPE(COMBINE)
