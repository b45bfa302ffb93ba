#include "core/bench/generate.h"

#include <ATen/Parallel.h>

#include <algorithm>

#include "core/base/available_memory.h"
#include "core/base/error.h"
#include "core/base/random.h"
#include "core/model/config/weights.h"
#include "core/model/llama/generate.h"
#include "core/model/llama/llama.h"
#include "core/route/router.h"
#include "kernels/cpu/logsumexp.h"

namespace moe::bench {

namespace {

using Prompts = std::vector<std::vector<int64_t>>;

Prompts random_prompts(const GenerateBenchSettings& settings, int64_t vocabulary) {
  Random random(0, "generate");
  Prompts prompts(static_cast<size_t>(settings.rows));
  for (auto& prompt : prompts) {
    for (int64_t i = 0; i < settings.prompt_tokens; ++i) {
      prompt.push_back(static_cast<int64_t>(random.below(static_cast<uint64_t>(vocabulary))));
    }
  }
  return prompts;
}

// Of an expert, what a token has of it on average: k of E.
int64_t active_bytes(const io::Checkpoint& checkpoint, const model::ModelConfig& config,
                     const route::RouterSettings& router) {
  double bytes = 0;
  for (const auto& tensor : checkpoint.tensors()) {
    const bool is_embedding = tensor.name.find("embed_tokens") != std::string::npos;
    if (tensor.shape.size() < 2 || (is_embedding && !config.tie_word_embeddings)) {
      continue;  // a row of the embedding is read
    }
    const bool is_expert = tensor.name.find(".experts.") != std::string::npos && config.moe;
    const double share =
        is_expert ? static_cast<double>(router.family->usual_experts(router, config.moe->experts)) /
                        static_cast<double>(config.moe->experts)
                  : 1.0;
    bytes += share * static_cast<double>(tensor.bytes());
  }
  return static_cast<int64_t>(bytes);
}

// The best of some readings of memory that no cache holds.
double read_rate() {
  constexpr int64_t kFloats = int64_t{64} << 20, kPiece = int64_t{1} << 16;
  const std::vector<float> numbers(static_cast<size_t>(kFloats), 1.0F);
  std::vector<float> largest(static_cast<size_t>(kFloats / kPiece));
  const Timing time = time_of(5, [&] {
    at::parallel_for(0, kFloats / kPiece, 1, [&](int64_t begin, int64_t end) {
      for (int64_t piece = begin; piece < end; ++piece) {
        largest[static_cast<size_t>(piece)] =
            kernels::row_max(numbers.data() + piece * kPiece, kPiece);
      }
    });
  });
  MOE_CHECK(largest.front() == 1.0F);
  return static_cast<double>(kFloats * sizeof(float)) / time.best_s;
}

}  // namespace

double GenerateReport::share_of_read_rate() const {
  return static_cast<double>(active_bytes) / read_bytes_per_s / step.median_s;
}

GenerateReport bench_generate(const GenerateBenchSettings& settings) {
  const io::Checkpoint checkpoint(settings.model);
  const auto config = model::parse_config(checkpoint.config(), checkpoint.config_name());
  if (settings.prompt_tokens + settings.tokens > config.max_position_embeddings) {
    throw UserError("{} tokens behind {} are more than the model's window of {}; ask for fewer",
                    settings.tokens, settings.prompt_tokens, config.max_position_embeddings);
  }
  model::GenerateSettings generation;
  const model::Llama llama = [&] {
    const model::RoutingOptions routing =
        config.moe ? model::RoutingOptions{config.moe->router, config.moe->ep_ranks}
                   : model::RoutingOptions{};
    generation.max_tokens = settings.rows * settings.tokens;  // of keys and values
    check_memory(
        {model::generate_bytes(config, routing, settings.prompt_tokens, generation, at::kCPU), 1,
         fmt::format("generating with {}", settings.model.string()),
         "fewer --rows or --tokens take less"},
        settings.force_memory);
    return model::Llama::load(checkpoint, {}, at::kCPU, model::Storage::kStored,
                              {settings.precision});
  }();
  const auto routing = model::generation_routing(llama.default_routing());
  const Prompts prompts = random_prompts(settings, config.vocab_size);
  std::vector<size_t> wanted;
  for (size_t index = 0; index < prompts.size(); ++index) {
    wanted.push_back(index);
  }
  const auto generate = [&](int64_t tokens) {
    generation.max_tokens = tokens;
    model::generate_all(llama, routing, prompts, wanted, generation, settings.rows,
                        [](size_t /*index*/, const std::vector<int64_t>& /*ids*/) {});
  };
  generate(settings.tokens);
  std::vector<double> steps;
  for (int64_t repeat = 0; repeat < settings.repeats; ++repeat) {
    const double start = clock_now_s();
    generate(1);
    const double begin = clock_now_s();
    generate(settings.tokens);
    const double whole = clock_now_s() - begin, first = begin - start;
    steps.push_back((whole - first) / static_cast<double>(settings.tokens - 1));
  }
  return {timing_of(std::move(steps)), active_bytes(checkpoint, config, routing.router),
          read_rate()};
}

OrderedJson to_json(const GenerateBenchSettings& settings) {
  return {{"model", settings.model.string()},
          {"precision", model::to_string(settings.precision)},
          {"rows", settings.rows},
          {"prompt_tokens", settings.prompt_tokens},
          {"tokens", settings.tokens},
          {"repeats", settings.repeats}};
}

OrderedJson to_json(const GenerateReport& report) {
  return {{"step", to_json(report.step)},
          {"active_bytes", report.active_bytes},
          {"read_bytes_per_second", report.read_bytes_per_s},
          {"share_of_read_rate", report.share_of_read_rate()}};
}

}  // namespace moe::bench
