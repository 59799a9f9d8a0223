// Products by MKL, or by oneDNN's kernels for one block (`brgemm`), which ATen exports. oneDNN compiles a kernel for each new
// shape, in 0.2 ms, and keeps it: the number of shapes is kept small, whatever the lengths of sequences are.

#include "products.h"

#include <ATen/Parallel.h>
#include <ATen/native/CPUBlas.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <string>
#include <type_traits>

#include "guarded.h"

// libtorch contains MKL on x86-64; elsewhere these are null.
extern "C" {
__attribute__((weak)) void cblas_gemm_bf16bf16f32(int layout, int trans_a, int trans_b, int m, int n, int k, float alpha,
                                                  const void* a, int lda, const void* b, int ldb, float beta, float* c,
                                                  int ldc);
__attribute__((weak)) void sgemm_(const char* trans_a, const char* trans_b, const int* m, const int* n, const int* k,
                                  const float* alpha, const float* a, const int* lda, const float* b, const int* ldb,
                                  const float* beta, float* c, const int* ldc);
}

namespace {

// Rows of c and of a that one kernel computes, and the longest sum: a block of a fits into the second-level cache.
constexpr int64_t ROWS = 64, DEPTH = 512;

// Tokens whose right matrix is arranged at once for a weight's gradient.
constexpr int64_t TOKENS = 4096;

int64_t round_up(int64_t x, int64_t to) {
  return (x + to - 1) / to * to;
}

// ---- MKL

void mkl_product(int m, int n, int k, Matrix<Bf16> a, Matrix<Bf16> b, bool add, float* c, int stride) {
  constexpr int BY_ROWS = 101, AS_IS = 111, TRANSPOSED = 112;
  cblas_gemm_bf16bf16f32(BY_ROWS, a.transposed ? TRANSPOSED : AS_IS, b.transposed ? TRANSPOSED : AS_IS, m, n, k, 1, a.data,
                         a.stride, b.data, b.stride, add, c, stride);
}

// MKL's sgemm stores matrices by columns, so this computes the transposed product.
void mkl_product(int m, int n, int k, Matrix<float> a, Matrix<float> b, bool add, float* c, int stride) {
  const int lda = a.stride, ldb = b.stride;
  const float one = 1, beta = add;
  sgemm_(b.transposed ? "T" : "N", a.transposed ? "T" : "N", &n, &m, &k, &one, b.data, &ldb, a.data, &lda, &beta, c,
         &stride);
}

// ---- Layouts

typedef uint32_t Eight __attribute__((vector_size(32)));

// Transposes 8 rows of 8 words, in steps that AVX2 has instructions for.
INLINE void transpose_tile(const char* from, int64_t from_bytes, uint32_t* to, int64_t to_stride) {
  Eight row[8], pairs[8], fours[8];
  for (int i = 0; i < 8; ++i) std::memcpy(&row[i], from + i * from_bytes, sizeof row[i]);
  const Eight low = {0, 8, 1, 9, 4, 12, 5, 13}, high = {2, 10, 3, 11, 6, 14, 7, 15};
  for (int i = 0; i < 8; i += 2) {
    pairs[i] = __builtin_shuffle(row[i], row[i + 1], low);
    pairs[i + 1] = __builtin_shuffle(row[i], row[i + 1], high);
  }
  const Eight low_two = {0, 1, 8, 9, 4, 5, 12, 13}, high_two = {2, 3, 10, 11, 6, 7, 14, 15};
  for (int i = 0; i < 8; i += 4) {
    for (int half = 0; half < 2; ++half) {
      fours[i + 2 * half] = __builtin_shuffle(pairs[i + half], pairs[i + half + 2], low_two);
      fours[i + 2 * half + 1] = __builtin_shuffle(pairs[i + half], pairs[i + half + 2], high_two);
    }
  }
  const Eight low_four = {0, 1, 2, 3, 8, 9, 10, 11}, high_four = {4, 5, 6, 7, 12, 13, 14, 15};
  for (int i = 0; i < 4; ++i) {
    const Eight first = __builtin_shuffle(fours[i], fours[i + 4], low_four);
    const Eight second = __builtin_shuffle(fours[i], fours[i + 4], high_four);
    std::memcpy(to + i * to_stride, &first, sizeof first);
    std::memcpy(to + (i + 4) * to_stride, &second, sizeof second);
  }
}

VECTORS void transpose_all(const char* from, int64_t from_bytes, uint32_t* to, int64_t to_stride, int64_t rows,
                           int64_t columns) {
  const int64_t whole_rows = rows / 8 * 8, whole_columns = columns / 8 * 8;
  for (int64_t i = 0; i < whole_rows; i += 8)
    for (int64_t j = 0; j < whole_columns; j += 8)
      transpose_tile(from + i * from_bytes + j * 4, from_bytes, to + j * to_stride + i, to_stride);
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = i < whole_rows ? whole_columns : 0; j < columns; ++j)
      std::memcpy(to + j * to_stride + i, from + i * from_bytes + j * 4, 4);
}

// Elements of two rows side by side. Without a second row its elements are zero.
VECTORS void pair_rows(const Bf16* first, const Bf16* second, uint32_t* to, int64_t n) {
  if (second) {
    for (int64_t i = 0; i < n; ++i) to[i] = first[i].bits | static_cast<uint32_t>(second[i].bits) << 16;
  } else {
    for (int64_t i = 0; i < n; ++i) to[i] = first[i].bits;
  }
}

VECTORS void widen_row(const Bf16* from, uint32_t* to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = static_cast<uint32_t>(from[i].bits) << 16;
}

// A block's words are float32 or pairs of bfloat16: how many elements a word holds.
template <typename T>
int64_t in_word(Library library) {
  return std::is_same_v<T, Bf16> && library == Library::OneDnn ? 2 : 1;
}

// Copies rows first..first + k of a matrix by rows, `n` elements from `data` on, as rows of words.
template <typename T>
void rows_to_words(const T* data, int64_t stride, int64_t k, int64_t n, int64_t per_word, uint32_t* to, int64_t to_stride) {
  for (int64_t row = 0; row < k; row += per_word, to += to_stride) {
    const T* from = data + row * stride;
    if constexpr (std::is_same_v<T, float>) {
      std::memcpy(to, from, n * sizeof(float));
    } else if (per_word == 2) {
      pair_rows(from, row + 1 < k ? from + stride : nullptr, to, n);
    } else {
      widen_row(from, to, n);
    }
  }
}

// Copies `n` rows of `k` elements from `data` on, each as a row of words.
template <typename T>
void elements_to_words(const T* data, int64_t stride, int64_t n, int64_t k, int64_t per_word, uint32_t* to,
                       int64_t to_stride) {
  for (int64_t row = 0; row < n; ++row, to += to_stride) {
    const T* from = data + row * stride;
    if constexpr (std::is_same_v<T, Bf16>) {
      if (per_word == 1) {
        widen_row(from, to, k);
        continue;
      }
      if (k % 2) to[k / 2] = 0;
    }
    std::memcpy(to, from, k * sizeof(T));
  }
}

// Words of a left block (m, k), rows of `depth` elements filled up with zeros, in `to`.
template <typename T>
void arrange_left(Matrix<T> a, int64_t row, int64_t column, int64_t m, int64_t k, int64_t depth, int64_t per_word,
                  uint32_t* to) {
  const int64_t words = depth / per_word, filled = (k + per_word - 1) / per_word;
  if (a.transposed) {
    constexpr int64_t PART = 64;
    uint32_t part[PART * ROWS];
    for (int64_t first = 0; first < filled; first += PART) {
      const int64_t n = std::min(PART, filled - first), start = first * per_word;
      const T* from = a.data + (column + start) * a.stride + row;
      rows_to_words(from, a.stride, std::min(n * per_word, k - start), m, per_word, part, ROWS);
      transpose_all(reinterpret_cast<const char*>(part), ROWS * 4, to + first, words, n, m);
    }
  } else {
    elements_to_words(a.data + row * a.stride + column, a.stride, m, k, per_word, to, words);
  }
  if (filled < words)
    for (int64_t i = 0; i < m; ++i) std::memset(to + i * words + filled, 0, (words - filled) * 4);
}

// ---- oneDNN

void block(int64_t m, int64_t n, int64_t k, const at::BFloat16* a, int64_t lda, const at::BFloat16* b, bool add, float* c,
           int64_t ldc) {
  at::native::cpublas::brgemm(m, n, k, lda, Right<Bf16>::WIDTH, ldc, add, a, b, c);
}

void block(int64_t m, int64_t n, int64_t k, const float* a, int64_t lda, const float* b, bool add, float* c, int64_t ldc) {
  at::native::cpublas::brgemm(m, n, k, lda, Right<float>::WIDTH, ldc, add, a, b, c);
}

// Returns true if oneDNN multiplies bfloat16 here, which ONEDNN_MAX_CPU_ISA may forbid.
bool onednn_takes_bfloat16() {
  at::BFloat16 a[Right<Bf16>::STEP] = {}, b[Right<Bf16>::STEP * Right<Bf16>::WIDTH] = {};
  float c[Right<Bf16>::WIDTH];
  try {
    block(1, Right<Bf16>::WIDTH, Right<Bf16>::STEP, a, Right<Bf16>::STEP, b, false, c, Right<Bf16>::WIDTH);
    at::native::cpublas::brgemm_release();
    return true;
  } catch (const std::exception&) {  // oneDNN has an error type of its own
    return false;
  }
}

Library choose() {
  const bool mkl = cblas_gemm_bf16bf16f32 && sgemm_;
  const char* wanted = std::getenv("NESTOR_PRODUCTS");
  const std::string name = wanted ? wanted : "";
  if (name == "mkl" && mkl) return Library::Mkl;
  if (name == "onednn" && onednn_takes_bfloat16()) return Library::OneDnn;
  if (name == "float32") return Library::Float32;
  TORCH_CHECK(name.empty(), "NESTOR_PRODUCTS is ", name, ", which is none of mkl, onednn and float32 or does not work here");
  // oneDNN packs bfloat16 by itself only for AMX.
  if (mkl && at::native::cpublas::could_pack(at::kBFloat16)) return Library::Mkl;
  return onednn_takes_bfloat16() ? Library::OneDnn : Library::Float32;
}

}  // namespace

Library products_library() {
  static const Library chosen = choose();
  return chosen;
}

void transpose_words(const void* from, int64_t from_bytes, void* to, int64_t to_stride, int64_t rows, int64_t columns) {
  transpose_all(static_cast<const char*>(from), from_bytes, static_cast<uint32_t*>(to), to_stride, rows, columns);
}

template <typename T>
int64_t Right<T>::words() const {
  return round_up(k, STEP) / in_word<T>(library);
}

template <typename T>
void Right<T>::arrange(int64_t rows, int64_t columns, Matrix<T> b, bool parallel) {
  k = rows, n = columns, source = b;
  if (library == Library::Mkl) return;
  const int64_t count = round_up(n, WIDTH) / WIDTH;
  const size_t size = count * words() * WIDTH;
  if (room < size) {
    panels.reset(new uint32_t[size]);
    room = size;
  }
  if (parallel) {
    at::parallel_for(0, count, 1, [&](int64_t from, int64_t to) {
      for (int64_t panel = from; panel < to; ++panel) arrange_panel(panel);
    });
  } else {
    for (int64_t panel = 0; panel < count; ++panel) arrange_panel(panel);
  }
}

template <typename T>
void Right<T>::arrange_panel(int64_t panel) {
  const int64_t per_word = in_word<T>(library), first = panel * WIDTH, width = std::min(WIDTH, n - first);
  const int64_t filled = (k + per_word - 1) / per_word;
  uint32_t* to = panels.get() + panel * words() * WIDTH;
  if (source.transposed) {
    constexpr int64_t PART = 64;
    uint32_t part[WIDTH * PART];
    for (int64_t start = 0; start < filled; start += PART) {
      const int64_t count = std::min(PART, filled - start), element = start * per_word;
      elements_to_words(source.data + first * source.stride + element, source.stride, width,
                        std::min(count * per_word, k - element), per_word, part, PART);
      transpose_all(reinterpret_cast<const char*>(part), PART * 4, to + start * WIDTH, WIDTH, width, count);
    }
  } else {
    rows_to_words(source.data + first, source.stride, k, width, per_word, to, WIDTH);
  }
  if (width < WIDTH)
    for (int64_t row = 0; row < filled; ++row) std::memset(to + row * WIDTH + width, 0, (WIDTH - width) * 4);
  std::memset(to + filled * WIDTH, 0, (words() - filled) * WIDTH * 4);
}

template <typename T>
void Right<T>::columns(int64_t m, int64_t from, int64_t to, int64_t depth, Matrix<T> a, bool add, float* c,
                       int64_t stride) const {
  const int64_t per_word = in_word<T>(library), panel_words = words() * WIDTH;
  alignas(64) uint32_t scratch[ROWS * DEPTH];
  depth = std::min(depth, round_up(k, STEP));
  for (int64_t start = 0; start < depth; start += DEPTH) {
    // Elements of a, and the number to which zeros fill them up.
    const int64_t given = std::min(DEPTH, depth - start), filled = round_up(given, STEP);
    int64_t rows = ROWS;
    for (int64_t row = 0; row < m; row += rows) {
      while (rows > m - row) rows /= 2;
      const bool direct = !a.transposed && given == filled && (per_word == 2 || std::is_same_v<T, float>);
      if (!direct) arrange_left(a, row, start, rows, given, filled, per_word, scratch);
      const void* left = direct ? static_cast<const void*>(a.data + row * a.stride + start) : scratch;
      const int64_t lda = direct ? a.stride : filled;
      for (int64_t column = from; column < to; column += WIDTH) {
        const uint32_t* right = panels.get() + column / WIDTH * panel_words + start / per_word * WIDTH;
        const int64_t width = std::min(WIDTH, to - column);
        float* out = c + row * stride + column;
        if (per_word == 2) {
          block(rows, width, filled, static_cast<const at::BFloat16*>(left), lda,
                reinterpret_cast<const at::BFloat16*>(right), add || start > 0, out, stride);
        } else {
          block(rows, width, filled, static_cast<const float*>(left), lda, reinterpret_cast<const float*>(right),
                add || start > 0, out, stride);
        }
      }
    }
  }
  // AMX's tiles: other operations configure them for themselves.
  if (per_word == 2) at::native::cpublas::brgemm_release();
}

template <typename T>
void Right<T>::product(int64_t m, int64_t to, int64_t depth, Matrix<T> a, bool add, float* c, int64_t stride) const {
  if (library == Library::Mkl) {
    mkl_product(m, std::min(to, n), std::min(depth, k), a, source, add, c, stride);
  } else {
    columns(m, 0, to, depth, a, add, c, stride);
  }
}

template class Right<float>;
template class Right<Bf16>;

void add_product(const at::Tensor& sum, const at::Tensor& a, const at::Tensor& b, bool first) {
  TORCH_CHECK(sum.scalar_type() == at::kFloat && sum.dim() == 2 && sum.stride(1) == 1, "a sum is float32 by rows");
  const auto left = a.contiguous(), right = b.contiguous();
  const int64_t tokens = left.size(0), n = left.size(1), m = right.size(1), stride = sum.stride(0);
  const Library library = products_library();
  if (tokens == 0) {
    if (first) sum.zero_();
    return;
  }
  with_type(left, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    float* to = data<float>(sum);
    if (library == Library::Mkl) {
      mkl_product(n, m, tokens, {data<T>(left), n, true}, {data<T>(right), m}, !first, to, stride);
      return;
    }
    // A task is a block of rows. Where these are few for the threads, it is a part of a block's columns.
    const int64_t blocks = round_up(n, ROWS) / ROWS, panels = round_up(m, Right<T>::WIDTH) / Right<T>::WIDTH;
    const int64_t enough = 4 * at::get_num_threads();
    const int64_t parts = std::clamp<int64_t>((enough + blocks - 1) / blocks, 1, panels);
    const int64_t part = (panels + parts - 1) / parts * Right<T>::WIDTH;
    Right<T> arranged(library);
    for (int64_t token = 0; token < tokens; token += TOKENS) {
      const int64_t count = std::min(TOKENS, tokens - token);
      arranged.arrange(count, m, {data<T>(right) + token * m, m}, true);
      at::parallel_for(0, blocks * parts, 1, [&](int64_t from, int64_t last) {
        for (int64_t task = from; task < last; ++task) {
          const int64_t row = task / parts * ROWS, column = task % parts * part;
          arranged.columns(std::min(ROWS, n - row), column, std::min(m, column + part), count,
                           {data<T>(left) + token * n + row, n, true}, !first || token > 0, to + row * stride, stride);
        }
      });
    }
  });
}

extern "C" {

// Writes the number of the library of products.
int nestor_products_library(int* library, char* message, size_t message_size) {
  return guarded(message, message_size, [&] { *library = static_cast<int>(products_library()); });
}

// sum (n, m) float32 = a (T, n) transposed * b (T, m), added to what it holds unless `first`.
int nestor_add_product(const at::Tensor* sum, const at::Tensor* a, const at::Tensor* b, bool first, char* message,
                       size_t message_size) {
  return guarded(message, message_size, [&] { add_product(*sum, *a, *b, first); });
}
}
