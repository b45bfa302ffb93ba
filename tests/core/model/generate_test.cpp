#include "core/model/llama/generate.h"

#include "tests/support/catch.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"

using moe::model::pick_token;

namespace {

// Probabilities .1 .4 .2 .3 by their logarithms.
at::Tensor four_logits() {
  return at::tensor({0.1, 0.4, 0.2, 0.3}, at::kDouble).log().to(at::kFloat);
}

}  // namespace

TEST_CASE("temperature 0 takes the largest logit, the first on ties", "[model]") {
  CHECK(pick_token(four_logits(), 0, 1, 0.99) == 1);
  CHECK(pick_token(at::zeros({5}), 0, 1, 0.5) == 0);
}

TEST_CASE("sampling walks the probabilities from the largest down", "[model]") {
  CHECK(pick_token(four_logits(), 1, 1, 0.0) == 1);
  CHECK(pick_token(four_logits(), 1, 1, 0.39) == 1);
  CHECK(pick_token(four_logits(), 1, 1, 0.41) == 3);
  CHECK(pick_token(four_logits(), 1, 1, 0.71) == 2);
  CHECK(pick_token(four_logits(), 1, 1, 0.91) == 0);
}

TEST_CASE("top-p keeps the smallest set that reaches p, at least one token", "[model]") {
  CHECK(pick_token(four_logits(), 1, 0.05, 0.999) == 1);  // p below the largest probability
  CHECK(pick_token(four_logits(), 1, 0.5, 0.999) == 3);   // .4 + .3 reaches .5
  CHECK(pick_token(four_logits(), 1, 0.5, 0.56) == 1);    // .56 * .7 < .4
}

TEST_CASE("a low temperature sharpens", "[model]") {
  CHECK(pick_token(four_logits(), 0.05, 1, 0.99) == 1);  // .3/.4 to the 20th: 0.3 %
}

TEST_CASE("generation repeats itself for a seed and stops at the model's length", "[model]") {
  const moe::test::TempDir folder;
  moe::test::TinyCheckpoint options;
  options.max_positions = 12;
  moe::test::write_tiny_checkpoint(folder / "m", options);
  const auto model = moe::model::Llama::load(moe::io::Checkpoint(folder / "m"));
  moe::model::GenerateSettings settings;
  settings.temperature = 1;
  settings.max_tokens = 100;
  const auto first = moe::model::generate(model, model.default_routing(), {1, 2, 3}, settings);
  CHECK(first.size() == 9);  // 3 + 9 = 12 positions
  CHECK(first == moe::model::generate(model, model.default_routing(), {1, 2, 3}, settings));
  settings.seed = 2;
  CHECK(first != moe::model::generate(model, model.default_routing(), {1, 2, 3}, settings));
}

TEST_CASE("generation stops after the end token", "[model]") {
  const moe::test::TempDir folder;
  moe::test::write_tiny_checkpoint(folder / "m", {});
  const auto model = moe::model::Llama::load(moe::io::Checkpoint(folder / "m"));
  moe::model::GenerateSettings settings;
  const auto free = moe::model::generate(model, model.default_routing(), {1}, settings);
  settings.eos_ids = {free.at(2)};
  const auto stopped = moe::model::generate(model, model.default_routing(), {1}, settings);
  CHECK(stopped.back() == settings.eos_ids.front());
  CHECK(stopped.size() <= 3);
}

TEST_CASE("generation stops after whichever end token comes first", "[model]") {
  const moe::test::TempDir folder;
  moe::test::write_tiny_checkpoint(folder / "m", {});
  const auto model = moe::model::Llama::load(moe::io::Checkpoint(folder / "m"));
  moe::model::GenerateSettings settings;
  const auto free = moe::model::generate(model, model.default_routing(), {1}, settings);
  settings.eos_ids = {1000, free.at(4), free.at(1)};
  const auto stopped = moe::model::generate(model, model.default_routing(), {1}, settings);
  CHECK(stopped.size() <= 2);
  CHECK((stopped.back() == free.at(1) || stopped.back() == free.at(4)));
}
