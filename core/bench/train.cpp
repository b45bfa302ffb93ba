#include "core/bench/train.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <numeric>
#include <set>
#include <thread>
#include <utility>

#include "core/base/available_memory.h"
#include "core/base/error.h"
#include "core/base/random.h"
#include "core/data/batches.h"
#include "core/model/convert/init.h"
#include "core/model/convert/upcycle.h"
#include "core/model/llama/timeline.h"
#include "core/train/loop/gradients.h"
#include "core/train/loop/trainable.h"
#include "core/train/loop/updater.h"
#include "core/train/plan/memory_plan.h"
#include "kernels/ops/bf16_working_copy.h"

namespace moe::bench {

namespace {

// A folder that goes when the measurement does.
class Scratch {
 public:
  Scratch() {
    std::string name = (std::filesystem::temp_directory_path() / "moe-bench-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) {
      throw std::runtime_error("cannot make a folder " + name);
    }
    path_ = name;
  }
  ~Scratch() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

model::Llama synthetic(const std::string& name, c10::Device device) {
  const Scratch scratch;
  std::ofstream(scratch.path() / "config.json") << synthetic_config(name).dump();
  model::InitSettings settings;
  settings.config = scratch.path() / "config.json";
  settings.out = scratch.path() / "model";
  settings.experts = 8;
  settings.router = route::parse_router("top2:cf=inf");
  model::init(model::plan_init(settings), settings);
  return model::Llama::load(io::Checkpoint(settings.out), {}, device);
}

void check_folder_memory(const io::Checkpoint& checkpoint, const TrainBenchSettings& settings) {
  const auto config = model::parse_config(checkpoint.config(), checkpoint.config_name());
  train::TrainSettings trained;
  trained.micro_batch = trained.global_batch = settings.rows;
  trained.compute.precision = settings.precision;
  const route::RouterSettings router =
      config.moe
          ? route::requested_router(model::router_of_opened(settings.upcycle, settings.router),
                                    config.moe->router)
          : route::RouterSettings{};
  const train::MemoryPlan plan =
      train::plan_memory(config, trained, router, settings.rows * settings.length, /*program=*/0);
  check_memory({plan.peak, 1, fmt::format("training {}", settings.model),
                "fewer --rows or a smaller --seq-len take less"},
               settings.force_memory);
}

model::Llama load(const TrainBenchSettings& settings) {
  const auto& names = synthetic_models();
  if (std::find(names.begin(), names.end(), settings.model) != names.end()) {
    model::check_request(settings.upcycle);
    if (settings.upcycle.experts) {
      throw UserError("--upcycle: {} is a mixture already; give a dense folder", settings.model);
    }
    return synthetic(settings.model, settings.device);
  }
  const io::Checkpoint checkpoint = model::open_checkpoint(settings.model, settings.upcycle,
                                                           settings.router, settings.force_memory);
  if (settings.device.is_cpu()) {
    check_folder_memory(checkpoint, settings);
  }
  return model::Llama::load(checkpoint, {}, settings.device);
}

data::Batch random_batch(const TrainBenchSettings& settings, int64_t vocabulary, Random& random) {
  data::Batch batch;
  for (int64_t row = 0; row < settings.rows; ++row) {
    batch.lengths.push_back(settings.length);
    for (int64_t t = 0; t < settings.length; ++t) {
      const auto token = static_cast<int64_t>(random.below(static_cast<uint64_t>(vocabulary)));
      if (t > 0) {
        batch.targets.push_back(token);
      }
      batch.ids.push_back(token);
    }
    batch.targets.push_back(data::kNoLoss);
  }
  batch.target_count = settings.rows * (settings.length - 1);
  return batch;
}

// A model that trains: the steps of core/train/loop/trainer.cpp without its files.
class Steps {
 public:
  Steps(const TrainBenchSettings& settings, model::Llama model)
      : settings_(settings),
        model_(std::move(model)),
        routing_(model_.default_routing()),
        trained_(train::trainable(model_, {})),
        updater_(trained_, train::AdamWSettings{}, /*seed=*/0, /*world=*/nullptr) {
    model_.set_compute({settings.precision});
    if (model_.config().moe) {
      const auto asked = model::router_of_opened(settings.upcycle, settings.router);
      routing_.router = route::requested_router(asked, routing_.router);
      route::check_router(routing_.router, model_.config().moe->experts);
      routing_.ep_ranks = asked.ep_ranks.value_or(routing_.ep_ranks);
    }
    model_.require_gradients();
    train::TrainSettings as_trained;
    as_trained.on_cuda = settings.device.is_cuda();
    as_trained.compute.precision = settings.precision;
    for (const auto& parameter : trained_) {
      if (train::keeps_copy(parameter, model_.config(), as_trained)) {
        kernels::keep_bf16_working_copy(parameter.tensor);
      }
    }
  }

  train::StepLosses step() {
    const auto batch = random_batch(settings_, model_.config().vocab_size, random_);
    updater_.clear_gradients();
    train::StepLosses losses = train::add_gradients(model_, {batch}, routing_, {});
    updater_.step(updater_.gradient_norm(), /*clip=*/1.0, /*lr=*/1e-4);
    return losses;
  }

  const model::ModelConfig& config() const { return model_.config(); }
  std::string router() const { return config().moe ? to_string(routing_.router) : ""; }
  bool has_buffers() const { return routing_.router.capacity_factor.has_value(); }
  int64_t parameters() const {
    return std::accumulate(
        trained_.begin(), trained_.end(), int64_t{0},
        [](int64_t sum, const auto& parameter) { return sum + parameter.tensor.numel(); });
  }

 private:
  TrainBenchSettings settings_;
  model::Llama model_;
  model::RoutingOptions routing_;
  std::vector<model::NamedParameter> trained_;
  train::Updater updater_;
  Random random_{1, "bench"};
};

double wall_now_s() { return read_clock_s(CLOCK_MONOTONIC); }

std::map<std::string, double> profile(const TrainBenchSettings& settings, Steps& steps) {
  if (settings.profiled == 0) {
    return {};
  }
  const auto profiled = [&] {
    for (int64_t i = 0; i < settings.profiled; ++i) {
      steps.step();
    }
  };
  auto parts = model::part_seconds(profiled, settings.device);
  for (auto& [name, seconds] : parts) {
    seconds /= static_cast<double>(settings.profiled);
  }
  return parts;
}

// Whether the run has several threads, on as many processors.
bool has_threads(const TrainBenchSettings& settings) {
  const int threads = at::get_num_threads();
  return threads > 1 && threads <= static_cast<int>(std::thread::hardware_concurrency()) &&
         settings.device.is_cpu();
}

OneThread by_one_thread(const TrainBenchSettings& settings, Steps& steps) {
  OneThread alone;
  const int threads = at::get_num_threads();
  if (!has_threads(settings) || settings.one_thread_repeats == 0) {
    return alone;
  }
  at::set_num_threads(1);
  std::vector<double> seconds;
  for (int64_t i = 0; i <= settings.one_thread_repeats; ++i) {
    const double start = wall_now_s();
    steps.step();
    if (i > 0) {  // the first is to warm up
      seconds.push_back(wall_now_s() - start);
    }
  }
  alone.step_s = timing_of(std::move(seconds)).median_s;
  alone.parts_s = profile(settings, steps);
  at::set_num_threads(threads);
  return alone;
}

// The step on one thread, on as many as the run has, and on those of larger machines.
std::vector<CountedWork> counted_steps(const TrainBenchSettings& settings, Steps& steps) {
  const int own = at::get_num_threads();
  std::vector<CountedWork> counted;
  if (!has_threads(settings) || settings.counted_repeats == 0) {
    return counted;
  }
  for (const int threads : std::set<int>{1, own, 8, 16}) {
    counted.push_back(count_work(threads, settings.counted_repeats, [&] { steps.step(); }));
  }
  return counted;
}

void time_steps(const TrainBenchSettings& settings, Steps& steps, TrainReport& report) {
  for (int64_t i = 0; i < settings.warmup; ++i) {
    const double loss = steps.step().loss;
    report.first_loss = i == 0 ? loss : report.first_loss;
  }
  const ProcessUse before = process_use();
  std::vector<double> seconds, wall;
  for (int64_t i = 0; i < settings.repeats; ++i) {
    const double start = clock_now_s(settings.device), wall_start = wall_now_s();
    const train::StepLosses losses = steps.step();
    seconds.push_back(clock_now_s(settings.device) - start);
    wall.push_back(wall_now_s() - wall_start);
    report.tokens = losses.tokens;
    report.last_loss = losses.loss;
    report.counted = route::total_of(losses.layers).sum;
  }
  const ProcessUse after = process_use();
  const auto count = static_cast<double>(settings.repeats);
  report.step = timing_of(std::move(seconds));
  report.wall_s = timing_of(std::move(wall)).median_s;
  report.cpu_s = (after.cpu_s - before.cpu_s) / count;
  report.faults = static_cast<double>(after.page_faults - before.page_faults) / count;
  report.peak_bytes = after.peak_bytes;
}

}  // namespace

OrderedJson synthetic_config(const std::string& name) {
  const bool is_small = name == "S";
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"hidden_size", is_small ? 256 : 512},
          {"intermediate_size", is_small ? 704 : 1376},
          {"num_hidden_layers", is_small ? 4 : 8},
          {"num_attention_heads", 8},
          {"num_key_value_heads", 8},
          {"vocab_size", 32000},
          {"max_position_embeddings", 4096},
          {"rms_norm_eps", 1e-5},
          {"hidden_act", "silu"},
          {"tie_word_embeddings", false},
          {"torch_dtype", "float32"}};
}

TrainReport bench_train(const TrainBenchSettings& settings) {
  TrainReport report;
  const double start = clock_now_s();
  model::Llama model = load(settings);
  report.load_s = clock_now_s() - start;
  Steps steps(settings, std::move(model));
  report.router = steps.router();
  report.parameters = steps.parameters();
  report.threads = at::get_num_threads();
  time_steps(settings, steps, report);
  if (!steps.has_buffers()) {
    report.counted.padding = 0;  // no slot beyond the rows that there are
  }
  report.parts_s = profile(settings, steps);
  report.one_thread = by_one_thread(settings, steps);
  report.counted_steps = counted_steps(settings, steps);
  const auto& config = steps.config();
  const auto layers = config.moe ? static_cast<int64_t>(config.moe->layers.size()) : 1;
  const auto shapes = product_shapes(config, report.tokens, report.counted.rows() / layers);
  report.flop = attention_flop(config, report.tokens, settings.length);
  std::vector<ProductReport> products;
  // A CPU's roof is that of f32 in either precision: LibTorch's products of bf16 there want an
  // allocator that frees by address, which kernels/cpu/caching_allocator.h is not.
  const bool is_bf16 = settings.device.is_cuda() && settings.precision == model::Precision::kBf16;
  const auto options =
      at::TensorOptions(settings.device).dtype(is_bf16 ? at::kBFloat16 : at::kFloat);
  for (const auto& shape : shapes) {
    report.flop += shape.flop;
    products.push_back(bench_product(shape, 5, options));
  }
  report.roof_flops = roof_flops(products);
  return report;
}

OrderedJson to_json(const TrainBenchSettings& settings) {
  OrderedJson json = {{"model", settings.model},
                      {"upcycle", model::to_json(settings.upcycle)},
                      {"precision", model::to_string(settings.precision)},
                      {"rows", settings.rows},
                      {"length", settings.length},
                      {"repeats", settings.repeats}};
  return json;
}

const CountedWork* TrainReport::counted_by(int its_threads) const {
  const auto found =
      std::find_if(counted_steps.begin(), counted_steps.end(),
                   [=](const CountedWork& each) { return each.threads == its_threads; });
  return found == counted_steps.end() ? nullptr : &*found;
}

OrderedJson to_json(const TrainReport& report) {
  OrderedJson parts = OrderedJson::object();
  for (const auto& [name, seconds] : report.parts_s) {
    parts[name] = seconds * 1e3;
  }
  const auto& counted = report.counted;
  OrderedJson json = {
      {"router", report.router},
      {"parameters", report.parameters},
      {"tokens", report.tokens},
      {"step", to_json(report.step)},
      {"wall_ms", report.wall_s * 1e3},
      {"cpu_ms_per_step", report.cpu_s * 1e3},
      {"tokens_per_second", static_cast<double>(report.tokens) / report.step.median_s},
      {"flop", report.flop},
      {"gflops", report.flop / report.step.median_s / 1e9},
      {"roof_gflops", report.roof_flops / 1e9},
      {"roof_share", report.flop / report.step.median_s / report.roof_flops},
      {"parts_ms", parts},
      {"page_faults", report.faults},
      {"load_ms", report.load_s * 1e3},
      {"peak_bytes", report.peak_bytes},
      {"first_loss", report.first_loss},
      {"last_loss", report.last_loss},
      {"useful_rows", counted.rows()},
      {"padded_rows", counted.padding},
      {"dropped_rows", counted.dropped_requests},
      {"filled_rows", counted.fr_filled},
      {"rectified_rows", counted.ir_tokens},
      {"load_max_over_mean", counted.load_max_over_mean()}};
  if (report.one_thread.step_s > 0) {
    OrderedJson one_thread_parts = OrderedJson::object();
    for (const auto& [name, seconds] : report.one_thread.parts_s) {
      one_thread_parts[name] = seconds * 1e3;
    }
    json["one_thread_ms"] = report.one_thread.step_s * 1e3;
    json["one_thread_parts_ms"] = one_thread_parts;
  }
  if (const CountedWork* own = report.counted_by(report.threads); own != nullptr) {
    json["serial_share"] = serial_share(own->all, own->threads);
    json["counted"] = OrderedJson::array();
    for (const CountedWork& each : report.counted_steps) {
      json["counted"].push_back(to_json(each, report.counted_steps.front()));
    }
  }
  return json;
}

}  // namespace moe::bench
