// Causal attention on a CPU over packed sequences, each over itself: without padding, and without copies of keys and values
// for the heads that share them. One task is a head of a sequence, and its products run on one thread.

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "guarded.h"
#include "products.h"
#include "vectors.h"

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

// Computes from products of a query with `n` keys, whose scores are `scale` times as large, exp(score - largest), not yet
// divided by their sum, and writes 0 for the `hidden` keys after these. Returns the sum, and writes the log of the sum of
// exp(score) to `log_sum`.
template <typename T>
INLINE float softmax_row(const float* products, float scale, T* weights, int64_t n, int64_t hidden, float* log_sum) {
  float largest = -INFINITY;
#pragma omp simd reduction(max : largest)
  for (int64_t i = 0; i < n; ++i) largest = products[i] > largest ? products[i] : largest;
  largest *= scale;
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) {
    const float e = exponential(products[i] * scale - largest);
    sum += e;
    put(weights[i], e);
  }
  std::memset(weights + n, 0, hidden * sizeof(T));
  *log_sum = largest + std::log(sum);
  return sum;
}

template <typename T>
INLINE void divide_row(const float* x, float by, T* y, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) put(y[i], x[i] / by);
}

// Computes from a query's products with keys and the gradient of the weights: the weights, and the gradient of the products.
template <typename T>
INLINE void softmax_row_grad(const float* products, const float* grad_weights, float log_sum, float along, float scale,
                             T* weights, T* grad_scores, int64_t n, int64_t hidden) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float p = exponential(products[i] * scale - log_sum);
    put(weights[i], p);
    put(grad_scores[i], p * (grad_weights[i] - along) * scale);
  }
  std::memset(weights + n, 0, hidden * sizeof(T));
  std::memset(grad_scores + n, 0, hidden * sizeof(T));
}

template <typename T>
INLINE float dot_row(const T* a, const T* b, int64_t n) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += get(a[i]) * get(b[i]);
  return sum;
}

VECTORS float softmax(const float* products, float scale, float* weights, int64_t n, int64_t hidden, float* log_sum) {
  return softmax_row(products, scale, weights, n, hidden, log_sum);
}
VECTORS float softmax(const float* products, float scale, Bf16* weights, int64_t n, int64_t hidden, float* log_sum) {
  return softmax_row(products, scale, weights, n, hidden, log_sum);
}
VECTORS void divide(const float* x, float by, float* y, int64_t n) {
  divide_row(x, by, y, n);
}
VECTORS void divide(const float* x, float by, Bf16* y, int64_t n) {
  divide_row(x, by, y, n);
}
VECTORS void softmax_grad(const float* products, const float* grad_weights, float log_sum, float along, float scale,
                          float* weights, float* grad_scores, int64_t n, int64_t hidden) {
  softmax_row_grad(products, grad_weights, log_sum, along, scale, weights, grad_scores, n, hidden);
}
VECTORS void softmax_grad(const float* products, const float* grad_weights, float log_sum, float along, float scale,
                          Bf16* weights, Bf16* grad_scores, int64_t n, int64_t hidden) {
  softmax_row_grad(products, grad_weights, log_sum, along, scale, weights, grad_scores, n, hidden);
}
VECTORS float dot(const float* a, const float* b, int64_t n) {
  return dot_row(a, b, n);
}
VECTORS float dot(const Bf16* a, const Bf16* b, int64_t n) {
  return dot_row(a, b, n);
}

// Places of the sequences, and the shapes: queries (T, H, D), keys and values (T, K, D).
struct Shape {
  std::vector<int64_t> starts, lengths;
  int64_t tokens, heads, kv_heads, dim;

  Shape(const at::Tensor& q, const at::Tensor& k, at::IntArrayRef lengths)
      : lengths(lengths.vec()), tokens(q.size(0)), heads(q.size(1)), kv_heads(k.size(1)), dim(q.size(2)) {
    int64_t start = 0;
    for (const int64_t length : lengths) {
      starts.push_back(start);
      start += length;
    }
    TORCH_CHECK(start == tokens && k.size(0) == tokens && heads % kv_heads == 0, "attention wants whole sequences");
  }

  float scale() const {
    return 1.0f / std::sqrt(static_cast<float>(dim));
  }

  // Number of queries of a piece, whose scores stay in the second-level cache.
  static int64_t piece(int64_t length) {
    return length <= 1024 ? 128 : 64;
  }

  // Number of keys, of `seen` ones, that products compute: whole panels, so that few kernels are compiled.
  static int64_t computed(int64_t seen) {
    return (seen + Right<float>::WIDTH - 1) / Right<float>::WIDTH * Right<float>::WIDTH;
  }

  // Elements between the rows of scores of a sequence: few different numbers, for the same reason, and no power of two, whose
  // rows would share places of the cache.
  static int64_t stride(int64_t length) {
    return (length + 511) / 512 * 512 + Right<float>::WIDTH;
  }

  // Calls f(start, length, head) for `n` heads of every sequence, the longest sequences first, on all threads.
  template <typename F>
  void for_each(int64_t n, F&& f) const {
    std::vector<int64_t> order(lengths.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return lengths[a] > lengths[b]; });
    std::atomic<int64_t> next{0};
    const int64_t tasks = n * static_cast<int64_t>(order.size());
    at::parallel_for(0, at::get_num_threads(), 1, [&](int64_t, int64_t) {
      for (int64_t task; (task = next++) < tasks;) {
        const int64_t sequence = order[task / n];
        f(starts[sequence], lengths[sequence], task % n);
      }
    });
  }
};

// Room for n elements, not set.
template <typename T>
std::unique_ptr<T[]> room(int64_t n) {
  return std::unique_ptr<T[]>(new T[n]);
}

// Attention of queries to keys and values. Writes the logs of the sums of exp(score) (H, T) to `log_sums` unless it is null.
at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Shape& shape, float* log_sums) {
  auto out = at::empty(q.sizes(), q.options());
  const Library library = products_library();
  with_type(q, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const int64_t dim = shape.dim, row = shape.heads * dim, kv_row = shape.kv_heads * dim;
    shape.for_each(shape.heads, [&](int64_t start, int64_t length, int64_t head) {
      const int64_t piece = Shape::piece(length), shared = head / (shape.heads / shape.kv_heads);
      const int64_t stride = Shape::stride(length);
      const T *queries = data<T>(q) + start * row + head * dim, *keys = data<T>(k) + start * kv_row + shared * dim,
              *values = data<T>(v) + start * kv_row + shared * dim;
      T* to = data<T>(out) + start * row + head * dim;
      Right<T> by_keys(library), by_values(library);
      by_keys.arrange(dim, length, {keys, kv_row, true});
      by_values.arrange(length, dim, {values, kv_row});
      const auto scores = room<float>(piece * stride), sums = room<float>(piece), made = room<float>(piece * dim);
      const auto weights = room<T>(piece * stride);
      for (int64_t first = 0; first < length; first += piece) {
        const int64_t n = std::min(piece, length - first), computed = Shape::computed(first + n);
        by_keys.product(n, computed, dim, {queries + first * row, row}, false, scores.get(), stride);
        for (int64_t i = 0; i < n; ++i) {
          const int64_t seen = first + i + 1;
          float log_sum;
          sums[i] = softmax(&scores[i * stride], shape.scale(), &weights[i * stride], seen, computed - seen, &log_sum);
          if (log_sums) log_sums[head * shape.tokens + start + first + i] = log_sum;
        }
        by_values.product(n, dim, computed, {weights.get(), stride}, false, made.get(), dim);
        for (int64_t i = 0; i < n; ++i) divide(&made[i * dim], sums[i], to + (first + i) * row, dim);
      }
    });
  });
  return out;
}

struct Attention : torch::autograd::Function<Attention> {
  static Variable forward(AutogradContext* ctx, const Variable& q, const Variable& k, const Variable& v,
                          std::vector<int64_t> lengths) {
    auto log_sums = at::empty({q.size(1), q.size(0)}, q.options().dtype(at::kFloat));
    auto out = attend(q, k, v, Shape(q, k, lengths), data<float>(log_sums));
    ctx->save_for_backward({q, k, v, out, log_sums});
    ctx->saved_data["lengths"] = std::move(lengths);
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const auto &q = saved[0], &k = saved[1], &v = saved[2], &out = saved[3], &log_sums = saved[4];
    const auto grad = grads[0].contiguous();
    auto grad_q = at::empty(q.sizes(), q.options()), grad_k = at::empty(k.sizes(), k.options()),
         grad_v = at::empty(v.sizes(), v.options());
    const Shape shape(q, k, ctx->saved_data["lengths"].toIntVector());
    const Library library = products_library();
    with_type(q, [&](auto* type) {
      using T = std::remove_pointer_t<decltype(type)>;
      const int64_t dim = shape.dim, row = shape.heads * dim, kv_row = shape.kv_heads * dim;
      const int64_t sharing = shape.heads / shape.kv_heads;
      shape.for_each(shape.kv_heads, [&](int64_t start, int64_t length, int64_t shared) {
        const int64_t piece = Shape::piece(length), kv_at = start * kv_row + shared * dim;
        const int64_t stride = Shape::stride(length);
        Right<T> by_keys(library), by_keys_t(library), by_values_t(library), by_weights(library), by_grads(library);
        by_keys.arrange(length, dim, {data<T>(k) + kv_at, kv_row});
        by_keys_t.arrange(dim, length, {data<T>(k) + kv_at, kv_row, true});
        by_values_t.arrange(dim, length, {data<T>(v) + kv_at, kv_row, true});
        const auto scores = room<float>(piece * stride), grad_weights = room<float>(piece * stride),
                   made = room<float>(piece * dim);
        const auto weights = room<T>(piece * stride), grad_scores = room<T>(piece * stride);
        // Transposed, (D, length): so the weights need no transposed copy.
        const auto sum_k = room<float>(dim * stride), sum_v = room<float>(dim * stride);
        std::fill_n(sum_k.get(), dim * stride, 0.0f);
        std::fill_n(sum_v.get(), dim * stride, 0.0f);
        for (int64_t head = shared * sharing; head < (shared + 1) * sharing; ++head) {
          for (int64_t first = 0; first < length; first += piece) {
            const int64_t n = std::min(piece, length - first), computed = Shape::computed(first + n);
            const int64_t at = (start + first) * row + head * dim;
            const T *queries = data<T>(q) + at, *grads = data<T>(grad) + at;
            by_keys_t.product(n, computed, dim, {queries, row}, false, scores.get(), stride);
            by_values_t.product(n, computed, dim, {grads, row}, false, grad_weights.get(), stride);
            for (int64_t i = 0; i < n; ++i) {
              const int64_t seen = first + i + 1;
              const float along = dot(grads + i * row, data<T>(out) + at + i * row, dim);
              const float log_sum = data<float>(log_sums)[head * shape.tokens + start + seen - 1];
              softmax_grad(&scores[i * stride], &grad_weights[i * stride], log_sum, along, shape.scale(),
                           &weights[i * stride], &grad_scores[i * stride], seen, computed - seen);
            }
            by_weights.arrange(n, computed, {weights.get(), stride});
            by_weights.product(dim, computed, n, {grads, row, true}, true, sum_v.get(), stride);
            by_grads.arrange(n, computed, {grad_scores.get(), stride});
            by_grads.product(dim, computed, n, {queries, row, true}, true, sum_k.get(), stride);
            by_keys.product(n, dim, computed, {grad_scores.get(), stride}, false, made.get(), dim);
            for (int64_t i = 0; i < n; ++i) divide(&made[i * dim], 1, data<T>(grad_q) + at + i * row, dim);
          }
        }
        const auto sum = room<float>(length * dim);
        for (const auto& [from, to] : {std::pair{&sum_k, &grad_k}, std::pair{&sum_v, &grad_v}}) {
          transpose_words(from->get(), stride * sizeof(float), sum.get(), dim, dim, length);
          for (int64_t i = 0; i < length; ++i) divide(&sum[i * dim], 1, data<T>(*to) + kv_at + i * kv_row, dim);
        }
      });
    });
    return {grad_q, grad_k, grad_v, Variable()};
  }
};

}  // namespace

extern "C" {

// q (T, H, D), k and v (T, K, D) in sequences of these lengths: (T, H, D).
int nestor_attend(const at::Tensor* q, const at::Tensor* k, const at::Tensor* v, size_t n, const int64_t* lengths,
                  at::Tensor** out, char* message, size_t message_size) {
  return guarded(message, message_size, [&] {
    const auto queries = q->contiguous(), keys = k->contiguous(), values = v->contiguous();
    const at::IntArrayRef all(lengths, n);
    const bool grad = at::GradMode::is_enabled() &&
                      (queries.requires_grad() || keys.requires_grad() || values.requires_grad());
    *out = new at::Tensor(grad ? Attention::apply(queries, keys, values, all.vec())
                               : attend(queries, keys, values, Shape(queries, keys, all), nullptr));
  });
}
}
