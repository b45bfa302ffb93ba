#pragma once
// AdamW (Loshchilov and Hutter 2019) for weights that the model reads in bf16: one pass over
// gradient, f32 master copy, moments and the bf16 weight, 28 bytes a parameter with gradients in
// bf16 (2 + 8 + 8 + 8 + 2). With g the gradient times `gradient_scale`, and t the number of this
// update:
//
//   master -= lr * weight_decay * master
//   m = beta1 m + (1 - beta1) g              v = beta2 v + (1 - beta2) g^2
//   master -= lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps)
//   weight = master, rounded to nearest
//
// The numbers of torch.optim.AdamW. LibTorch's fused kernel wants all tensors of one type.

#include <cstdint>

namespace at {
class Tensor;  // declared only: the CUDA half reads this header without LibTorch
}

namespace moe::kernels {

struct AdamWSettings {
  double lr = 0, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  int64_t t = 1;  // from 1
};

// On a GPU only: weights on a CPU are f32, and LibTorch's fused kernel serves those.
// One parameter: gradient f32 or bf16; master, mean, square f32; weight bf16, or undefined where
// the master copy is the weight. All of one shape, contiguous. gradient_scale: one f32 on the
// device of the tensors, or undefined for 1: a clip that need not be read back.
// NOLINTNEXTLINE(readability-identifier-naming): in place, as LibTorch marks it
void adamw_(const at::Tensor& gradient, const at::Tensor& master, const at::Tensor& mean,
            const at::Tensor& square, const at::Tensor& weight, const AdamWSettings& settings,
            const at::Tensor& gradient_scale);

// Plain memory: gradient f32 or bf16; weight (bf16) and gradient_scale may be null.
struct AdamWArgs {
  const void* gradient;
  bool gradient_is_bf16;
  float *master, *mean, *square;
  void* weight;
  const float* gradient_scale;
  int64_t count;
};
void adamw_cuda(const AdamWArgs& args, const AdamWSettings& settings, void* stream);

}  // namespace moe::kernels
