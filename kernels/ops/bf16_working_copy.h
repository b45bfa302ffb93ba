#pragma once
// bf16 working copy of an f32 master weight, for products on a GPU. Rounding the weight for each
// product would read and write 6 bytes per element. AdamW writes the copy in the pass that writes
// the weight (kernels/ops/adamw.h). After any other write, detected by the tensor's version
// counter, the next product updates it. The copy takes 2 bytes per element for the lifetime of the
// weight.

#include <ATen/core/Tensor.h>

namespace moe::kernels {

// Enables a working copy for `weight`, f32 on a GPU. The first product in bf16 creates it.
void keep_bf16_working_copy(const at::Tensor& weight);

// Sets `values`, bf16 with the shape of `weight`, as its working copy. The caller keeps it up to
// date; the f32 values of `weight` need not exist.
void set_bf16_working_copy(const at::Tensor& weight, const at::Tensor& values);

// Returns the operand of products in `type`: the up-to-date working copy if `weight` has one and
// `type` is bf16, else `weight`, not rounded.
at::Tensor weight_for_products(const at::Tensor& weight, at::ScalarType type);

// Returns the working copy, up to date or not, for an optimizer that writes weight and copy;
// undefined if it is not enabled or not created yet.
at::Tensor bf16_working_copy(const at::Tensor& weight);
void mark_bf16_working_copy_current(const at::Tensor& weight);  // call after writing both

// Returns the f32 gradient of a trained weight with a working copy, to which backward adds the
// products of the next micro-batch in place, without a second gradient. Undefined for other weights
// and before the first gradient. torch::autograd::grad() returns an undefined gradient for a weight
// whose gradient is added in place.
at::Tensor gradient_to_add_to(const at::Tensor& weight);

}  // namespace moe::kernels
