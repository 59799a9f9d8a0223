// The kernels of ../kernels.cu on a CPU: launches by name, as cuLaunchKernel does on a GPU. emulator.h says what it checks.
// Built as a library by a test; no part of the product.
//
// NESTOR_EMULATOR_SEED seeds the order of threads and blocks. NESTOR_EMULATOR_DAMAGE=kernel,… or =all makes launches of these
// kernels write wrong results.

#include "fibres.h"

// A test may have kernels of its own, which KERNELS(X) lists.
#ifdef NESTOR_TEST_KERNELS
#include NESTOR_TEST_KERNELS
#else
#include "../kernels.cu"
#endif

#include <functional>
#include <mutex>
#include <string>
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
bool is_damaged(const std::string& name) {
  const char* damaged = std::getenv("NESTOR_EMULATOR_DAMAGE");
  if (damaged && std::string(damaged) == "all") return true;
  return damaged && ("," + std::string(damaged) + ",").find("," + name + ",") != std::string::npos;
}

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
    if (problem.empty() && is_damaged(name)) found->second.damage(args);
  }
  if (problem.empty()) return 0;
  std::snprintf(message, message_size, "%s: %s", name, problem.c_str());
  return 1;
}
}
