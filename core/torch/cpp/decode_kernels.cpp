// Own kernels of generation: attention of one query row per request, the rotary embedding that writes the cache, and sampling
// that reads the logits once. Public operations take the place of a missing kernel. No function waits for the device,
// and no shape depends on numbers on it.

#include "decode_kernels.h"

#include <ATen/core/Tensor.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include "../cuda/truncation.cuh"
#include "guarded.h"
#include "kernels.h"
#include "recorded.h"

namespace {

// Sizes of cuda/pages.cuh, cuda/paged_attention.cu and cuda/sample.cu.
constexpr int64_t PAGE = 16, MOST_PIECE = 512, GROUP = 8, ATTENTION_THREADS = 128;
constexpr int64_t CHUNK = 512, MOST_CHUNKS = 1024, CHUNKS_PER_BLOCK = 8, SAMPLE_THREADS = 128, TRUNCATE_THREADS = 512;
constexpr int64_t ROTATION_THREADS = 128;

// The arguments of the kernels of these names.
struct PagedAttention {
  const int32_t* page_table;
  const int32_t* lengths;
  float* partial;
  int64_t pages, query_stride;
  int32_t heads, kv_heads, most_pages, piece;
  float scale;
};
struct RotateIntoCache {
  int64_t query_stride, key_stride, value_stride, pages;
  int32_t heads, kv_heads, dim;
};

int64_t pieces_of(int64_t whole, int64_t piece) {
  return (whole + piece - 1) / piece;
}

bool has(const char* operation, const at::Tensor& x) {
  return has_kernel(kernel_name(operation, x.scalar_type()), x.device());
}

template <typename... Args>
void launch(const char* operation, const at::Tensor& x, int64_t grid_x, int64_t grid_y, int64_t block, Args... args) {
  const Launch shape{static_cast<unsigned>(grid_x), static_cast<unsigned>(grid_y), static_cast<unsigned>(block)};
  launch_kernel(kernel_name(operation, x.scalar_type()), x.device(), shape, args...);
}

// Tokens of a block of attention, one of `blocks` for each piece of `tokens`. Long pieces write and read less between
// the two kernels; short ones give every multiprocessor two blocks where there are few requests.
int64_t piece_of_attention(int64_t blocks, int64_t tokens, const at::Device& device) {
  constexpr int64_t LEAST_PIECE = 64;
  int64_t piece = MOST_PIECE;
  while (piece > LEAST_PIECE && blocks * pieces_of(tokens, piece) < 2 * multiprocessors(device)) piece /= 2;
  return piece;
}

const char* attention_of(int64_t dim) {
  return dim == 64 ? "paged_attention_64" : "paged_attention_128";
}

// Rows of dense heads whose beginnings are aligned for vectors of 16 bytes.
bool has_vectors(const at::Tensor& x) {
  const int64_t width = 16 / x.element_size();
  return x.stride(2) == 1 && x.stride(1) == x.size(2) && x.stride(0) % width == 0 &&
         reinterpret_cast<uintptr_t>(x.data_ptr()) % 16 == 0;
}

// x (T, N, D) rotated by tables (T, 1, D), both halves of which are equal.
at::Tensor rotated(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  const int64_t half = x.size(2) / 2;
  const auto a = x.narrow(2, 0, half), b = x.narrow(2, half, half);
  return x * cos + at::cat({-b, a}, 2) * sin;
}

}  // namespace

bool attends_pages(const at::Tensor& cache) {
  const int64_t dim = cache.size(4);
  if ((dim != 64 && dim != 128) || cache.size(2) != PAGE) return false;
  return has(attention_of(dim), cache) && has("paged_attention_combine", cache);
}

at::Tensor attend_pages(const at::Tensor& q, const at::Tensor& cache, const at::Tensor& page_table,
                        const at::Tensor& lengths) {
  const at::Tensor queries = has_vectors(q) ? q : q.contiguous(), table = page_table.contiguous(), seen = lengths.contiguous();
  TORCH_CHECK(q.scalar_type() == cache.scalar_type(), "queries of the cache's type");
  TORCH_CHECK(cache.is_contiguous() && table.scalar_type() == at::kInt && seen.scalar_type() == at::kInt,
              "attention wants a dense cache, and page tables and lengths as int32");
  const int64_t rows = q.size(0), heads = q.size(1), dim = q.size(2), kv_heads = cache.size(3);
  at::Tensor out = at::empty({rows, heads, dim}, q.options());
  if (rows == 0) return out;
  const int64_t groups = pieces_of(heads / kv_heads, GROUP);
  const int64_t blocks = rows * kv_heads * groups, tokens = std::max<int64_t>(1, table.size(1) * PAGE);
  const int64_t piece = piece_of_attention(blocks, tokens, q.device()), pieces = pieces_of(tokens, piece);
  const at::Tensor partial = at::empty({rows, heads, pieces, dim + 2}, q.options().dtype(at::kFloat));
  const PagedAttention arguments{table.const_data_ptr<int32_t>(),
                                 seen.const_data_ptr<int32_t>(),
                                 partial.mutable_data_ptr<float>(),
                                 cache.size(1),
                                 queries.stride(0),
                                 static_cast<int32_t>(heads),
                                 static_cast<int32_t>(kv_heads),
                                 static_cast<int32_t>(table.size(1)),
                                 static_cast<int32_t>(piece),
                                 static_cast<float>(1.0 / std::sqrt(static_cast<double>(dim)))};
  recorded("nestor::paged_attention", {queries, cache, table, seen, partial}, [&] {
    launch(attention_of(dim), q, blocks, pieces, ATTENTION_THREADS, queries.data_ptr(), cache.data_ptr(),
           arguments);
    launch("paged_attention_combine", q, heads, rows, dim, partial.data_ptr(), seen.data_ptr(), out.data_ptr(),
           static_cast<int32_t>(pieces), static_cast<int32_t>(piece));
    return std::vector<at::Tensor>{partial, out};
  });
  return out;
}

bool rotates_into_cache(const Rotation& r, const at::Tensor& cache) {
  const auto dense = [](const at::Tensor& table) { return table.is_contiguous(); };
  return r.k.size(2) % (32 / r.k.element_size()) == 0 && has_vectors(r.q) && has_vectors(r.k) && has_vectors(r.v) &&
         (!r.cos || (dense(*r.cos) && dense(*r.sin))) && cache.size(2) == PAGE && has("rotate_into_cache", cache);
}

void rotate_into_cache(const Rotation& r, const at::Tensor& cache, const at::Tensor& places) {
  const int64_t rows = r.k.size(0);
  if (rows == 0) return;
  const RotateIntoCache arguments{r.q.stride(0),
                                  r.k.stride(0),
                                  r.v.stride(0),
                                  cache.size(1),
                                  static_cast<int32_t>(r.cos ? r.q.size(1) : 0),
                                  static_cast<int32_t>(r.k.size(1)),
                                  static_cast<int32_t>(r.k.size(2))};
  std::vector<at::Tensor> reads{r.q, r.k, r.v, places};
  if (r.cos) reads.insert(reads.end(), {*r.cos, *r.sin});
  recorded("nestor::rotate_into_cache", reads, [&] {
    launch("rotate_into_cache", cache, rows, 1, ROTATION_THREADS, r.q.data_ptr(), r.k.data_ptr(), r.v.data_ptr(),
           r.cos ? r.cos->data_ptr() : nullptr, r.sin ? r.sin->data_ptr() : nullptr, cache.data_ptr(), places.data_ptr(),
           arguments);
    return std::vector<at::Tensor>{r.q, cache};
  });
}

void rotate_into_cache_by_operations(const Rotation& r, const at::Tensor& cache, const at::Tensor& places) {
  if (r.cos) r.q.copy_(rotated(r.q, *r.cos, *r.sin));
  // Rows without a place are filling, as is page 0.
  const auto to = places.clamp_min(0);
  const auto by_token = cache.view({2, -1, r.k.size(1), r.k.size(2)});
  by_token.select(0, 0).index_copy_(0, to, r.cos ? rotated(r.k, *r.cos, *r.sin) : r.k);
  by_token.select(0, 1).index_copy_(0, to, r.v);
}

bool draws_tokens(const at::Tensor& logits) {
  return logits.size(1) > 0 && logits.size(1) <= CHUNK * MOST_CHUNKS && has("sample_chunks", logits) &&
         has("sample_token", logits) && has("sample_truncated", logits);
}

TokenDraws draw_tokens(const at::Tensor& logits, const DrawColumns& draws) {
  const int64_t rows = logits.size(0), vocabulary = logits.size(1);
  TokenDraws drawn{at::empty({rows}, logits.options().dtype(at::kLong)),
                   at::empty({rows}, logits.options().dtype(at::kFloat))};
  if (rows == 0) return drawn;
  const at::Tensor read = logits.contiguous();
  const auto chunks = static_cast<int32_t>(pieces_of(vocabulary, CHUNK));
  const at::Tensor statistics = at::empty({rows, 2, chunks}, logits.options().dtype(at::kFloat));
  recorded("nestor::sample", {read, statistics}, [&] {
    launch("sample_chunks", logits, pieces_of(chunks, CHUNKS_PER_BLOCK), rows, SAMPLE_THREADS, read.data_ptr(),
           draws.inverse_temperatures.data_ptr(), statistics.data_ptr(), vocabulary, chunks);
    const auto optional = [](const at::Tensor* column) { return column ? column->data_ptr() : nullptr; };
    if (draws.top_k) {
      launch("sample_truncated", logits, rows, 1, TRUNCATE_THREADS, read.data_ptr(), statistics.data_ptr(),
             draws.inverse_temperatures.data_ptr(), draws.uniforms.data_ptr(), draws.greedy.data_ptr(),
             optional(draws.top_k), optional(draws.top_p), optional(draws.log_min_p), drawn.tokens.data_ptr(), vocabulary,
             chunks);
    }
    launch("sample_token", logits, rows, 1, SAMPLE_THREADS, read.data_ptr(), statistics.data_ptr(),
           draws.inverse_temperatures.data_ptr(), draws.uniforms.data_ptr(), draws.greedy.data_ptr(),
           optional(draws.top_k), optional(draws.top_p), optional(draws.log_min_p), drawn.tokens.data_ptr(),
           drawn.logprobs.data_ptr(), vocabulary, chunks);
    return std::vector<at::Tensor>{statistics, drawn.tokens, drawn.logprobs};
  });
  return drawn;
}

// The tokens (R) that top-k, top-p and min-p let each row of logits (R, V) at its temperature draw, by the rule of
// cuda/truncation.cuh.
static at::Tensor truncated_by_operations(const at::Tensor& scaled, const DrawColumns& draws) {
  const int64_t vocabulary = scaled.size(1);
  const auto part = [](const at::Tensor& share, const at::Tensor& mass) {
    return (share.to(at::kDouble).unsqueeze(1) * mass.to(at::kDouble)).to(at::kLong);
  };
  const auto sum = [&](const at::Tensor& sums) { return sums.narrow(1, vocabulary - 1, 1); };
  const auto top = scaled.amax(-1, true);
  const auto mass = ((scaled - top).exp() * MASS_UNITS).to(at::kLong);
  const auto order = std::get<1>(scaled.sort(/*stable=*/true, -1, /*descending=*/true));
  const auto rank = at::arange(vocabulary, order.options()).unsqueeze(0);
  const auto first = rank.lt(draws.top_k->unsqueeze(1)).logical_or(draws.top_k->le(0).unsqueeze(1));
  const auto masses = mass.gather(1, order) * first, sums = masses.cumsum(1);
  const auto enough = part(*draws.top_p, sum(sums)).clamp_min(1);
  const auto near = scaled.gather(1, order).ge(top + draws.log_min_p->unsqueeze(1));
  const auto kept =
      (sums - masses).lt(enough).logical_or(draws.top_p->ge(1).unsqueeze(1)).logical_and(first).logical_and(near);
  const auto up_to = (mass * at::zeros_like(kept).scatter(1, order, kept)).cumsum(1);
  const auto drawn = at::minimum(part(draws.uniforms, sum(up_to)), sum(up_to) - 1);
  // Rows that are not finite have any mass; their token must still exist.
  return at::searchsorted(up_to, drawn, /*out_int32=*/false, /*right=*/true).clamp(0, vocabulary - 1).squeeze(1);
}

TokenDraws draw_tokens_by_operations(const at::Tensor& logits, const DrawColumns& draws) {
  const int64_t last_token = logits.size(1) - 1;
  const auto scaled = logits.to(at::kFloat) * draws.inverse_temperatures.unsqueeze(1);
  const auto logp = at::log_softmax(scaled, -1), mass = logp.exp().cumsum(-1);
  const auto whole = mass.narrow(1, last_token, 1).contiguous();
  const auto found = at::searchsorted(mass, draws.uniforms.unsqueeze(1) * whole, /*out_int32=*/false, /*right=*/true);
  // Rounding may lift the threshold to the whole; the last token with mass is then drawn. A NaN is found nowhere.
  const auto last = at::searchsorted(mass, whole).clamp_max(last_token);
  auto whole_drawn = at::minimum(found, last).squeeze(1);
  if (draws.top_k) {
    const auto cut = draws.top_k->gt(0).logical_and(draws.top_k->le(last_token)).logical_or(draws.top_p->lt(1))
                         .logical_or(draws.log_min_p->isfinite());
    whole_drawn = at::where(cut, truncated_by_operations(scaled, draws), whole_drawn);
  }
  const auto tokens = at::where(draws.greedy.ne(0), at::argmax(logp, -1), whole_drawn);
  return {tokens, logp.gather(1, tokens.unsqueeze(1)).squeeze(1)};
}

extern "C" {

// Rotates q (T, H, D) in place, and k (T, K, D) on its way to its `places` (T) int64 of the cache (2, P, PAGE, K, D), where v
// goes too. cos and sin (T, 1, D), or both null: nothing is rotated then.
int nestor_rotate_into_cache(const at::Tensor* q, const at::Tensor* k, const at::Tensor* v, const at::Tensor* cos,
                             const at::Tensor* sin, const at::Tensor* cache, const at::Tensor* places, char* message,
                             size_t message_size) {
  return guarded(message, message_size, [&] {
    TORCH_CHECK(cache->is_contiguous() && places->is_contiguous(), "the cache and its places must be dense");
    const Rotation rotation{*q, *k, *v, cos, sin};
    if (rotates_into_cache(rotation, *cache)) {
      rotate_into_cache(rotation, *cache, *places);
    } else {
      rotate_into_cache_by_operations(rotation, *cache, *places);
    }
  });
}

// Writes whether attention to this cache has a kernel.
int nestor_attends_pages(const at::Tensor* cache, bool* yes, char* message, size_t message_size) {
  return guarded(message, message_size, [&] { *yes = attends_pages(*cache); });
}

// Writes whether sampling from such logits has a kernel.
int nestor_samples(const at::Tensor* logits, bool* yes, char* message, size_t message_size) {
  return guarded(message, message_size, [&] { *yes = draws_tokens(*logits); });
}

// Draws a token for each row of logits (R, V): tokens (R) int64, and their log-probs (R) float32. Inverse temperatures and
// uniforms (R) are float32, and greedy (R) is int32. top_k (R) int32, top_p and
// log_min_p (R) float32 are null where no row truncates.
int nestor_sample(const at::Tensor* logits, const at::Tensor* inverse_temperatures, const at::Tensor* uniforms,
                  const at::Tensor* greedy, const at::Tensor* top_k, const at::Tensor* top_p, const at::Tensor* log_min_p,
                  at::Tensor** out, char* message, size_t message_size) {
  return guarded(message, message_size, [&] {
    const DrawColumns draws{*inverse_temperatures, *uniforms, *greedy, top_k, top_p, log_min_p};
    auto drawn = draws_tokens(*logits) ? draw_tokens(*logits, draws) : draw_tokens_by_operations(*logits, draws);
    out[0] = new at::Tensor(std::move(drawn.tokens));
    out[1] = new at::Tensor(std::move(drawn.logprobs));
  });
}
}
