// Operations of generation on a CPU that libtorch lacks: products with weights in oneDNN's own layout, and attention over a
// paged cache, in which every row's result depends on that row alone. In a product it depends on the number of rows too.

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty_like.h>

#include <cmath>
#include <optional>
#include <string_view>
#include <vector>

#include "guarded.h"
#include "lanes.h"

namespace {

constexpr int64_t PAGE = LANES;  // tokens of a page
constexpr int MOST_LANES = 8;    // queries that share the reading of keys and values

// Adjacent rows of one sequence: the first row, the number of rows, the position of the first, and the index of the
// sequence's first page in the list of pages.
struct Segment {
  int64_t row, rows, position, pages;
};

// One task: a key head and up to MOST_LANES (row, query head) pairs of a segment.
struct Task {
  int32_t segment, head, lane, lanes;
};

struct Attention {
  const Segment* segments;
  const int64_t* pages;
  int64_t heads, kv_heads, dim, padded;  // padded: dim as the cache has it
  float scale;
};

template <typename T, int M>
INLINE void attend(const Attention& a, const Task& task, const T* q, const T* keys, const T* values, T* out,
                          std::vector<float>& scratch) {
  const Segment& segment = a.segments[task.segment];
  const int64_t* table = a.pages + segment.pages;
  const int64_t shared = a.heads / a.kv_heads;  // query heads per key head
  const int64_t page_size = a.kv_heads * a.padded * PAGE;
  const int64_t head_offset = task.head * a.padded * PAGE;
  int64_t positions[M], places[M];
  int64_t last = 0;
  for (int m = 0; m < M; ++m) {
    // Missing lanes repeat the last one's work.
    const int64_t lane = task.lane + std::min(m, task.lanes - 1);
    const int64_t row = lane / shared, head = task.head * shared + lane % shared;
    positions[m] = segment.position + row;
    places[m] = ((segment.row + row) * a.heads + head) * a.dim;
    last = std::max(last, positions[m]);
  }
  const int64_t count = last / PAGE + 1, length = count * PAGE;
  scratch.resize(M * (length + a.padded));
  float* queries = scratch.data() + M * length;
  for (int m = 0; m < M; ++m) {
    float* query = queries + m * a.padded;
    for (int64_t d = 0; d < a.padded; ++d) query[d] = d < a.dim ? get(q[places[m] + d]) : 0.0f;
  }

  const Floats never = all(-std::numeric_limits<float>::infinity());
  const Ints lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  Floats best[M];
  for (int m = 0; m < M; ++m) best[m] = never;
  for (int64_t p = 0; p < count; ++p) {
    const T* k = keys + table[p] * page_size + head_offset;
    // Pages are scattered in memory, so the next one is prefetched while this one is read.
    const T* next = keys + table[std::min(p + 1, count - 1)] * page_size + head_offset;
    Floats even[M], odd[M];
    for (int m = 0; m < M; ++m) even[m] = odd[m] = Floats{};
    for (int64_t d = 0; d < a.padded; d += 2) {
      const Pair rows = load_pair(k + d * PAGE);
      __builtin_prefetch(next + d * PAGE);
      for (int m = 0; m < M; ++m) {
        even[m] += queries[m * a.padded + d] * rows.a;
        odd[m] += queries[m * a.padded + d + 1] * rows.b;
      }
    }
    for (int m = 0; m < M; ++m) {
      const int32_t visible = static_cast<int32_t>(positions[m] - p * PAGE);
      const Floats s = choose(lane > visible, never, (even[m] + odd[m]) * a.scale);
      best[m] = larger(best[m], s);
      store(scratch.data() + m * length + p * PAGE, s);
    }
  }
  float mass[M];
  for (int m = 0; m < M; ++m) {
    const float top = most(best[m]);
    Floats total{};
    for (int64_t at = 0; at < length; at += PAGE) {
      float* s = scratch.data() + m * length + at;
      // As in the update: the sum is exact, the weights are rounded to the tensors' type.
      const Floats e = exponential(load(s) - top);
      store(s, held(keys, e));
      total += e;
    }
    mass[m] = sum(total);
  }
  for (int64_t d = 0; d < a.padded; d += 2 * LANES) {
    Pair o[M];
    for (int m = 0; m < M; ++m) o[m] = Pair{};
    for (int64_t p = 0; p < count; ++p) {
      const T* v = values + table[p] * page_size + head_offset + d;
      const T* next = values + table[std::min(p + 1, count - 1)] * page_size + head_offset + d;
      const float* weights = scratch.data() + p * PAGE;
      for (int64_t t = 0; t < PAGE; ++t) {
        const Pair value = load_pair(v + t * a.padded);
        __builtin_prefetch(next + t * a.padded);
        for (int m = 0; m < M; ++m) {
          o[m].a += weights[m * length + t] * value.a;
          o[m].b += weights[m * length + t] * value.b;
        }
      }
    }
    for (int m = 0; m < M; ++m) {
      const Pair mean{o[m].a / mass[m], o[m].b / mass[m]};
      if (d + 2 * LANES <= a.dim) {
        store_pair(out + places[m] + d, mean);
      } else {
        T tail[2 * LANES];
        store_pair(tail, mean);
        std::memcpy(out + places[m] + d, tail, (a.dim - d) * sizeof(T));
      }
    }
  }
}

template <typename T>
INLINE void attend_tasks(const Attention& a, const std::vector<Task>& tasks, size_t first, size_t step, const T* q,
                                const T* keys, const T* values, T* out) {
  std::vector<float> scratch;
  for (size_t i = first; i < tasks.size(); i += step) {
    if (tasks[i].lanes <= MOST_LANES / 2)
      attend<T, MOST_LANES / 2>(a, tasks[i], q, keys, values, out, scratch);
    else
      attend<T, MOST_LANES>(a, tasks[i], q, keys, values, out, scratch);
  }
}

VECTORS void attend_float(const Attention& a, const std::vector<Task>& tasks, size_t first, size_t step,
                                const float* q, const float* keys, const float* values, float* out) {
  attend_tasks(a, tasks, first, step, q, keys, values, out);
}

VECTORS void attend_bfloat16(const Attention& a, const std::vector<Task>& tasks, size_t first, size_t step,
                                   const Bf16* q, const Bf16* keys, const Bf16* values,
                                   Bf16* out) {
  attend_tasks(a, tasks, first, step, q, keys, values, out);
}

void attend_all(const Attention& a, const std::vector<Task>& tasks, size_t first, size_t step, const float* q,
                const float* keys, const float* values, float* out) {
  attend_float(a, tasks, first, step, q, keys, values, out);
}

void attend_all(const Attention& a, const std::vector<Task>& tasks, size_t first, size_t step, const Bf16* q,
                const Bf16* keys, const Bf16* values, Bf16* out) {
  attend_bfloat16(a, tasks, first, step, q, keys, values, out);
}

template <typename T>
void write_rows(const at::Tensor& keys, const at::Tensor& values, const int64_t* places, const at::Tensor& k,
                const at::Tensor& v) {
  const int64_t rows = k.size(0), heads = k.size(1), dim = k.size(2), padded = values.size(3);
  T* to_k = data<T>(keys);
  T* to_v = data<T>(values);
  const T* from_k = data<T>(k);
  const T* from_v = data<T>(v);
  at::parallel_for(0, rows, 64, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const int64_t page = places[r] / PAGE, offset = places[r] % PAGE;
      for (int64_t h = 0; h < heads; ++h) {
        const int64_t head = (page * heads + h) * padded * PAGE;
        const T* row = from_k + r * k.stride(0) + h * k.stride(1);
        for (int64_t d = 0; d < dim; ++d) to_k[head + d / 2 * 2 * PAGE + paired(row, d % 2, offset)] = row[d];
        std::memcpy(to_v + head + offset * padded, from_v + r * v.stride(0) + h * v.stride(1), dim * sizeof(T));
      }
    }
  });
}

at::Tensor reorder(const at::Tensor& weight) {
  static auto op = c10::Dispatcher::singleton()
                       .findSchemaOrThrow("mkldnn::_reorder_linear_weight", "")
                       .typed<at::Tensor(const at::Tensor&, std::optional<int64_t>)>();
  return op.call(weight, std::nullopt);
}

at::Tensor product(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
  static auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("mkldnn::_linear_pointwise", "")
          .typed<at::Tensor(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, std::string_view,
                            c10::List<std::optional<at::Scalar>>, std::optional<std::string_view>)>();
  return op.call(x, weight, bias, "none", c10::List<std::optional<at::Scalar>>(), "");
}

}  // namespace

extern "C" {

// Copies a linear layer's weight to oneDNN's own layout.
int nestor_reorder_linear(const at::Tensor* weight, at::Tensor** out, char* message, size_t message_size) {
  return guarded(message, message_size, [&] { *out = new at::Tensor(reorder(*weight)); });
}

// x (T, in) times such a weight, plus a bias that may be null.
int nestor_reordered_linear(const at::Tensor* x, const at::Tensor* weight, const at::Tensor* bias, at::Tensor** out,
                         char* message, size_t message_size) {
  return guarded(message, message_size, [&] {
    auto b = bias ? std::optional<at::Tensor>(*bias) : std::nullopt;
    *out = new at::Tensor(product(x->contiguous(), *weight, b));
  });
}

// Writes k and v (T, K, D) to places (page * PAGE + offset) of keys (P, K, D'/2, pairs of PAGE) and values (P, K, PAGE, D').
int nestor_cache_write(const at::Tensor* keys, const at::Tensor* values, const int64_t* places, const at::Tensor* k,
                       const at::Tensor* v, char* message, size_t message_size) {
  return guarded(message, message_size, [&] {
    TORCH_CHECK(k->stride(2) == 1 && v->stride(2) == 1, "the last axis of keys and values must be dense");
    with_type(*keys, [&](auto* type) {
      write_rows<std::remove_pointer_t<decltype(type)>>(*keys, *values, places, *k, *v);
    });
  });
}

// Causal attention of q (T, H, D) over the cache: a row of a segment sees its sequence up to its own position.
int nestor_paged_attention(const at::Tensor* q, const at::Tensor* keys, const at::Tensor* values,
                           const Segment* segments, size_t segment_count, const int64_t* pages, at::Tensor** out,
                           char* message, size_t message_size) {
  return guarded(message, message_size, [&] {
    const at::Tensor queries = q->contiguous();
    Attention a{segments, pages, queries.size(1), values->size(1), queries.size(2), values->size(3), 0};
    a.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(a.dim)));
    at::Tensor result = at::empty_like(queries);
    std::vector<Task> tasks;
    for (size_t s = 0; s < segment_count; ++s) {
      const int64_t lanes = segments[s].rows * (a.heads / a.kv_heads);
      for (int64_t head = 0; head < a.kv_heads; ++head)
        for (int64_t lane = 0; lane < lanes; lane += MOST_LANES)
          tasks.push_back({static_cast<int32_t>(s), static_cast<int32_t>(head), static_cast<int32_t>(lane),
                           static_cast<int32_t>(std::min<int64_t>(MOST_LANES, lanes - lane))});
    }
    with_type(queries, [&](auto* type) {
      using T = std::remove_pointer_t<decltype(type)>;
      const int64_t threads = at::get_num_threads();
      // Later rows see more: assigning tasks in turn balances the threads.
      at::parallel_for(0, threads, 1, [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t)
          attend_all(a, tasks, t, threads, data<T>(queries), data<T>(*keys),
                     data<T>(*values), data<T>(result));
      });
    });
    *out = new at::Tensor(result);
  });
}
}
