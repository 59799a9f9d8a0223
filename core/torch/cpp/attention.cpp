// Causal attention on a CPU over packed sequences, each over itself: without padding, and without copies of keys and values
// for the heads that share them. A sequence may begin with tokens of others, its prefix; only its own tokens attend. One task is
// the heads of a sequence that share keys, and its products run on one thread.

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

// Tokens of the packed axis.
struct Piece {
  int64_t start, length;
};

// A sequence: the tokens of its prefix, `before` in all, then `own` ones from `start` on.
struct Sequence {
  int64_t start, own, before;
  std::vector<Piece> prefix;

  int64_t length() const {
    return before + own;
  }
};

// The sequences in numbers, as autograd keeps them.
struct Numbers {
  std::vector<int64_t> own;     // own tokens of each sequence
  std::vector<int64_t> counts;  // pieces of each prefix
  std::vector<int64_t> pieces;  // start and length of each piece
};

// Places of the sequences, and the shapes: queries (T, H, D), keys and values (T, K, D).
struct Shape {
  std::vector<Sequence> sequences;
  int64_t tokens, heads, kv_heads, dim;
  // Tokens of all prefixes.
  int64_t before = 0;

  Shape(const at::Tensor& q, const at::Tensor& k, const Numbers& numbers)
      : tokens(q.size(0)), heads(q.size(1)), kv_heads(k.size(1)), dim(q.size(2)) {
    int64_t start = 0;
    auto piece = numbers.pieces.begin();
    for (size_t i = 0; i < numbers.own.size(); ++i) {
      Sequence sequence{start, numbers.own[i], 0, {}};
      for (int64_t n = 0; n < numbers.counts[i]; ++n, piece += 2) {
        TORCH_CHECK(piece[0] >= 0 && piece[1] > 0 && piece[0] + piece[1] <= start, "a prefix of earlier tokens");
        sequence.prefix.push_back({piece[0], piece[1]});
        sequence.before += piece[1];
      }
      before += sequence.before;
      start += sequence.own;
      sequences.push_back(std::move(sequence));
    }
    TORCH_CHECK(start == tokens && k.size(0) == tokens && heads % kv_heads == 0, "attention wants whole sequences");
  }

  float scale() const {
    return 1.0f / std::sqrt(static_cast<float>(dim));
  }

  // Number of rows of queries in a piece, whose scores stay in the second-level cache.
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

  // Calls f(number of a sequence, part) for `n` parts of every sequence, the longest sequences first, on all threads.
  template <typename F>
  void for_each(int64_t n, F&& f) const {
    std::vector<int64_t> order(sequences.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int64_t a, int64_t b) { return sequences[a].length() > sequences[b].length(); });
    std::atomic<int64_t> next{0};
    const int64_t tasks = n * static_cast<int64_t>(order.size());
    at::parallel_for(0, at::get_num_threads(), 1, [&](int64_t, int64_t) {
      for (int64_t task; (task = next++) < tasks;) f(order[task / n], task % n);
    });
  }
};

// Room for n elements, not set.
template <typename T>
std::unique_ptr<T[]> room(int64_t n) {
  return std::unique_ptr<T[]>(new T[n]);
}

// The rows of a sequence in keys or values (T, K, D), for one head: in place, or copied where they are not in one piece.
template <typename T>
struct Rows {
  std::unique_ptr<T[]> copy;
  const T* data;
  int64_t stride;

  Rows(const at::Tensor& x, const Sequence& sequence, const Shape& shape, int64_t head) {
    const int64_t row = shape.kv_heads * shape.dim;
    const T* all = ::data<T>(x) + head * shape.dim;
    if (sequence.prefix.empty()) {
      data = all + sequence.start * row;
      stride = row;
      return;
    }
    copy = room<T>(sequence.length() * shape.dim);
    T* to = copy.get();
    const auto add = [&](int64_t start, int64_t length) {
      for (int64_t i = start; i < start + length; ++i, to += shape.dim) std::memcpy(to, all + i * row, shape.dim * sizeof(T));
    };
    for (const Piece& piece : sequence.prefix) add(piece.start, piece.length);
    add(sequence.start, sequence.own);
    data = copy.get();
    stride = shape.dim;
  }
};

// Some heads of successive queries (T, H, D), end to end: row i * width + j is head `head` + j of token `token` + i.
template <typename T>
void gather(const at::Tensor& x, const Shape& shape, int64_t token, int64_t n, int64_t head, int64_t width, T* to) {
  const int64_t row = shape.heads * shape.dim, part = width * shape.dim;
  for (int64_t i = 0; i < n; ++i) std::memcpy(to + i * part, data<T>(x) + (token + i) * row + head * shape.dim, part * sizeof(T));
}

// Attention of queries to keys and values. Writes the logs of the sums of exp(score) (H, T) to `log_sums` unless it is null.
at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Shape& shape, float* log_sums) {
  auto out = at::empty(q.sizes(), q.options());
  const Library library = products_library();
  const int64_t sharing = shape.heads / shape.kv_heads;
  // Heads that share keys are one task, so that these are arranged once, unless there are too few such tasks.
  const bool enough = static_cast<int64_t>(shape.sequences.size()) * shape.kv_heads >= at::get_num_threads();
  const int64_t width = enough ? sharing : 1;
  with_type(q, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const int64_t dim = shape.dim;
    shape.for_each(shape.heads / width, [&](int64_t number, int64_t part) {
      const Sequence& sequence = shape.sequences[number];
      const int64_t length = sequence.length(), stride = Shape::stride(length), head = part * width;
      const int64_t piece = std::max<int64_t>(1, Shape::piece(length) / width), most = piece * width;
      const Rows<T> keys(k, sequence, shape, head / sharing), values(v, sequence, shape, head / sharing);
      Right<T> by_keys(library), by_values(library);
      by_keys.arrange(dim, length, {keys.data, keys.stride, true});
      by_values.arrange(length, dim, {values.data, values.stride});
      const auto scores = room<float>(most * stride), sums = room<float>(most), made = room<float>(most * dim);
      const auto weights = room<T>(most * stride), queries = room<T>(most * dim);
      for (int64_t first = 0; first < sequence.own; first += piece) {
        const int64_t n = std::min(piece, sequence.own - first), rows = n * width;
        const int64_t computed = Shape::computed(sequence.before + first + n), token = sequence.start + first;
        gather(q, shape, token, n, head, width, queries.get());
        by_keys.product(rows, computed, dim, {queries.get(), dim}, false, scores.get(), stride);
        for (int64_t i = 0; i < rows; ++i) {
          const int64_t seen = sequence.before + first + i / width + 1;
          float log_sum;
          sums[i] = softmax(&scores[i * stride], shape.scale(), &weights[i * stride], seen, computed - seen, &log_sum);
          if (log_sums) log_sums[(head + i % width) * shape.tokens + token + i / width] = log_sum;
        }
        by_values.product(rows, dim, computed, {weights.get(), stride}, false, made.get(), dim);
        for (int64_t i = 0; i < rows; ++i) {
          divide(&made[i * dim], sums[i], data<T>(out) + ((token + i / width) * shape.heads + head + i % width) * dim, dim);
        }
      }
    });
  });
  return out;
}

// The gradients of keys and values (T, K, D). A token of prefixes gets a part from each sequence, summed in float32 in the order
// of the sequences, so that the sum does not depend on the threads.
template <typename T>
class KeyGradient {
 public:
  KeyGradient(const at::Tensor& x, const Shape& shape) : shape(shape), grad(at::empty(x.sizes(), x.options())) {
    if (shape.before == 0) return;
    const auto single = x.options().dtype(at::kFloat);
    sums = at::empty(x.sizes(), single);
    parts = at::empty({shape.before, shape.kv_heads, shape.dim}, single);
    int64_t start = 0;
    for (const Sequence& sequence : shape.sequences) {
      starts.push_back(start);
      start += sequence.before;
    }
  }

  // Takes the gradient (length, D) of a sequence's rows for one head.
  void put(int64_t number, int64_t head, const float* of_rows) {
    const Sequence& sequence = shape.sequences[number];
    const int64_t row = shape.kv_heads * shape.dim;
    const float* own = of_rows + sequence.before * shape.dim;
    if (!sums.defined()) {
      T* to = data<T>(grad) + sequence.start * row + head * shape.dim;
      for (int64_t i = 0; i < sequence.own; ++i) divide(own + i * shape.dim, 1, to + i * row, shape.dim);
      return;
    }
    const auto copy = [&](const float* from, int64_t n, const at::Tensor& to, int64_t start) {
      float* all = data<float>(to) + start * row + head * shape.dim;
      for (int64_t i = 0; i < n; ++i) std::memcpy(all + i * row, from + i * shape.dim, shape.dim * sizeof(float));
    };
    copy(of_rows, sequence.before, parts, starts[number]);
    copy(own, sequence.own, sums, sequence.start);
  }

  // The whole gradient, once all sequences' are there.
  at::Tensor take() {
    if (!sums.defined()) return grad;
    const int64_t row = shape.kv_heads * shape.dim;
    at::parallel_for(0, shape.tokens, 64, [&](int64_t from, int64_t to) {
      for (size_t number = 0; number < shape.sequences.size(); ++number) {
        const float* part = data<float>(parts) + starts[number] * row;
        for (const Piece& piece : shape.sequences[number].prefix) {
          const int64_t first = std::max(from, piece.start), end = std::min(to, piece.start + piece.length);
          for (int64_t i = first; i < end; ++i) add_row(data<float>(sums) + i * row, part + (i - piece.start) * row, row);
          part += piece.length * row;
        }
      }
    });
    return grad.copy_(sums);
  }

 private:
  const Shape& shape;
  at::Tensor grad, sums, parts;
  std::vector<int64_t> starts;  // of each sequence's prefix in `parts`

  static void add_row(float* sum, const float* x, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) sum[i] += x[i];
  }
};

struct Attention : torch::autograd::Function<Attention> {
  static Variable forward(AutogradContext* ctx, const Variable& q, const Variable& k, const Variable& v, Numbers numbers) {
    auto log_sums = at::empty({q.size(1), q.size(0)}, q.options().dtype(at::kFloat));
    auto out = attend(q, k, v, Shape(q, k, numbers), data<float>(log_sums));
    ctx->save_for_backward({q, k, v, out, log_sums});
    ctx->saved_data["own"] = std::move(numbers.own);
    ctx->saved_data["counts"] = std::move(numbers.counts);
    ctx->saved_data["pieces"] = std::move(numbers.pieces);
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const auto &q = saved[0], &k = saved[1], &v = saved[2], &out = saved[3], &log_sums = saved[4];
    const auto grad = grads[0].contiguous();
    auto grad_q = at::empty(q.sizes(), q.options());
    at::Tensor grad_k, grad_v;
    const auto number = [&](const char* name) { return ctx->saved_data[name].toIntVector(); };
    const Shape shape(q, k, {number("own"), number("counts"), number("pieces")});
    const Library library = products_library();
    with_type(q, [&](auto* type) {
      using T = std::remove_pointer_t<decltype(type)>;
      KeyGradient<T> of_keys(k, shape), of_values(v, shape);
      const int64_t dim = shape.dim, width = shape.heads / shape.kv_heads;
      shape.for_each(shape.kv_heads, [&](int64_t number, int64_t shared) {
        const Sequence& sequence = shape.sequences[number];
        const int64_t length = sequence.length(), stride = Shape::stride(length), head = shared * width;
        const int64_t piece = std::max<int64_t>(1, Shape::piece(length) / width), most = piece * width;
        const Rows<T> keys(k, sequence, shape, shared), values(v, sequence, shape, shared);
        Right<T> by_keys(library), by_keys_t(library), by_values_t(library), by_weights(library), by_grads(library);
        by_keys.arrange(length, dim, {keys.data, keys.stride});
        by_keys_t.arrange(dim, length, {keys.data, keys.stride, true});
        by_values_t.arrange(dim, length, {values.data, values.stride, true});
        const auto scores = room<float>(most * stride), grad_weights = room<float>(most * stride),
                   made = room<float>(most * dim);
        const auto weights = room<T>(most * stride), grad_scores = room<T>(most * stride);
        const auto queries = room<T>(most * dim), outs = room<T>(most * dim), out_grads = room<T>(most * dim);
        // Transposed, (D, length): so the weights need no transposed copy.
        const auto sum_k = room<float>(dim * stride), sum_v = room<float>(dim * stride);
        std::fill_n(sum_k.get(), dim * stride, 0.0f);
        std::fill_n(sum_v.get(), dim * stride, 0.0f);
        for (int64_t first = 0; first < sequence.own; first += piece) {
          const int64_t n = std::min(piece, sequence.own - first), rows = n * width;
          const int64_t computed = Shape::computed(sequence.before + first + n), token = sequence.start + first;
          gather(q, shape, token, n, head, width, queries.get());
          gather(out, shape, token, n, head, width, outs.get());
          gather(grad, shape, token, n, head, width, out_grads.get());
          by_keys_t.product(rows, computed, dim, {queries.get(), dim}, false, scores.get(), stride);
          by_values_t.product(rows, computed, dim, {out_grads.get(), dim}, false, grad_weights.get(), stride);
          for (int64_t i = 0; i < rows; ++i) {
            const int64_t seen = sequence.before + first + i / width + 1;
            const float along = dot(&out_grads[i * dim], &outs[i * dim], dim);
            const float log_sum = data<float>(log_sums)[(head + i % width) * shape.tokens + token + i / width];
            softmax_grad(&scores[i * stride], &grad_weights[i * stride], log_sum, along, shape.scale(),
                         &weights[i * stride], &grad_scores[i * stride], seen, computed - seen);
          }
          by_weights.arrange(rows, computed, {weights.get(), stride});
          by_weights.product(dim, computed, rows, {out_grads.get(), dim, true}, true, sum_v.get(), stride);
          by_grads.arrange(rows, computed, {grad_scores.get(), stride});
          by_grads.product(dim, computed, rows, {queries.get(), dim, true}, true, sum_k.get(), stride);
          by_keys.product(rows, dim, computed, {grad_scores.get(), stride}, false, made.get(), dim);
          for (int64_t i = 0; i < rows; ++i) {
            divide(&made[i * dim], 1, data<T>(grad_q) + ((token + i / width) * shape.heads + head + i % width) * dim, dim);
          }
        }
        const auto sum = room<float>(length * dim);
        for (const auto& [from, to] : {std::pair{&sum_k, &of_keys}, std::pair{&sum_v, &of_values}}) {
          transpose_words(from->get(), stride * sizeof(float), sum.get(), dim, dim, length);
          to->put(number, shared, sum.get());
        }
      });
      grad_k = of_keys.take();
      grad_v = of_values.take();
    });
    return {grad_q, grad_k, grad_v, Variable()};
  }
};

}  // namespace

extern "C" {

// q (T, H, D), k and v (T, K, D) in n sequences: (T, H, D). A sequence has `own` tokens, behind those of `counts` pieces of its
// prefix, whose starts and lengths are in `pieces`.
int nestor_attend(const at::Tensor* q, const at::Tensor* k, const at::Tensor* v, size_t n, const int64_t* own,
                  const int64_t* counts, const int64_t* pieces, at::Tensor** out, char* message, size_t message_size) {
  return guarded(message, message_size, [&] {
    const auto queries = q->contiguous(), keys = k->contiguous(), values = v->contiguous();
    const int64_t numbers = 2 * std::accumulate(counts, counts + n, int64_t{0});
    Numbers all{{own, own + n}, {counts, counts + n}, {pieces, pieces + numbers}};
    const bool grad = at::GradMode::is_enabled() &&
                      (queries.requires_grad() || keys.requires_grad() || values.requires_grad());
    *out = new at::Tensor(grad ? Attention::apply(queries, keys, values, std::move(all))
                               : attend(queries, keys, values, Shape(queries, keys, all), nullptr));
  });
}
}
