#pragma once
// Rotary position embedding (Su et al. 2021) over packed tokens, in Hugging Face's rotate_half
// order: in a head of width A the pair (i, i + A / 2) is rotated by the angle of its position,
//
//   y_i = x_i cos - x_{i + A/2} sin        y_{i + A/2} = x_{i + A/2} cos + x_i sin
//
// Backward rotates the gradient in the opposite direction. T tokens, N heads of width A, P
// positions.

#include <cstdint>

#include "kernels/ops/tensor.h"

namespace moe::kernels {

// Returns x [T, N * A] with its first `rotated` heads rotated (queries and keys of a fused QKV
// projection) and the others unchanged. x f32, f64 or bf16, rotated in f32 (f64 for f64) and
// rounded once; cosine, sine [P, A / 2] f32; position [T] i32 in [0, P). Differentiable in x.
at::Tensor rope(const at::Tensor& x, const at::Tensor& cosine, const at::Tensor& sine,
                const at::Tensor& position, int64_t rotated, int64_t head_width);

// Rotates contiguous x in place; heads from `rotated` on are not accessed. Not differentiable.
void rope_(const at::Tensor& x, const at::Tensor& cosine, const at::Tensor& sine,
           const at::Tensor& position, int64_t rotated, int64_t head_width);
// Returns the gradient [T, (H + 2 G) * A] of the output of the QKV projection, from the gradients
// of rotated queries [T, H, A], rotated keys [T, G, A] and values [T, G, A].
at::Tensor rope_backward(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                         const at::Tensor& cosine, const at::Tensor& sine,
                         const at::Tensor& position);

struct RopeShape {
  int64_t tokens, heads, rotated, half;  // half = A / 2
  bool backwards;                        // rotates in the opposite direction
};
// x as the concatenation of up to three tensors with heads[i] heads per token. If x and y are the
// same memory, heads that are not rotated are not accessed.
struct RopeParts {
  const void* x[3];
  int64_t heads[3];
};
struct RopeArgs {
  RopeParts parts;             // f32 or bf16, concatenated [tokens, heads, 2, half]
  const float *cosine, *sine;  // [positions, half]
  const int32_t* position;     // [tokens]
  void* y;                     // [tokens, heads, 2, half]
  RopeShape shape;
  bool is_bf16;
};
void rope_cuda(const RopeArgs& args, void* stream);

}  // namespace moe::kernels
