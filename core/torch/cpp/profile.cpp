// A profile of one piece of work by Kineto, libtorch's profiler: the kernels that a GPU ran, or the operations of a CPU.

#include <kineto/ActivityType.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "guarded.h"

namespace {

using torch::autograd::profiler::KinetoEvent;
using torch::profiler::impl::ActivityType;
namespace profiler = torch::autograd::profiler;

bool is(const KinetoEvent& event, libkineto::ActivityType type) {
  return event.activityType() == static_cast<uint8_t>(type);
}

// Only the side that is read, since recording the other one slows the work down: a GPU's kernels, or a CPU's operations.
std::set<ActivityType> activities(bool cuda) { return {cuda ? ActivityType::CUDA : ActivityType::CPU}; }

torch::profiler::impl::ProfilerConfig config() {
  return torch::profiler::impl::ProfilerConfig(torch::profiler::impl::ProfilerState::KINETO);
}

struct Total {
  uint64_t ns = 0, calls = 0;
};

struct Profile {
  std::map<std::string, Total> by_name;
  uint64_t launches = 0, syncs = 0;

  void add(const std::string& name, uint64_t ns) {
    auto& total = by_name[name];
    total.ns += ns;
    total.calls += 1;
  }
};

// Kernels, copies and fills of a GPU, and the calls that waited for it.
Profile of_gpu(const std::vector<KinetoEvent>& events) {
  Profile profile;
  for (const auto& event : events) {
    if (is(event, libkineto::ActivityType::CONCURRENT_KERNEL) || is(event, libkineto::ActivityType::GPU_MEMCPY) ||
        is(event, libkineto::ActivityType::GPU_MEMSET)) {
      profile.add(event.name(), event.durationNs());
      profile.launches += 1;
    } else if (is(event, libkineto::ActivityType::CUDA_RUNTIME) || is(event, libkineto::ActivityType::CUDA_DRIVER)) {
      profile.syncs += event.name().find("Synchronize") != std::string::npos;
    }
  }
  return profile;
}

// Operations of a CPU, each with its time less that of the operations inside it. Those with none inside count as launches.
Profile of_cpu(const std::vector<KinetoEvent>& events) {
  std::unordered_map<uint64_t, std::vector<const KinetoEvent*>> by_thread;
  for (const auto& event : events) {
    if (is(event, libkineto::ActivityType::CPU_OP) && !event.isAsync()) by_thread[event.startThreadId()].push_back(&event);
  }
  Profile profile;
  for (auto& [thread, list] : by_thread) {
    std::stable_sort(list.begin(), list.end(), [](const KinetoEvent* a, const KinetoEvent* b) {
      return a->startNs() != b->startNs() ? a->startNs() < b->startNs() : a->endNs() > b->endNs();
    });
    struct Open {
      const KinetoEvent* event;
      uint64_t inside = 0;
      bool leaf = true;
    };
    std::vector<Open> open;
    const auto close = [&] {
      const auto [event, inside, leaf] = open.back();
      open.pop_back();
      const uint64_t ns = event->durationNs();
      profile.add(event->name(), ns - std::min(ns, inside));
      profile.launches += leaf;
      if (!open.empty()) open.back().inside += ns;
    };
    for (const auto* event : list) {
      while (!open.empty() && open.back().event->endNs() <= event->startNs()) close();
      if (!open.empty()) open.back().leaf = false;
      open.push_back({event});
    }
    while (!open.empty()) close();
  }
  return profile;
}

}  // namespace

extern "C" {

// Begins to record the work of this thread, and on CUDA that of the whole process.
int nestor_profile_start(bool cuda, char* message, size_t message_size) {
  return guarded(message, message_size, [&] {
    // Kineto looks for a GPU in any case, and would report on stderr that there is none. Its first start reads the level.
    if (!cuda) setenv("KINETO_LOG_LEVEL", "99", /*overwrite=*/0);
    profiler::prepareProfiler(config(), activities(cuda));
    profiler::enableProfiler(config(), activities(cuda), {at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION});
  });
}

// Ends the recording. Calls `each` with the total of every name, and writes how many kernels ran and how often the host
// waited for the GPU.
int nestor_profile_stop(bool cuda, void* list, void (*each)(void*, const char* name, uint64_t ns, uint64_t calls),
                        uint64_t* launches, uint64_t* syncs, char* message, size_t message_size) {
  return guarded(message, message_size, [&] {
    const auto result = profiler::disableProfiler();
    const auto profile = cuda ? of_gpu(result->events()) : of_cpu(result->events());
    for (const auto& [name, total] : profile.by_name) each(list, name.c_str(), total.ns, total.calls);
    *launches = profile.launches;
    *syncs = profile.syncs;
  });
}
}
