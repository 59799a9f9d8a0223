// One AdamW step on n float32 parameters in one pass, which also writes them in the compute type. I. Loshchilov and F. Hutter,
// "Decoupled Weight Decay Regularization", arXiv 1711.05101, in the form of torch.optim.AdamW.

#include "floats.cuh"

// As in cpp/adamw.cpp.
struct AdamWFactors {
  // The gradients are divided by it.
  float divisor;
  // Learning rate over the first moment's bias correction.
  float step;
  // Learning rate times weight decay.
  float decay;
  float beta1, rest1;  // rest1 is 1 - beta1, rest2 is 1 - beta2
  float beta2, rest2;
  // Square root of the second moment's bias correction.
  float root;
  float eps;
};

DEVICE float adamw_of(float param, float grad, float& first, float& second, const AdamWFactors& by) {
  grad /= by.divisor;
  first = by.beta1 * first + by.rest1 * grad;
  second = by.beta2 * second + by.rest2 * grad * grad;
  // Decay and step are added before they change the parameter, so that it is rounded once.
  return param - (by.decay * param + by.step * first / (sqrtf(second) / by.root + by.eps));
}

// Leaves the gradients as they are. `copy` may be null.
template <class T>
DEVICE void adamw(float* params, const float* grads, float* firsts, float* seconds, T* copy, int64_t n,
                  const AdamWFactors& by) {
  constexpr int WIDTH = VECTOR<float>;
  // The copy of four parameters, written at once.
  struct alignas(sizeof(T) * WIDTH) Copy {
    T at[WIDTH];
  };
  const int64_t start = int64_t(blockIdx.x) * blockDim.x + threadIdx.x, step = int64_t(gridDim.x) * blockDim.x;
  const bool whole = is_aligned(params) && is_aligned(grads) && is_aligned(firsts) && is_aligned(seconds) && is_aligned(copy);
  const int64_t vectors = whole ? n / WIDTH : 0;
  for (int64_t i = start; i < vectors; i += step) {
    Vector<float> param = load_vector(params + i * WIDTH), first = load_vector(firsts + i * WIDTH);
    Vector<float> second = load_vector(seconds + i * WIDTH);
    const Vector<float> grad = load_vector(grads + i * WIDTH);
    Copy rounded;
#pragma unroll
    for (int j = 0; j < WIDTH; ++j) {
      param.at[j] = adamw_of(param.at[j], grad.at[j], first.at[j], second.at[j], by);
      rounded.at[j] = from_float<T>(param.at[j]);
    }
    store_vector(params + i * WIDTH, param);
    store_vector(firsts + i * WIDTH, first);
    store_vector(seconds + i * WIDTH, second);
    if (copy) reinterpret_cast<Copy*>(copy)[i] = rounded;
  }
  for (int64_t i = vectors * WIDTH + start; i < n; i += step) {
    params[i] = adamw_of(params[i], grads[i], firsts[i], seconds[i], by);
    if (copy) copy[i] = from_float<T>(params[i]);
  }
}

#define ADAMW(suffix, T)                                                                                                  \
  extern "C" __global__ void adamw_##suffix(float* params, const float* grads, float* firsts, float* seconds, T* copy,    \
                                            int64_t n, AdamWFactors by) {                                                 \
    adamw(params, grads, firsts, seconds, copy, n, by);                                                                   \
  }
FOR_EACH_TYPE(ADAMW)
#undef ADAMW
