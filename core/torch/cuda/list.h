// The names of all kernels. KERNELS(X) calls X with each one.

#pragma once

#define EACH_TYPE(X, name) X(name##_f32) X(name##_f16) X(name##_bf16)

#define RMS_NORM_KERNELS(X) EACH_TYPE(X, rms_norm) EACH_TYPE(X, add_norm) EACH_TYPE(X, rms_norm_grad)

#define UPDATE_KERNELS(X)                                                                                     \
  EACH_TYPE(X, rotate) EACH_TYPE(X, rotate_gather) EACH_TYPE(X, rotate_grad)                                  \
  EACH_TYPE(X, silu_mul) EACH_TYPE(X, silu_mul_grad) EACH_TYPE(X, head_statistics)                            \
  EACH_TYPE(X, head_gradient) EACH_TYPE(X, adamw) X(column_sums_f32)

#define DECODE_KERNELS(X)                                                             \
  EACH_TYPE(X, paged_attention_64) EACH_TYPE(X, paged_attention_128)                  \
  EACH_TYPE(X, paged_attention_combine) EACH_TYPE(X, rotate_into_cache)               \
  EACH_TYPE(X, sample_chunks) EACH_TYPE(X, sample_token) EACH_TYPE(X, sample_truncated)

#define KERNELS(X)    \
  RMS_NORM_KERNELS(X) \
  UPDATE_KERNELS(X)   \
  DECODE_KERNELS(X)
