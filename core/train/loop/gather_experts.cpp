#include "core/train/loop/gather_experts.h"

#include <ATen/core/grad_mode.h>

#include "core/base/error.h"

namespace moe::train {

model::Llama gather_experts(const model::Llama& share, const io::Checkpoint& parent,
                            const model::ComputeOptions& compute, distributed::Comm& group) {
  const at::NoGradGuard no_gradients;
  model::Llama whole = model::Llama::load(parent, {}, share.device());
  whole.set_compute(compute);
  whole.add_lora(share.lora(), /*seed=*/0);
  const auto from = share.parameters(), to = whole.parameters();
  MOE_CHECK(from.size() == to.size());
  for (size_t i = 0; i < from.size(); ++i) {
    at::Tensor into = to[i].tensor.detach();
    if (from[i].is_expert) {
      group.all_gather(from[i].tensor.detach().contiguous().view({-1}), into.view({-1}));
    } else {
      into.copy_(from[i].tensor);
    }
  }
  return whole;
}

}  // namespace moe::train
