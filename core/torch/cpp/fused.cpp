// The network's small operations on a CPU, fused: one pass over memory each, with a hand-written gradient. Tensors are
// float32 or bfloat16; sums are float32. Results are rounded to the tensors' type where the composite operations of
// `model/qwen2.rs` round them, so the two differ by float32 rounding alone.

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>
#include <vector>

#include "guarded.h"
#include "vectors.h"

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

// Fewest elements for another thread.
constexpr int64_t GRAIN = 8192;

// ---- x / rms(x) * weight

template <typename T>
INLINE float rms_norm_row(const T* x, const T* weight, T* y, int64_t n, float eps) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += get(x[i]) * get(x[i]);
  const float scale = 1.0f / std::sqrt(sum / static_cast<float>(n) + eps);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) put(y[i], get(weight[i]) * as<T>(get(x[i]) * scale));
  return scale;
}

// Adds to `grad_weight`.
template <typename T>
INLINE void rms_norm_row_grad(const T* x, const T* weight, const T* grad, float scale, T* grad_x, float* grad_weight,
                              int64_t n) {
  float along = 0;
#pragma omp simd reduction(+ : along)
  for (int64_t i = 0; i < n; ++i) along += get(grad[i]) * get(weight[i]) * get(x[i]);
  const float back = along * scale * scale / static_cast<float>(n);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    put(grad_x[i], scale * (get(grad[i]) * get(weight[i]) - get(x[i]) * back));
    grad_weight[i] += get(grad[i]) * as<T>(get(x[i]) * scale);
  }
}

VECTORS float rms_norm_f32(const float* x, const float* weight, float* y, int64_t n, float eps) {
  return rms_norm_row(x, weight, y, n, eps);
}
VECTORS float rms_norm_bf16(const Bf16* x, const Bf16* weight, Bf16* y, int64_t n, float eps) {
  return rms_norm_row(x, weight, y, n, eps);
}
VECTORS void rms_norm_grad_f32(const float* x, const float* weight, const float* grad, float scale, float* grad_x,
                               float* grad_weight, int64_t n) {
  rms_norm_row_grad(x, weight, grad, scale, grad_x, grad_weight, n);
}
VECTORS void rms_norm_grad_bf16(const Bf16* x, const Bf16* weight, const Bf16* grad, float scale, Bf16* grad_x,
                                float* grad_weight, int64_t n) {
  rms_norm_row_grad(x, weight, grad, scale, grad_x, grad_weight, n);
}

// ---- rotary embedding of one head: pairs (i, i + half)

template <typename T>
INLINE void rotate_head(const T* x, const T* cos, const T* sin, T* y, int64_t half) {
#pragma omp simd
  for (int64_t i = 0; i < half; ++i) {
    const float a = get(x[i]), b = get(x[i + half]);
    put(y[i], as<T>(a * get(cos[i])) + as<T>(-b * get(sin[i])));
    put(y[i + half], as<T>(b * get(cos[i + half])) + as<T>(a * get(sin[i + half])));
  }
}

template <typename T>
INLINE void rotate_head_grad(const T* grad, const T* cos, const T* sin, T* grad_x, int64_t half) {
#pragma omp simd
  for (int64_t i = 0; i < half; ++i) {
    const float a = get(grad[i]), b = get(grad[i + half]);
    put(grad_x[i], a * get(cos[i]) + b * get(sin[i + half]));
    put(grad_x[i + half], b * get(cos[i + half]) - a * get(sin[i]));
  }
}

VECTORS void rotate_f32(const float* x, const float* cos, const float* sin, float* y, int64_t half) {
  rotate_head(x, cos, sin, y, half);
}
VECTORS void rotate_bf16(const Bf16* x, const Bf16* cos, const Bf16* sin, Bf16* y, int64_t half) {
  rotate_head(x, cos, sin, y, half);
}
VECTORS void rotate_grad_f32(const float* grad, const float* cos, const float* sin, float* grad_x, int64_t half) {
  rotate_head_grad(grad, cos, sin, grad_x, half);
}
VECTORS void rotate_grad_bf16(const Bf16* grad, const Bf16* cos, const Bf16* sin, Bf16* grad_x, int64_t half) {
  rotate_head_grad(grad, cos, sin, grad_x, half);
}

// ---- silu(gate) * up

template <typename T>
INLINE void silu_mul_row(const T* gate, const T* up, T* y, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float x = get(gate[i]);
    put(y[i], as<T>(x / (1.0f + exponential(-x))) * get(up[i]));
  }
}

template <typename T>
INLINE void silu_mul_row_grad(const T* gate, const T* up, const T* grad, T* grad_gate, T* grad_up, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float x = get(gate[i]), g = get(grad[i]);
    const float sigmoid = 1.0f / (1.0f + exponential(-x));
    put(grad_up[i], g * as<T>(x * sigmoid));
    put(grad_gate[i], g * get(up[i]) * sigmoid * (1.0f + x * (1.0f - sigmoid)));
  }
}

VECTORS void silu_mul_f32(const float* gate, const float* up, float* y, int64_t n) {
  silu_mul_row(gate, up, y, n);
}
VECTORS void silu_mul_bf16(const Bf16* gate, const Bf16* up, Bf16* y, int64_t n) {
  silu_mul_row(gate, up, y, n);
}
VECTORS void silu_mul_grad_f32(const float* gate, const float* up, const float* grad, float* grad_gate, float* grad_up,
                               int64_t n) {
  silu_mul_row_grad(gate, up, grad, grad_gate, grad_up, n);
}
VECTORS void silu_mul_grad_bf16(const Bf16* gate, const Bf16* up, const Bf16* grad, Bf16* grad_gate, Bf16* grad_up,
                                int64_t n) {
  silu_mul_row_grad(gate, up, grad, grad_gate, grad_up, n);
}

// ---- tensors

// (T, N, D) with heads of D adjacent elements, or (T, D) as (T, 1, D).
struct Heads {
  int64_t tokens, heads, dim, token_stride, head_stride;

  explicit Heads(const at::Tensor& x)
      : tokens(x.size(0)),
        heads(x.dim() == 3 ? x.size(1) : 1),
        dim(x.size(-1)),
        token_stride(x.stride(0)),
        head_stride(x.dim() == 3 ? x.stride(1) : 0) {
    TORCH_CHECK(x.stride(-1) == 1, "fused operations want rows of adjacent elements");
  }

  int64_t at(int64_t token, int64_t head) const {
    return token * token_stride + head * head_stride;
  }

  int64_t grain() const {
    return std::max<int64_t>(1, GRAIN / (heads * dim));
  }
};

at::Tensor rows(const at::Tensor& x) {
  return x.stride(-1) == 1 ? x : x.contiguous();
}

at::Tensor rms_norm_forward(const at::Tensor& x, const at::Tensor& weight, double eps, float* scales) {
  auto y = at::empty(x.sizes(), x.options());
  const Heads in(x);
  with_type(x, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const T *from = data<T>(x), *by = data<T>(weight);
    T* to = data<T>(y);
    at::parallel_for(0, in.tokens, in.grain(), [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        for (int64_t h = 0; h < in.heads; ++h) {
          const int64_t row = t * in.heads + h;
          float scale;
          if constexpr (std::is_same_v<T, float>) {
            scale = rms_norm_f32(from + in.at(t, h), by + h * in.dim, to + row * in.dim, in.dim, eps);
          } else {
            scale = rms_norm_bf16(from + in.at(t, h), by + h * in.dim, to + row * in.dim, in.dim, eps);
          }
          if (scales) scales[row] = scale;
        }
      }
    });
  });
  return y;
}

struct RmsNorm : torch::autograd::Function<RmsNorm> {
  static Variable forward(AutogradContext* ctx, const Variable& x, const Variable& weight, double eps) {
    auto scales = at::empty({x.numel() / x.size(-1)}, x.options().dtype(at::kFloat));
    auto y = rms_norm_forward(x, weight, eps, data<float>(scales));
    ctx->save_for_backward({x, weight, scales});
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const auto &x = saved[0], &weight = saved[1], &scales = saved[2];
    const auto grad = grads[0].contiguous();
    auto grad_x = at::empty(x.sizes(), x.options());
    const Heads in(x);
    const int64_t width = in.heads * in.dim;
    auto sums = at::zeros({at::get_num_threads(), width}, scales.options());
    with_type(x, [&](auto* type) {
      using T = std::remove_pointer_t<decltype(type)>;
      const T *from = data<T>(x), *by = data<T>(weight), *g = data<T>(grad);
      T* to = data<T>(grad_x);
      at::parallel_for(0, in.tokens, in.grain(), [&](int64_t begin, int64_t end) {
        float* sum = data<float>(sums) + at::get_thread_num() * width;
        for (int64_t t = begin; t < end; ++t) {
          for (int64_t h = 0; h < in.heads; ++h) {
            const int64_t row = t * in.heads + h;
            const float scale = data<float>(scales)[row];
            const T *xs = from + in.at(t, h), *ws = by + h * in.dim, *gs = g + row * in.dim;
            T* out = to + row * in.dim;
            if constexpr (std::is_same_v<T, float>) {
              rms_norm_grad_f32(xs, ws, gs, scale, out, sum + h * in.dim, in.dim);
            } else {
              rms_norm_grad_bf16(xs, ws, gs, scale, out, sum + h * in.dim, in.dim);
            }
          }
        }
      });
    });
    return {grad_x, sums.sum(0).view(weight.sizes()).to(weight.scalar_type()), Variable()};
  }
};

// Rotates queries and keys, and copies values: the heads of x (T, H + K, D) or (T, H + 2K, D) in turn.
variable_list rotate_forward(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, int64_t heads,
                             int64_t kv_heads) {
  const Heads in(x);
  variable_list parts;
  for (int64_t left = in.heads, n = heads; left > 0; left -= n, n = kv_heads) {
    TORCH_CHECK(n <= left, "heads do not add up");
    parts.push_back(at::empty({in.tokens, n, in.dim}, x.options()));
  }
  with_type(x, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const T *from = data<T>(x), *c = data<T>(cos), *s = data<T>(sin);
    at::parallel_for(0, in.tokens, in.grain(), [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        int64_t first = 0;
        for (size_t part = 0; part < parts.size(); ++part) {
          const int64_t n = parts[part].size(1);
          T* to = data<T>(parts[part]) + t * n * in.dim;
          for (int64_t h = 0; h < n; ++h, to += in.dim) {
            const T* head = from + in.at(t, first + h);
            if (part == 2) {
              std::memcpy(to, head, in.dim * sizeof(T));
            } else if constexpr (std::is_same_v<T, float>) {
              rotate_f32(head, c + t * in.dim, s + t * in.dim, to, in.dim / 2);
            } else {
              rotate_bf16(head, c + t * in.dim, s + t * in.dim, to, in.dim / 2);
            }
          }
          first += n;
        }
      }
    });
  });
  return parts;
}

struct Rotate : torch::autograd::Function<Rotate> {
  static variable_list forward(AutogradContext* ctx, const Variable& x, const Variable& cos, const Variable& sin,
                               int64_t heads, int64_t kv_heads) {
    ctx->save_for_backward({cos, sin});
    return rotate_forward(x, cos, sin, heads, kv_heads);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const auto &cos = saved[0], &sin = saved[1];
    int64_t heads = 0;
    for (auto& grad : grads) {
      grad = grad.contiguous();
      heads += grad.size(1);
    }
    auto grad_x = at::empty({grads[0].size(0), heads, grads[0].size(2)}, grads[0].options());
    const Heads out(grad_x);
    with_type(grad_x, [&](auto* type) {
      using T = std::remove_pointer_t<decltype(type)>;
      const T *c = data<T>(cos), *s = data<T>(sin);
      at::parallel_for(0, out.tokens, out.grain(), [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) {
          T* to = data<T>(grad_x) + t * heads * out.dim;
          for (size_t part = 0; part < grads.size(); ++part) {
            const int64_t n = grads[part].size(1);
            const T* from = data<T>(grads[part]) + t * n * out.dim;
            for (int64_t h = 0; h < n; ++h, to += out.dim, from += out.dim) {
              if (part == 2) {
                std::memcpy(to, from, out.dim * sizeof(T));
              } else if constexpr (std::is_same_v<T, float>) {
                rotate_grad_f32(from, c + t * out.dim, s + t * out.dim, to, out.dim / 2);
              } else {
                rotate_grad_bf16(from, c + t * out.dim, s + t * out.dim, to, out.dim / 2);
              }
            }
          }
        }
      });
    });
    return {grad_x, Variable(), Variable(), Variable(), Variable()};
  }
};

at::Tensor silu_mul_forward(const at::Tensor& x) {
  const int64_t width = x.size(1) / 2, stride = x.stride(0);
  TORCH_CHECK(x.stride(1) == 1, "fused operations want rows of adjacent elements");
  auto y = at::empty({x.size(0), width}, x.options());
  with_type(x, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    at::parallel_for(0, x.size(0), std::max<int64_t>(1, GRAIN / width), [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        const T* gate = data<T>(x) + t * stride;
        T* to = data<T>(y) + t * width;
        if constexpr (std::is_same_v<T, float>) {
          silu_mul_f32(gate, gate + width, to, width);
        } else {
          silu_mul_bf16(gate, gate + width, to, width);
        }
      }
    });
  });
  return y;
}

struct SiluMul : torch::autograd::Function<SiluMul> {
  static Variable forward(AutogradContext* ctx, const Variable& x) {
    ctx->save_for_backward({x});
    return silu_mul_forward(x);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto x = ctx->get_saved_variables()[0];
    const auto grad = grads[0].contiguous();
    const int64_t width = grad.size(1), stride = x.stride(0);
    auto grad_x = at::empty(x.sizes(), x.options());
    with_type(x, [&](auto* type) {
      using T = std::remove_pointer_t<decltype(type)>;
      at::parallel_for(0, x.size(0), std::max<int64_t>(1, GRAIN / width), [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) {
          const T *gate = data<T>(x) + t * stride, *g = data<T>(grad) + t * width;
          T* to = data<T>(grad_x) + t * 2 * width;
          if constexpr (std::is_same_v<T, float>) {
            silu_mul_grad_f32(gate, gate + width, g, to, to + width, width);
          } else {
            silu_mul_grad_bf16(gate, gate + width, g, to, to + width, width);
          }
        }
      });
    });
    return {grad_x};
  }
};

bool needs_grad(const at::Tensor& a) {
  return at::GradMode::is_enabled() && a.requires_grad();
}

}  // namespace

extern "C" {

// x (T, D) with weight (D), or x (T, N, D) with weight (N, D).
int nestor_rms_norm(const at::Tensor* x, const at::Tensor* weight, double eps, at::Tensor** y, char* message,
                    size_t message_size) {
  return guarded(message, message_size, [&] {
    const auto in = rows(*x), by = weight->contiguous();
    const bool grad = needs_grad(in) || needs_grad(by);
    *y = new at::Tensor(grad ? RmsNorm::apply(in, by, eps) : rms_norm_forward(in, by, eps, nullptr));
  });
}

// Writes q, k and, if x has them, v to `parts`; cos and sin are (T, 1, D).
int nestor_rotate(const at::Tensor* x, const at::Tensor* cos, const at::Tensor* sin, int64_t heads, int64_t kv_heads,
                  at::Tensor** parts, char* message, size_t message_size) {
  return guarded(message, message_size, [&] {
    const auto in = rows(*x);
    const auto out = needs_grad(in) ? Rotate::apply(in, *cos, *sin, heads, kv_heads)
                                    : rotate_forward(in, *cos, *sin, heads, kv_heads);
    for (const auto& part : out) *parts++ = new at::Tensor(part);
  });
}

// x (T, 2F), gate before up.
int nestor_silu_mul(const at::Tensor* x, at::Tensor** y, char* message, size_t message_size) {
  return guarded(message, message_size, [&] {
    const auto in = rows(*x);
    *y = new at::Tensor(needs_grad(in) ? SiluMul::apply(in) : silu_mul_forward(in));
  });
}
}
