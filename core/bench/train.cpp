#include <ATen/ATen.h>

#include <cstdlib>
#include <fstream>

#include "core/base/error.h"
#include "core/base/resources.h"
#include "core/bench/bench.h"
#include "core/bench/timing.h"
#include "core/data/batches.h"
#include "core/model/config/weights.h"
#include "core/route/counters.h"
#include "core/train/loop/plan.h"
#include "core/train/step/gradients.h"
#include "core/train/step/optimizer.h"
#include "core/upcycle/init.h"
#include "core/upcycle/upcycle.h"
#include "kernels/ops/bf16_working_copy.h"
#include "kernels/ops/device.h"

namespace moe::bench {
namespace {

model::Llama make_synthetic(const std::string& name, c10::Device device) {
  std::string folder = (std::filesystem::temp_directory_path() / "moe-bench-XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) {
    throw std::runtime_error("cannot create the folder " + folder);
  }
  const std::shared_ptr<void> remover(nullptr, [&](void* /*none*/) {
    std::error_code ignored;
    std::filesystem::remove_all(folder, ignored);
  });
  model::InitSettings settings;
  settings.config = folder + "/config.json";
  settings.out = folder + "/model";
  std::ofstream(settings.config) << synthetic_config(name).dump();
  settings.experts = 8;
  settings.router = route::parse_router("top2:cf=inf");
  model::init(model::plan_init(settings), settings);
  return model::Llama::load(io::Checkpoint(settings.out), {}, device);
}

model::Llama load_for_training(const TrainSettings& settings, c10::Device device) {
  const io::Checkpoint checkpoint = model::open_checkpoint(settings.model, settings.upcycle,
                                                           settings.router, settings.force_memory);
  if (kernels::device_traits(device).has_host_memory) {
    const auto config = model::parse_config(checkpoint.config(), checkpoint.config_name());
    train::TrainSettings train_settings;
    train_settings.micro_batch = train_settings.global_batch = settings.rows;
    train_settings.compute.precision = settings.precision;
    route::RouterSettings router;
    if (config.moe) {
      router = route::requested_router(
          model::remaining_router_request(settings.upcycle, settings.router), config.moe->router);
    }
    const int64_t tokens = settings.rows * settings.length;
    check_memory({train::plan_memory(config, train_settings, router, tokens, /*program=*/0).peak, 1,
                  fmt::format("training {}", settings.model),
                  "fewer --rows or a smaller --seq-len take less"},
                 settings.force_memory);
  }
  return model::Llama::load(checkpoint, {}, device);
}

model::Llama load_model(const TrainSettings& settings, c10::Device device) {
  if (!is_synthetic(settings.model)) {
    return load_for_training(settings, device);
  }
  model::check_request(settings.upcycle);
  USER_ERROR_IF(settings.upcycle.experts, "--upcycle: {} is a mixture already; give a dense folder",
                settings.model);
  return make_synthetic(settings.model, device);
}

data::Batch random_batch(const TrainSettings& settings, int64_t vocabulary, Random& random) {
  data::Batch batch;
  batch.ids = random_tokens(random, settings.rows * settings.length, vocabulary);
  batch.targets.assign(batch.ids.begin() + 1, batch.ids.end());
  batch.targets.push_back(data::kNoLoss);
  for (size_t row = 1; row < static_cast<size_t>(settings.rows); ++row) {
    batch.targets[row * settings.length - 1] = data::kNoLoss;
  }
  batch.lengths.assign(settings.rows, settings.length);
  batch.target_count = settings.rows * (settings.length - 1);
  return batch;
}

// Training steps like those of core/train/loop/trainer.cpp, without files.
class StepRunner {
 public:
  StepRunner(const TrainSettings& settings, c10::Device device)
      : settings_(settings),
        model_(load_model(settings, device)),
        routing_(model_.default_routing()),
        trained_(train::trainable(model_, {})),
        updater_(trained_, train::AdamWSettings{}, /*seed=*/0, /*world=*/nullptr) {
    model_.set_compute({.precision = settings.precision});
    if (model_.config().moe) {
      const auto request = model::remaining_router_request(settings.upcycle, settings.router);
      routing_.router = route::requested_router(request, routing_.router);
      route::check_router(routing_.router, model_.config().moe->experts);
      routing_.ep_ranks = request.ep_ranks.value_or(routing_.ep_ranks);
    }
    model_.require_gradients();
    train::TrainSettings train_settings;
    train_settings.on_cuda = device.is_cuda();  // the setting of --device
    train_settings.compute.precision = settings.precision;
    for (const auto& parameter : trained_) {
      if (train::has_bf16_copy(parameter, model_.config(), train_settings)) {
        kernels::keep_bf16_working_copy(parameter.tensor);
      }
    }
  }

  train::StepLosses step() {
    const data::Batch batch = random_batch(settings_, config().vocab_size, random_);
    updater_.clear_gradients();
    train::StepLosses losses = train::add_gradients(model_, {batch}, routing_, {});
    updater_.step(updater_.gradient_norm(), /*clip=*/1.0, /*lr=*/1e-4);
    return losses;
  }

  const model::ModelConfig& config() const { return model_.config(); }
  const route::RouterSettings& router() const { return routing_.router; }

 private:
  TrainSettings settings_;
  model::Llama model_;
  model::RoutingOptions routing_;
  std::vector<model::NamedParameter> trained_;
  train::Updater updater_;
  Random random_{1, "bench"};
};

}  // namespace

OrderedJson bench_train(const TrainSettings& settings, c10::Device device) {
  model::check_precision(settings.precision, kernels::device_traits(device).has_tensor_cores);
  StepRunner runner(settings, device);
  train::StepLosses last;
  const auto step = [&] { last = runner.step(); };
  for (int64_t i = 1; i < settings.warmup; ++i) {
    step();
  }
  const Timing timing = time_calls(settings.repeats, step, device);
  const uint64_t peak = peak_bytes(device);
  const OrderedJson parts_ms = time_parts(step, device);

  const model::ModelConfig& config = runner.config();
  const route::CounterValues counters = route::sum_layers(last.layers).sum;
  const auto moe_layers = config.moe ? std::ssize(config.moe->layers) : 1;
  const auto products =
      forward_products(config, {last.tokens, counters.rows() / moe_layers, last.tokens});
  const auto options = roof_options(device, settings.precision == model::Precision::kBf16);
  const auto& [flop, roof_timing] = time_roof(products, /*backward=*/true, 5, options);
  const double roof = flop / roof_timing.best_s;
  const double rate =
      (flop + attention_flop(config, last.tokens, settings.length)) / timing.median_s;

  return {{"router", config.moe ? to_string(runner.router()) : ""},
          {"parameters", model::count_parameters(config).total},
          {"tokens", last.tokens},
          {"step", to_json(timing)},
          {"tokens_per_second", last.tokens / timing.median_s},
          {"gflops", rate / 1e9},
          {"roof_gflops", roof / 1e9},
          {"roof_share", rate / roof},
          {"parts_ms", parts_ms},
          {"peak_bytes", peak},
          {"last_loss", last.loss},
          {"useful_rows", counters.rows()},
          {"padded_rows", runner.router().capacity_factor ? counters.padding : 0},
          {"dropped_rows", counters.dropped_requests},
          {"filled_rows", counters.fr_filled},
          {"rectified_rows", counters.ir_tokens},
          {"load_max_over_mean", counters.load_max_over_mean()}};
}

}  // namespace moe::bench
