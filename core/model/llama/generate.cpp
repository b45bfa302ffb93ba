#include "core/model/llama/generate.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <random>

#include "core/base/error.h"
#include "core/model/llama/memory_need.h"

namespace moe::model {

using at::Tensor;

RoutingOptions generation_routing(const RoutingOptions& stored) {
  RoutingOptions routing = stored;
  routing.router = route::generation_router(stored.router);
  return routing;
}

uint64_t generate_bytes(const ModelConfig& config, const RoutingOptions& routing,
                        int64_t prompt_tokens, const GenerateSettings& settings,
                        at::Device device) {
  const int64_t tokens =
      std::min(prompt_tokens + settings.max_tokens, config.max_position_embeddings);
  return bytes_to_copy(config, Storage::kStored, device) +
         forward_bytes(config, routing.router, prompt_tokens, tokens, device);
}

int64_t pick_token(const Tensor& logits, double temperature, double top_p, double uniform) {
  if (temperature <= 0) {
    return logits.argmax().item<int64_t>();
  }
  const auto [scores, order] = (logits.to(at::kDouble) / temperature)
                                   .softmax(0)
                                   .cpu()
                                   .sort(/*stable=*/true, /*dim=*/0, /*descending=*/true);
  const auto probability = scores.accessor<double, 1>();
  int64_t kept_tokens = 0;
  double mass = 0;
  while (kept_tokens < scores.size(0) && (kept_tokens == 0 || mass < top_p)) {
    mass += probability[kept_tokens++];
  }
  double threshold = uniform * mass;
  for (int64_t rank = 0; rank < kept_tokens; ++rank) {
    threshold -= probability[rank];
    if (threshold < 0) {
      return order[rank].item<int64_t>();
    }
  }
  return order[kept_tokens - 1].item<int64_t>();
}

std::vector<int64_t> generate(const Llama& model, const RoutingOptions& routing,
                              const std::vector<int64_t>& prompt, const GenerateSettings& settings,
                              const std::function<void(int64_t)>& on_token) {
  MOE_CHECK(!prompt.empty());
  const at::NoGradGuard no_gradients;
  const int64_t limit = model.config().max_position_embeddings;
  std::mt19937_64 random(settings.seed);
  KvCache cache;
  std::vector<int64_t> ids;
  std::vector<int64_t> fresh = prompt;
  auto position = static_cast<int64_t>(prompt.size());
  while (static_cast<int64_t>(ids.size()) < settings.max_tokens && position < limit) {
    const auto count = static_cast<int64_t>(fresh.size());
    const Tensor input = at::tensor(fresh, at::kLong);
    const Tensor hidden = model.forward({input, {count}}, routing, &cache).hidden;
    const Tensor logits = model.head(hidden.narrow(0, count - 1, 1))[0];
    const double uniform = static_cast<double>(random() >> 11) * 0x1.0p-53;
    const int64_t next = pick_token(logits, settings.temperature, settings.top_p, uniform);
    ids.push_back(next);
    if (on_token) {
      on_token(next);
    }
    const auto& ends = settings.eos_ids;
    if (std::find(ends.begin(), ends.end(), next) != ends.end() ||
        (settings.stops && settings.stops(ids))) {
      break;
    }
    fresh = {next};
    ++position;
  }
  return ids;
}

}  // namespace moe::model
