#pragma once
// bf16 working copy of an f32 master weight, for products on a GPU. Rounding the weight again for
// each product moves 6 bytes per element: 7 % of the time of a product with 2048 rows at the rates
// of an H200 (computed, not measured). AdamW writes the copy in the pass that writes the weight
// (kernels/ops/adamw.h); after any other write, which the tensor's version counter shows, the next
// product renews it. The copy takes 2 bytes per element for the lifetime of the weight.

#include <ATen/core/Tensor.h>

namespace moe::kernels {

// Enables a working copy for `weight`, f32 on a GPU. The first product in bf16 creates it.
void keep_bf16_working_copy(const at::Tensor& weight);

// Sets `values`, bf16 with the shape of `weight`, as its working copy. The caller keeps it up to
// date; the f32 values of `weight` need not exist.
void set_bf16_working_copy(const at::Tensor& weight, const at::Tensor& values);

// Returns the tensor that products in `type` read: the up-to-date working copy if `weight` has one
// and `type` is bf16, else `weight`, which is not rounded yet.
at::Tensor weight_for_products(const at::Tensor& weight, at::ScalarType type);

// For an optimizer that writes weight and copy: returns the copy, up to date or not; undefined if
// it is not enabled or not created yet.
at::Tensor bf16_working_copy(const at::Tensor& weight);
void mark_bf16_working_copy_current(const at::Tensor& weight);  // call after writing both

// Returns the f32 gradient of a weight with a working copy, to which the products of the next
// micro-batch are added directly. This avoids a second gradient that autograd would add. Undefined
// for other weights, for frozen ones and before the first gradient, which autograd stores as it is.
// torch::autograd::grad() returns an undefined gradient for such a weight.
at::Tensor gradient_to_add_to(const at::Tensor& weight);

}  // namespace moe::kernels
