#pragma once
// Rotary position embedding (Su et al. 2021) over packed tokens, in Hugging Face's rotate_half
// order: of a head of width A the pair (i, i + A / 2) is rotated by the angle of its position,
//
//   y_i = x_i cos - x_{i + A/2} sin        y_{i + A/2} = x_{i + A/2} cos + x_i sin
//
// and backward rotates gradients the other way. T tokens, N heads, A head width, P positions.

#include <cstdint>

namespace at {
class Tensor;  // declared only: the CUDA half reads this header without LibTorch
}

namespace moe::kernels {

// x [T, N * A] -> the same with its first `rotated` heads rotated and the others as they are:
// queries and keys of one product with queries, keys and values. cosine, sine [P, A / 2] f32;
// position [T] i32 in [0, P). x f32, f64 or bf16; rotated in f32 (f64 of f64), rounded once.
// Differentiable in x.
at::Tensor rope(const at::Tensor& x, const at::Tensor& cosine, const at::Tensor& sine,
                const at::Tensor& position, int64_t rotated, int64_t head_width);

// The two halves of a node that rotates and attends at once. Not differentiable.
//
// The numbers of rope() where x lies, which is contiguous: heads behind `rotated` are not touched.
void rope_(const at::Tensor& x, const at::Tensor& cosine, const at::Tensor& sine,
           const at::Tensor& position, int64_t rotated, int64_t head_width);
// From the gradients of rotated queries [T, H, A] and keys [T, G, A], and of values [T, G, A], that
// of what they were before: [T, (H + 2 G) * A], in one pass.
at::Tensor rope_backward(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                         const at::Tensor& cosine, const at::Tensor& sine,
                         const at::Tensor& position);

// Plain memory. x, y [tokens, heads, 2, half] f32 or bf16, of which the first `rotated` heads
// are rotated: forwards, or backwards for gradients. cosine, sine [positions, half]; position
// [tokens].
struct RopeShape {
  int64_t tokens, heads, rotated, half;
  bool backwards;
};
// x may lie in up to three memories, each with heads[i] heads of every token, which stand behind
// each other in y. Where x and y are one memory the heads that are not rotated stay untouched.
struct RopeParts {
  const void* x[3];
  int64_t heads[3];
};
struct RopeArgs {
  RopeParts parts;
  const float *cosine, *sine;
  const int32_t* position;
  void* y;
  RopeShape shape;
  bool is_bf16;
};
void rope_cuda(const RopeArgs& args, void* stream);

}  // namespace moe::kernels
