// Own kernels of generation, each with the public operations that take its place. R requests, T rows, H query heads, K key
// heads, D elements of a head, P pages of 16 tokens, V tokens of the vocabulary.

#pragma once

#include <ATen/core/Tensor.h>

// True if `attend_pages` has a kernel for this cache (2, P, PAGE, K, D).
bool attends_pages(const at::Tensor& cache);

// Attention of one query row per request by a kernel; arguments as of `nestor_decode_attention`.
at::Tensor attend_pages(const at::Tensor& q, const at::Tensor& cache, const at::Tensor& page_table,
                        const at::Tensor& lengths);

// Queries (T, H, D), keys and values (T, K, D), and the tables (T, 1, D) that rotate queries and keys; null: they stay.
struct Rotation {
  const at::Tensor &q, &k, &v;
  const at::Tensor *cos, *sin;
};

bool rotates_into_cache(const Rotation& rotation, const at::Tensor& cache);
void rotate_into_cache(const Rotation& rotation, const at::Tensor& cache, const at::Tensor& places);
void rotate_into_cache_by_operations(const Rotation& rotation, const at::Tensor& cache, const at::Tensor& places);

// Settings of draws, (R) each: float32, float32 and int32; and top-k int32, top-p and the
// logarithm of min-p float32, all null where no row truncates.
struct DrawColumns {
  const at::Tensor &inverse_temperatures, &uniforms, &greedy;
  const at::Tensor *top_k, *top_p, *log_min_p;
};

// Tokens (R) int64 and log-probs (R) float32.
struct TokenDraws {
  at::Tensor tokens, logprobs;
};

// True if `draw_tokens` has a kernel for logits (R, V).
bool draws_tokens(const at::Tensor& logits);
TokenDraws draw_tokens(const at::Tensor& logits, const DrawColumns& draws);
TokenDraws draw_tokens_by_operations(const at::Tensor& logits, const DrawColumns& draws);
