#pragma once
// Rows put in another order, differentiably. The two moves are each other's transpose, so each is
// the other's backward; indices name a place once at most.

#include <torch/types.h>

namespace moe::model {

// out[i] = rows[index[i]]. rows [N, D], index [n] i64 -> [n, D].
torch::Tensor picked(const torch::Tensor& rows, const torch::Tensor& index);

// out[index[i]] = rows[i], 0 elsewhere. rows [n, D], index [n] i64 -> [size, D].
torch::Tensor placed(const torch::Tensor& rows, const torch::Tensor& index, int64_t size);

}  // namespace moe::model
