// Settings of libtorch for GPUs, and the memory that its allocator of a GPU counts.

#include <ATen/Context.h>
#include <c10/core/AllocatorConfig.h>
#include <c10/core/CachingDeviceAllocator.h>

#include "guarded.h"

namespace {

c10::DeviceAllocator* allocator() {
  return c10::getDeviceAllocator(c10::DeviceType::CUDA);
}

c10::CachingDeviceAllocator::DeviceStats stats(int64_t index) {
  return allocator()->getDeviceStats(static_cast<c10::DeviceIndex>(index));
}

// Index of the sums over the pools of small and large blocks.
constexpr auto ALL_POOLS = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);

}  // namespace

extern "C" {

struct nestor_cuda_settings {
  bool cudnn_attention;      // scaled_dot_product_attention may choose cuDNN
  bool reduced_bfloat16;     // products may add partial sums in bfloat16
  bool reduced_float16;      // products may add partial sums in float16
  bool expandable_segments;  // the allocator grows its segments in place
};

// The settings in force. They need no GPU.
int nestor_cuda_settings_now(nestor_cuda_settings* settings, char* message, size_t message_size) {
  return guarded(message, message_size, [&] {
    const auto reduced = at::CuBLASReductionOption::AllowReducedPrecisionWithSplitK;
    const auto& context = at::globalContext();
    settings->cudnn_attention = context.userEnabledCuDNNSDP();
    settings->reduced_bfloat16 = context.allowBF16ReductionCuBLAS() == reduced;
    settings->reduced_float16 = context.allowFP16ReductionCuBLAS() == reduced;
    settings->expandable_segments = c10::CachingAllocator::AcceleratorAllocatorConfig::use_expandable_segments();
  });
}

// Sets libtorch up for GPUs. Expandable segments have an effect only before the first allocation on a GPU.
int nestor_cuda_prepare(bool expandable_segments, char* message, size_t message_size) {
  return guarded(message, message_size, [&] {
    auto& context = at::globalContext();
    // On sm_90 libtorch prefers cuDNN, which builds a plan of 0.05 to 0.5 s for every new shape. Shapes of ragged
    // sequences and of a growing cache are nearly all new.
    context.setSDPUseCuDNN(false);
    // A product that is split along its inner dimension adds the parts in float32, as an unsplit one does.
    context.setAllowBF16ReductionCuBLAS(false);
    context.setAllowFP16ReductionCuBLAS(false);
    if (expandable_segments) c10::CachingAllocator::setAllocatorSettings("expandable_segments:True");
  });
}

// Memory of a GPU that is free, or that libtorch's allocator caches without using it.
int nestor_cuda_free(int64_t index, uint64_t* free, char* message, size_t message_size) {
  return guarded(message, message_size, [&] {
    const auto counts = stats(index);
    const auto reserve = counts.reserved_bytes[ALL_POOLS].current - counts.allocated_bytes[ALL_POOLS].current;
    *free = allocator()->getMemoryInfo(static_cast<c10::DeviceIndex>(index)).first + reserve;
  });
}

struct nestor_device_memory {
  int64_t peak_allocated, peak_reserved, allocated, reserved;
  int64_t outside;
  int64_t retries, ooms;
};

// The counts of libtorch's allocator for a GPU.
int nestor_cuda_memory(int64_t index, nestor_device_memory* memory, char* message, size_t message_size) {
  return guarded(message, message_size, [&] {
    const auto counts = stats(index);
    const auto& allocated = counts.allocated_bytes[ALL_POOLS];
    const auto& reserved = counts.reserved_bytes[ALL_POOLS];
    const auto [free, total] = allocator()->getMemoryInfo(static_cast<c10::DeviceIndex>(index));
    const auto outside = static_cast<int64_t>(total - free) - reserved.current;
    *memory = {allocated.peak,   reserved.peak, allocated.current,        reserved.current,
               outside,          counts.num_alloc_retries, counts.num_ooms};
  });
}

// Starts new peaks at the present figures, and new counts at 0.
int nestor_cuda_reset_peak(int64_t index, char* message, size_t message_size) {
  return guarded(message, message_size, [&] {
    allocator()->resetPeakStats(static_cast<c10::DeviceIndex>(index));
    allocator()->resetAccumulatedStats(static_cast<c10::DeviceIndex>(index));
  });
}
}
