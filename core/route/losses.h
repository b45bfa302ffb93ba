#pragma once
// Auxiliary losses, returned and never stored (SPEC sections 7, 8, 9; grouped and reduced as D11: mean over the ranks
// that hold tokens, one micro-batch). Unscaled by coefficients. Undefined tensors stand for losses a router has not.

#include <torch/types.h>

namespace moe::route {

struct AuxLosses {
  torch::Tensor load_balance;  // scalar f32 with gradient
  torch::Tensor entropy;       // scalar f32 with gradient (top-p)
  torch::Tensor l1;            // scalar f32 with gradient (ReLU)
  AuxLosses& operator+=(const AuxLosses& other);  // sum over MoE layers
};

}  // namespace moe::route
