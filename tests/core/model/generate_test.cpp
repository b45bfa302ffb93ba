#include "core/model/llama/generate.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>

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

namespace {

using Texts = std::vector<std::vector<int64_t>>;

// All new ids by prompt, and how often each was handed over.
Texts generated(const moe::model::Llama& model, const Texts& prompts,
                const std::vector<size_t>& wanted, const moe::model::GenerateSettings& settings,
                int64_t rows) {
  Texts all(prompts.size());
  std::vector<int> times(prompts.size());
  moe::model::generate_all(
      model, model.default_routing(), settings,
      {prompts, wanted, rows, [&](size_t index, const std::vector<int64_t>& ids) {
         all[index] = ids;
         ++times[index];
       }});
  for (size_t index = 0; index < prompts.size(); ++index) {
    CHECK(times[index] == std::count(wanted.begin(), wanted.end(), index));
  }
  return all;
}

}  // namespace

TEST_CASE("a prompt's text is the same in any batch and alone", "[model]") {
  const moe::test::TempDir folder;
  moe::test::TinyCheckpoint options;
  options.max_positions = 40;
  for (const auto dtype : {moe::io::DType::kF32, moe::io::DType::kBF16}) {
    options.dtype = dtype;
    const auto path = folder / moe::io::dtype_name(dtype);
    moe::test::write_tiny_checkpoint(path, options);
    const auto model = moe::model::Llama::load(moe::io::Checkpoint(path), {}, at::kCPU,
                                               moe::model::Storage::kStored);
    // With a beginning in common, one prompt twice, one that fills the window, one that is it.
    Texts prompts = {{1, 2, 3}, {1, 2, 4, 5, 6, 7}, {1, 2, 3}, {1, 2, 9}};
    prompts.emplace_back(39, 2).front() = 1;
    prompts.emplace_back(40, 2).front() = 1;
    moe::model::GenerateSettings settings;
    settings.max_tokens = 25;
    const Texts all = generated(model, prompts, {0, 1, 2, 3, 4, 5}, settings, 3);
    CHECK(all[0] == all[2]);
    CHECK(all[4].size() == 1);
    CHECK(all[5].empty());
    for (size_t index = 0; index < prompts.size(); ++index) {
      CHECK(generated(model, prompts, {index}, settings, 3)[index] == all[index]);
      CHECK(moe::model::generate(model, model.default_routing(), prompts[index], settings) ==
            all[index]);
    }
    settings.eos_ids = {all[0].at(4)};  // some end early, and others take their place
    const Texts cut = generated(model, prompts, {5, 4, 3, 2, 1, 0}, settings, 2);
    for (size_t index = 0; index < prompts.size(); ++index) {
      const auto& whole = all[index];
      const auto end = std::find(whole.begin(), whole.end(), settings.eos_ids.front());
      const auto length = end == whole.end() ? whole.size() : end - whole.begin() + 1;
      CHECK(cut[index] ==
            std::vector<int64_t>(whole.begin(), whole.begin() + static_cast<int64_t>(length)));
    }
  }
}

TEST_CASE("a prompt's text is the same among many as alone", "[model]") {
  const moe::test::TempDir folder;
  moe::test::TinyCheckpoint options;
  options.max_positions = 40;
  options.dtype = moe::io::DType::kBF16;
  moe::test::write_tiny_checkpoint(folder / "m", options);
  for (const auto precision : {moe::model::Precision::kF32, moe::model::Precision::kBf16}) {
    const auto model = moe::model::Llama::load(moe::io::Checkpoint(folder / "m"), {}, at::kCPU,
                                               moe::model::Storage::kStored, {precision});
    Texts prompts;
    std::vector<size_t> wanted;
    for (int64_t i = 0; i < 20; ++i) {
      prompts.push_back({1, 2, 3 + i, 30 - i});
      wanted.push_back(static_cast<size_t>(i));
    }
    for (const double temperature : {0.0, 1.0}) {
      moe::model::GenerateSettings settings;
      settings.max_tokens = 12;
      settings.temperature = temperature;
      const Texts all = generated(model, prompts, wanted, settings, 13);
      for (const size_t index : wanted) {
        CHECK(generated(model, prompts, {index}, settings, 1)[index] == all[index]);
      }
    }
  }
}

TEST_CASE("generation with kept keys picks what whole forwards pick", "[model]") {
  const moe::test::TempDir folder;
  moe::test::write_tiny_checkpoint(folder / "m", {});
  const auto model = moe::model::Llama::load(moe::io::Checkpoint(folder / "m"));
  const at::NoGradGuard no_gradients;
  moe::model::GenerateSettings settings;
  settings.max_tokens = 12;
  const std::vector<int64_t> prompt = {1, 5, 3};
  std::vector<int64_t> text = prompt;
  for (int64_t i = 0; i < settings.max_tokens; ++i) {
    const auto count = static_cast<int64_t>(text.size());
    const auto hidden =
        model.forward({at::tensor(text, at::kLong), {count}}, model.default_routing()).hidden;
    text.push_back(model.head(hidden.narrow(0, count - 1, 1)).argmax().item<int64_t>());
  }
  text.erase(text.begin(), text.begin() + static_cast<int64_t>(prompt.size()));
  CHECK(moe::model::generate(model, model.default_routing(), prompt, settings) == text);
}

TEST_CASE("kept keys that find no room move to where there is some, with the same bits",
          "[model]") {
  const moe::test::TempDir folder;
  moe::test::TinyCheckpoint options;
  options.max_positions = 64;
  moe::test::write_tiny_checkpoint(folder / "m", options);
  const auto model = moe::model::Llama::load(moe::io::Checkpoint(folder / "m"));
  const at::NoGradGuard no_gradients;
  moe::model::KvCache narrow(model.config(), {.capacity = 1});
  moe::model::KvCache wide(model.config(), {.capacity = 64});
  const auto next = [&](moe::model::KvCache& cache, std::vector<int64_t> ids) {
    const auto count = static_cast<int64_t>(ids.size());
    return model
        .forward({.ids = at::tensor(ids, at::kLong), .lengths = {count}, .caches = {&cache}},
                 model.default_routing())
        .hidden;
  };
  CHECK(at::equal(next(narrow, {3, 1, 4}), next(wide, {3, 1, 4})));
  for (int64_t token = 5; token < 45; ++token) {
    CHECK(at::equal(next(narrow, {token}), next(wide, {token})));
  }
  CHECK(narrow.length() == 43);
}

TEST_CASE("as many rows at once as there is memory for, at least one", "[model]") {
  moe::model::ModelConfig config;
  config.layers = 2;
  config.kv_heads = 4;
  config.head_dim = 8;
  config.max_position_embeddings = 100;
  const uint64_t row = 60 * 2 * 2 * 4 * 8 * sizeof(float);
  CHECK(moe::model::rows_at_once(config, 40, 20, 0) == 1);
  CHECK(moe::model::rows_at_once(config, 40, 20, 5 * row) == 5);
  CHECK(moe::model::rows_at_once(config, 40, 20, 1000 * row) == 48);
  CHECK(moe::model::rows_at_once(config, 40, 2000, 3 * row) == 1);  // the window is the most
}
