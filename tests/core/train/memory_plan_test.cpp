// What --graph adds to the memory of a run, by hand for one shape.

#include "core/train/plan/memory_plan.h"

#include "tests/support/catch.h"
#include "tests/support/tiny_checkpoint.h"

using namespace moe;
using namespace moe::train;

namespace {

// 4 layers, D 64, F 96, every head has its own keys; T 256 tokens a micro-batch.
constexpr uint64_t kLayers = 4, kWidth = 64, kInner = 96, kTokens = 256;
constexpr uint64_t kRow = 4 * kTokens * kWidth;  // [T, D] f32

model::ModelConfig config_of(int64_t vocabulary, bool tied) {
  test::TinyCheckpoint shape;
  shape.hidden = kWidth;
  shape.intermediate = kInner;
  shape.layers = kLayers;
  shape.heads = shape.kv_heads = 4;
  shape.vocab = vocabulary;
  shape.tied = tied;
  return model::parse_config(Json(test::tiny_config(shape)), "config.json");
}

struct Plans {
  MemoryPlan launched, recorded;
};

Plans plans_of(int64_t vocabulary, bool tied, int64_t micro_batches,
               model::Recompute recompute = model::Recompute::kNone) {
  TrainSettings settings;
  settings.micro_batch = 8;
  settings.global_batch = 8 * micro_batches;
  settings.on_cuda = true;
  settings.compute.precision = model::Precision::kBf16;
  settings.compute.recompute = recompute;
  const auto plan = [&] {
    return plan_memory(config_of(vocabulary, tied), settings, {}, kTokens, kCudaProgram);
  };
  Plans plans;
  plans.launched = plan();
  settings.graph = true;
  plans.recorded = plan();
  return plans;
}

// All but what the graphs keep is as without them, and that is on top.
void check_rest(const Plans& plans) {
  const auto &launched = plans.launched, &recorded = plans.recorded;
  CHECK(launched.graphs == 0);
  CHECK(recorded.weights == launched.weights);
  CHECK(recorded.gradients == launched.gradients);
  CHECK(recorded.activations == launched.activations);
  CHECK(recorded.workspace == launched.workspace);
  CHECK(recorded.peak == launched.peak + recorded.graphs);
}

}  // namespace

// The peak of a small vocabulary is in the last layer's backward, which the pool is made for:
// beside it lie ids (8 bytes a token) and d loss / d hidden, which the graphs read, and the head's
// logits, which could have lain where that backward has its workspace. The two rows a token that
// the head has are there in backward too.
TEST_CASE("graphs keep a pool beside which the head computes", "[train]") {
  constexpr uint64_t kVocabulary = 128, kLogits = 4 * kTokens * kVocabulary;
  for (const bool tied : {false, true}) {
    for (const auto recompute : {model::Recompute::kNone, model::Recompute::kLayer}) {
      CAPTURE(tied, static_cast<int>(recompute));
      const Plans once = plans_of(kVocabulary, tied, 1, recompute);
      CHECK(once.recorded.graphs == kRow + 8 * kTokens + kLogits);
      check_rest(once);
      // The first micro-batch's hidden rows stay in the pool.
      const Plans several = plans_of(kVocabulary, tied, 3, recompute);
      CHECK(several.recorded.graphs == 2 * kRow + 8 * kTokens + kLogits);
      check_rest(several);
    }
  }
}

// Of a larger vocabulary it is in the head, when nothing of backward is there yet: the pool adds
// the workspace and the gradients of the last layer, or, of a vocabulary larger still, the
// gradients of all layers and of the embedding, which take the place of what was kept for backward.
TEST_CASE("where the head needs most, graphs keep a backward beside it", "[train]") {
  const uint64_t of_layer = 4 * (4 * kWidth * kWidth + 3 * kWidth * kInner + 2 * kWidth);
  // Of SwiGLU: gate, up and their gradients in bf16, the gradient of its input in bf16 and f32; and
  // two rows of the residual stream's.
  const uint64_t working = 2 * kTokens * 4 * kInner + 6 * kTokens * kWidth + 2 * kRow;
  const Plans large = plans_of(2000, /*tied=*/false, 1);
  CHECK(large.recorded.graphs == of_layer + working + kRow + 8 * kTokens);
  check_rest(large);
  const Plans larger = plans_of(32000, /*tied=*/false, 1);
  const uint64_t of_embedding = 4 * (32000 * kWidth + kWidth);  // and of the last norm
  CHECK(larger.recorded.graphs ==
        kLayers * of_layer + of_embedding - larger.launched.activations + kRow + 8 * kTokens);
  check_rest(larger);
}
