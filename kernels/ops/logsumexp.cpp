#include "kernels/ops/logsumexp.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include "kernels/ops/cuda_functions.h"

namespace moe::kernels {

void logsumexp_argmax(const at::Tensor& logits, at::Tensor& logsumexp, at::Tensor& argmax) {
  TORCH_CHECK(logits.dim() == 2 && logits.size(1) > 0 && logits.scalar_type() == at::kFloat,
              "logits ", logits.toString(), logits.sizes());
  const at::Tensor in = logits.contiguous();
  logsumexp = at::empty({logits.size(0)}, logits.options());
  argmax = at::empty({logits.size(0)}, logits.options().dtype(at::kLong));
  const LogSumExpArgs args{in.const_data_ptr<float>(), logsumexp.data_ptr<float>(),
                           argmax.data_ptr<int64_t>(), logits.size(0), logits.size(1)};
  if (logits.is_cuda()) {
    cuda_functions().logsumexp(args, current_stream(logits));
  } else {
    logsumexp_cpu(args);
  }
}

}  // namespace moe::kernels
