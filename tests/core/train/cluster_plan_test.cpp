// A cluster on paper: the numbers against the formulas of the header, by hand for one shape.

#include "core/train/plan/cluster_plan.h"

#include <fstream>

#include "tests/support/catch.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"
#include "tests/support/user_error.h"

using namespace moe;
using namespace moe::train;
using moe::test::TempDir;

namespace {

// 4 layers, D 64, F 96, V 128, every head has its own keys.
std::filesystem::path write_config(const TempDir& dir) {
  test::TinyCheckpoint shape;
  shape.hidden = 64;
  shape.intermediate = 96;
  shape.layers = 4;
  shape.heads = shape.kv_heads = 4;
  shape.vocab = 128;
  std::ofstream(dir / "config.json") << test::tiny_config(shape);
  return dir / "config.json";
}

TrainSettings settings_for(const std::filesystem::path& config) {
  TrainSettings settings;
  settings.model = config;
  settings.seq_len = 32;
  settings.micro_batch = 8;
  settings.global_batch = 32;
  return settings;
}

// The same as a mixture of 4 experts in every other layer, a token at one of them.
TrainSettings mixture_settings(const std::filesystem::path& config) {
  TrainSettings settings = settings_for(config);
  settings.router.router = "top1";
  settings.upcycle.experts = 4;
  return settings;
}

}  // namespace

TEST_CASE("what a step computes and sends is what the formulas say", "[train]") {
  const TempDir dir;
  TrainSettings settings = mixture_settings(write_config(dir));
  ClusterRates rates;
  rates.nodes = 2;
  rates.gpus = 4;
  const ClusterPlan plan = plan_cluster(settings, rates);  // layers 0 and 2, W = E = 4
  CHECK(plan.layout.group() == 4);
  CHECK(plan.layout.replicas == 2);
  CHECK(plan.tokens == 32 * 32);

  // 8 rows x 32 tokens over 4 places; 32 / (8 x 2 replicas) = 2 micro-batches each.
  const double tokens = 64, batches = 2;
  const double attention = 64 * (4 * 64) + 32 * 64, feed_forward = 3 * 64 * 96;
  const double weights = 64 * 128 + 4 * attention + 4 * feed_forward + 2 * 64 * 4;
  CHECK(plan.flop == Approx(batches * 3 * 2 * tokens * weights));
  // Two layers, out and back, forward and backward; 3 of 4 experts are elsewhere; f32.
  CHECK(plan.token_bytes == Approx(batches * 2 * 4 * (tokens * 3 / 4) * 64 * 4));
  CHECK(plan.token_s == Approx(plan.token_bytes / 350e9));
  // Every matrix but the experts, and the norms, of 8 processes; one expert of 2 layers, of 2.
  const double dense = 2 * 64 * 128 + 4 * 4 * 64 * 64 + 2 * feed_forward + 2 * 4 * 64 + 9 * 64;
  const double experts = 2 * feed_forward;
  CHECK(plan.gradient_bytes == Approx(2 * 4 * (dense * 7 / 8 + experts / 2)));
  CHECK(plan.gradient_s == Approx(plan.gradient_bytes / 50e9));  // both cross machines
  CHECK(plan.communication_share() == Approx((plan.token_s + plan.gradient_s) /
                                             (plan.token_s + plan.gradient_s + plan.compute_s)));
  // Moments: an eighth of the dense ones, half of the experts'; weights whole.
  CHECK(plan.memory.weights == static_cast<uint64_t>(4 * (dense + experts)));
  CHECK(plan.memory.optimizer == static_cast<uint64_t>(8 * (dense / 8 + experts / 2)));
}

TEST_CASE("a shared expert is computed for every token, held and summed up by every GPU",
          "[train]") {
  const TempDir dir;
  TrainSettings settings = mixture_settings(write_config(dir));
  ClusterRates rates;
  rates.gpus = 4;
  const ClusterPlan plain = plan_cluster(settings, rates);
  settings.upcycle.shared_expert = true;
  const ClusterPlan shared = plan_cluster(settings, rates);
  const double numbers = 2 * (3 * 64 * 96 + 64);  // of two layers
  CHECK(static_cast<double>(shared.parameters - plain.parameters) == numbers);
  CHECK(shared.flop - plain.flop == Approx(4 * 3 * 2 * 64 * numbers));  // 4 micro-batches of 64
  CHECK(shared.gradient_bytes - plain.gradient_bytes == Approx(2 * 4 * numbers * 3 / 4));
  CHECK(shared.token_bytes == plain.token_bytes);
  CHECK(static_cast<double>(shared.memory.weights - plain.memory.weights) == 4 * numbers);
  CHECK(shared.memory.activations > plain.memory.activations);
  settings.upcycle.experts = std::nullopt;
  CHECK(test::user_error_of([&] {
          plan_cluster(settings, rates);
        }).find("--shared-expert: is of a dense folder that is taken as a mixture") == 0);
}

TEST_CASE("in bf16 a GPU holds a copy of what products read, and no checkpoint", "[train]") {
  const TempDir dir;
  TrainSettings settings = mixture_settings(write_config(dir));
  settings.save_every = 100;
  ClusterRates rates;
  rates.gpus = 4;
  const MemoryPlan f32 = plan_cluster(settings, rates).memory;
  settings.compute.precision = model::Precision::kBf16;
  const MemoryPlan bf16 = plan_cluster(settings, rates).memory;
  // Of one GPU: the head, attention, two dense layers and two layers of one expert each.
  const uint64_t matrices = 64 * 128 + 4 * 4 * 64 * 64 + 4 * (3 * 64 * 96);
  CHECK(bf16.weights == f32.weights + 2 * matrices);
  CHECK(bf16.checkpoint == 0);
  CHECK(bf16.optimizer == f32.optimizer);

  settings.compute.recompute = model::Recompute::kLayer;  // short of memory
  CHECK(plan_cluster(settings, rates).memory.weights == f32.weights);
  settings.compute.recompute = model::Recompute::kNone;

  settings.trained = {"router", "norms", "embeddings"};  // of these the head alone has one
  const uint64_t head = 2 * 64 * 128;
  CHECK(plan_cluster(settings, rates).memory.weights == f32.weights + head);
}

TEST_CASE("recomputing sends and computes the forward again; capacity sends whole buffers",
          "[train]") {
  const TempDir dir;
  TrainSettings settings = settings_for(write_config(dir));
  ClusterRates rates;
  rates.gpus = 4;
  settings.router.router = "top1";
  settings.upcycle.experts = 4;
  const ClusterPlan plain = plan_cluster(settings, rates);
  settings.router.cf = "2";
  CHECK(plan_cluster(settings, rates).token_bytes == Approx(2 * plain.token_bytes));
  settings.router.cf = "";
  settings.compute.recompute = model::Recompute::kLayer;
  const ClusterPlan again = plan_cluster(settings, rates);
  CHECK(again.flop == Approx(plain.flop * 4 / 3));
  CHECK(again.token_bytes == Approx(plain.token_bytes * 6 / 4));
  CHECK(again.memory.activations < plain.memory.activations);
  settings.compute.precision = model::Precision::kBf16;
  CHECK(plan_cluster(settings, rates).token_bytes == Approx(again.token_bytes / 2));
}

TEST_CASE("sharded weights: a part for each GPU, gathered around each layer", "[train]") {
  const TempDir dir;
  TrainSettings settings = mixture_settings(write_config(dir));
  ClusterRates rates;
  rates.nodes = 2;
  rates.gpus = 4;
  const ClusterPlan whole = plan_cluster(settings, rates);
  settings.shard = Shard::kWeights;
  const ClusterPlan plan = plan_cluster(settings, rates);
  // As above: of 8 processes; what stays whole are norms and routers.
  const double feed_forward = 3 * 64 * 96, ends = 64 * 128,
               layers = 4 * 4 * 64 * 64 + 2 * feed_forward;
  const double rest = 2 * 4 * 64 + 9 * 64, experts = 2 * feed_forward, sharded = 2 * ends + layers;
  CHECK(plan.memory.weights == static_cast<uint64_t>(4 * (sharded / 8 + rest + experts)));
  CHECK(plan.memory.gradients == plan.memory.weights);
  CHECK(plan.memory.optimizer == whole.memory.optimizer);
  CHECK(plan.memory.peak < whole.memory.peak);
  CHECK(plan.memory.workspace > whole.memory.workspace);
  // Two micro-batches of each replica: a reduce-scatter for each; embedding and head come once,
  // layers twice.
  const double batches = 2;
  CHECK(plan.gradient_bytes ==
        Approx(4 * (batches * sharded * 7 / 8 + 2 * rest * 7 / 8 + 2 * experts / 2)));
  CHECK(plan.weight_bytes == Approx(4 * batches * (2 * ends + 2 * layers) * 7 / 8));
  CHECK(plan.weight_s == Approx(plan.weight_bytes / 50e9));
  CHECK(plan.waiting_s == Approx(plan.weight_s - plan.compute_s));  // too small to hide it
  CHECK(plan.step_s() == Approx(plan.compute_s + plan.token_s + plan.gradient_s + plan.waiting_s));
  settings.compute.precision = model::Precision::kBf16;  // but the embedding
  const ClusterPlan bf16 = plan_cluster(settings, rates);
  CHECK(bf16.weight_bytes == Approx(batches * (4 * ends + 2 * ends + 2 * 2 * layers) * 7 / 8));
  rates.tflops = 1e-6;
  CHECK(plan_cluster(settings, rates).waiting_s == 0);

  rates.nodes = rates.gpus = 1;
  CHECK(plan_cluster(settings, rates).weight_bytes == 0);
}

TEST_CASE("a dense model on one GPU sends nothing", "[train]") {
  const TempDir dir;
  ClusterRates rates;
  rates.gpus = 1;
  const ClusterPlan plan = plan_cluster(settings_for(write_config(dir)), rates);
  CHECK(plan.communication_share() == 0);
  CHECK(plan.token_bytes == 0);
}

TEST_CASE("a mixture is planned as moe init makes it: layers, granularity, its router", "[train]") {
  const TempDir dir;
  ClusterRates rates;
  rates.gpus = 1;
  TrainSettings settings = settings_for(write_config(dir));
  settings.router = {};
  settings.router.router = "top2:cf=inf";
  settings.router.ep_ranks = 1;
  settings.upcycle.experts = 4;
  const int64_t even = plan_cluster(settings, rates).parameters;
  settings.upcycle.layers = "all";
  const int64_t all = plan_cluster(settings, rates).parameters;
  const int64_t dense = plan_cluster(settings_for(write_config(dir)), rates).parameters;
  const model::ModelConfig config =
      model::parse_config(read_json(dir / "config.json"), "config.json");
  const int64_t more =  // three more feed-forwards and a router
      3 * 3 * config.hidden_size * config.intermediate_size + 4 * config.hidden_size;
  CHECK(all - dense == config.layers * more);
  CHECK(even - dense == (config.layers + 1) / 2 * more);
  settings.upcycle.granularity = 2;
  const ClusterPlan fine = plan_cluster(settings, rates);
  CHECK(fine.parameters - all == config.layers * 4 * config.hidden_size);  // wider routers
  CHECK(fine.router.k == 4);
}

TEST_CASE("a plan that cannot be is refused", "[train]") {
  const TempDir dir;
  const auto config = write_config(dir);
  const auto error = [&](ClusterRates rates, int64_t experts,
                         std::optional<int64_t> replicas = {}) {
    TrainSettings settings = settings_for(config);
    settings.replicas = replicas;
    settings.upcycle.experts = experts;
    return test::user_error_of([&] { plan_cluster(settings, rates); });
  };
  CHECK(error({0, 8}, 4) == "--nodes 0: must be positive");
  CHECK(error({1, 8, 400, -1}, 4) == "--link-gbs -1: must be positive");
  CHECK(error({1, 8}, 4, 3).find("--replicas 3 does not divide") == 0);
  CHECK(error({1, 7}, 4).find("which 7 replicas cannot share equally") != std::string::npos);
}
