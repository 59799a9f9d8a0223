// The threads of a block as fibres of one thread of the CPU.

#pragma once

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <sys/mman.h>

#include "emulator.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

emulator::Index threadIdx, blockIdx, blockDim, gridDim;

// ---- the switch between stacks

#if defined(__x86_64__)
// Keeps what a call must keep on the old stack, and returns on the new one. swapcontext would also call the kernel twice.
extern "C" void nestor_switch_stack(void** old_stack, void* new_stack);
asm(R"(
.text
.type nestor_switch_stack, @function
nestor_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size nestor_switch_stack, .-nestor_switch_stack
)");

namespace emulator {
struct Context {
  void* stack = nullptr;
  void start(char* bottom, size_t size, void (*entry)()) {
    auto** top = reinterpret_cast<void**>(bottom + size);
    top[-2] = reinterpret_cast<void*>(entry);
    stack = top - 8;
  }
  void go(const Context& to) { nestor_switch_stack(&stack, to.stack); }
};
}  // namespace emulator
#else
#include <ucontext.h>

namespace emulator {
struct Context {
  ucontext_t own;
  void start(char* bottom, size_t size, void (*entry)()) {
    getcontext(&own);
    own.uc_stack.ss_sp = bottom;
    own.uc_stack.ss_size = size;
    own.uc_link = nullptr;
    makecontext(&own, entry, 0);
  }
  void go(const Context& to) { swapcontext(&own, &to.own); }
};
}  // namespace emulator
#endif

namespace emulator {

constexpr size_t STACK = 256 << 10, PAGE = 4096;
constexpr int MOST = 1024, LANES = 32;

struct Fibre {
  Context context;
  char* stack = nullptr;
  void* fake_stack = nullptr;  // AddressSanitizer's
  bool ended = false;
  // Barriers that the thread has passed: those of the block, and all that its warp did together.
  uint32_t block_epoch = 0, warp_epoch = 0;
};

struct WarpState {
  int arrived = 0;
  Collective kind = Collective::Barrier;
  int bytes = 0;
  // Two sets: a lane may bring its next value before another one has read this.
  alignas(64) char places[2][LANES * EXCHANGED];
};

// The block that runs.
struct Running {
  std::vector<Fibre> fibres{MOST};
  std::vector<WarpState> warps{MOST / LANES};
  Context home;
  void* home_fake_stack = nullptr;
  const void* home_stack = nullptr;
  size_t home_size = 0;
  std::vector<int> runnable, at_barrier;
  int threads = 0, ended = 0, current = -1;
  uint32_t block = 0;  // counts blocks, to tell this one's granules from those of earlier ones
  std::minstd_rand random;
  std::function<void()> body;
  std::string problem;

  Running() {
    for (auto& fibre : fibres) {
      // A page without access below each stack.
      void* memory = mmap(nullptr, STACK + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (memory == MAP_FAILED || mprotect(memory, PAGE, PROT_NONE) != 0) std::abort();
      fibre.stack = static_cast<char*>(memory) + PAGE;
    }
  }
};

static Running& running() {
  static Running state;
  return state;
}

// Leaves the running fibre, or the caller of `run` where `from` is null, for a fibre or for the caller where `to` is null.
static void go(Running& r, Fibre* from, Fibre* to) {
  Context& old_context = from ? from->context : r.home;
  const Context& new_context = to ? to->context : r.home;
#if defined(__SANITIZE_ADDRESS__)
  void** fake = from ? &from->fake_stack : &r.home_fake_stack;
  const bool last = from && from->ended;
  __sanitizer_start_switch_fiber(last ? nullptr : fake, to ? to->stack : r.home_stack, to ? STACK : r.home_size);
#endif
  old_context.go(new_context);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(*fake, nullptr, nullptr);
#endif
}

// Runs another thread of the block; returns when this one runs again.
static void run_another(Running& r) {
  Fibre* const from = r.current < 0 ? nullptr : &r.fibres[r.current];
  if (r.runnable.empty()) {
    if (r.ended < r.threads) {
      int in_warps = 0;
      for (const auto& warp : r.warps) in_warps += warp.arrived;
      r.problem = "block " + std::to_string(blockIdx.x) + ": not all threads reach a barrier: " +
                  std::to_string(r.at_barrier.size()) + " of " + std::to_string(r.threads) + " wait at one of the block, " +
                  std::to_string(in_warps) + " for their warp, " + std::to_string(r.ended) + " have ended";
    }
    r.current = -1;
    go(r, from, nullptr);
    return;
  }
  const size_t at = r.random() % r.runnable.size();
  const int next = r.runnable[at];
  r.runnable[at] = r.runnable.back();
  r.runnable.pop_back();
  if (next == r.current) return;
  r.current = next;
  threadIdx.x = static_cast<unsigned>(next);
  go(r, from, &r.fibres[next]);
}

static void thread_entry() {
  Running& r = running();
#if defined(__SANITIZE_ADDRESS__)
  const void* bottom;
  size_t size;
  __sanitizer_finish_switch_fiber(nullptr, &bottom, &size);
  if (!r.home_stack) r.home_stack = bottom, r.home_size = size;
#endif
  r.body();
  r.fibres[r.current].ended = true;
  ++r.ended;
  run_another(r);
}

[[noreturn]] void fail(const char* format, ...) {
  Running& r = running();
  char text[512];
  va_list values;
  va_start(values, format);
  std::vsnprintf(text, sizeof(text), format, values);
  va_end(values);
  r.problem = "block " + std::to_string(blockIdx.x) + ", thread " + std::to_string(threadIdx.x) + " " + text;
  const int current = std::exchange(r.current, -1);
  go(r, &r.fibres[current], nullptr);
  std::abort();
}

void block_barrier() {
  Running& r = running();
  Fibre& own = r.fibres[r.current];
  r.at_barrier.push_back(r.current);
  if (static_cast<int>(r.at_barrier.size()) == r.threads) std::swap(r.runnable, r.at_barrier);
  run_another(r);
  ++own.block_epoch;
}

const char* exchange(Collective kind, const void* mine, int bytes) {
  Running& r = running();
  const int own = r.current, first = own / LANES * LANES;
  WarpState& warp = r.warps[own / LANES];
  char* places = warp.places[r.fibres[own].warp_epoch % 2];
  std::memcpy(places + own % LANES * EXCHANGED, mine, static_cast<size_t>(bytes));
  if (warp.arrived == 0) warp.kind = kind, warp.bytes = bytes;
  if (warp.kind != kind || warp.bytes != bytes) fail("does not do with its warp what other lanes do");
  if (++warp.arrived < LANES) {
    run_another(r);
  } else {
    warp.arrived = 0;
    for (int t = first; t < first + LANES; ++t) {
      if (t != own) r.runnable.push_back(t);
    }
  }
  ++r.fibres[own].warp_epoch;
  return places;
}

// ---- shared memory

// A thread that accessed a granule, and when.
struct Accessed {
  static constexpr int NONE = -1, SEVERAL = -2;
  int16_t thread = NONE, warp = NONE;
  uint32_t block_epoch = 0, warp_epoch = 0;

  // True where a barrier is between this access and the next thing that the thread does, or where it did this itself.
  bool is_before(int other, const Fibre& fibre) const {
    if (thread == NONE || thread == other || fibre.block_epoch > block_epoch) return true;
    return warp == other / LANES && fibre.warp_epoch > warp_epoch;
  }

  void set(int by, const Fibre& fibre) {
    *this = {static_cast<int16_t>(by), static_cast<int16_t>(by / LANES), fibre.block_epoch, fibre.warp_epoch};
  }

  // Notes one of several accesses that need no order among them.
  void add(int by, const Fibre& fibre) {
    if (is_before(by, fibre) && (warp == by / LANES || fibre.block_epoch > block_epoch || thread == NONE)) {
      set(by, fibre);
      return;
    }
    thread = SEVERAL;
    if (warp != by / LANES) warp = SEVERAL;
    warp_epoch = std::max(warp_epoch, fibre.warp_epoch);
  }
};

// Two bytes of shared memory, the smallest element.
struct Granule {
  uint32_t block = 0;
  bool atomic = false;  // the last writes
  Accessed writer, reader;
};

void Slot::resize(int64_t to) {
  if (to <= bytes) return;
  delete[] granules;
  std::free(data);
  bytes = (to + 15) / 16 * 16;
  data = static_cast<char*>(std::aligned_alloc(16, static_cast<size_t>(bytes)));
  granules = new Granule[static_cast<size_t>(bytes / 2)];
  bytes = to;
}

char* Slot::access(int64_t from, int64_t count, Access access, int64_t element) const {
  Running& r = running();
  const long at = static_cast<long>(from / element);
  if (from < 0 || from + count > bytes) {
    fail("accesses element %ld of shared array `%s`, which has %ld", at, name, static_cast<long>(bytes / element));
  }
  if (from % std::min<int64_t>(count, 16) != 0 && (count & (count - 1)) == 0) {
    fail("accesses %ld bytes at element %ld of shared array `%s`, which is not aligned to them", static_cast<long>(count),
         at, name);
  }
  const Fibre& own = r.fibres[r.current];
  const auto racing = [&](const Accessed& other, const char* does, const char* did) {
    const auto who = other.thread == Accessed::SEVERAL ? "other threads" : "thread " + std::to_string(other.thread);
    fail("%s element %ld of shared array `%s`, which %s %s, with no barrier between", does, at, name,
         std::string(who).c_str(), did);
  };
  for (int64_t i = from / 2; i < (from + count + 1) / 2; ++i) {
    Granule& granule = granules[i];
    if (granule.block != r.block) granule = {r.block, false, {}, {}};
    const bool together = access == Access::Atomic && granule.atomic;
    const char* does = access == Access::Read ? "reads" : "writes";
    if (access != Access::Write && granule.writer.thread == Accessed::NONE) {
      fail("reads element %ld of shared array `%s`, which no thread of the block wrote", at, name);
    }
    if (!together && !granule.writer.is_before(r.current, own)) racing(granule.writer, does, "wrote");
    if (access == Access::Read) {
      granule.reader.add(r.current, own);
      continue;
    }
    if (!granule.reader.is_before(r.current, own)) racing(granule.reader, does, "read");
    if (together) {
      granule.writer.add(r.current, own);
    } else {
      granule.writer.set(r.current, own);
      granule.atomic = access == Access::Atomic;
    }
  }
  return data + from;
}

Slot& dynamic_slot() {
  static Slot slot("dynamic", 0);
  return slot;
}

// ---- launches

// Runs the body as every thread of a grid. Returns a message where a check fails.
static std::string run(Index grid, unsigned threads, unsigned shared, std::function<void()> body) {
  if (threads == 0 || threads > MOST || threads % LANES != 0) return std::to_string(threads) + " threads to a block";
  if (shared > 227 << 10) return std::to_string(shared) + " bytes of shared memory";
  if (grid.y > 65535 || grid.z > 65535) return "a grid of more than 65535 in y or z";
  Running& r = running();
  const char* seed = std::getenv("NESTOR_EMULATOR_SEED");
  r.random.seed(static_cast<unsigned>(seed ? std::atoi(seed) : 1));
  r.threads = static_cast<int>(threads);
  r.body = std::move(body);
  r.problem.clear();
  r.home_stack = nullptr;
  gridDim = grid;
  blockDim = {threads, 1, 1};
  dynamic_slot().bytes = 0;
  dynamic_slot().resize(shared);
  std::vector<uint64_t> order(uint64_t{grid.x} * grid.y * grid.z);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), r.random);
  for (const uint64_t number : order) {
    blockIdx = {static_cast<unsigned>(number % grid.x), static_cast<unsigned>(number / grid.x % grid.y),
                static_cast<unsigned>(number / grid.x / grid.y)};
    ++r.block;
    r.ended = 0;
    r.at_barrier.clear();
    r.runnable.clear();
    for (unsigned t = 0; t < threads; ++t) {
      Fibre& fibre = r.fibres[t];
      fibre.ended = false;
      fibre.fake_stack = nullptr;
      fibre.block_epoch = fibre.warp_epoch = 0;
#if defined(__SANITIZE_ADDRESS__)
      __asan_unpoison_memory_region(fibre.stack, STACK);
#endif
      fibre.context.start(fibre.stack, STACK, thread_entry);
      r.runnable.push_back(static_cast<int>(t));
    }
    for (auto& warp : r.warps) warp.arrived = 0;
    r.current = -1;
    run_another(r);
    if (!r.problem.empty()) break;
  }
  return r.problem;
}

}  // namespace emulator
