// Process groups of c10d: Gloo for tensors on CPUs, NCCL for tensors on GPUs. Ranks meet through a store.

#define USE_C10D_GLOO
#define USE_C10D_NCCL
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <c10/core/DeviceGuard.h>

#include <memory>
#include <mutex>
#include <sstream>
#include <string>

#include "guarded.h"
#include "store.h"

namespace {

struct Group {
  c10::intrusive_ptr<c10d::Store> store;
  c10::intrusive_ptr<c10d::Backend> backend;
  bool nccl;
};

struct Work {
  c10::intrusive_ptr<c10d::Work> work;
  c10::Device device;  // of its tensors
};

using WorkNCCL = c10d::ProcessGroupNCCL::WorkNCCL;

// A view of a collective for another thread. On a GPU it is the partial copy that c10d's own watchdog takes: it shares
// the event that ends the collective, but keeps no result alive.
struct Progress {
  c10::intrusive_ptr<c10d::Work> work;
  c10::Device device;
};

// Starts a collective. Every Gloo group of a process writes into one map of c10d without a lock (`all_pg_status_` of its
// flight recorder, pytorch/pytorch#179449), so groups of several threads must start one after another. Starting only
// queues work and does not wait. NCCL connects at the first start, which waits for the other ranks: a lock held meanwhile
// would deadlock ranks that start two groups in different orders.
template <typename F>
Work* start(Group* group, const at::Tensor& tensor, F&& collective) {
  static std::mutex starting;
  std::unique_lock<std::mutex> lock(starting, std::defer_lock);
  if (!group->nccl) lock.lock();
  return new Work{collective(*group->backend), tensor.device()};
}

}  // namespace

extern "C" {

struct nestor_group {
  bool nccl;
  int rank, world;
  int64_t timeout_ms;
  // Gloo's network: names of interfaces with commas between, else an address of this machine, else that of its hostname.
  const char* interfaces;
  const char* address;
};

// Joins the group of `world` ranks that meet through a store.
int nestor_group_join(Store* store, const nestor_group* at, Group** group, char* message, size_t message_size) {
  return guarded(message, message_size, [&] {
    const std::chrono::milliseconds timeout(at->timeout_ms);
    auto joined = std::make_unique<Group>();
    joined->nccl = at->nccl;
    joined->store = store->store;
    joined->store->setTimeout(timeout);
    if (at->nccl) {
      auto options = c10d::ProcessGroupNCCL::Options::create();
      // Only c10d's watchdog uses it. Nestor's own watch names the rank at fault, and comes first.
      options->timeout = 2 * timeout;
      joined->backend = c10::make_intrusive<c10d::ProcessGroupNCCL>(joined->store, at->rank, at->world, options);
    } else {
      auto options = c10d::ProcessGroupGloo::Options::create(timeout);
      std::istringstream interfaces(at->interfaces);
      for (std::string name; std::getline(interfaces, name, ',');) {
        options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForInterface(name));
      }
      if (options->devices.empty()) {
        options->devices.push_back(*at->address ? c10d::ProcessGroupGloo::createDeviceForHostname(at->address)
                                                : c10d::ProcessGroupGloo::createDefaultDevice());
      }
      joined->backend = c10::make_intrusive<c10d::ProcessGroupGloo>(joined->store, at->rank, at->world, options);
    }
    *group = joined.release();
  });
}

// Starts to sum a tensor over all ranks in place, or to take the largest; on a GPU in the order of its current stream.
int nestor_group_all_reduce(Group* group, at::Tensor* tensor, bool largest, Work** work, char* message,
                            size_t message_size) {
  return guarded(message, message_size, [&] {
    std::vector<at::Tensor> list{*tensor};
    c10d::AllreduceOptions options;
    options.reduceOp = largest ? c10d::ReduceOp::MAX : c10d::ReduceOp::SUM;
    *work = start(group, *tensor, [&](c10d::Backend& backend) { return backend.allreduce(list, options); });
  });
}

// Starts to gather every rank's part, end to end, into `whole`.
int nestor_group_all_gather(Group* group, at::Tensor* whole, at::Tensor* part, Work** work, char* message,
                            size_t message_size) {
  return guarded(message, message_size, [&] {
    *work = start(group, *whole, [&](c10d::Backend& backend) { return backend._allgather_base(*whole, *part); });
  });
}

// Starts to sum `whole` over all ranks, and to scatter the sum to each rank's part.
int nestor_group_reduce_scatter(Group* group, at::Tensor* part, at::Tensor* whole, Work** work, char* message,
                                size_t message_size) {
  return guarded(message, message_size, [&] {
    *work = start(group, *whole, [&](c10d::Backend& backend) { return backend._reduce_scatter_base(*part, *whole); });
  });
}

// Starts to copy the tensor of rank `root` to all others.
int nestor_group_broadcast(Group* group, at::Tensor* tensor, int root, Work** work, char* message,
                           size_t message_size) {
  return guarded(message, message_size, [&] {
    std::vector<at::Tensor> list{*tensor};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    *work = start(group, *tensor, [&](c10d::Backend& backend) { return backend.broadcast(list, options); });
  });
}

// Waits until a collective is done; on a GPU only its current stream waits.
int nestor_work_wait(Work* work, char* message, size_t message_size) {
  return guarded(message, message_size, [&] { work->work->wait(); });
}

void nestor_work_free(Work* work) {
  delete work;
}

// Makes a view of a collective, which may outlive it.
int nestor_work_progress(const Work* work, Progress** progress, char* message, size_t message_size) {
  return guarded(message, message_size, [&] {
    auto view = work->work;
    // Groups on GPUs are NCCL's.
    if (work->device.is_cuda()) view = c10::make_intrusive<WorkNCCL>(static_cast<const WorkNCCL&>(*work->work));
    *progress = new Progress{std::move(view), work->device};
  });
}

// Asks without waiting whether a collective is done; an error if it failed.
int nestor_progress_done(Progress* progress, bool* done, char* message, size_t message_size) {
  return guarded(message, message_size, [&] {
    // A thread that has chosen no GPU would open a context on the first one.
    const c10::DeviceGuard device(progress->device);
    *done = progress->work->isCompleted();
    if (!*done) return;
    if (const auto failure = progress->work->exception()) std::rethrow_exception(failure);
  });
}

void nestor_progress_free(Progress* progress) {
  delete progress;
}

// Ends all collectives under way with an error, on this and the other ranks.
int nestor_group_abort(Group* group, char* message, size_t message_size) {
  return guarded(message, message_size, [&] { group->backend->abort(); });
}

void nestor_group_leave(Group* group) {
  delete group;
}
}
