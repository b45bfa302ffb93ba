// Calibration of gate_scale: gate sums against those of route(). The inputs of the
// layers come from a dropless top-1 mixture, which computes its parent's function.

#include "core/upcycle/calibrate.h"

#include <ATen/core/grad_mode.h>

#include "core/model/llama/llama.h"
#include "core/route/route.h"
#include "tests/core/upcycle/upcycled.h"
#include "tests/support/tiny_checkpoint.h"
#include "tests/support/user_error.h"

namespace moe::model {
namespace {

using namespace moe::test;

// A dense folder, and settings and a text for its mixture.
struct World {
  TempDir folder;
  UpcycleSettings settings;
  VerifyText text;

  explicit World(const std::string& router) {
    write_tiny_checkpoint(folder / "dense");
    settings = upcycle_settings(folder / "moe", router);
    settings.layers = "all";
    settings.router_std = 0.5;
    text.name = "a text";
    for (int64_t i = 0; i < 150; ++i) {  // more than one window of the tiny model's 128
      text.ids.push_back((i * 29 + 3) % 64);
    }
  }
  io::Checkpoint dense() const { return io::Checkpoint(folder / "dense"); }
  io::Checkpoint child() const { return io::Checkpoint(folder / "moe"); }

  OrderedJson upcycle_with_scale(std::optional<double> scale) {
    settings.gate_scale = scale;
    settings.force = true;
    const io::Checkpoint parent = dense();
    const UpcycleHooks hooks = {
        {},
        [&](const auto& staged) { return certify_equality(parent, io::Checkpoint(staged), text); },
        [&](const auto& staged) { return calibrate(parent, staged, settings, text); }};
    return Upcycled(folder / "dense", settings, hooks).report;
  }
};

// The mean gate sum, and the number of positive logits of each expert by layer.
struct Expected {
  double mean = 0;
  std::vector<std::vector<int64_t>> positive;
};

Expected by_loops(const World& world) {
  const at::NoGradGuard no_gradients;
  const Llama child = Llama::load(world.child());
  const RoutingOptions same_function{route::parse_router("top1:cf=inf"), 1, false, 1.0};
  Expected expected;
  expected.positive.assign(3, std::vector<int64_t>(4));
  for (const auto& ids : verify_windows(world.text, child.config())) {
    const Packed tokens{at::tensor(ids, at::kLong), {static_cast<int64_t>(ids.size())}};
    child.forward(tokens, same_function, [&](int64_t layer, const at::Tensor& input) {
      const at::Tensor router = child.parameters()[5 + 7 * layer].tensor;
      REQUIRE(child.parameters()[5 + 7 * layer].name ==
              fmt::format("model.layers.{}.mlp.router", layer));
      const at::Tensor logits = at::mm(input, router.t());
      const at::Tensor positive = (logits > 0).sum(0);
      for (int64_t expert = 0; expert < 4; ++expert) {
        expected.positive[layer][expert] += positive[expert].item<int64_t>();
      }
      expected.mean +=
          route::route(logits, world.settings.router, route::partition_tokens(logits.size(0), 1))
              .combine.sum(at::kDouble)
              .item<double>() /
          (3.0 * 150);
    });
  }
  return expected;
}

}  // namespace

TEST_CASE("the mean gate sum equals plain sums over tokens, layers and experts") {
  for (const char* router : {"topp:0.4", "topp:0.8", "relu:k=1", "top2:cf=inf,gate=none"}) {
    CAPTURE(router);
    World world(router);
    world.upcycle_with_scale(1.0);
    const GateMeasure measure = measure_gates(world.dense(), world.child(), world.text);
    const Expected expected = by_loops(world);
    // f32 logits and softmax of 4 terms: some epsilons (6e-8) on sums of order 1. No token of the
    // 450 has a mass so near p that rounding decides.
    CHECK(measure.mean_gate_sum() == Approx(expected.mean).epsilon(1e-5));
    CHECK(measure.tokens == 150);
    REQUIRE(measure.layers.size() == 3);
    for (size_t layer = 0; layer < 3; ++layer) {
      CHECK(measure.layers[layer].layer == static_cast<int64_t>(layer));
      if (world.settings.router.family->name == "relu") {
        CHECK(measure.layers[layer].load == expected.positive[layer]);
      }
    }
  }
}

TEST_CASE("--gate-scale auto stores 1 / mean, which more than halves the KL divergence") {
  for (const char* router : {"topp:0.4", "relu:k=1", "top1:cf=inf,gate=none"}) {
    CAPTURE(router);
    World world(router);
    // Top-p sums are near p and ReLU's near 5, both far from 1, so that a factor helps although
    // ReLU's vary between tokens by half of their mean.
    world.settings.router_std = world.settings.router.family->name == "relu" ? 1.0 : 0.1;
    const OrderedJson report = world.upcycle_with_scale(std::nullopt);
    const GateMeasure measure = measure_gates(world.dense(), world.child(), world.text);
    const double scale = report["gate_scale"];
    CHECK(scale * measure.mean_gate_sum() == Approx(1).epsilon(1e-12));
    const ModelConfig config = parse_config(world.child().config(), "child");
    CHECK(config.moe->gate_scale == scale);
    CHECK(world.child().config()["model_type"] ==
          (world.settings.router.family->name == "relu" ? "moe_relu" : "moe_scaled"));
    const OrderedJson& certificate = report["certificate"];
    CHECK(certificate["gate_scale"] == scale);
    CHECK(certificate["without_gate_scale"]["gate_scale"] == 1.0);
    CHECK(certificate["preserves_function"] == false);
    CHECK(certificate["mean_kl"].get<double>() <
          0.5 * certificate["without_gate_scale"]["mean_kl"].get<double>());
    CHECK(report["calibration"]["mean_gate_sum"].get<double>() == Approx(1 / scale));
    CHECK(report["calibration"]["layers"].size() == 3);
  }
}

TEST_CASE("routers whose weights sum to 1 keep gate_scale 1 without a measurement") {
  World world("top2+ir");
  world.settings.gate_scale.reset();
  const Calibration result =  // the folder does not exist: nothing is read
      calibrate(world.dense(), world.folder / "nothing", world.settings, world.text);
  CHECK(result.gate_scale == 1.0);
  CHECK_THAT(result.report["words"].get<std::string>(), contains_text("top2+ir"));
  const OrderedJson report = world.upcycle_with_scale(std::nullopt);
  CHECK(report["gate_scale"] == 1.0);
  CHECK_FALSE(report["certificate"].contains("without_gate_scale"));
  CHECK(report["certificate"]["max_abs_logit_difference"].get<double>() < 1e-4);
}

TEST_CASE("ReLU experts and layers without a positive logit are reported") {
  GateMeasure measure{"a text", 7, {{0, 1, {3, 0, 2, 0}}, {2, 1, {1, 1, 1, 1}}, {4, 0, {0, 0, 0}}}};
  const auto sentences = describe_dead_experts(measure);
  REQUIRE(sentences.size() == 2);
  CHECK_THAT(sentences[0], contains_text("layer 0: 2 of 4 experts") &&
                               contains_text("7 tokens of a text: 1, 3;"));
  CHECK_THAT(sentences[1], contains_text("layer 4 starts dead") && contains_text("7 tokens"));
  // One token leaves about half of the experts without a positive logit.
  World world("relu:k=1");
  world.text.ids = {5};
  const OrderedJson report = world.upcycle_with_scale(1.0);
  const auto positive = by_loops(world).positive;
  size_t layers_with_dead = 0;
  for (const auto& layer : positive) {
    layers_with_dead += std::count(layer.begin(), layer.end(), 0) > 0 ? 1 : 0;
  }
  CHECK(layers_with_dead > 0);
  CHECK(report["warnings"].size() == layers_with_dead);
}

TEST_CASE("gates that are all zero are refused") {
  const GateMeasure measure{"a text", 7, {{0, 0, {0, 0}}}};
  CHECK_THAT(user_error_of([&] { compute_gate_scale(measure); }),
             contains_text("--gate-scale auto: the gates of all 7 tokens of a text sum to 0"));
  World world("relu:k=1");
  world.settings.router_std = 0;
  CHECK_THAT(user_error_of([&] { world.upcycle_with_scale(std::nullopt); }),
             contains_text("--gate-scale auto: the gates of all 150 tokens"));
  CHECK_FALSE(std::filesystem::exists(world.folder / "moe"));
}

}  // namespace moe::model
