// Gradients with respect to tensors whose values are not kept, by their places in the graph, and of products whose values
// nobody reads.

#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>

#include "guarded.h"

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

// x (T, in) times weight (out, in) transposed, in the graph alone: zeros that take no memory are in the place of its values.
struct UnreadProduct : torch::autograd::Function<UnreadProduct> {
  static Variable forward(AutogradContext* ctx, const Variable& x, const Variable& weight) {
    ctx->save_for_backward({weight});
    return at::zeros({1, 1}, x.options()).expand({x.size(0), weight.size(0)});
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    return {at::mm(grads[0], ctx->get_saved_variables()[0]), Variable()};
  }
};

}  // namespace

extern "C" {

// A product for a graph in which nobody reads its values.
int nestor_unread_product(const at::Tensor* x, const at::Tensor* weight, at::Tensor** y, char* message,
                          size_t message_size) {
  return guarded(message, message_size, [&] { *y = new at::Tensor(UnreadProduct::apply(*x, *weight)); });
}

// The place of a tensor's gradient in the graph, which does not keep the tensor's values.
int nestor_gradient_edge(const at::Tensor* tensor, torch::autograd::Edge** edge, char* message, size_t message_size) {
  return guarded(message, message_size, [&] {
    TORCH_CHECK(tensor->requires_grad(), "the tensor is not part of a graph");
    *edge = new torch::autograd::Edge(torch::autograd::impl::gradient_edge(*tensor));
  });
}

void nestor_gradient_edge_free(torch::autograd::Edge* edge) {
  delete edge;
}

// Gradients of `output` with respect to n edges, given its own gradient. Frees the graph's saved tensors on the way.
int nestor_gradients(const at::Tensor* output, const at::Tensor* grad, size_t n,
                     const torch::autograd::Edge* const* inputs, at::Tensor** gradients, char* message,
                     size_t message_size) {
  return guarded(message, message_size, [&] {
    torch::autograd::edge_list edges;
    for (size_t i = 0; i < n; ++i) edges.push_back(*inputs[i]);
    const auto made = torch::autograd::Engine::get_default_engine().execute(
        {torch::autograd::impl::gradient_edge(*output)}, {*grad}, /*keep_graph=*/false, /*create_graph=*/false,
        /*accumulate_grad=*/false, edges);
    for (const auto& gradient : made) TORCH_CHECK(gradient.defined(), "the output does not depend on an input");
    for (const auto& gradient : made) *gradients++ = new at::Tensor(gradient);
  });
}
}
