// All kernels as one program, for NVRTC and for the emulator.

#include "device.cuh"
#include "list.h"

#include "adamw.cu"
#include "column_sums.cu"
#include "head_gradient.cu"
#include "head_statistics.cu"
#include "paged_attention.cu"
#include "rms_norm.cu"
#include "rotate.cu"
#include "rotate_gather.cu"
#include "rotate_grad.cu"
#include "rotate_into_cache.cu"
#include "sample.cu"
#include "sample_truncated.cu"
#include "silu_mul.cu"
