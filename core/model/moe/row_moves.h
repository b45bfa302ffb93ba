#pragma once
// Rows put in another order, differentiably. The two moves are each other's transpose, so each is
// the other's backward; indices name a place once at most.

#include <ATen/ATen.h>

namespace moe::model {

// out[i] = rows[index[i]]. rows [N, D], index [n] i64 -> [n, D].
at::Tensor picked(const at::Tensor& rows, const at::Tensor& index);

// out[index[i]] = rows[i], 0 elsewhere. rows [n, D], index [n] i64 -> [size, D].
at::Tensor placed(const at::Tensor& rows, const at::Tensor& index, int64_t size);

}  // namespace moe::model
