#pragma once
// The likeliest token of each row of hidden states, which is all that greedy generation wants of a
// head, without the logits in f32. Logits in bf16 take half the time where the processor multiplies
// bf16, and each is known to lie within a margin of the one in f32; those that could be the largest
// within it, one or two a row, are computed in f32. So the token is the one that the whole logits
// in f32 give, whatever the numbers are.
//
// n rows, D width, V vocabulary.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace moe::kernels {

class HeadArgmax {
 public:
  // Whether this is worth it: a matrix of bf16 on a CPU that multiplies bf16.
  static bool serves(const at::Tensor& weight);
  // weight [V, D], whose largest row norm is found here: of which the margins are made.
  explicit HeadArgmax(const at::Tensor& weight);

  // hidden [n, D] f32 -> of each row the number of its largest logit in f32, the first of equal
  // ones, 0 where all are NaN: pick_token() (core/model/llama/generate.h) of linear_to_f32().
  std::vector<int64_t> operator()(const at::Tensor& hidden) const;

 private:
  at::Tensor weight_;
  double largest_norm_;
};

// On the CPU, plain memory.
struct HeadArgmaxArgs {
  const float* hidden;     // [rows, width]
  const uint16_t* weight;  // [vocabulary, width] bf16
  int64_t rows, width, vocabulary;
  double largest_norm;  // of a row of the weight
  int64_t* tokens;      // [rows]
};
void head_argmax_cpu(const HeadArgmaxArgs& args);
double largest_row_norm_cpu(const uint16_t* bf16, int64_t rows, int64_t width);

// The number of the largest of some numbers, the first of equal ones; 0 where all are NaN.
int64_t first_largest(const float* numbers, int64_t count);

}  // namespace moe::kernels
