#include "core/model/llama/generate.h"

#include <ATen/Parallel.h>

#include <numeric>

#include "core/base/error.h"
#include "core/base/resources.h"
#include "core/bench/bench.h"
#include "core/bench/timing.h"
#include "core/model/config/weights.h"
#include "core/model/llama/llama.h"
#include "core/route/router.h"
#include "kernels/cpu/vector_math.h"

namespace moe::bench {

namespace {

// Returns the stored bytes of the matrices that a token is multiplied with; k / E of the experts.
// An untied embedding is only looked up and does not count.
double active_bytes(const io::Checkpoint& checkpoint, const model::ModelConfig& config,
                    const route::RouterSettings& router) {
  double bytes = 0;
  for (const auto& tensor : checkpoint.tensors()) {
    const bool is_embedding = tensor.name.find("embed_tokens") != std::string::npos;
    if (tensor.shape.size() < 2 || (is_embedding && !config.tie_word_embeddings)) {
      continue;
    }
    double share = 1;
    if (config.moe && tensor.name.find(".experts.") != std::string::npos) {
      share =
          static_cast<double>(router.family->typical_active_experts(router, config.moe->experts)) /
          static_cast<double>(config.moe->experts);
    }
    bytes += share * static_cast<double>(tensor.bytes());
  }
  return bytes;
}

// Returns the bytes per second at which the threads read 256 MiB, which exceed the caches.
double read_rate() {
  constexpr int64_t kFloats = int64_t{64} << 20, kBlock = int64_t{1} << 16;
  const std::vector<float> numbers(static_cast<size_t>(kFloats), 1.0F);
  std::vector<float> maxima(static_cast<size_t>(kFloats / kBlock));
  const Timing timing = time_calls(5, [&] {
    at::parallel_for(0, kFloats / kBlock, 1, [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block) {
        maxima[static_cast<size_t>(block)] =
            kernels::row_max(numbers.data() + block * kBlock, kBlock);
      }
    });
  });
  MOE_CHECK(maxima.front() == 1.0F);
  return static_cast<double>(kFloats * sizeof(float)) / timing.best_s;
}

}  // namespace

OrderedJson bench_generate(const GenerateSettings& settings) {
  const auto precision = model::inference_precision(settings.precision, /*on_cuda=*/false);
  const io::Checkpoint checkpoint(settings.model);
  const auto config = model::parse_config(checkpoint.config(), checkpoint.config_name());
  USER_ERROR_IF(
      settings.prompt_tokens + settings.tokens > config.max_position_embeddings,
      "--prompt-tokens {} and --tokens {} exceed the model's window of {} tokens; use fewer",
      settings.prompt_tokens, settings.tokens, config.max_position_embeddings);
  model::GenerateSettings generation;
  generation.max_tokens = settings.rows * settings.tokens;  // all rows, for the memory estimate
  const auto stored = config.moe ? model::RoutingOptions{config.moe->router, config.moe->ep_ranks}
                                 : model::RoutingOptions{};
  check_memory({model::generate_bytes(config, stored, settings.prompt_tokens, generation, at::kCPU),
                1, fmt::format("generating with {}", settings.model.string()),
                "fewer --rows or --tokens take less"},
               settings.force_memory);
  const model::Llama llama =
      model::Llama::load(checkpoint, {}, at::kCPU, model::Storage::kStored, {precision});
  const auto routing = model::generation_routing(llama.default_routing());
  Random random(0, "generate");
  std::vector<std::vector<int64_t>> prompts;
  for (int64_t row = 0; row < settings.rows; ++row) {
    prompts.push_back(random_tokens(random, settings.prompt_tokens, config.vocab_size));
  }
  std::vector<size_t> indices(prompts.size());
  std::iota(indices.begin(), indices.end(), size_t{0});
  const auto time_tokens = [&](int64_t tokens) {
    const double start = clock_s();
    generation.max_tokens = tokens;
    model::generate_all(llama, routing, generation,
                        {prompts, indices, settings.rows,
                         [](size_t /*index*/, const std::vector<int64_t>& /*ids*/) {}});
    return clock_s() - start;
  };
  time_tokens(settings.tokens);  // warm-up
  std::vector<double> steps;
  for (int64_t repeat = 0; repeat < settings.repeats; ++repeat) {
    const double first = time_tokens(1);  // prompts and the first token
    steps.push_back((time_tokens(settings.tokens) - first) /
                    static_cast<double>(settings.tokens - 1));
  }
  const Timing step = make_timing(std::move(steps));
  USER_ERROR_IF(step.best_s <= 0,
                "bench generate: {} tokens take too little time to be measured; raise --tokens",
                settings.tokens);
  const double bytes = active_bytes(checkpoint, config, routing.router), rate = read_rate();
  return {{"step", to_json(step)},
          {"tokens_per_second", static_cast<double>(settings.rows) / step.median_s},
          {"active_bytes", static_cast<int64_t>(bytes)},
          {"read_bytes_per_second", rate},
          {"share_of_read_rate", bytes / rate / step.median_s}};
}

}  // namespace moe::bench
