// Products of matrices with float32 results on a CPU: attention's, and the gradients of weights. They choose the library of
// this machine among those that libtorch contains.

#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "vectors.h"

// Libraries of products; the numbers are those of `src/fused.rs`.
enum class Library : int {
  // MKL: the quickest with AMX. Without AMX on an AMD its bfloat16 is as slow as AVX2's float32.
  Mkl = 0,
  // oneDNN's block products: bfloat16 by AMX or AVX512-BF16.
  OneDnn = 1,
  // oneDNN's block products in float32, of widened operands: AVX512 or AVX2.
  Float32 = 2,
};

// The library of this process: that of NESTOR_PRODUCTS, else the best for this CPU. A CPU always gives the same one, so that runs
// can be repeated bit for bit. Throws if NESTOR_PRODUCTS names none that works here.
Library products_library();

// A matrix by rows, or its transpose.
template <typename T>
struct Matrix {
  const T* data;
  int64_t stride;
  bool transposed = false;
};

// The right matrix (k, n) of products, in the layout that the library reads: arranged once, used by many products.
template <typename T>
class Right {
 public:
  // Columns of a panel, and the multiple of rows that panels are filled up to.
  static constexpr int64_t WIDTH = 64, STEP = 32;

  explicit Right(Library library) : library(library) {}

  // Takes another matrix. MKL reads it in place, so it must live as long. `parallel`: all threads arrange it.
  void arrange(int64_t k, int64_t n, Matrix<T> b, bool parallel = false);

  // c (m, n) = a (m, k) * the upper left (k, n) of this matrix, added to c where `add` is true, on the calling thread.
  // `n` may reach over the edge to a multiple of WIDTH; what is written there means nothing. `k` may reach over the edge
  // where a's columns are zero.
  void product(int64_t m, int64_t n, int64_t k, Matrix<T> a, bool add, float* c, int64_t stride) const;

  // The same for columns from..to of the matrix and of c; never by MKL.
  void columns(int64_t m, int64_t from, int64_t to, int64_t k, Matrix<T> a, bool add, float* c, int64_t stride) const;

 private:
  Library library;
  int64_t k = 0, n = 0;
  Matrix<T> source{};
  // Panels of WIDTH columns, one behind the other. A word is a float32, or two bfloat16 of a column in successive rows.
  std::unique_ptr<uint32_t[]> panels;
  size_t room = 0;

  // Rows of words in a panel.
  int64_t words() const;
  void arrange_panel(int64_t panel);
};

// to (columns, rows) = from (rows, columns) transposed, of 4-byte words. Strides are in words, that of `from` in bytes.
void transpose_words(const void* from, int64_t from_bytes, void* to, int64_t to_stride, int64_t rows, int64_t columns);

// sum (n, m) float32 = or += a (T, n) transposed * b (T, m), on all threads: a weight's gradient, without a temporary in
// float32 and bfloat16. The rows of `sum` may be apart. `first` overwrites instead of adding.
void add_product(const at::Tensor& sum, const at::Tensor& a, const at::Tensor& b, bool first);
