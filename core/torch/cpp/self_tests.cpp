#include "self_tests.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/randn.h>

#include <iterator>

#include "guarded.h"
#include "kernels.h"

namespace {

constexpr at::ScalarType TYPES[] = {at::kFloat, at::kHalf, at::kBFloat16};

// The tests of all kernels.
std::vector<SelfTest> all() {
  std::vector<SelfTest> tests;
  for (const auto of_file : {adamw_self_tests, column_sums_self_tests, decode_self_tests, head_self_tests,
                             norm_self_tests, rotate_self_tests, silu_mul_self_tests}) {
    auto more = of_file();
    std::move(more.begin(), more.end(), std::back_inserter(tests));
  }
  return tests;
}

// After a fault of a kernel all calls of CUDA fail in this process, so that nothing can take its place.
void expect_no_fault(const std::string& kernel, const at::Device& device) {
  try {
    wait_for_kernels(device);
  } catch (const c10::Error& error) {
    TORCH_CHECK(false, "the CUDA kernel ", kernel, " failed, and this process can use the GPU no more; set NESTOR_KERNELS=-",
                kernel, " to leave it out (", error.what_without_backtrace(), ")");
  }
}

}  // namespace

std::vector<SelfTest> for_each_type(std::initializer_list<OperationTest> tests) {
  std::vector<SelfTest> all;
  for (const auto& [operation, problem] : tests) {
    for (const auto type : TYPES) {
      const auto of_type = [problem = problem, type](const at::Device& device) { return problem(type, device); };
      all.push_back({kernel_name(operation, type), of_type});
    }
  }
  return all;
}

at::Tensor sample(at::IntArrayRef sizes, at::ScalarType type, const at::Device& device, double scale, uint64_t seed) {
  const auto own = at::make_generator<at::CPUGeneratorImpl>(seed);
  return (at::randn(sizes, own, at::TensorOptions().dtype(at::kFloat)) * scale).to(type).to(device);
}

std::string difference(const at::Tensor& got, const at::Tensor& want) {
  if (got.sizes() != want.sizes()) return "its result has another shape";
  const auto type = got.scalar_type();
  // A few units of the last place.
  const double rounding = type == at::kBFloat16 ? 0.016 : type == at::kHalf ? 0.002 : 1e-5;
  // On the host: each of these operations would load a kernel of libtorch's, which takes milliseconds.
  const auto exact = want.to(at::kCPU).to(at::kFloat), off = (got.to(at::kCPU).to(at::kFloat) - exact).abs();
  // Sums of numbers that cancel are as wrong as the largest of them.
  const auto allowed = (exact.abs() + exact.square().mean().sqrt()) * rounding + 1e-12;
  // Not `off > allowed`: a NaN is wrong too.
  if (off.le(allowed).all().item<bool>()) return "";
  return "its result differs by up to " + std::to_string(off.max().item<double>());
}

extern "C" {

// Tests all kernels of this GPU, or with -1 the emulated ones for the CPU, unless an earlier call did. Leaves out those that
// differ or do not load, and reports each of these. Reports each kernel without a reason before its test.
int nestor_kernels_self_test(int64_t gpu, void (*report)(void* to, const char* kernel, const char* reason), void* to,
                             char* message, size_t message_size) {
  return guarded(message, message_size, [&] {
    const auto device = gpu < 0 ? at::Device(at::kCPU) : at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(gpu));
    if (!takes_self_test(device)) return;
    const at::NoGradGuard no_grad;
    const auto missing = kernels_problem(device);
    for (const auto& test : all()) {
      report(to, test.kernel.c_str(), nullptr);
      std::string reason = missing.empty() ? "it does not load" : missing;
      if (is_unwanted(test.kernel)) reason = "left out by NESTOR_KERNELS";
      if (has_kernel(test.kernel, device)) {
        try {
          reason = test.problem(device);
        } catch (const c10::Error& error) {
          reason = error.what_without_backtrace();
        }
        expect_no_fault(test.kernel, device);
      }
      if (reason.empty()) continue;
      leave_out_kernel(test.kernel, device);
      report(to, test.kernel.c_str(), reason.c_str());
    }
  });
}
}
