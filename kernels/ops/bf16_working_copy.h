#pragma once
// The bf16 working copy of an fp32 master weight, for products on a GPU. Rounded anew for each
// product it moves 6 bytes a weight: beside 2048 rows, at the rates of an H200, 7 % of the products
// (computed, not measured). A weight that keeps a working copy has it rounded once: AdamW writes it
// in the pass that writes the weight (kernels/ops/adamw.h), and it is made again only where
// something else wrote the weight, which LibTorch's version counter of the tensor shows. It takes 2
// bytes a weight for as long as the weight lives.

#include <ATen/core/Tensor.h>

namespace moe::kernels {

// From now on `weight`, f32 on a GPU, keeps a working copy; the first product in bf16 makes it.
void keep_bf16_working_copy(const at::Tensor& weight);

// From now on `values`, bf16 of its shape, is the working copy of `weight`, and whoever gives it
// keeps it up to date: of a weight whose f32 values need not be there at all.
void set_bf16_working_copy(const at::Tensor& weight, const at::Tensor& values);

// What products in `type` read in place of `weight`: its working copy, up to date, where it keeps
// one and `type` is bf16; else the weight itself, still to be rounded (kernels/ops/linear.h,
// operand()).
at::Tensor weight_for_products(const at::Tensor& weight, at::ScalarType type);

// For an optimizer that writes the weight and its copy together: the copy, up to date or not;
// undefined where the weight keeps none or no product has needed it.
at::Tensor bf16_working_copy(const at::Tensor& weight);
void mark_bf16_working_copy_current(const at::Tensor& weight);  // after both were written

// The gradient that backward() left with a weight that keeps a working copy: what the next
// micro-batch's products are added to as they are made, or converted, so that no gradient of a
// micro-batch stands beside the sum and is added to it by autograd. Undefined of other weights, of
// those that do not train, and where there is none yet: autograd takes the first as it is. Whoever
// asks for gradients of such a weight by torch::autograd::grad() finds its sum empty.
at::Tensor gradient_to_add_to(const at::Tensor& weight);

}  // namespace moe::kernels
