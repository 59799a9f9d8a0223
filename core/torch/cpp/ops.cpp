// Operations of libtorch that tch does not wrap. Tensors cross as the pointers that tch holds (at::Tensor*).

#include <ATen/Context.h>
#include <torch/headeronly/version.h>

#include "guarded.h"

extern "C" {

// The version of the libtorch that this was compiled against, such as 2.11.0.
const char* nestor_torch_version() { return TORCH_VERSION; }

// Makes operations choose deterministic algorithms, and fail where there is none.
int nestor_deterministic(bool on, char* message, size_t message_size) {
  return guarded(message, message_size, [&] {
    at::globalContext().setDeterministicAlgorithms(on, /*warn_only=*/false);
    at::globalContext().setDeterministicFillUninitializedMemory(false);
  });
}
}
