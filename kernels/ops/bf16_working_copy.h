#pragma once
// The bf16 copy of a weight, for products on a card. Made anew for each product it moves 6 bytes a
// weight: beside 2048 rows, at the rates of an H200, 7 % of the products (computed, not measured).
// A weight that was told to keep its copy has it rounded once: AdamW writes it in the pass that
// writes the weight (kernels/ops/adamw.h), and it is made again only where something else wrote the
// weight, which LibTorch's count of writes says. It takes 2 bytes a weight for as long as the
// weight lives.

#include <ATen/core/Tensor.h>

namespace moe::kernels {

// From now on `weight`, f32 on a card, keeps its copy; the first product in bf16 makes it.
void keep_copy(const at::Tensor& weight);

// What products in `type` read in place of `weight`: its copy, up to date, where one is kept and
// `type` is bf16; else the weight itself, still to be rounded (kernels/ops/linear.h, operand()).
at::Tensor weight_for_products(const at::Tensor& weight, at::ScalarType type);

// For who writes the weight and its copy together: the copy, up to date or not; undefined where
// none is kept or no product has asked for it.
at::Tensor kept_copy(const at::Tensor& weight);
void mark_copy_current(const at::Tensor& weight);  // after both were written

}  // namespace moe::kernels
