// A kernel that reverses the 64 numbers of a block by way of shared memory, and the same with one fault each.

#include "device.cuh"

#define KERNELS(X)                                                                                              \
  X(reverse) X(reverse_in_warp) X(no_barrier) X(no_barrier_before_next) X(no_warp_barrier) X(half_barrier) X(half_shuffle) \
  X(unwritten) X(shared_read_beyond) X(shared_write_beyond) X(read_beyond) X(write_beyond)

constexpr int N = 64;

enum class Fault {
  None, NoBarrier, NoBarrierBeforeNext, HalfBarrier, HalfShuffle, Unwritten, SharedRead, SharedWrite, Read, Write
};

template <Fault fault>
void reverse_block(const float* x, float* y) {
  SHARED(float, numbers, N);
  const int i = threadIdx.x;
  for (int round = 0; round < 2; ++round) {
    if (fault != Fault::Unwritten || i != 5) {
      numbers[fault == Fault::SharedWrite && i == 9 ? N : i] = x[fault == Fault::Read ? i + 1 : i];
    }
    if (fault == Fault::HalfShuffle && i % 2 == 0) __shfl_sync(ALL_LANES, i, 0);
    if (fault == Fault::HalfBarrier && i >= WARP) return;
    if (fault != Fault::NoBarrier) __syncthreads();
    const float mirrored = numbers[fault == Fault::SharedRead ? N - i : N - 1 - i];
    y[fault == Fault::Write ? i + 1 : i] = mirrored;
    if (fault != Fault::NoBarrierBeforeNext) __syncthreads();
  }
}

template <bool sound>
void reverse_warp(const float* x, float* y) {
  SHARED(float, numbers, N);
  const int i = threadIdx.x;
  numbers[i] = x[i];
  if (sound) __syncwarp();
  y[i] = numbers[i / WARP * WARP + WARP - 1 - i % WARP];
}

#define FAULTY(name, fault)                                         \
  extern "C" __global__ void name(const float* x, float* y) {       \
    reverse_block<Fault::fault>(x, y);                              \
  }
FAULTY(reverse, None)
FAULTY(no_barrier, NoBarrier)
FAULTY(no_barrier_before_next, NoBarrierBeforeNext)
FAULTY(half_barrier, HalfBarrier)
FAULTY(half_shuffle, HalfShuffle)
FAULTY(unwritten, Unwritten)
FAULTY(shared_read_beyond, SharedRead)
FAULTY(shared_write_beyond, SharedWrite)
FAULTY(read_beyond, Read)
FAULTY(write_beyond, Write)
#undef FAULTY

extern "C" __global__ void reverse_in_warp(const float* x, float* y) {
  reverse_warp<true>(x, y);
}
extern "C" __global__ void no_warp_barrier(const float* x, float* y) {
  reverse_warp<false>(x, y);
}
