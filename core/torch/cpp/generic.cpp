// The network's operations by libtorch's own, for tensors on any device: what a GPU runs, and a CPU where the fused
// operations do not take the type. Operations that only CUDA has are in cuda_ops.cpp; on a CPU a public one takes their
// place, so that all other code of this path is the same on both.

#include <ATen/core/grad_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "cuda_ops.h"
#include "decode_kernels.h"
#include "guarded.h"
#include "recorded.h"

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

// ---- attention

// The result of the kernel in cuda_ops.cpp, sequence by sequence and without gradients of its own.
at::Tensor attention_on_cpu(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Sequences& queries,
                            const Sequences& keys, double scale) {
  std::vector<at::Tensor> outs;
  const int32_t *from = queries.starts.const_data_ptr<int32_t>(), *at = keys.starts.const_data_ptr<int32_t>();
  const int32_t* used = keys.used.defined() ? keys.used.const_data_ptr<int32_t>() : nullptr;
  const int64_t n = queries.starts.numel() - 1;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t rows = from[i + 1] - from[i], seen = used ? used[i] : at[i + 1] - at[i];
    const auto heads = [&](const at::Tensor& x, int64_t start, int64_t length) {
      return x.narrow(0, start, length).transpose(0, 1).unsqueeze(0);
    };
    std::optional<at::Tensor> mask;
    if (rows > 1 && rows != seen) mask = at::ones({rows, seen}, q.options().dtype(at::kBool)).tril(seen - rows);
    const auto out = at::scaled_dot_product_attention(heads(q, from[i], rows), heads(k, at[i], seen), heads(v, at[i], seen),
                                                      mask, 0.0, /*is_causal=*/rows > 1 && !mask, scale,
                                                      /*enable_gqa=*/true);
    outs.push_back(out.squeeze(0).transpose(0, 1));
  }
  // Rows behind the last sequence are undefined.
  if (from[n] < q.size(0)) outs.push_back(at::zeros({q.size(0) - from[n], q.size(1), q.size(2)}, q.options()));
  return at::cat(outs, 0);
}

// The same as one operation, forward and backward, as it is on CUDA: a recorder of operations (record.cpp) sees no part of it.
struct AttentionOnCpu : torch::autograd::Function<AttentionOnCpu> {
  static Variable forward(AutogradContext* ctx, const Variable& q, const Variable& k, const Variable& v,
                          Sequences queries, Sequences keys, double scale) {
    ctx->save_for_backward({q, k, v, queries.starts, keys.starts});
    ctx->saved_data["scale"] = scale;
    return recorded("nestor::varlen_attention", {q, k, v}, [&] {
      return variable_list{attention_on_cpu(q, k, v, queries, keys, scale)};
    })[0];
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    // CUDA's reads the output again too, which has the size of its gradient.
    const variable_list reads{saved[0], saved[1], saved[2], grads[0], grads[0]};
    auto gradients = recorded("nestor::varlen_attention_backward", reads, [&] {
      at::AutoGradMode again(true);
      variable_list inputs;
      for (int i = 0; i < 3; ++i) inputs.push_back(saved[i].detach().requires_grad_(true));
      const auto out = attention_on_cpu(inputs[0], inputs[1], inputs[2], {saved[3], {}, 0}, {saved[4], {}, 0},
                                        ctx->saved_data["scale"].toDouble());
      return torch::autograd::grad({out}, inputs, {grads[0]});
    });
    gradients.resize(6);
    return gradients;
  }
};

// One query row of each sequence, whose pages are gathered. Every shape depends on the page table's alone, so that a graph
// can record it.
at::Tensor decode_attention(const at::Tensor& q, const at::Tensor& cache, const at::Tensor& page_table,
                            const at::Tensor& lengths) {
  if (attends_pages(cache)) return attend_pages(q, cache, page_table, lengths);
  const int64_t rows = q.size(0), page = cache.size(2), heads = cache.size(3), dim = cache.size(4);
  const int64_t places = page_table.size(1) * page;
  const auto seen = cache.index_select(1, page_table.reshape({-1})).view({2, rows, places, heads, dim});
  const auto part = [&](int64_t half) { return seen.select(0, half).transpose(1, 2); };
  const auto in_use = at::arange(places, lengths.options()).unsqueeze(0).lt(lengths.unsqueeze(1));
  // The queries that share keys are rows of one head, so that no keys are repeated.
  const int64_t sharing = q.size(1) / heads;
  const auto mask = in_use.view({rows, 1, 1, places}).expand({rows, heads, sharing, places});
  const auto out = at::scaled_dot_product_attention(q.reshape({rows, heads, sharing, dim}), part(0), part(1), mask);
  return out.reshape(q.sizes()).masked_fill(lengths.eq(0).view({rows, 1, 1}), 0);
}

// Entries of the head that are converted at once where no product has a float32 result.
constexpr int64_t PIECE = int64_t{1} << 22;

at::Tensor logits_on_cpu(const at::Tensor& x, const at::Tensor& weight) {
  auto out = at::empty({x.size(0), weight.size(0)}, x.options().dtype(at::kFloat));
  const auto single = x.to(at::kFloat);
  const int64_t step = std::max<int64_t>(1, PIECE / weight.size(1));
  for (int64_t from = 0; from < weight.size(0); from += step) {
    const int64_t rows = std::min(step, weight.size(0) - from);
    out.narrow(1, from, rows).copy_(at::mm(single, weight.narrow(0, from, rows).to(at::kFloat).t()));
  }
  return out;
}

// x (T, E) times weight (V, E) transposed, in float32.
at::Tensor logits(const at::Tensor& x, const at::Tensor& weight) {
  if (x.scalar_type() == at::kFloat) return at::linear(x, weight);
  if (x.is_cuda()) return cuda_logits(x, weight);
  return recorded("nestor::logits", {x, weight}, [&] { return variable_list{logits_on_cpu(x, weight)}; })[0];
}

}  // namespace

extern "C" {

// Causal attention of packed queries to packed keys and values, aligned at the sequences' ends: (T, H, D). `key_used` may be
// null; without gradients where it is not.
int nestor_varlen_attention(const at::Tensor* q, const at::Tensor* k, const at::Tensor* v, const at::Tensor* query_starts,
                            int64_t longest_query, const at::Tensor* key_starts, const at::Tensor* key_used,
                            int64_t longest_key, at::Tensor** out, char* message, size_t message_size) {
  return guarded(message, message_size, [&] {
    const Sequences queries{*query_starts, {}, longest_query};
    const Sequences keys{*key_starts, key_used ? *key_used : at::Tensor(), longest_key};
    const double scale = 1.0 / std::sqrt(static_cast<double>(q->size(2)));
    *out = new at::Tensor(q->is_cuda() ? cuda_attention(*q, *k, *v, queries, keys, scale)
                                       : AttentionOnCpu::apply(*q, *k, *v, queries, keys, scale));
  });
}

// A copy of a host tensor on the GPU of this number.
int nestor_cuda_upload(const at::Tensor* host, int64_t index, at::Tensor** copy, char* message, size_t message_size) {
  return guarded(message, message_size, [&] { *copy = new at::Tensor(cuda_upload(*host, index)); });
}

// sum (n, m) float32 = a (T, n) transposed * b (T, m), added to what it holds unless `first`.
int nestor_generic_add_product(const at::Tensor* sum, const at::Tensor* a, const at::Tensor* b, bool first, char* message,
                               size_t message_size) {
  return guarded(message, message_size, [&] {
    const double beta = first ? 0.0 : 1.0;
    if (a->is_cuda() && a->scalar_type() != at::kFloat) {
      cuda_add_product(*sum, *a, *b, beta);
    } else {
      recorded("nestor::add_product", first ? variable_list{*a, *b} : variable_list{*sum, *a, *b}, [&] {
        auto out = *sum;
        at::addmm_out(out, out, a->t().to(at::kFloat), b->to(at::kFloat), beta);
        return variable_list{out};
      });
    }
  });
}

// Attention of one query row of each sequence, q (B, H, D), to the keys and values that its row of `page_table` (B, N) names
// in `cache` (2, P, page, K, D), of which it sees the first `lengths` (B): (B, H, D). A length of 0 gives zeros.
int nestor_decode_attention(const at::Tensor* q, const at::Tensor* cache, const at::Tensor* page_table,
                            const at::Tensor* lengths, at::Tensor** out, char* message, size_t message_size) {
  return guarded(message, message_size,
                 [&] { *out = new at::Tensor(decode_attention(*q, *cache, *page_table, *lengths)); });
}

// The head's product in float32, from x (T, E) and weight (V, E) of one type: (T, V).
int nestor_logits(const at::Tensor* x, const at::Tensor* weight, at::Tensor** out, char* message, size_t message_size) {
  return guarded(message, message_size, [&] { *out = new at::Tensor(logits(*x, *weight)); });
}
}
