// Causal attention on a CPU over packed sequences, each over itself: without padding, and without copies of keys and values
// for the heads that share them. One task is a head of a sequence. Products are MKL's (bfloat16 in, float32 out), and run
// on one thread inside a task.

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <vector>

#include "guarded.h"
#include "vectors.h"

// libtorch contains MKL on x86-64; elsewhere these are null.
extern "C" {
__attribute__((weak)) void cblas_gemm_bf16bf16f32(int layout, int trans_a, int trans_b, int m, int n, int k, float alpha,
                                                  const void* a, int lda, const void* b, int ldb, float beta, float* c,
                                                  int ldc);
__attribute__((weak)) void sgemm_(const char* trans_a, const char* trans_b, const int* m, const int* n, const int* k,
                                  const float* alpha, const float* a, const int* lda, const float* b, const int* ldb,
                                  const float* beta, float* c, const int* ldc);
}

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

// A matrix by rows, or its transpose.
template <typename T>
struct Matrix {
  const T* data;
  int64_t stride;
  bool transposed = false;
};

// c (m, n) = alpha * a (m, k) * b (k, n) + beta * c.
void product(int m, int n, int k, float alpha, Matrix<Bf16> a, Matrix<Bf16> b, float beta, float* c, int stride) {
  constexpr int ROWS = 101, AS_IS = 111, TRANSPOSED = 112;
  cblas_gemm_bf16bf16f32(ROWS, a.transposed ? TRANSPOSED : AS_IS, b.transposed ? TRANSPOSED : AS_IS, m, n, k, alpha,
                         a.data, a.stride, b.data, b.stride, beta, c, stride);
}

// MKL's sgemm stores matrices by columns, so this computes the transposed product.
void product(int m, int n, int k, float alpha, Matrix<float> a, Matrix<float> b, float beta, float* c, int stride) {
  const int lda = a.stride, ldb = b.stride;
  sgemm_(b.transposed ? "T" : "N", a.transposed ? "T" : "N", &n, &m, &k, &alpha, b.data, &ldb, a.data, &lda, &beta, c,
         &stride);
}

// Computes from scores of a query over `n` keys exp(score - largest), not yet divided by their sum, and writes 0 for the
// `hidden` keys after these. Returns the sum, and writes the log of the sum of exp(score) to `log_sum`.
template <typename T>
INLINE float softmax_row(const float* scores, T* weights, int64_t n, int64_t hidden, float* log_sum) {
  float largest = -INFINITY;
#pragma omp simd reduction(max : largest)
  for (int64_t i = 0; i < n; ++i) largest = scores[i] > largest ? scores[i] : largest;
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) {
    const float e = exponential(scores[i] - largest);
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

// Computes from scores and the gradient of the weights: the weights, and the gradient of the scores times `scale`.
template <typename T>
INLINE void softmax_row_grad(const float* scores, const float* grad_weights, float log_sum, float along, float scale,
                             T* weights, T* grad_scores, int64_t n, int64_t hidden) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float p = exponential(scores[i] - log_sum);
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

VECTORS float softmax(const float* scores, float* weights, int64_t n, int64_t hidden, float* log_sum) {
  return softmax_row(scores, weights, n, hidden, log_sum);
}
VECTORS float softmax(const float* scores, Bf16* weights, int64_t n, int64_t hidden, float* log_sum) {
  return softmax_row(scores, weights, n, hidden, log_sum);
}
VECTORS void divide(const float* x, float by, float* y, int64_t n) {
  divide_row(x, by, y, n);
}
VECTORS void divide(const float* x, float by, Bf16* y, int64_t n) {
  divide_row(x, by, y, n);
}
VECTORS void softmax_grad(const float* scores, const float* grad_weights, float log_sum, float along, float scale,
                          float* weights, float* grad_scores, int64_t n, int64_t hidden) {
  softmax_row_grad(scores, grad_weights, log_sum, along, scale, weights, grad_scores, n, hidden);
}
VECTORS void softmax_grad(const float* scores, const float* grad_weights, float log_sum, float along, float scale,
                          Bf16* weights, Bf16* grad_scores, int64_t n, int64_t hidden) {
  softmax_row_grad(scores, grad_weights, log_sum, along, scale, weights, grad_scores, n, hidden);
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

// Attention of queries to keys and values. Writes the logs of the sums of exp(score) (H, T) to `log_sums` unless it is null.
at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Shape& shape, float* log_sums) {
  auto out = at::empty(q.sizes(), q.options());
  with_type(q, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const int64_t dim = shape.dim, row = shape.heads * dim, kv_row = shape.kv_heads * dim;
    shape.for_each(shape.heads, [&](int64_t start, int64_t length, int64_t head) {
      const int64_t piece = Shape::piece(length), shared = head / (shape.heads / shape.kv_heads);
      const T *queries = data<T>(q) + start * row + head * dim, *keys = data<T>(k) + start * kv_row + shared * dim,
              *values = data<T>(v) + start * kv_row + shared * dim;
      T* to = data<T>(out) + start * row + head * dim;
      std::vector<float> scores(piece * length), sums(piece), made(piece * dim);
      std::vector<T> weights(piece * length);
      for (int64_t first = 0; first < length; first += piece) {
        const int64_t n = std::min(piece, length - first), seen = first + n;
        product(n, seen, dim, shape.scale(), Matrix<T>{queries + first * row, row}, Matrix<T>{keys, kv_row, true}, 0,
                scores.data(), seen);
        for (int64_t i = 0; i < n; ++i) {
          float log_sum;
          sums[i] = softmax(&scores[i * seen], &weights[i * seen], first + i + 1, n - i - 1, &log_sum);
          if (log_sums) log_sums[head * shape.tokens + start + first + i] = log_sum;
        }
        product(n, dim, seen, 1, Matrix<T>{weights.data(), seen}, Matrix<T>{values, kv_row}, 0, made.data(), dim);
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
    with_type(q, [&](auto* type) {
      using T = std::remove_pointer_t<decltype(type)>;
      const int64_t dim = shape.dim, row = shape.heads * dim, kv_row = shape.kv_heads * dim;
      const int64_t sharing = shape.heads / shape.kv_heads;
      shape.for_each(shape.kv_heads, [&](int64_t start, int64_t length, int64_t shared) {
        const int64_t piece = Shape::piece(length), kv_at = start * kv_row + shared * dim;
        const Matrix<T> keys{data<T>(k) + kv_at, kv_row}, keys_t{keys.data, kv_row, true};
        const Matrix<T> values_t{data<T>(v) + kv_at, kv_row, true};
        std::vector<float> scores(piece * length), grad_weights(piece * length), made(piece * dim);
        std::vector<float> sum_k(length * dim), sum_v(length * dim);
        std::vector<T> weights(piece * length), grad_scores(piece * length);
        for (int64_t head = shared * sharing; head < (shared + 1) * sharing; ++head) {
          for (int64_t first = 0; first < length; first += piece) {
            const int64_t n = std::min(piece, length - first), seen = first + n;
            const int64_t at = (start + first) * row + head * dim;
            const Matrix<T> queries{data<T>(q) + at, row}, grads{data<T>(grad) + at, row};
            product(n, seen, dim, shape.scale(), queries, keys_t, 0, scores.data(), seen);
            product(n, seen, dim, 1, grads, values_t, 0, grad_weights.data(), seen);
            for (int64_t i = 0; i < n; ++i) {
              const float along = dot(grads.data + i * row, data<T>(out) + at + i * row, dim);
              const float log_sum = data<float>(log_sums)[head * shape.tokens + start + first + i];
              softmax_grad(&scores[i * seen], &grad_weights[i * seen], log_sum, along, shape.scale(),
                           &weights[i * seen], &grad_scores[i * seen], first + i + 1, n - i - 1);
            }
            product(seen, dim, n, 1, Matrix<T>{weights.data(), seen, true}, grads, 1, sum_v.data(), dim);
            product(seen, dim, n, 1, Matrix<T>{grad_scores.data(), seen, true}, queries, 1, sum_k.data(), dim);
            product(n, dim, seen, 1, Matrix<T>{grad_scores.data(), seen}, keys, 0, made.data(), dim);
            for (int64_t i = 0; i < n; ++i) divide(&made[i * dim], 1, data<T>(grad_q) + at + i * row, dim);
          }
        }
        for (int64_t i = 0; i < length; ++i) {
          divide(&sum_k[i * dim], 1, data<T>(grad_k) + kv_at + i * kv_row, dim);
          divide(&sum_v[i * dim], 1, data<T>(grad_v) + kv_at + i * kv_row, dim);
        }
      });
    });
    return {grad_q, grad_k, grad_v, Variable()};
  }
};

}  // namespace

extern "C" {

// Returns true if MKL's products exist.
bool nestor_attention_is_there() {
  return cblas_gemm_bf16bf16f32 && sgemm_;
}

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

// sum (n, m) float32 += a (T, n) transposed * b (T, m): a weight's gradient, added without a temporary.
int nestor_add_product(const at::Tensor* sum, const at::Tensor* a, const at::Tensor* b, char* message,
                       size_t message_size) {
  return guarded(message, message_size, [&] {
    const auto left = a->contiguous(), right = b->contiguous();
    const int64_t t = left.size(0), n = left.size(1), m = right.size(1);
    with_type(left, [&](auto* type) {
      using T = std::remove_pointer_t<decltype(type)>;
      product(n, m, t, 1, Matrix<T>{data<T>(left), n, true}, Matrix<T>{data<T>(right), m}, 1, data<float>(*sum), m);
    });
  });
}
}
