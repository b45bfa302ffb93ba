#include "core/model/llama/generate.h"

#include <algorithm>

#include "tests/support/catch.h"
#include "tests/support/tiny_checkpoint.h"

using namespace moe;
using namespace moe::test;
using model::GenerateSettings;
using model::Llama;
using model::pick_token;

namespace {

using Ids = std::vector<int64_t>;

// Writes a tiny model of `max_positions` to `folder` and loads it.
Llama tiny_model(const TempDir& folder, int64_t max_positions = 128) {
  write_tiny_checkpoint(folder / "m", {.max_positions = max_positions});
  return Llama::load(io::Checkpoint(folder / "m"));
}

Ids generate(const Llama& model, const Ids& prompt, const GenerateSettings& settings) {
  return model::generate(model, model.default_routing(), prompt, settings);
}

// Log-probabilities of .1 .4 .2 .3.
at::Tensor four_logits() {
  return at::tensor({0.1, 0.4, 0.2, 0.3}, at::kDouble).log().to(at::kFloat);
}

using Texts = std::vector<Ids>;

// Returns the new ids of the prompts `wanted`, by prompt. Checks that each is reported once.
Texts generated(const Llama& model, const Texts& prompts, const std::vector<size_t>& wanted,
                const GenerateSettings& settings, int64_t rows) {
  Texts all(prompts.size());
  std::vector<int> times(prompts.size());
  model::generate_all(model, model.default_routing(), settings,
                      {prompts, wanted, rows, [&](size_t index, const Ids& ids) {
                         all[index] = ids;
                         ++times[index];
                       }});
  for (size_t index = 0; index < prompts.size(); ++index) {
    CHECK(times[index] == std::count(wanted.begin(), wanted.end(), index));
  }
  return all;
}

}  // namespace

TEST_CASE("sampling takes tokens by descending probability, of the smallest set that reaches top_p",
          "[model]") {
  struct Case {
    double temperature, top_p, uniform;
    int64_t token;
  };
  for (const Case& c :
       {Case{1, 1, 0.0, 1}, Case{1, 1, 0.39, 1}, Case{1, 1, 0.41, 3}, Case{1, 1, 0.71, 2},
        Case{1, 1, 0.91, 0}, Case{1, 0.05, 0.999, 1},  // p below the largest probability: one token
        Case{1, 0.5, 0.999, 3},                        // .4 + .3 reaches .5
        Case{1, 0.5, 0.56, 1},                         // .56 * .7 < .4
        Case{0.05, 1, 0.99, 1}}) {                     // .3 / .4 to the 20th: 0.3 %
    CAPTURE(c.temperature, c.top_p, c.uniform);
    CHECK(pick_token(four_logits(), c.temperature, c.top_p, c.uniform) == c.token);
  }
  CHECK(pick_token(four_logits(), 0, 1, 0.99) == 1);
  CHECK(pick_token(at::zeros({5}), 0, 1, 0.5) == 0);  // the first on ties
}

TEST_CASE("generation is reproducible from its seed and stops at the model's length", "[model]") {
  const TempDir folder;
  const Llama model = tiny_model(folder, 12);
  GenerateSettings settings;
  settings.temperature = 1;
  settings.max_tokens = 100;
  const Ids first = generate(model, {1, 2, 3}, settings);
  CHECK(first.size() == 9);  // 3 + 9 = 12 positions
  CHECK(first == generate(model, {1, 2, 3}, settings));
  settings.seed = 2;
  CHECK(first != generate(model, {1, 2, 3}, settings));
}

TEST_CASE("generation stops after the first end token", "[model]") {
  const TempDir folder;
  const Llama model = tiny_model(folder);
  GenerateSettings settings;
  const Ids free = generate(model, {1}, settings);
  settings.eos_ids = {free.at(2)};
  const Ids stopped = generate(model, {1}, settings);
  CHECK(stopped.back() == free.at(2));
  CHECK(stopped.size() <= 3);
}

TEST_CASE("the text of a prompt does not depend on its batch", "[model]") {
  const TempDir folder;
  for (const auto dtype : {io::DType::kF32, io::DType::kBF16}) {
    const auto path = folder / io::dtype_name(dtype);
    write_tiny_checkpoint(path, {.max_positions = 40, .dtype = dtype});
    const auto model = Llama::load(io::Checkpoint(path), {}, at::kCPU, model::Storage::kStored);
    // A shared prefix, a repeated prompt, one with room for one token, one without room.
    Texts prompts = {{1, 2, 3}, {1, 2, 4, 5, 6, 7}, {1, 2, 3}, {1, 2, 9}};
    prompts.emplace_back(39, 2).front() = 1;
    prompts.emplace_back(40, 2).front() = 1;
    GenerateSettings settings;
    settings.max_tokens = 25;
    const Texts all = generated(model, prompts, {0, 1, 2, 3, 4, 5}, settings, 3);
    CHECK(all[0] == all[2]);
    CHECK(all[4].size() == 1);
    CHECK(all[5].empty());
    for (size_t index = 0; index < prompts.size(); ++index) {
      CHECK(generated(model, prompts, {index}, settings, 3)[index] == all[index]);
      CHECK(generate(model, prompts[index], settings) == all[index]);
    }
    settings.eos_ids = {all[0].at(4)};  // some end early and are replaced by others
    const Texts cut = generated(model, prompts, {5, 4, 3, 2, 1, 0}, settings, 2);
    for (size_t index = 0; index < prompts.size(); ++index) {
      const auto& whole = all[index];
      const auto end = std::find(whole.begin(), whole.end(), settings.eos_ids.front());
      const auto length = end == whole.end() ? whole.size() : end - whole.begin() + 1;
      CHECK(cut[index] == Ids(whole.begin(), whole.begin() + static_cast<int64_t>(length)));
    }
  }
}

TEST_CASE("the text of a prompt does not depend on many others, greedy or sampled", "[model]") {
  const TempDir folder;
  write_tiny_checkpoint(folder / "m", {.max_positions = 40, .dtype = io::DType::kBF16});
  for (const auto& [precision, temperature] :
       {std::pair(model::Precision::kF32, 1.0), std::pair(model::Precision::kBf16, 0.0)}) {
    const auto model = Llama::load(io::Checkpoint(folder / "m"), {}, at::kCPU,
                                   model::Storage::kStored, {precision});
    Texts prompts;
    std::vector<size_t> wanted;
    for (int64_t i = 0; i < 20; ++i) {
      prompts.push_back({1, 2, 3 + i, 30 - i});
      wanted.push_back(static_cast<size_t>(i));
    }
    GenerateSettings settings;
    settings.max_tokens = 12;
    settings.temperature = temperature;
    const Texts all = generated(model, prompts, wanted, settings, 13);
    for (const size_t index : wanted) {
      CHECK(generated(model, prompts, {index}, settings, 1)[index] == all[index]);
    }
  }
}
