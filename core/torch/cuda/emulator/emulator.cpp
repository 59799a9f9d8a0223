// The kernels of ../kernels.cu on a CPU: launches by name, as cuLaunchKernel does on a GPU. emulator.h says what it checks.
// Built as a library by a test; no part of the product.
//
// NESTOR_EMULATOR_SEED seeds the order of threads and blocks. Three more variables list kernels, or `all`, whose launches fail:
// NESTOR_EMULATOR_DAMAGE, they write wrong results; NESTOR_EMULATOR_FAULT, every later wait for the device fails, as after an
// illegal access on a GPU; NESTOR_EMULATOR_HANG, they never end.

#include "fibres.h"

// A test may have kernels of its own, which KERNELS(X) lists.
#ifdef NESTOR_TEST_KERNELS
#include NESTOR_TEST_KERNELS
#else
#include "../kernels.cu"
#endif

#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>

namespace {

struct Kernel {
  // Runs the body once, as one thread.
  void (*body)(void** args);
  // Changes the first element of each result.
  void (*damage)(void** args);
};

template <class T>
void damage_first(T* results) {
  if (!results) return;
  if constexpr (std::is_integral_v<T>) {
    *results ^= 1;
  } else {
    const float was = to_float(*results);
    *results = from_float<T>(std::isfinite(was) ? was + 1.0f + std::fabs(was) : 0.0f);
  }
}
template <class T>
void damage_first(const T*) {}

template <class T>
void damage_argument(void* arg) {
  if constexpr (std::is_pointer_v<T>) damage_first(*static_cast<T*>(arg));
}

template <auto kernel, class... A, size_t... I>
Kernel made(void (*)(A...), std::index_sequence<I...>) {
  return {[](void** args) { kernel(*static_cast<A*>(args[I])...); },
          [](void** args) { (damage_argument<A>(args[I]), ...); }};
}

template <auto kernel, class... A>
Kernel made(void (*type)(A...)) {
  return made<kernel>(type, std::index_sequence_for<A...>());
}

const std::unordered_map<std::string, Kernel>& kernels() {
#define ENTRY(name) {#name, made<name>(name)},
  static const std::unordered_map<std::string, Kernel> all{KERNELS(ENTRY)};
#undef ENTRY
  return all;
}

// True where the variable, a list with commas or `all`, names the kernel.
bool names(const char* variable, const std::string& name) {
  const char* list = std::getenv(variable);
  if (list && std::string(list) == "all") return true;
  return list && ("," + std::string(list) + ",").find("," + name + ",") != std::string::npos;
}

std::atomic<bool> faulted = false;

}  // namespace

extern "C" {

// 1 where there is a kernel of this name, else 0.
__attribute__((visibility("default"))) int nestor_emulates(const char* name) {
  return static_cast<int>(kernels().count(name));
}

// Runs a kernel on a grid of three dimensions and blocks of `threads`, with `shared` bytes of dynamic shared memory. `args`
// points at each argument. Returns 0, or 1 after writing a message.
__attribute__((visibility("default"))) int nestor_emulate(const char* name, const unsigned* grid, unsigned threads,
                                                          unsigned shared, void** args, char* message,
                                                          size_t message_size) {
  static std::mutex one_launch;
  const std::lock_guard<std::mutex> lock(one_launch);
  const auto found = kernels().find(name);
  std::string problem = "there is no such kernel";
  if (found != kernels().end()) {
    problem = emulator::run({grid[0], grid[1], grid[2]}, threads, shared, [&] { found->second.body(args); });
    if (problem.empty() && names("NESTOR_EMULATOR_DAMAGE", name)) found->second.damage(args);
    while (names("NESTOR_EMULATOR_HANG", name)) std::this_thread::sleep_for(std::chrono::seconds(1));
    if (names("NESTOR_EMULATOR_FAULT", name)) faulted = true;
  }
  if (problem.empty()) return 0;
  std::snprintf(message, message_size, "%s: %s", name, problem.c_str());
  return 1;
}

// Waits for all launches. Returns 1 after a fault, else 0.
__attribute__((visibility("default"))) int nestor_emulator_wait() {
  return faulted ? 1 : 0;
}
}
