// Graphs of a GPU, and copies that the host does not wait for. On a CPU graph.rs calls a closure in a graph's place, and
// copies are complete at once.

#include "graph.h"

#include <ATen/cuda/CUDAGraph.h>
#include <ATen/ops/empty.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <memory>
#include <optional>

#include "guarded.h"

namespace {

c10::Stream current_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

// Work is recorded on a stream of its own. All recordings share it, because libtorch keeps cuBLAS workspaces per stream.
c10::Stream side_stream(c10::Device device) {
  static const c10::Stream side = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
  TORCH_CHECK(side.device() == device, "a process records graphs of one device");
  return side;
}

}  // namespace

void cuda_copy_into(const at::Tensor& host, const at::Tensor& to) {
  // The allocator of pinned memory reuses a block only once the copies from it are done.
  to.copy_(at::empty(host.sizes(), host.options().pinned_memory(true)).copy_(host), /*non_blocking=*/true);
}

at::Tensor cuda_read_back(const at::Tensor& from) {
  auto host = at::empty(from.sizes(), from.options().device(at::kCPU).pinned_memory(true));
  return host.copy_(from, /*non_blocking=*/true);
}

// Memory that recordings share: their temporaries overlap, because no two run at once.
struct nestor_graph_pool {
  c10::Device device;
  c10::MempoolId_t id;
};

// Work that is being recorded, from its creation on: the thread's operations are recorded instead of run.
struct nestor_capture {
  std::unique_ptr<at::cuda::CUDAGraph> graph = std::make_unique<at::cuda::CUDAGraph>();
  std::optional<c10::StreamGuard> side;
};

// A tensor on its way to the host.
struct nestor_read_back {
  at::Tensor host;
  // Absent on a CPU.
  std::optional<c10::Event> done;
};

extern "C" {

int nestor_graph_pool_new(int64_t index, nestor_graph_pool** pool, char* message, size_t message_size) {
  return guarded(message, message_size, [&] {
    const c10::Device device(at::kCUDA, static_cast<c10::DeviceIndex>(index));
    // A recording allocates from its own pool alone, and while it records libtorch gives no cached memory back. So it
    // does that now, as torch.cuda.graph does, and with it the pools of recordings that are gone.
    if (auto* allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(at::kCUDA))) allocator->emptyCache();
    *pool = new nestor_graph_pool{device, at::cuda::graph_pool_handle()};
  });
}

void nestor_graph_pool_free(nestor_graph_pool* pool) {
  delete pool;
}

// Starts to record what this thread enqueues.
int nestor_capture_begin(const nestor_graph_pool* pool, nestor_capture** capture, char* message, size_t message_size) {
  return guarded(message, message_size, [&] {
    // The input of the recorded work is complete.
    current_stream(pool->device).synchronize();
    auto own = std::make_unique<nestor_capture>();
    own->side.emplace(side_stream(pool->device));
    // Other threads (NCCL's watchdog, an environment's) may call CUDA meanwhile.
    own->graph->capture_begin(pool->id, cudaStreamCaptureModeThreadLocal);
    *capture = own.release();
  });
}

// Ends the recording and frees it. `graph` is null where the recorded work failed: the recording is then thrown away.
int nestor_capture_end(nestor_capture* capture, at::cuda::CUDAGraph** graph, char* message, size_t message_size) {
  const std::unique_ptr<nestor_capture> own(capture);
  return guarded(message, message_size, [&] {
    own->graph->capture_end();
    if (graph) *graph = own->graph.release();
  });
}

// Enqueues the recorded work on the current stream.
int nestor_graph_replay(at::cuda::CUDAGraph* graph, char* message, size_t message_size) {
  return guarded(message, message_size, [&] { graph->replay(); });
}

void nestor_graph_free(at::cuda::CUDAGraph* graph) {
  delete graph;
}

// Copies a host tensor into one of any device.
int nestor_copy_into(const at::Tensor* host, const at::Tensor* to, char* message, size_t message_size) {
  return guarded(message, message_size, [&] {
    if (to->is_cuda()) {
      cuda_copy_into(*host, *to);
    } else {
      to->copy_(*host);
    }
  });
}

// Starts a copy of a tensor to the host.
int nestor_read_back_begin(const at::Tensor* from, nestor_read_back** copy, char* message, size_t message_size) {
  return guarded(message, message_size, [&] {
    auto own = std::make_unique<nestor_read_back>();
    if (from->is_cuda()) {
      own->host = cuda_read_back(*from);
      own->done.emplace(at::kCUDA);
      own->done->record(current_stream(from->device()));
    } else {
      own->host = from->clone();
    }
    *copy = own.release();
  });
}

// Waits for the copy.
int nestor_read_back_wait(const nestor_read_back* copy, at::Tensor** host, char* message, size_t message_size) {
  return guarded(message, message_size, [&] {
    if (copy->done) copy->done->synchronize();
    *host = new at::Tensor(copy->host);
  });
}

void nestor_read_back_free(nestor_read_back* copy) {
  delete copy;
}
}
