// libtorch's CUDA half: libtorch_cuda.so and the CUDA libraries behind it. It is loaded at run time and not linked, because
// loading it takes as much CPU time as the rest of libtorch, and every start would pay for it.

#include <dlfcn.h>

#include "guarded.h"

// The functions of libtorch_cuda.so that this folder calls, by their names in the library. Whoever calls another one gets
// the linker's "undefined reference", and adds it here.
#define FUNCTIONS(each) \
  each(_ZN2at4cuda17graph_pool_handleEv) \
  each(_ZN2at4cuda9CUDAGraphC1Eb) \
  each(_ZN2at4cuda9CUDAGraphD1Ev) \
  each(_ZN2at4cuda9CUDAGraph13capture_beginESt4pairIyyE21cudaStreamCaptureMode) \
  each(_ZN2at4cuda9CUDAGraph11capture_endEv) \
  each(_ZN2at4cuda9CUDAGraph6replayEv) \
  each(_ZN4c10d16ProcessGroupNCCL7OptionsC1Eb) \
  each(_ZN4c10d16ProcessGroupNCCL8WorkNCCLC1ERKS1_) \
  each(_ZN4c10d16ProcessGroupNCCLC1EN3c1013intrusive_ptrINS_5StoreENS1_6detail34intrusive_target_default_null_typeIS3_EEEEiiNS2_INS0_7OptionsENS5_IS8_EEEE)

namespace {

// Takes the place of all functions until the library is loaded.
[[noreturn]] void not_loaded() {
  TORCH_CHECK(false, "the CUDA half of libtorch is not loaded, because there is no driver of a GPU");
}

}  // namespace

extern "C" {

// Each function has a stub of its name that jumps to the library's function, with all arguments in place. Stubs are hidden,
// so that calls within the library do not reach them.
#define STUB(name)                                                                                              \
  __attribute__((visibility("hidden"), used)) void* nestor_to_##name = reinterpret_cast<void*>(&not_loaded);    \
  asm(".pushsection .text\n.globl " #name "\n.hidden " #name "\n.type " #name ", @function\n"                   \
      #name ": jmp *nestor_to_" #name "(%rip)\n.size " #name ", . - " #name "\n.popsection");
FUNCTIONS(STUB)

// Loads the CUDA half. It must come before the first question about GPUs: libtorch remembers the answer.
int nestor_cuda_load(char* message, size_t message_size) {
  return guarded(message, message_size, [] {
    // Global, as if it were linked: libraries that it loads later find its symbols.
    void* library = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_GLOBAL);
    TORCH_CHECK(library, dlerror());
#define FIND(name)                             \
  void* found_##name = dlsym(library, #name);  \
  TORCH_CHECK(found_##name, dlerror());        \
  nestor_to_##name = found_##name;
    FUNCTIONS(FIND)
  });
}
}
