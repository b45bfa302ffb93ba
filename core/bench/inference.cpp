#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/base/error.h"
#include "core/base/resources.h"
#include "core/bench/bench.h"
#include "core/bench/timing.h"
#include "core/eval/runner.h"
#include "core/eval/scoring/requests.h"
#include "core/eval/tasks/tasks.h"
#include "core/model/llama/generate.h"
#include "core/model/llama/llama.h"
#include "core/route/router.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/ops/device.h"

namespace moe::bench {
namespace {

struct RequestSet {
  std::string name;  // a task, "letters" or "spans"
  int64_t questions = 0;
  std::vector<eval::Request> requests;
};

// Draws exp(N(mean, 0.5^2)), limited to min..max.
int64_t draw_length(Random& random, double mean, int64_t min, int64_t max) {
  const auto length = static_cast<int64_t>(std::exp(mean + 0.5 * random.normal()));
  return std::clamp(length, std::min(min, max), max);
}

// Draws `count` questions (bench.h). Shortens their requests to fit the window of the model.
RequestSet synthetic_set(const std::string& name, const model::ModelConfig& config, int64_t count) {
  const bool is_spans = name == "spans";
  const int64_t half = std::max<int64_t>(1, config.max_position_embeddings / 2);
  Random random(0, name);
  RequestSet set{name, count, {}};
  for (int64_t question = 0; question < count; ++question) {
    const int64_t length =
        is_spans ? draw_length(random, 4.2, 16, 256) : draw_length(random, 5.0, 48, 512);
    const auto context = random_tokens(random, std::min(length, half), config.vocab_size);
    for (int choice = 0; choice < 4; ++choice) {
      const int64_t scored = is_spans ? std::min(draw_length(random, 2.6, 2, 64), half) : 1;
      eval::Request request{context, scored, false};
      const auto choice_tokens = random_tokens(random, scored, config.vocab_size);
      request.tokens.insert(request.tokens.end(), choice_tokens.begin(), choice_tokens.end());
      set.requests.push_back(std::move(request));
    }
  }
  return set;
}

RequestSet task_set(const eval::LoadedTask& loaded, const eval::TextEncoder& encoder) {
  USER_ERROR_IF(loaded.task.output == eval::OutputType::kGenerateUntil,
                "{}: its answers are generated, not scored; bench eval times scoring, so give "
                "--tasks with choices",
                loaded.task.name);
  return {loaded.task.name, std::ssize(loaded.questions),
          eval::encode_requests(encoder, eval::text_pairs(loaded.questions))};
}

OrderedJson time_set(const model::Llama& llama, const RequestSet& set,
                     const eval::ScoreSettings& scoring, const EvalSettings& settings) {
  eval::Scores scores;
  const auto score = [&] { scores = eval::score_requests(llama, set.requests, scoring); };
  const Timing timing = time_calls(settings.repeats, score, llama.device());
  const uint64_t peak = peak_bytes(llama.device());
  int64_t tokens_asked = 0, routed_rows = 0, dropped = 0;
  for (const auto& request : set.requests) {
    tokens_asked += request.inputs();
  }
  for (const auto& layer : scores.counters) {
    routed_rows += layer.rows();
    dropped += layer.dropped_requests;
  }

  // Roof: the products of an average forward pass.
  const auto per_forward = [&](int64_t all) { return std::max<int64_t>(1, all / scores.forwards); };
  const auto moe_layers = std::ssize(scores.counters);
  const auto products = forward_products(
      llama.config(), {.tokens = per_forward(scores.input_tokens),
                       .routed_rows = moe_layers == 0 ? 0 : per_forward(routed_rows / moe_layers),
                       .head_rows = per_forward(scores.head_rows),
                       .shortens_last_layer = true});
  auto [flop, roof] =
      time_roof(products, /*backward=*/false, settings.repeats,
                roof_options(llama.device(), llama.product_type() == at::kBFloat16));
  roof = roof.scaled(scores.forwards);
  flop *= scores.forwards;
  const auto rate = [&](int64_t count) { return count / timing.median_s; };
  OrderedJson json = {{"name", set.name},
                      {"questions", set.questions},
                      {"requests", set.requests.size()},
                      {"tokens_asked", tokens_asked},
                      {"tokens_computed", scores.input_tokens},
                      {"head_rows", scores.head_rows},
                      {"forwards", scores.forwards},
                      {"flop", flop},
                      {"questions_per_second", rate(set.questions)},
                      {"tokens_computed_per_second", rate(scores.input_tokens)},
                      {"peak_bytes", peak},
                      {"scoring", to_json(timing, flop, roof)},
                      {"roof", to_json(roof, flop, roof)}};
  if (routed_rows + dropped > 0) {
    json["drop_share"] = static_cast<double>(dropped) / (routed_rows + dropped);
  }
  if (settings.parts) {
    json["parts_ms"] = time_parts(score, llama.device());
  }
  return json;
}

// Returns the stored bytes of the matrices that multiply a token, without inactive experts.
double active_bytes(const io::Checkpoint& checkpoint, const model::ModelConfig& config,
                    const route::RouterSettings& router) {
  const int64_t experts = config.moe ? config.moe->experts : 1;
  const double active_share =
      static_cast<double>(router.family->typical_active_experts(router, experts)) / experts;
  double bytes = 0;
  for (const auto& tensor : checkpoint.tensors()) {
    const bool is_embedding = tensor.name.find("embed_tokens") != std::string::npos;
    if (tensor.shape.size() < 2 || (is_embedding && !config.tie_word_embeddings)) {
      continue;
    }
    const bool is_expert = config.moe && tensor.name.find(".experts.") != std::string::npos;
    bytes += (is_expert ? active_share : 1) * tensor.bytes();
  }
  return bytes;
}

// Returns the bytes per second at which the threads read 256 MiB, which exceed the caches.
double read_rate() {
  constexpr int64_t kFloats = int64_t{64} << 20, kBlock = int64_t{1} << 16;
  const std::vector<float> numbers(kFloats, 1.0F);
  std::vector<float> maxima(kFloats / kBlock);
  const Timing timing = time_calls(5, [&] {
    at::parallel_for(0, kFloats / kBlock, 1, [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block) {
        maxima[block] = kernels::row_max(numbers.data() + block * kBlock, kBlock);
      }
    });
  });
  MOE_CHECK(maxima.front() == 1.0F);
  return (kFloats * sizeof(float)) / timing.best_s;
}

}  // namespace

OrderedJson bench_eval(const EvalSettings& settings, c10::Device device) {
  eval::EvalSettings scored = settings.eval;
  USER_ERROR_IF(!scored.tasks.empty() && scored.data.empty(),
                "--tasks needs --data DIR, the folder of the benchmarks' files");
  scored.device = device;
  scored.precision = model::inference_precision(settings.precision,
                                                kernels::device_traits(device).has_tensor_cores);
  std::vector<eval::LoadedTask> tasks;
  if (!scored.tasks.empty()) {
    tasks = eval::load_tasks(scored.tasks, scored.data, scored.limit);
  }
  const eval::OpenedModel opened = eval::open_model(scored, {});
  std::vector<RequestSet> sets;
  for (const auto& task : tasks) {
    sets.push_back(task_set(task, eval::make_encoder(opened, scored.compat)));
  }
  if (tasks.empty()) {
    const int64_t questions = scored.limit.value_or(60);
    sets = {synthetic_set("letters", opened.config, questions),
            synthetic_set("spans", opened.config, questions)};
  }
  eval::RequestSizes largest;
  for (const auto& set : sets) {
    const eval::RequestSizes sizes = eval::request_sizes(scored, opened, set.requests);
    largest.forward_tokens = std::max(largest.forward_tokens, sizes.forward_tokens);
  }
  check_memory(eval::memory_need(scored, opened, largest), scored.force_memory);
  const model::Llama llama = model::Llama::load(opened.checkpoint, {}, device,
                                                model::Storage::kStored, {scored.precision});
  const eval::ScoreSettings scoring = {
      {opened.routing.router, opened.routing.ep_ranks}, scored.batch_tokens, scored.group_tokens};
  OrderedJson json = {{"router", opened.config.moe ? route::to_string(opened.routing.router) : ""},
                      {"sets", OrderedJson::array()}};
  for (const auto& set : sets) {
    json["sets"].push_back(time_set(llama, set, scoring, settings));
  }
  return json;
}

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
    steps.push_back((time_tokens(settings.tokens) - first) / (settings.tokens - 1));
  }
  const Timing step = make_timing(std::move(steps));
  USER_ERROR_IF(step.best_s <= 0,
                "bench generate: {} tokens take too little time to be measured; raise --tokens",
                settings.tokens);
  const double bytes = active_bytes(checkpoint, config, routing.router), rate = read_rate();
  return {{"step", to_json(step)},
          {"tokens_per_second", settings.rows / step.median_s},
          {"active_bytes", static_cast<int64_t>(bytes)},
          {"read_bytes_per_second", rate},
          {"share_of_read_rate", bytes / rate / step.median_s}};
}

}  // namespace moe::bench
