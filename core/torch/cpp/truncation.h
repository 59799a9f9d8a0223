// Top-k, top-p and min-p of a row on a CPU, by the rule of cuda/truncation.cuh. Tokens that surely are not kept are never looked at,
// and no row is sorted.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "../cuda/truncation.cuh"

namespace {

// Tokens that may be kept, in their own order.
struct Candidates {
  std::vector<int64_t> tokens;
  std::vector<uint64_t> masses;
  // Smaller for tokens that come first: by their logit, then by their place in these lists.
  std::vector<uint64_t> ranks;
  std::vector<uint64_t> ordered;  // ranks, partly sorted
  std::vector<float> largest;

  void clear() { tokens.clear(), masses.clear(), ranks.clear(); }

  void add(int64_t token, float logit, uint64_t mass) {
    ranks.push_back(static_cast<uint64_t>(~place_of(logit)) << 32 | tokens.size());
    tokens.push_back(token);
    masses.push_back(mass);
  }

  uint64_t mass_of(uint64_t rank) const { return masses[rank & 0xffffffffu]; }

  uint64_t mass_between(int64_t from, int64_t to) const {
    uint64_t sum = 0;
    for (int64_t i = from; i < to; ++i) sum += mass_of(ordered[i]);
    return sum;
  }

  // Puts the first `k` of the candidates from `from` to `to`, in their order, before the others.
  void split(int64_t from, int64_t k, int64_t to) {
    std::nth_element(ordered.begin() + from, ordered.begin() + k, ordered.begin() + to);
  }

  // The drawn token. `whole`: the mass of all tokens, candidates or not; it counts where top-k is off. `least`: the least
  // logit that min-p keeps.
  int64_t draw(bool by_top_k, int32_t top_k, float top_p, float least, float uniform, uint64_t whole) {
    ordered = ranks;
    int64_t kept = static_cast<int64_t>(ordered.size());
    if (by_top_k && top_k < kept) {
      split(0, top_k, kept);
      kept = top_k;
    }
    if (top_p < 1.0f) {
      const uint64_t enough = enough_mass(top_p, by_top_k ? mass_between(0, kept) : whole);
      // The first `low` tokens have less than enough mass, and the first `kept` have enough.
      int64_t low = 0;
      uint64_t before = 0;
      while (kept - low > 1) {
        const int64_t middle = low + (kept - low) / 2;
        split(low, middle, kept);
        const uint64_t sum = mass_between(low, middle);
        if (before + sum >= enough) {
          kept = middle;
        } else {
          before += sum, low = middle;
        }
      }
    }
    const uint64_t last = std::min(*std::max_element(ordered.begin(), ordered.begin() + kept),
                                   static_cast<uint64_t>(~place_of(least)) << 32 | 0xffffffffu);
    uint64_t all = 0;
    for (int64_t i = 0; i < kept; ++i) all += ordered[i] <= last ? mass_of(ordered[i]) : 0;
    const uint64_t drawn = drawn_mass(uniform, all);
    uint64_t sum = 0;
    size_t at = 0;
    for (;; ++at) {
      if (ranks[at] > last) continue;
      sum += masses[at];
      if (sum > drawn) return tokens[at];
    }
  }

  // Logits below this are surely not kept by top-k and top-p. `maxima`: the largest logit of each of `chunks` chunks; `whole`:
  // the sum of e^(logit - top) up to a relative error of 1e-5.
  float least_logit(bool by_top_k, int32_t top_k, float top_p, int64_t vocabulary, float top, double whole,
                    const float* maxima, int64_t chunks) {
    const float massive = top + NO_MASS;
    if (by_top_k) {
      // The k-th of the chunks' maxima has k logits that are as large.
      if (top_k > chunks) return massive;
      largest.assign(maxima, maxima + chunks);
      std::nth_element(largest.begin(), largest.begin() + top_k - 1, largest.end(), std::greater<float>());
      return std::max(massive, largest[top_k - 1]);
    }
    // Tokens with less mass than the share that top-p leaves out, divided by all tokens, have less than that share together.
    const double share = (1.0 - std::max(0.0, static_cast<double>(top_p))) * whole / static_cast<double>(vocabulary);
    const auto least = static_cast<float>(top + std::log(share) - 1e-3);
    return std::max(massive, std::nextafter(least, -std::numeric_limits<float>::infinity()));
  }
};

}  // namespace
