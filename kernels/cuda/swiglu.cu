// swiglu.h on CUDA: a thread computes 16 bytes of output if the width allows, else one element.
// Lanes access adjacent columns (coalesced). A block computes columns of a single row, which avoids
// a division per thread. Memory traffic per output element: 3 elements in forward, 5 in backward, 6
// if backward also writes the activation.

#include "kernels/cuda/launch.cuh"
#include "kernels/ops/swiglu.h"

namespace moe::kernels {

namespace {

struct Position {
  int64_t row;
  int column;     // first of kCount
  bool is_valid;  // in the matrix and, with `used`, in the first *used rows
};

// Returns the elements that this thread computes.
template <int kCount>
__device__ Position thread_position(int64_t rows, int64_t width, const int32_t* used) {
  const auto across = static_cast<unsigned>(ceil_div(width, kThreads * kCount));  // blocks per row
  const int64_t row = blockIdx.x / across;
  const int column = static_cast<int>((blockIdx.x % across * kThreads + threadIdx.x) * kCount);
  const bool is_used = used == nullptr || row < *used;
  return {row, column, row < rows && column < width && is_used};
}

__device__ float compute_sigmoid(float gate) { return 1.0F / (1.0F + expf(-gate)); }

template <typename T, int kCount>
__global__ void forward_kernel(const T* hidden,  // [rows, 2 * width]
                               T* out,           // [rows, width]
                               int64_t rows, int64_t width, const int32_t* used) {
  const Position at = thread_position<kCount>(rows, width, used);
  if (!at.is_valid) {
    return;
  }
  const int64_t base = at.row * 2 * width + at.column;
  const auto gates = load<kCount>(hidden + base), ups = load<kCount>(hidden + base + width);
  Pack<T, kCount> result;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const float gate = widen(gates.at[i]), up = widen(ups.at[i]);
    result.at[i] = narrow<T>(gate * compute_sigmoid(gate) * up);
  }
  store(out + at.row * width + at.column, result);
}

template <typename T, int kCount>
__global__ void backward_kernel(const T* grad_out,  // [rows, width]
                                const T* hidden,    // [rows, 2 * width]
                                T* grad_hidden,     // [rows, 2 * width]
                                T* out,             // [rows, width], may be grad_out; or null
                                int64_t rows, int64_t width, const int32_t* used) {
  const Position at = thread_position<kCount>(rows, width, used);
  if (!at.is_valid) {
    return;
  }
  const int64_t base = at.row * 2 * width + at.column;
  const auto gates = load<kCount>(hidden + base), ups = load<kCount>(hidden + base + width);
  const auto grads = load<kCount>(grad_out + at.row * width + at.column);
  Pack<T, kCount> grad_gate, grad_up, result;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const float gate = widen(gates.at[i]), up = widen(ups.at[i]), grad = widen(grads.at[i]);
    const float sigmoid = compute_sigmoid(gate);
    grad_gate.at[i] = narrow<T>(grad * up * sigmoid * (1.0F + gate * (1.0F - sigmoid)));
    grad_up.at[i] = narrow<T>(grad * gate * sigmoid);
    result.at[i] = narrow<T>(gate * sigmoid * up);
  }
  store(grad_hidden + base, grad_gate);
  store(grad_hidden + base + width, grad_up);
  if (out != nullptr) {
    store(out + at.row * width + at.column, result);
  }
}

template <typename T>
void forward(const SwigluForwardArgs& args, void* stream) {
  const bool vectors = fits_vectors<kWidest<T>>(args.width, args.hidden, args.out);
  launch(vectors ? forward_kernel<T, kWidest<T>> : forward_kernel<T, 1>,
         args.rows * ceil_div(args.width, kThreads * (vectors ? kWidest<T> : 1)), kThreads, stream,
         args.hidden, args.out, args.rows, args.width, args.used);
}

template <typename T>
void backward(const SwigluBackwardArgs& args, void* stream) {
  const bool vectors =
      fits_vectors<kWidest<T>>(args.width, args.grad_out, args.hidden, args.grad_hidden, args.out);
  launch(vectors ? backward_kernel<T, kWidest<T>> : backward_kernel<T, 1>,
         args.rows * ceil_div(args.width, kThreads * (vectors ? kWidest<T> : 1)), kThreads, stream,
         args.grad_out, args.hidden, args.grad_hidden, args.out, args.rows, args.width, args.used);
}

}  // namespace

void swiglu_forward_cuda(const SwigluForwardArgs& args, void* stream) {
  args.is_bf16 ? forward<__nv_bfloat16>(args, stream) : forward<float>(args, stream);
}

void swiglu_backward_cuda(const SwigluBackwardArgs& args, void* stream) {
  args.is_bf16 ? backward<__nv_bfloat16>(args, stream) : backward<float>(args, stream);
}

}  // namespace moe::kernels
