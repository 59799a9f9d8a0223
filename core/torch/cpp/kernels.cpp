// Loads the embedded code with the driver's API and launches their kernels. The driver's library is opened at run time, so
// that the program starts where there is none.

#include "kernels.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <cuda.h>
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <deque>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "guarded.h"
#include "list.h"

#define CUBIN(name) extern "C" const unsigned char nestor_cubin_##name[], nestor_cubin_##name##_end[];
CUBIN(sm_80)
CUBIN(sm_86)
CUBIN(sm_89)
CUBIN(sm_90a)
CUBIN(sm_100)
CUBIN(sm_120)
CUBIN(compute_80)
#undef CUBIN

namespace {

// Machine code, or PTX, which the driver compiles.
struct Cubin {
  const char* architecture;
  // It runs on GPUs of this major version from this minor version on.
  int major, minor;
  // No later one: it uses instructions of that very GPU.
  bool exact;
  const unsigned char *begin, *end;

  bool is_ptx() const { return std::string(architecture).rfind("compute_", 0) == 0; }
};

#define CODE(name) nestor_cubin_##name, nestor_cubin_##name##_end
const std::array<Cubin, 7> CUBINS{{
    {"sm_80", 8, 0, false, CODE(sm_80)},
    {"sm_86", 8, 6, false, CODE(sm_86)},
    {"sm_89", 8, 9, false, CODE(sm_89)},
    {"sm_90a", 9, 0, true, CODE(sm_90a)},
    {"sm_100", 10, 0, false, CODE(sm_100)},
    {"sm_120", 12, 0, false, CODE(sm_120)},
    {"compute_80", 8, 0, false, CODE(compute_80)},
}};
#undef CODE

// The code for a GPU of this compute capability: machine code of the nearest one before it, else PTX. Null for older GPUs.
const Cubin* code_for(int major, int minor) {
  const Cubin *fits = nullptr, *ptx = nullptr;
  for (const auto& cubin : CUBINS) {
    if (cubin.is_ptx()) {
      if (std::pair(major, minor) >= std::pair(cubin.major, cubin.minor)) ptx = &cubin;
    } else if (cubin.major == major && (cubin.exact ? cubin.minor == minor : cubin.minor <= minor)) {
      fits = &cubin;
    }
  }
  return fits ? fits : ptx;
}

const std::vector<std::string> NAMES{
#define NAME(name) #name,
    KERNELS(NAME)
#undef NAME
};

// The variable NESTOR_KERNELS: `none`, or kernels to leave out, each behind a minus sign, with commas between them. Rust
// refuses other words.
const std::string& chosen_kernels() {
  static const std::string chosen = [] {
    const char* text = std::getenv("NESTOR_KERNELS");
    return text ? text : "";
  }();
  return chosen;
}

// ---- a GPU

// Functions of the driver, under the names that cuda.h gives to their versions.
struct Driver {
#define FUNCTION(name) decltype(&::name) name = nullptr;
#define FUNCTIONS(X)                                                                                              \
  X(cuGetErrorString) X(cuDeviceGet) X(cuDeviceGetAttribute) X(cuDevicePrimaryCtxRetain) X(cuCtxGetCurrent)       \
      X(cuCtxSetCurrent) X(cuModuleLoadData) X(cuModuleGetFunction) X(cuFuncSetAttribute) X(cuLaunchKernel)
  FUNCTIONS(FUNCTION)
#undef FUNCTION

  Driver() {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    TORCH_CHECK(library, "no driver of CUDA: ", dlerror());
#define TEXT_OF(name) #name
// cuda.h defines some names as macros; this expands them.
#define TEXT(name) TEXT_OF(name)
#define TAKE(function)                                                                 \
  function = reinterpret_cast<decltype(function)>(dlsym(library, TEXT(function))); \
  TORCH_CHECK(function, "the driver of CUDA has no ", TEXT(function));
    FUNCTIONS(TAKE)
#undef TAKE
#undef TEXT
#undef TEXT_OF
#undef FUNCTIONS
  }

  void check(CUresult result, const char* what) const {
    const char* why = nullptr;
    if (result != CUDA_SUCCESS) cuGetErrorString(result, &why);
    TORCH_CHECK(result == CUDA_SUCCESS, what, ": ", why ? why : "an unknown error of CUDA");
  }
};

const Driver& driver() {
  static const Driver driver;
  return driver;
}

struct Kernel {
  CUfunction function = nullptr;
  std::atomic<bool> left_out = false;
};

// A device's kernels.
struct Loaded {
  std::unordered_map<std::string, Kernel> kernels;
  CUcontext context = nullptr;
  int multiprocessors = 0;
  std::atomic<bool> tested = false;
  // The name of its code; empty in the emulator, and where none loads.
  std::string architecture;
  std::string problem;

  // Loads the code for a GPU.
  explicit Loaded(int index) {
    try {
      const auto& cuda = driver();
      CUdevice device;
      int major = 0, minor = 0;
      cuda.check(cuda.cuDeviceGet(&device, index), "cuDeviceGet");
      cuda.cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
      cuda.cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
      cuda.cuDeviceGetAttribute(&multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
      const Cubin* fits = code_for(major, minor);
      TORCH_CHECK(fits, "they need compute capability 8.0 or newer, and this GPU has ", major, ".", minor);
      // libtorch computes in the primary context too.
      cuda.check(cuda.cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
      cuda.check(cuda.cuCtxSetCurrent(context), "cuCtxSetCurrent");
      CUmodule module;
      cuda.check(cuda.cuModuleLoadData(&module, fits->begin), "cuModuleLoadData");
      for (const auto& name : NAMES) {
        CUfunction function;
        if (cuda.cuModuleGetFunction(&function, module, name.c_str()) != CUDA_SUCCESS) continue;
        kernels[name].function = function;
        kernels[name].left_out = is_unwanted(name);
      }
      architecture = fits->architecture;
    } catch (const c10::Error& error) {
      problem = error.what_without_backtrace();
    }
  }

  // The emulator's kernels.
  explicit Loaded(int (*emulates)(const char*)) : multiprocessors(4) {
    for (const auto& name : NAMES) {
      if (emulates(name.c_str())) kernels[name].left_out = is_unwanted(name);
    }
  }
};

// ---- the emulator

struct Emulator {
  int (*emulates)(const char* name);
  int (*emulate)(const char* name, const unsigned* grid, unsigned threads, unsigned shared, void** args, char* message,
                 size_t message_size);
  int (*wait)();
  Loaded loaded;

  explicit Emulator(void* library)
      : emulates(reinterpret_cast<decltype(emulates)>(dlsym(library, "nestor_emulates"))),
        emulate(reinterpret_cast<decltype(emulate)>(dlsym(library, "nestor_emulate"))),
        wait(reinterpret_cast<decltype(wait)>(dlsym(library, "nestor_emulator_wait"))),
        loaded(emulates) {}
};

std::unique_ptr<Emulator> open_emulator(const char* path) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  TORCH_CHECK(library, "the emulator of kernels: ", dlerror());
  return std::make_unique<Emulator>(library);
}

// The emulator that the environment names, or that a test has put in place; null elsewhere.
std::unique_ptr<Emulator>& emulator() {
  static std::unique_ptr<Emulator> opened = [] {
    const char* path = std::getenv("NESTOR_EMULATED_KERNELS");
    return path && *path ? open_emulator(path) : nullptr;
  }();
  return opened;
}

// Launches in the emulator, where a test asks for them. Autograd launches from threads of its own.
class Launches {
 public:
  struct Entry {
    std::string name;
    Launch launch;
    // Bytes of each argument.
    std::vector<size_t> sizes;
  };

  void record(bool on) {
    const std::lock_guard lock(mutex_);
    on_ = on;
    entries_.clear();
  }

  void add(Entry entry) {
    const std::lock_guard lock(mutex_);
    if (on_) entries_.push_back(std::move(entry));
  }

  const Entry* at(size_t i) {
    const std::lock_guard lock(mutex_);
    return i < entries_.size() ? &entries_[i] : nullptr;
  }

 private:
  std::mutex mutex_;
  bool on_ = false;
  std::deque<Entry> entries_;
};

Launches& launches() {
  static Launches all;
  return all;
}

// ---- both

// Null where the device has no kernels.
Loaded* loaded(const at::Device& device) {
  if (device.is_cpu()) return emulator() ? &emulator()->loaded : nullptr;
  if (!device.is_cuda() || chosen_kernels() == "none") return nullptr;
  constexpr int MOST_GPUS = 64;
  static std::array<std::once_flag, MOST_GPUS> once;
  static std::array<std::unique_ptr<Loaded>, MOST_GPUS> gpus;
  // CUDA's tensors have the number of their GPU.
  const int index = device.has_index() ? device.index() : 0;
  if (index >= MOST_GPUS) return nullptr;
  std::call_once(once[index], [&] { gpus[index] = std::make_unique<Loaded>(index); });
  return gpus[index].get();
}

Kernel* find(const std::string& name, const at::Device& device) {
  Loaded* all = loaded(device);
  if (!all) return nullptr;
  const auto found = all->kernels.find(name);
  return found == all->kernels.end() ? nullptr : &found->second;
}

}  // namespace

std::string kernel_name(const char* operation, at::ScalarType type) {
  switch (type) {
    case at::kFloat: return std::string(operation) + "_f32";
    case at::kHalf: return std::string(operation) + "_f16";
    case at::kBFloat16: return std::string(operation) + "_bf16";
    default: return "";
  }
}

bool has_kernel(const std::string& name, const at::Device& device) {
  const Kernel* kernel = find(name, device);
  return kernel && !kernel->left_out;
}

void leave_out_kernel(const std::string& name, const at::Device& device) {
  if (Kernel* kernel = find(name, device)) kernel->left_out = true;
}

bool is_unwanted(const std::string& name) {
  return ("," + chosen_kernels() + ",").find(",-" + name + ",") != std::string::npos;
}

bool has_kernels(const at::Device& device) {
  return loaded(device) != nullptr;
}

bool takes_self_test(const at::Device& device) {
  Loaded* all = loaded(device);
  return all && !all->tested.exchange(true);
}

int multiprocessors(const at::Device& device) {
  const Loaded* all = loaded(device);
  return all ? all->multiprocessors : 0;
}

std::string kernels_problem(const at::Device& device) {
  const Loaded* all = loaded(device);
  return all ? all->problem : "there is no GPU";
}

void launch_kernel(const std::string& name, const at::Device& device, const Launch& launch, void** args,
                   std::initializer_list<size_t> sizes) {
  const Kernel* kernel = find(name, device);
  TORCH_CHECK(kernel, "there is no kernel ", name);
  if (launch.grid_x == 0 || launch.grid_y == 0) return;
  if (device.is_cpu()) {
    launches().add({name, launch, sizes});
    char message[512] = "";
    const unsigned grid[] = {launch.grid_x, launch.grid_y, 1};
    const int failed = emulator()->emulate(name.c_str(), grid, launch.block, launch.shared, args, message, sizeof(message));
    TORCH_CHECK(!failed, "the emulator of kernels: ", message);
    return;
  }
  const auto& cuda = driver();
  // A thread that has not used CUDA yet, such as one of autograd's, has no context.
  const Loaded& gpu = *loaded(device);
  CUcontext before = nullptr;
  cuda.check(cuda.cuCtxGetCurrent(&before), "cuCtxGetCurrent");
  if (before != gpu.context) cuda.check(cuda.cuCtxSetCurrent(gpu.context), "cuCtxSetCurrent");
  const c10::impl::VirtualGuardImpl libtorch(c10::DeviceType::CUDA);
  const auto stream = static_cast<CUstream>(libtorch.getStreamNativeHandle(libtorch.getStream(device)));
  // A block may have this much without asking.
  constexpr unsigned PLAIN_SHARED = 48 << 10;
  if (launch.shared > PLAIN_SHARED) {
    const auto bytes = static_cast<int>(launch.shared);
    cuda.check(cuda.cuFuncSetAttribute(kernel->function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, bytes),
               name.c_str());
  }
  const auto result = cuda.cuLaunchKernel(kernel->function, launch.grid_x, launch.grid_y, 1, launch.block, 1, 1,
                                          launch.shared, stream, args, nullptr);
  if (before && before != gpu.context) cuda.cuCtxSetCurrent(before);
  cuda.check(result, name.c_str());
}

void wait_for_kernels(const at::Device& device) {
  if (device.is_cuda()) {
    c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).synchronizeDevice(device.index());
  } else if (emulator()) {
    TORCH_CHECK(emulator()->wait() == 0, "the emulator of kernels: a launch failed");
  }
}

extern "C" {

// Puts the emulator's library in place of a GPU for tensors on the CPU, or takes it away where the path is null. No
// operation may run meanwhile.
int nestor_kernels_emulate(const char* path, char* message, size_t message_size) {
  return guarded(message, message_size, [&] { emulator() = path ? open_emulator(path) : nullptr; });
}

// Drops the recorded launches, and records those of the emulator from here on, or no more.
void nestor_launches_record(int on) {
  launches().record(on);
}

// Recorded launch number `i`: its kernel, grid and block, dynamic shared memory, and the bytes of its arguments. Null behind
// the last. No operation may run meanwhile.
const char* nestor_launch(size_t i, unsigned shape[4], const size_t** sizes, size_t* count) {
  const auto* entry = launches().at(i);
  if (!entry) return nullptr;
  const auto& launch = entry->launch;
  const unsigned own[] = {launch.grid_x, launch.grid_y, launch.block, launch.shared};
  std::copy(std::begin(own), std::end(own), shape);
  *sizes = entry->sizes.data();
  *count = entry->sizes.size();
  return entry->name.c_str();
}

// The name of kernel number `i`, or null behind the last.
const char* nestor_kernel_name(size_t i) {
  return i < NAMES.size() ? NAMES[i].c_str() : nullptr;
}

// 1 where tensors on this GPU, or with -1 on the CPU, have this kernel.
int nestor_has_kernel(const char* name, int64_t gpu) {
  const auto device = gpu < 0 ? at::Device(at::kCPU) : at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(gpu));
  return has_kernel(name, device) ? 1 : 0;
}

// The name of the code that a GPU of this compute capability runs; null where there is none.
const char* nestor_code_for(int major, int minor) {
  const Cubin* fits = code_for(major, minor);
  return fits ? fits->architecture : nullptr;
}

// The name of the code that this GPU runs; null where there is none.
const char* nestor_code_of(int64_t gpu) {
  const Loaded* all = loaded(at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(gpu)));
  return all && !all->architecture.empty() ? all->architecture.c_str() : nullptr;
}

// The architecture and bytes of code number `i`; null behind the last.
const char* nestor_cubin(size_t i, const unsigned char** bytes, size_t* size) {
  if (i >= CUBINS.size()) return nullptr;
  *bytes = CUBINS[i].begin;
  *size = static_cast<size_t>(CUBINS[i].end - CUBINS[i].begin);
  return CUBINS[i].architecture;
}
}
