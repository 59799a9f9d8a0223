// Sampling on a CPU. A row that draws from its whole distribution reads each logit once, and then one chunk again. Every row's
// result depends on that row alone. cuda/sample.cu and cuda/sample_truncated.cu draw the same tokens.

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <cmath>
#include <limits>
#include <vector>

#include "../cuda/exponential.cuh"
#include "guarded.h"
#include "lanes.h"
#include "truncation.h"

namespace {

constexpr int64_t CHUNK = 512;  // logits that share one mass and maximum

// Settings for drawing one row's token: `uniform` picks it from the distribution, or from the part of it that top-k, top-p
// and min-p keep, unless `greedy`.
struct Draw {
  float inverse_temperature, uniform;
  int32_t greedy, top_k;
  float top_p, log_min_p;
};

struct Drawn {
  int64_t token;
  float logprob;
};

// Memory of a thread's draws.
struct Scratch {
  std::vector<float> chunks;
  Candidates candidates;
};

// Draws from a part of the distribution. `read` brings a chunk of logits to `buffer`; `largest` has the largest one of each.
template <typename Read>
INLINE int64_t draw_truncated(const Read& read, const float* buffer, int64_t vocabulary, const float* largest, float top,
                              double whole, const Draw& want, Candidates& candidates) {
  typedef int64_t Masses __attribute__((vector_size(LANES * sizeof(int64_t))));
  const int64_t chunks = (vocabulary + CHUNK - 1) / CHUNK;
  const bool by_top_k = want.top_k > 0 && want.top_k < vocabulary;
  const float by_min_p = top + want.log_min_p;
  float least = candidates.least_logit(by_top_k, want.top_k, want.top_p, vocabulary, top, whole, largest, chunks);
  // Where both are on, top-p counts mass of top-k's tokens that min-p leaves out.
  if (!by_top_k || want.top_p >= 1.0f) least = std::max(least, by_min_p);
  // Without top-k all mass counts.
  const float counted = by_top_k ? least : top + NO_MASS;
  candidates.clear();
  Masses sums{};
  for (int64_t c = 0; c < chunks; ++c) {
    if (largest[c] < counted) continue;
    read(c);
    for (int64_t i = 0; i < CHUNK; i += LANES) {
      const Masses masses = __builtin_convertvector(exponential(load(buffer + i) - top) * MASS_UNITS, Masses);
      sums += masses;
      if (largest[c] < least) continue;
      for (int k = 0; k < LANES; ++k)
        if (buffer[i + k] >= least) candidates.add(c * CHUNK + i + k, buffer[i + k], static_cast<uint64_t>(masses[k]));
    }
  }
  uint64_t sum = 0;
  for (int k = 0; k < LANES; ++k) sum += static_cast<uint64_t>(sums[k]);
  return candidates.draw(by_top_k, want.top_k, want.top_p, by_min_p, want.uniform, sum);
}

template <typename T>
INLINE Drawn draw(const T* logits, int64_t vocabulary, const Draw& want, Scratch& scratch) {
  const float infinity = std::numeric_limits<float>::infinity();
  const int64_t count = (vocabulary + CHUNK - 1) / CHUNK;
  scratch.chunks.resize(2 * count);
  float* maxima = scratch.chunks.data();
  float* masses = maxima + count;
  float buffer[CHUNK];
  // Reads the logits of a chunk at the row's temperature; entries beyond the vocabulary have no mass.
  auto read = [&](int64_t c) __attribute__((always_inline)) {
    const T* from = logits + c * CHUNK;
    const int64_t n = std::min(CHUNK, vocabulary - c * CHUNK);
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) store(buffer + i, load(from + i) * want.inverse_temperature);
    for (; i < n; ++i) buffer[i] = get(from[i]) * want.inverse_temperature;
    for (; i < CHUNK; ++i) buffer[i] = -infinity;
  };
  float top = -infinity;
  for (int64_t c = 0; c < count; ++c) {
    read(c);
    Floats best = all(-infinity);
    for (int64_t i = 0; i < CHUNK; i += LANES) best = larger(best, load(buffer + i));
    maxima[c] = most(best);
    top = top > maxima[c] ? top : maxima[c];
    const float base = maxima[c] == -infinity ? 0.0f : maxima[c];
    Floats total{};
    for (int64_t i = 0; i < CHUNK; i += LANES) total += exponential(load(buffer + i) - base);
    masses[c] = sum(total);
  }
  // The sums in float64 are fused by name: cuda/sample.cu computes the same bits.
  auto scale_of = [&](int64_t c) __attribute__((always_inline)) {
    return exponential_of_difference(static_cast<double>(maxima[c]) - top);
  };
  double whole = 0.0;
  for (int64_t c = 0; c < count; ++c) whole = fused(static_cast<double>(masses[c]), scale_of(c), whole);
  if (!std::isfinite(whole) || !std::isfinite(top)) return {0, std::numeric_limits<float>::quiet_NaN()};

  int64_t token = 0;
  if (want.greedy) {
    int64_t c = 0;
    while (maxima[c] != top) ++c;
    read(c);
    int64_t i = 0;
    while (buffer[i] != top) ++i;
    token = c * CHUNK + i;
  } else if (truncates(want.greedy, want.top_k, want.top_p, want.log_min_p, vocabulary)) {
    token = draw_truncated(read, buffer, vocabulary, maxima, top, whole, want, scratch.candidates);
  } else {
    const double threshold = want.uniform * whole;
    double before = 0.0, sum = 0.0;
    // Rounding may lift the threshold to the whole; the last chunk with mass is then taken.
    int64_t c = 0;
    for (int64_t next = 0; next < count && !(sum > threshold); ++next) {
      const double after = fused(static_cast<double>(masses[next]), scale_of(next), sum);
      if (after > sum) c = next, before = sum;
      sum = after;
    }
    read(c);
    int64_t found = -1;
    for (int64_t i = 0; i < CHUNK; i += LANES) {
      float e[LANES];
      store(e, exponential(load(buffer + i) - maxima[c]));
      const double scale = scale_of(c);
      for (int k = 0; k < LANES; ++k) {
        if (e[k] <= 0.0f) continue;
        if (found < 0 || before <= threshold) found = i + k;
        before = fused(static_cast<double>(e[k]), scale, before);
      }
      if (before > threshold) break;
    }
    token = c * CHUNK + found;
  }
  const double x = static_cast<double>(get(logits[token]) * want.inverse_temperature);
  return {token, static_cast<float>(x - top - std::log(whole))};
}

VECTORS void draw_float(const float* logits, int64_t vocabulary, const Draw* wants, Drawn* drawn, int64_t begin,
                        int64_t end) {
  Scratch scratch;
  for (int64_t r = begin; r < end; ++r) drawn[r] = draw(logits + r * vocabulary, vocabulary, wants[r], scratch);
}

VECTORS void draw_bfloat16(const Bf16* logits, int64_t vocabulary, const Draw* wants, Drawn* drawn,
                           int64_t begin, int64_t end) {
  Scratch scratch;
  for (int64_t r = begin; r < end; ++r) drawn[r] = draw(logits + r * vocabulary, vocabulary, wants[r], scratch);
}

}  // namespace

extern "C" {

// Draws one token per row of logits (R, V), with its log-prob under the whole distribution; NaN if logits are not finite.
int nestor_draw(const at::Tensor* logits, const Draw* draws, Drawn* drawn, char* message, size_t message_size) {
  return guarded(message, message_size, [&] {
    const at::Tensor rows = logits->contiguous();
    const int64_t vocabulary = rows.size(1);
    at::parallel_for(0, rows.size(0), 1, [&](int64_t begin, int64_t end) {
      if (rows.scalar_type() == at::kFloat)
        draw_float(data<float>(rows), vocabulary, draws, drawn, begin, end);
      else
        draw_bfloat16(data<Bf16>(rows), vocabulary, draws, drawn, begin, end);
    });
  });
}
}
