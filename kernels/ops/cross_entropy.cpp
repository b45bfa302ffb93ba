#include "kernels/ops/cross_entropy.h"

#include <ATen/ATen.h>

#include <numeric>

#include "kernels/ops/cuda_functions.h"

namespace moe::kernels {

double cross_entropy_(at::Tensor& logits, const at::Tensor& target, double scale) {
  TORCH_CHECK(logits.dim() == 2 && logits.is_contiguous() && target.dim() == 1 &&
                  target.size(0) == logits.size(0) && logits.scalar_type() == at::kFloat,
              "logits ", logits.sizes(), ", target ", target.sizes());
  const at::Tensor wanted = target.to(logits.device()).contiguous();
  const at::Tensor loss = at::empty({logits.size(0)}, logits.options().dtype(at::kDouble));
  const CrossEntropyArgs args{logits.data_ptr<float>(), wanted.const_data_ptr<int64_t>(),
                              loss.data_ptr<double>(),  logits.size(0),
                              logits.size(1),           scale};
  if (logits.is_cuda()) {
    cuda_functions().cross_entropy(args, current_stream(logits));
    return loss.sum().item<double>();
  }
  cross_entropy_cpu(args);
  return std::accumulate(args.loss, args.loss + args.rows, 0.0);
}

}  // namespace moe::kernels
