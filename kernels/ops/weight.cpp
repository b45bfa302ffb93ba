#include "kernels/ops/weight.h"

#include <ATen/ATen.h>

namespace moe::kernels {

int64_t Weight::count() const {
  return is_one_tensor() ? (tensor.dim() == 3 ? tensor.size(0) : 1)
                         : static_cast<int64_t>(matrices->size());
}

RowBlocks Weight::matrix(int64_t index) const {
  if (!is_one_tensor()) {
    return matrices->at(static_cast<size_t>(index));
  }
  return {tensor.dim() == 3 ? tensor[index] : tensor};
}

int64_t Weight::outer() const {
  if (is_one_tensor()) {
    return tensor.size(-2);
  }
  int64_t rows = 0;
  for (const auto& block : matrices->front()) {
    rows += block.size(0);
  }
  return rows;
}

int64_t Weight::inner() const {
  return is_one_tensor() ? tensor.size(-1) : matrices->front().front().size(1);
}

}  // namespace moe::kernels
