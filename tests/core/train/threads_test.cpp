// Training steps have equal bits with any number of threads.

#include "tests/support/threads.h"

#include "core/train/step/gradients.h"
#include "core/train/step/optimizer.h"
#include "core/train/step/trainable.h"
#include "tests/support/mixture.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"

using namespace moe;
using namespace moe::train;
using at::Tensor;
using moe::test::TempDir;

namespace {

// Large enough for every loop to run on eight threads.
void write_model(const TempDir& dir) {
  test::write_tiny_checkpoint(dir / "dense", {.hidden = 96,
                                              .intermediate = 160,
                                              .layers = 2,
                                              .heads = 4,
                                              .kv_heads = 2,
                                              .vocab = 1100,
                                              .max_positions = 600,
                                              .std = 0.05});
  test::write_mixture(dir / "dense", dir / "moe",
                      {.router = "top2+ir+fr", .experts = 16, .router_std = 0.5});
}

data::Batch make_batch(int64_t number) {
  data::Batch batch;
  for (const int64_t length : {600, 333, 31, 200}) {
    for (int64_t t = 0; t < length; ++t) {
      const int64_t id = (t * t * 31 + t * 7 + number * 13 + length) % 1100;
      batch.ids.push_back(id);
      batch.targets.push_back(t + 1 < length ? (id * 3 + t) % 1100 : data::kNoLoss);
    }
    batch.lengths.push_back(length);
    batch.rows.push_back(length);
    batch.target_count += length - 1;
  }
  return batch;
}

std::vector<Tensor> trained(const TempDir& dir, model::Precision precision,
                            const std::string& router) {
  model::Llama model = model::Llama::load(io::Checkpoint(dir / "moe"));
  model.set_compute({precision});
  model.require_gradients();
  const auto parameters = trainable(model, {});
  Updater updater(parameters, AdamWSettings{}, /*seed=*/0, /*world=*/nullptr);
  model::RoutingOptions routing = model.default_routing();
  routing.router = route::parse_router(router);
  std::vector<Tensor> results;
  for (int64_t step = 0; step < 2; ++step) {
    updater.clear_gradients();
    const StepLosses losses =
        add_gradients(model, {make_batch(step)}, routing, {.load_balance = 0.01, .z = 0.001});
    const double norm = updater.gradient_norm();
    updater.step(norm, /*clip=*/0.1, /*lr=*/1e-2);
    results.push_back(at::tensor({losses.loss, losses.load_balance.value(), norm}, at::kDouble));
  }
  for (const auto& parameter : parameters) {
    results.push_back(parameter.tensor.detach().clone());
  }
  return results;
}

}  // namespace

TEST_CASE("training steps have equal bits with any number of threads", "[train]") {
  const TempDir dir;
  write_model(dir);
  for (const auto& [precision, router] : {std::pair(model::Precision::kF32, "top2+ir+fr"),
                                          std::pair(model::Precision::kBf16, "top2:cf=inf")}) {
    CAPTURE(router);
    test::by_any_threads([&, p = precision, r = router] { return trained(dir, p, r); });
  }
}
