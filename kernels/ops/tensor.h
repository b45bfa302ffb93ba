#pragma once
// Forward declaration of at::Tensor for headers that .cu files include without LibTorch.

namespace at {
class Tensor;
}
