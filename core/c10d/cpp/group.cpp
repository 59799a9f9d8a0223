// Process groups of c10d: Gloo for tensors on CPUs, NCCL for tensors on GPUs, meeting at a TCP store.

#define USE_C10D_GLOO
#define USE_C10D_NCCL
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <memory>

#include "guarded.h"

namespace {

struct Group {
  c10::intrusive_ptr<c10d::Store> store;
  c10::intrusive_ptr<c10d::Backend> backend;
};

}  // namespace

extern "C" {

struct nestor_rendezvous {
  const char* host;
  uint16_t port;
  int rank, world;
  int64_t timeout_ms;
};

// Joins the group of `world` ranks that meet at host and port; rank 0 listens there.
int nestor_group_join(bool nccl, const nestor_rendezvous* at, Group** group, char* message, size_t message_size) {
  return guarded(message, message_size, [&] {
    const std::chrono::milliseconds timeout(at->timeout_ms);
    c10d::TCPStoreOptions meeting;
    meeting.port = at->port;
    meeting.isServer = at->rank == 0;
    meeting.numWorkers = at->world;
    meeting.timeout = timeout;
    auto joined = std::make_unique<Group>();
    joined->store = c10::make_intrusive<c10d::TCPStore>(at->host, meeting);
    if (nccl) {
      auto options = c10d::ProcessGroupNCCL::Options::create();
      options->timeout = timeout;
      joined->backend = c10::make_intrusive<c10d::ProcessGroupNCCL>(joined->store, at->rank, at->world, options);
    } else {
      auto options = c10d::ProcessGroupGloo::Options::create(timeout);
      options->devices.push_back(c10d::ProcessGroupGloo::createDefaultDevice());
      joined->backend = c10::make_intrusive<c10d::ProcessGroupGloo>(joined->store, at->rank, at->world, options);
    }
    *group = joined.release();
  });
}

// Sums a tensor over all ranks, in place; on a GPU in the order of its current stream.
int nestor_group_all_reduce(Group* group, at::Tensor* tensor, char* message, size_t message_size) {
  return guarded(message, message_size, [&] {
    std::vector<at::Tensor> list{*tensor};
    group->backend->allreduce(list)->wait();
  });
}

void nestor_group_leave(Group* group) {
  delete group;
}
}
