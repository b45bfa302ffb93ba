#include "kernels/ops/cross_entropy.h"

#include <ATen/ATen.h>

#include "kernels/ops/cuda_functions.h"

namespace moe::kernels {

namespace {

CrossEntropyArgs args_of(at::Tensor& logits, const at::Tensor& target, double scale,
                         const at::Tensor& loss) {
  TORCH_CHECK(logits.dim() == 2 && logits.is_contiguous() && target.dim() == 1 &&
                  target.is_contiguous() && target.size(0) == logits.size(0) &&
                  target.device() == logits.device() && logits.scalar_type() == at::kFloat,
              "logits ", logits.sizes(), ", target ", target.sizes());
  return {logits.data_ptr<float>(), target.const_data_ptr<int64_t>(),
          loss.data_ptr<double>(),  logits.size(0),
          logits.size(1),           scale};
}

}  // namespace

double cross_entropy_(at::Tensor& logits, const at::Tensor& target, double scale) {
  const at::Tensor wanted = target.to(logits.device()).contiguous();
  const at::Tensor loss = at::empty({logits.size(0)}, logits.options().dtype(at::kDouble));
  cross_entropy_(logits, wanted, scale, loss, /*in_bf16=*/false);
  return loss.sum().item<double>();
}

at::Tensor cross_entropy_(at::Tensor& logits, const at::Tensor& target, double scale,
                          const at::Tensor& loss, bool in_bf16) {
  TORCH_CHECK(loss.is_contiguous() && loss.scalar_type() == at::kDouble &&
                  loss.numel() == logits.size(0) && loss.device() == logits.device(),
              "logits ", logits.toString(), logits.sizes(), ", loss ", loss.sizes());
  CrossEntropyArgs args = args_of(logits, target, scale, loss);
  args.gradient_is_bf16 = in_bf16;
  if (logits.is_cuda()) {
    cuda_functions().cross_entropy(args, current_stream(logits));
  } else {
    cross_entropy_cpu(args);
  }
  return in_bf16 ? logits.view(at::kBFloat16).narrow(1, 0, logits.size(1)) : logits;
}

}  // namespace moe::kernels
