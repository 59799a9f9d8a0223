// Draws one token per row from the tokens that top-k, top-p and min-p keep, by the rule of truncation.cuh: the token that the CPU
// draws. A block for each row; `sample_token` then gives the log-prob.
//
// The kept tokens end at a number of the logits, which is found digit by digit: masses by digit, in shared memory, and the
// digit at which enough of them is kept. The first digit is the distance to the largest logit, since the numbers' own first
// digit is an exponent, of which a row has few, and additions to the same digit wait for each other. Each cut reads the row four
// times, and the draw once: at most nine readings, of 608 KB for 151,936 tokens. The row is in the L2 cache after
// `sample_chunks`, and rows that do not truncate leave at once.

#include "device.cuh"
#include "truncation.cuh"

constexpr int TRUNCATE_THREADS = 512;
constexpr int DIGIT_BITS = 11;
constexpr int DIGITS = 1 << DIGIT_BITS;
constexpr int DIGITS_PER_THREAD = DIGITS / TRUNCATE_THREADS;
// Digits of distance for each unit of the logits: the last one has all that are 64 or more below the largest.
constexpr float DISTANCE_DIGITS = 32.0f;

using Mass = uint64_t;

// Masses by digit, in two halves: additions of 64 bits in shared memory would be loops, which wait for each other.
struct Digits {
  Shared<uint32_t> low, high;

  __device__ __forceinline__ void clear(int digit) const { low[digit] = 0, high[digit] = 0; }

  __device__ __forceinline__ void add(int digit, Mass mass) const {
    const auto part = static_cast<uint32_t>(mass);
    const uint32_t old = atomicAdd(&low[digit], part);
    const uint32_t rest = static_cast<uint32_t>(mass >> 32) + (old + part < old ? 1 : 0);
    if (rest > 0) atomicAdd(&high[digit], rest);
  }

  __device__ __forceinline__ Mass operator[](int digit) const {
    const uint32_t upper = high[digit], lower = low[digit];
    return static_cast<Mass>(upper) << 32 | lower;
  }
};

// A row's logits at its temperature.
template <class T>
struct TruncatedRow {
  const T* logits;
  int64_t vocabulary;
  float inverse_temperature, top;

  __device__ __forceinline__ Mass mass(float logit) const { return whole_mass(exponential_of_lane(logit - top)); }

  // A digit that is at least as large where the logit is larger.
  __device__ __forceinline__ int distance_digit(float logit) const {
    return DIGITS - 1 - static_cast<int>(fminf(fmaxf((top - logit) * DISTANCE_DIGITS, 0.0f), DIGITS - 1.0f));
  }

  // Calls `visit` with each logit of a chunk that is this thread's, of `threads`.
  template <class Visit>
  __device__ __forceinline__ void each(int64_t first, int64_t last, int thread, int threads, const Visit& visit) const {
    const auto at = [&](T x) { return rounded_product(to_float(x), inverse_temperature); };
    const int64_t skew = reinterpret_cast<uint64_t>(logits + first) % 16 / sizeof(T);
    const int64_t aligned = min(last, first + (VECTOR<T> - skew) % VECTOR<T>);
    const int64_t vectors = (last - aligned) / VECTOR<T>, rest = aligned + vectors * VECTOR<T>;
    for (int64_t i = first + thread; i < aligned; i += threads) visit(at(logits[i]));
    for (int64_t v = thread; v < vectors; v += threads) {
      const Vector<T> x = load_vector(logits + aligned + v * VECTOR<T>);
#pragma unroll
      for (int k = 0; k < VECTOR<T>; ++k) visit(at(x.at[k]));
    }
    for (int64_t i = rest + thread; i < last; i += threads) visit(at(logits[i]));
  }
};

// The end of the kept tokens in their order: all with a larger number are kept, and the first `equals` of those with this one.
struct Cut {
  uint32_t place;
  Mass equals;
};

// The sum over the threads before this one, and over all. All threads must call it.
DEVICE Mass sum_before(Mass x, Mass* all) {
  SHARED(Mass, sums, WARP);
  Mass sum = x;
#pragma unroll
  for (int offset = 1; offset < WARP; offset *= 2) {
    const Mass lower = __shfl_up_sync(ALL_LANES, sum, offset);
    if (lane() >= offset) sum += lower;
  }
  if (lane() == WARP - 1) sums[warp()] = sum;
  __syncthreads();
  Mass before = 0, whole = 0;
  for (int w = 0; w < warps(); ++w) {
    const Mass part = sums[w];
    if (w < warp()) before += part;
    whole += part;
  }
  __syncthreads();
  *all = whole;
  return before + sum - x;
}

// The end of the tokens of `within` before which there is less than enough: of tokens, `top_k`; or of mass, by `top_p`.
template <bool BY_MASS, class T>
DEVICE Cut cut(const TruncatedRow<T>& row, const Cut& within, int32_t top_k, float top_p, const Digits& digits) {
  SHARED(Mass, found_before, 1);
  SHARED(uint32_t, found_digit, 1);
  const auto weight = [&](float logit) { return BY_MASS ? row.mass(logit) : Mass{1}; };
  int distance = 0;
  uint32_t place = 0, known = 0;
  Mass before = 0, enough = static_cast<Mass>(top_k);
  // The distance, then the number in digits of 11, 11 and 10 bits.
  for (int shift = 32; shift >= 0; shift -= shift == 10 ? 10 : 11) {
    const bool by_distance = shift == 32;
    const auto count = [&](uint32_t own, float logit, Mass tokens) {
      const int far = row.distance_digit(logit);
      if (!by_distance && (far != distance || ((own ^ place) & known) != 0)) return;
      const Mass mass = tokens * weight(logit);
      if (mass > 0) digits.add(by_distance ? far : static_cast<int>((own & ~known) >> shift), mass);
    };
    for (int i = threadIdx.x; i < DIGITS; i += blockDim.x) digits.clear(i);
    __syncthreads();
    row.each(0, row.vocabulary, threadIdx.x, blockDim.x, [&](float logit) {
      const uint32_t own = place_of(logit);
      if (own > within.place) count(own, logit, 1);
    });
    if (threadIdx.x == 0 && within.equals > 0) count(within.place, logit_of(within.place), within.equals);
    __syncthreads();
    // The larger digits come first.
    const int first = DIGITS - 1 - static_cast<int>(threadIdx.x) * DIGITS_PER_THREAD;
    Mass own = 0, all;
#pragma unroll
    for (int i = 0; i < DIGITS_PER_THREAD; ++i) own += digits[first - i];
    Mass sum = before + sum_before(own, &all);
    if (BY_MASS && by_distance) enough = enough_mass(top_p, all);
    if (sum < enough && enough <= sum + own) {
      int digit = first;
      for (; sum + digits[digit] < enough; --digit) sum += digits[digit];
      found_digit[0] = static_cast<uint32_t>(digit);
      found_before[0] = sum;
    }
    __syncthreads();
    before = found_before[0];
    if (by_distance) {
      distance = static_cast<int>(found_digit[0]);
    } else {
      place |= static_cast<uint32_t>(found_digit[0]) << shift;
      known = ALL_LANES << shift;
    }
  }
  const Mass each = weight(logit_of(place));
  return {place, (enough - before + each - 1) / each};
}

template <class T>
DEVICE void sample_truncated(const T* logits, const float* statistics, const float* inverse_temperatures, const float* uniforms,
                             const int32_t* greedy, const int32_t* top_k, const float* top_p, const float* log_min_p,
                             int64_t* tokens, int64_t vocabulary, int32_t chunks) {
  SHARED(uint32_t, low, DIGITS);
  SHARED(uint32_t, high, DIGITS);
  SHARED(Mass, masses, MOST_CHUNKS);      // of logits beyond the cut, by chunk
  SHARED(uint32_t, equals, MOST_CHUNKS);  // logits at the cut
  SHARED(Mass, weights, CHUNK);  // of the chosen chunk
  SHARED(uint32_t, places, CHUNK);
  SHARED(int32_t, chosen, 1);
  SHARED(Mass, passed, 2);  // mass and equals before the chosen chunk
  const int64_t number = blockIdx.x;
  if (!truncates(greedy[number], top_k[number], top_p[number], log_min_p[number], vocabulary)) return;

  // A logit that is not finite makes its chunk's mass infinite or not a number.
  float top = -INFINITY, bad = 0;
  for (int c = threadIdx.x; c < chunks; c += blockDim.x) {
    top = fmaxf(top, statistics[2 * number * chunks + c]);
    if (!(statistics[(2 * number + 1) * chunks + c] < INFINITY)) bad = 1;
  }
  top = block_max(top);
  if (block_max(bad) > 0 || !(fabsf(top) < INFINITY)) {
    if (threadIdx.x == 0) tokens[number] = 0;
    return;
  }
  const TruncatedRow<T> row{logits + number * vocabulary, vocabulary, inverse_temperatures[number], top};
  const Digits digits{low, high};
  Cut kept{0, 0};
  if (top_k[number] > 0 && top_k[number] < vocabulary) kept = cut<false>(row, kept, top_k[number], 0.0f, digits);
  if (top_p[number] < 1.0f) kept = cut<true>(row, kept, 0, top_p[number], digits);
  const uint32_t least = place_of(top + log_min_p[number]);
  if (kept.place < least) kept = {least - 1, 0};

  for (int c = warp(); c < chunks; c += warps()) {
    const int64_t first = static_cast<int64_t>(c) * CHUNK;
    Mass mass = 0;
    uint32_t equal = 0;
    row.each(first, min(first + CHUNK, vocabulary), lane(), WARP, [&](float logit) {
      const uint32_t place = place_of(logit);
      if (place > kept.place) mass += row.mass(logit);
      if (place == kept.place) ++equal;
    });
#pragma unroll
    for (int offset = WARP / 2; offset > 0; offset /= 2) {
      mass += __shfl_xor_sync(ALL_LANES, mass, offset);
      equal += __shfl_xor_sync(ALL_LANES, equal, offset);
    }
    if (lane() == 0) masses[c] = mass, equals[c] = equal;
  }
  __syncthreads();
  // Each of the equal logits has the same mass.
  const Mass each = kept.equals > 0 ? row.mass(logit_of(kept.place)) : 0;
  Mass drawn = 0;
  if (threadIdx.x == 0) {
    Mass whole = kept.equals * each;
    for (int c = 0; c < chunks; ++c) whole += masses[c];
    drawn = drawn_mass(uniforms[number], whole);
    Mass sum = 0, seen = 0;
    int c = 0;
    for (; c + 1 < chunks; ++c) {
      const Mass here = equals[c], after = min(seen + here, kept.equals);
      const Mass next = sum + masses[c] + (after - min(seen, kept.equals)) * each;
      if (next > drawn) break;
      sum = next, seen += here;
    }
    chosen[0] = c;
    passed[0] = sum;
    passed[1] = seen;
  }
  __syncthreads();
  const int64_t first = static_cast<int64_t>(chosen[0]) * CHUNK;
  for (int i = threadIdx.x; i < CHUNK && first + i < vocabulary; i += blockDim.x) {
    const float logit = rounded_product(to_float(row.logits[first + i]), row.inverse_temperature);
    places[i] = place_of(logit);
    weights[i] = row.mass(logit);
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  Mass sum = passed[0], seen = passed[1];
  const int last = static_cast<int>(min(vocabulary - first, static_cast<int64_t>(CHUNK))) - 1;
  int i = 0;
  for (; i < last; ++i) {
    const uint32_t place = places[i];
    if (place > kept.place || (place == kept.place && seen++ < kept.equals)) sum += weights[i];
    if (sum > drawn) break;
  }
  tokens[number] = first + i;
}

#define SAMPLE_TRUNCATED(SUFFIX, T)                                                                                      \
  extern "C" __global__ void __launch_bounds__(TRUNCATE_THREADS)                                                         \
      sample_truncated_##SUFFIX(const T* logits, const float* statistics, const float* inverse_temperatures,             \
                                const float* uniforms, const int32_t* greedy, const int32_t* top_k, const float* top_p,  \
                                const float* log_min_p, int64_t* tokens, int64_t vocabulary, int32_t chunks) {           \
    sample_truncated<T>(logits, statistics, inverse_temperatures, uniforms, greedy, top_k, top_p, log_min_p, tokens,     \
                        vocabulary, chunks);                                                                             \
  }
FOR_EACH_TYPE(SAMPLE_TRUNCATED)
