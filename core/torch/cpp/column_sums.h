// Gradients of vectors in parts: a backward pass leaves float32 parts, whose columns are summed by cuda/column_sums.cu.

#pragma once

#include <ATen/core/Tensor.h>

// A leaf (parts, sizes...) in float32 that stands for as many copies of a vector, each of which some tokens use. Its gradient
// is that of the vector in parts. It has no values, and takes no memory.
at::Tensor leaf_of_parts(int64_t parts, at::IntArrayRef sizes, const at::Tensor& like);

// Writes the column sums of x (n, m), in float32, to `sum` (m), or adds them unless they are the first.
void add_column_sums(const at::Tensor& sum, const at::Tensor& x, bool first);
