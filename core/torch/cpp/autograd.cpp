// Gradients with respect to tensors whose values are not kept: by their places in the graph.

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>

#include "guarded.h"

extern "C" {

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
