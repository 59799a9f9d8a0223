// Graphs of a GPU and copies that the host does not wait for, one thin function each. Only CUDA has them: nothing in
// graph.cpp but `read_back` on host tensors runs on a CPU.

#pragma once

#include <ATen/core/Tensor.h>

// Copies a host tensor through pinned memory into a tensor of a GPU, so that the host does not wait for it.
void cuda_copy_into(const at::Tensor& host, const at::Tensor& to);

// A copy of a GPU's tensor in pinned memory, which is complete only after the stream's work before it.
at::Tensor cuda_read_back(const at::Tensor& from);
