#pragma once
// Products of activations with weights: y = x w^T (+ bias), and in which precision.
//
// The type of x says how. f32 and f64: all in that type. bf16: both operands are rounded to bf16,
// products are summed in f32, y is bf16 - the numbers of torch.autocast. The weight itself stays
// f32, so it is the master weight that the optimizer updates, and its gradient is f32 and
// unrounded: micro-batches add up without loss. What is kept for backward is x as it came, so bf16
// halves activations. A weight that does not train may lie in bf16 itself, whatever x is: it is
// worth the f32 numbers that it stands for. CPUs without products in bf16 take the rounded operands
// in f32, which is the same sum.
//
// T rows, D inner width, N outer width.

#include <ATen/core/Tensor.h>

#include "kernels/ops/weight.h"

namespace moe::kernels {

// x [T, D] f32, bf16 or f64; weight [N, D], bias [N] (undefined = none) f32, or f64 as x; a weight
// without gradient bf16 too.
// -> [T, N] in x's type. Differentiable in all.
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias = {});
// The same bits of a weight whose rows may lie apart; on the CPU and not differentiable where they
// do.
at::Tensor linear(const at::Tensor& x, const Weight& weight, const at::Tensor& bias = {});

// The same without the last rounding, -> [T, N] f32 of bf16 x: logits.
at::Tensor linear_to_f32(const at::Tensor& x, const at::Tensor& weight);

// The same in f32 whatever x is: x is widened and the weight not rounded. What decides between
// experts is not left to bf16, nor to TF32 where that is allowed: neither here nor in backward.
at::Tensor linear_in_f32(const at::Tensor& x, const at::Tensor& weight);

// sum [T, N] f32 += x [T, D] weight^T, with operands as linear() takes them and sums that are not
// rounded: a residual stream without y beside it. On the CPU, not differentiable.
void add_linear(at::Tensor& sum, const at::Tensor& x, const Weight& weight);

// `tensor` as an operand of products in `type`: rounded to bf16 where that is bf16, and then in the
// type that the device multiplies fastest.
at::Tensor operand(const at::Tensor& tensor, at::ScalarType type);

// `weight` as one or more products in `type` read it, rounded once for all of them: on a GPU an
// operand, the bf16 working copy where it keeps one (kernels/ops/bf16_working_copy.h); on the CPU
// the weight itself, whose products round it block by block.
at::Tensor weight_operand(const at::Tensor& weight, at::ScalarType type);

// left [M, K] right [K, N] of such operands -> [M, N] f32 (f64 of f64).
at::Tensor product_to_f32(const at::Tensor& left, const at::Tensor& right);

// A matrix as an operand of products in `type`.
struct Operand {
  const at::Tensor& tensor;
  at::ScalarType type;
};

// out [M, N] = left [M, K] right [K, N], summed in f32 (f64 of f64) and rounded to out's type;
// added to what is there where `accumulate`. On the CPU operands are rounded and widened while they
// are multiplied, without copies.
void operand_product_out(at::Tensor& out, const Operand& left, const Operand& right,
                         bool accumulate = false);

// The same with the matrix [N, K] whose rows lie in `rows`: out [M, N] = left [M, K] rows^T, the
// rows rounded as the type of `left` says. Rows are read where they lie. Sums do not depend on how
// they are divided into blocks, products that are LibTorch's apart (kernels/cpu/gemm.h).
void weight_product_out(at::Tensor& out, const Operand& left, const RowBlocks& rows);

}  // namespace moe::kernels
