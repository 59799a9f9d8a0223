// Operations that are one on CUDA, as a recorder (record.cpp) and a profiler see them.

#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>

#include <vector>

// Runs an operation under its own name, with the tensors that it reads and those that it returns. None of its parts is seen.
template <typename Run>
std::vector<at::Tensor> recorded(const char* name, const std::vector<at::Tensor>& reads, const Run& run) {
  at::RecordFunction seen(at::RecordScope::FUNCTION);
  if (seen.isActive()) {
    std::vector<c10::IValue> inputs(reads.begin(), reads.end());
    seen.before(name, &inputs);
  }
  const at::DisableRecordFunctionGuard unseen;
  std::vector<at::Tensor> writes = run();
  if (seen.isActive()) {
    std::vector<c10::IValue> outputs;
    for (const auto& tensor : writes) {
      if (tensor.defined()) outputs.emplace_back(tensor);
    }
    seen.setOutputs(std::move(outputs));
  }
  return writes;
}
