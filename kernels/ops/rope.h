#pragma once
// Rotary position embedding (Su et al. 2021) over packed tokens, in Hugging Face's rotate_half
// order: of a head of width A the pair (i, i + A / 2) turns by the angle of its position,
//
//   y_i = x_i cos - x_{i + A/2} sin        y_{i + A/2} = x_{i + A/2} cos + x_i sin
//
// and backward turns gradients the other way. T tokens, N heads, A head width, P positions.

#include <cstdint>

namespace at {
class Tensor;  // declared only: the CUDA half reads this header without LibTorch
}

namespace moe::kernels {

// x [T, N * A] -> the same with its first `turned` heads turned and the others as they are: queries
// and keys of one product with queries, keys and values. cosine, sine [P, A / 2] f32; position [T]
// i32 in [0, P). x f32, f64 or bf16; turned in f32 (f64 of f64), rounded once. Differentiable in x.
at::Tensor rope(const at::Tensor& x, const at::Tensor& cosine, const at::Tensor& sine,
                const at::Tensor& position, int64_t turned, int64_t head_width);

// x [tokens, heads * 2 * half], of which heads < turned turn: forwards, or backwards for gradients.
struct RopeShape {
  int64_t tokens, heads, turned, half;
  bool backwards;
};

// The reference: plain loops in double.
template <typename Number>
void rope_reference(const Number* x, const float* cosine, const float* sine,
                    const int32_t* position, Number* y, const RopeShape& shape);

// The CUDA entry point (kernels/cuda, or no_cuda.cpp which refuses). Device pointers, a
// cudaStream_t; x and y f32 or bf16.
void rope_cuda(const void* x, const float* cosine, const float* sine, const int32_t* position,
               void* y, const RopeShape& shape, bool is_bf16, void* stream);

}  // namespace moe::kernels
