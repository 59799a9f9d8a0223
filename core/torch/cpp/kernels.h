// Own kernels by name (cuda/list.h), on a GPU or, in tests, in the emulator of a block.

#pragma once

#include <ATen/core/Tensor.h>

#include <initializer_list>
#include <string>

// Blocks and threads of a launch, and the bytes of its dynamic shared memory.
struct Launch {
  unsigned grid_x;
  unsigned grid_y = 1;
  unsigned block = 0;
  unsigned shared = 0;
};

// The name of an operation's kernel for this type: `rms_norm_bf16`. Empty for a type without kernels.
std::string kernel_name(const char* operation, at::ScalarType type);

// True where tensors on this device have this kernel: its cubin is loaded, or the emulator is, and the self-test has not
// left it out.
bool has_kernel(const std::string& name, const at::Device& device);

// Starts a kernel on the current stream. `args` points at each argument, of the bytes that `sizes` says.
void launch_kernel(const std::string& name, const at::Device& device, const Launch& launch, void** args,
                   std::initializer_list<size_t> sizes);

// The same with the arguments themselves, in the types of the kernel's parameters.
template <class... A>
void launch_kernel(const std::string& name, const at::Device& device, const Launch& launch, A... args) {
  void* list[] = {&args...};
  launch_kernel(name, device, launch, list, {sizeof(A)...});
}

// Waits for all launches on this device; an error of libtorch's after a fault.
void wait_for_kernels(const at::Device& device);

// True for a kernel that the variable NESTOR_KERNELS leaves out.
bool is_unwanted(const std::string& name);

// Takes a kernel away from tensors on this device.
void leave_out_kernel(const std::string& name, const at::Device& device);

// True where tensors on this device may have kernels at all: on CUDA unless NESTOR_KERNELS is `none`, and on a CPU with the
// emulator.
bool has_kernels(const at::Device& device);

// True for the first caller that asks for this device, which tests its kernels.
bool takes_self_test(const at::Device& device);

// Multiprocessors of the device; a few for the emulator, so that small cases fill them. 0 where there are no kernels.
int multiprocessors(const at::Device& device);

// The reason for which a GPU has no kernels; empty where it has.
std::string kernels_problem(const at::Device& device);
