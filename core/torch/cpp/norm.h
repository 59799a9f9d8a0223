// RMS norm by own kernels (cuda/rms_norm.cu), without gradients of its own.

#pragma once

#include <ATen/core/Tensor.h>

// Results of a forward pass: of (T, N * D) or (T, N, D), the sum with a residual where there is one, the norm, and
// 1 / rms of each row where `keep_scales` asks for it, float32 (T * N).
struct Normed {
  at::Tensor sum, out, scales;
};

// x / rms(x) * weight, or with y the norm of x + y. The kernel must take these tensors.
Normed launch_rms_norm(const at::Tensor& x, const at::Tensor& y, const at::Tensor& weight, double eps, bool keep_scales);

// Gradients of x and of the weight, by that of the norm, and that of the sum where it is defined. The weight's is in parts,
// float32 (P, D) or (P, N, D), and undefined unless it is wanted.
struct NormGradients {
  at::Tensor x, weight_parts;
};
NormGradients launch_rms_norm_grad(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& scales,
                                   const at::Tensor& grad, const at::Tensor& grad_sum, bool weight_too);
