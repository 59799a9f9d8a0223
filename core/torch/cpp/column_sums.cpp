#include "column_sums.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>
#include <torch/csrc/autograd/autograd.h>

#include "guarded.h"
#include "launch.h"
#include "recorded.h"
#include "self_tests.h"

namespace {

using torch::autograd::variable_list;

// As in cuda/column_sums.cu.
constexpr int64_t COLUMNS_OF_BLOCK = 16;

bool is_taken(const at::Tensor& sum, const at::Tensor& x) {
  const bool aligned = reinterpret_cast<uintptr_t>(x.const_data_ptr()) % 16 == 0 && x.size(1) % 4 == 0;
  return x.scalar_type() == at::kFloat && x.is_contiguous() && aligned && sum.is_contiguous() &&
         has_kernel("column_sums_f32", x.device());
}

std::string column_sums_problem(const at::Device& device) {
  for (const bool first : {true, false}) {
    const auto x = sample({300, 36}, at::kFloat, device), sum = sample({36}, at::kFloat, device, 1.0, 2);
    const auto want = first ? x.sum(0) : x.sum(0) + sum;
    add_column_sums(sum, x, first);
    const auto why = difference(sum, want);
    if (!why.empty()) return why;
  }
  return "";
}

}  // namespace

at::Tensor leaf_of_parts(int64_t parts, at::IntArrayRef sizes, const at::Tensor& like) {
  std::vector<int64_t> one(sizes.size() + 1, 1), all{parts};
  all.insert(all.end(), sizes.begin(), sizes.end());
  return at::empty(one, like.options().dtype(at::kFloat).requires_grad(false)).expand(all).detach().requires_grad_(true);
}

void add_column_sums(const at::Tensor& sum, const at::Tensor& x, bool first) {
  if (!is_taken(sum, x)) {
    const auto all = at::sum(x, {0}, false, at::kFloat);
    first ? sum.copy_(all) : sum.add_(all);
    return;
  }
  recorded("nestor::column_sums", first ? variable_list{x} : variable_list{sum, x}, [&] {
    const int rows = static_cast<int>(x.size(0)), columns = static_cast<int>(x.size(1));
    launch_kernel("column_sums_f32", x.device(), by_row(pieces(columns, COLUMNS_OF_BLOCK), 1, MOST_THREADS),
                  x.const_data_ptr(), sum.mutable_data_ptr(), rows, columns, static_cast<int>(first));
    return variable_list{sum};
  });
}

std::vector<SelfTest> column_sums_self_tests() {
  return {{"column_sums_f32", column_sums_problem}};
}

extern "C" {

int nestor_generic_add_column_sums(const at::Tensor* sum, const at::Tensor* x, bool first, char* message,
                                   size_t message_size) {
  return guarded(message, message_size, [&] { add_column_sums(*sum, *x, first); });
}
}
