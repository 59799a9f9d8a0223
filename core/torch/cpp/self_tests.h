// Each kernel once on a small input, against public operations. An operation's file offers its tests; self_tests.cpp lists
// them all.

#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

struct SelfTest {
  std::string kernel;
  // Launches the kernel on this device. Returns what is wrong with its results, or nothing.
  std::function<std::string(const at::Device& device)> problem;
};

// An operation that has a kernel for each type, and its test.
struct OperationTest {
  const char* operation;
  std::string (*problem)(at::ScalarType type, const at::Device& device);
};

// The tests of these operations for each type.
std::vector<SelfTest> for_each_type(std::initializer_list<OperationTest> tests);

// Normal numbers times `scale`, the same in each run. No generator of libtorch is advanced.
at::Tensor sample(at::IntArrayRef sizes, at::ScalarType type, const at::Device& device, double scale = 1.0,
                  uint64_t seed = 1);

// The fault of a result that should be `want`, computed in float32, up to a few roundings of its type: nothing, or its
// largest difference.
std::string difference(const at::Tensor& got, const at::Tensor& want);

// The tests of each operation's file.
std::vector<SelfTest> adamw_self_tests();
std::vector<SelfTest> column_sums_self_tests();
std::vector<SelfTest> decode_self_tests();
std::vector<SelfTest> head_self_tests();
std::vector<SelfTest> norm_self_tests();
std::vector<SelfTest> rotate_self_tests();
std::vector<SelfTest> silu_mul_self_tests();
