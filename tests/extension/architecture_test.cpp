// A dense architecture that is added from outside, by the recipe "Adding a dense architecture" of
// core/model/README.md: read, upcycled, trained and resumed like the built-in ones.

#include "core/model/config/architecture.h"

#include <ATen/core/grad_mode.h>

#include "core/model/llama/llama.h"
#include "tests/support/train_world.h"

using namespace moe;

namespace {

// LLaMA under another name, with other defaults.
void add_wide_rope() {
  static const bool is_added = [] {
    model::add_architecture({.model_type = "wide_rope",
                             .name = "WideRopeForCausalLM",
                             .rms_norm_eps = 1e-4,
                             .rope_theta = 5e5});
    return true;
  }();
  CHECK(is_added);
}

// Removes or sets keys of FOLDER/config.json.
void change_config(const std::filesystem::path& folder, const OrderedJson& changes) {
  OrderedJson config = OrderedJson::parse(test::read_file(folder / "config.json"));
  for (const auto& [key, value] : changes.items()) {
    config.erase(key);
    if (!value.is_null()) {
      config[key] = value;
    }
  }
  io::write_file(folder / "config.json", config.dump(2) + "\n");
}

at::Tensor logits(const std::filesystem::path& folder) {
  const at::NoGradGuard no_gradients;
  const auto model = model::Llama::load(io::Checkpoint(folder), {}, at::kCPU);
  return model.head(model.forward({at::arange(3, 19), {16}}, model.default_routing()).hidden);
}

}  // namespace

TEST_CASE("an added architecture is read with its defaults of absent keys", "[extension]") {
  add_wide_rope();
  test::TempDir dir;
  test::write_tiny_checkpoint(dir / "llama");
  change_config(dir / "llama", {{"rms_norm_eps", 1e-4}, {"rope_theta", 5e5}});
  test::write_tiny_checkpoint(dir / "added");
  change_config(dir / "added", {{"model_type", "wide_rope"},
                                {"architectures", {"WideRopeForCausalLM"}},
                                {"rms_norm_eps", nullptr},
                                {"rope_theta", nullptr}});
  CHECK(at::equal(logits(dir / "added"), logits(dir / "llama")));
}

TEST_CASE("a model of an added architecture is upcycled, trained and resumed", "[extension]") {
  add_wide_rope();
  test::TrainWorld world;
  change_config(world.dir / "dense",
                {{"model_type", "wide_rope"}, {"architectures", {"WideRopeForCausalLM"}}});
  world.settings.model = world.dir / "moe";
  test::write_mixture(world.dir / "dense", world.settings.model,
                      {.router = "top2+ir", .experts = 4, .ep_ranks = 2});
  world.settings.save_every = 4;
  const auto losses = test::losses(world.train("whole"));
  CHECK(losses.back() < losses.front());
  test::check_resumes(world, world.dir / "whole", {5});
}
