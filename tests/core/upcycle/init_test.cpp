// Folders of random weights.

#include "core/upcycle/init.h"

#include <cmath>

#include "tests/core/upcycle/upcycled.h"
#include "tests/support/data.h"
#include "tests/support/foreign_checkpoint.h"
#include "tests/support/stored_numbers.h"
#include "tests/support/user_error.h"

namespace moe::model {
namespace {

using namespace moe::test;

std::filesystem::path write_config(const TempDir& folder, const TinyCheckpoint& options,
                                   const Json& patch = {}) {
  Json config = Json(tiny_config(options));
  if (patch.is_object()) {
    config.merge_patch(patch);
  }
  write_file(folder / "config.json", config.dump());
  return folder / "config.json";
}

constexpr double kBf16Rounding = 0x1p-8;  // of a square

// Returns settings that initialise folder/out from the config.
InitSettings settings_for(const TempDir& folder, const TinyCheckpoint& options = {},
                          const Json& patch = {}) {
  InitSettings settings;
  settings.config = write_config(folder, options, patch);
  settings.out = folder / "out";
  return settings;
}

io::Checkpoint make(const InitSettings& settings) {
  init(plan_init(settings), settings);
  io::Checkpoint checkpoint(settings.out);
  check_tensors(checkpoint, parse_config(checkpoint.config(), "made"));
  return checkpoint;
}

TEST_CASE("random weights are N(0, initializer_range), norms one, scaled_outputs scales by depth") {
  for (const bool scaled : {false, true}) {
    for (const bool mixtral : {false, true}) {  // Mixtral calls its down projections w2
      const TempDir folder;
      Json patch = {{"initializer_range", 0.006}};
      if (mixtral) {
        patch.update({{"model_type", "mixtral"},
                      {"architectures", {"MixtralForCausalLM"}},
                      {"num_local_experts", 2}});
      }
      InitSettings settings = settings_for(
          folder, {.hidden = 128, .intermediate = 256, .layers = 3, .dtype = io::DType::kBF16},
          patch);
      settings.scaled_outputs = scaled;
      const io::Checkpoint made = make(settings);
      int64_t outputs = 0;
      for (const auto& info : made.tensors()) {
        const std::string& name = info.name;
        INFO(name << " scaled " << scaled);
        const bool is_output = name.find("o_proj") != std::string::npos ||
                               name.find("down_proj") != std::string::npos ||
                               name.find(".w2.") != std::string::npos;
        outputs += is_output ? 1 : 0;
        const std::vector<float> values = floats(made, name);
        if (info.shape.size() == 1) {
          CHECK(values == std::vector<float>(values.size(), 1.0F));
        } else if (name.find("gate.weight") == std::string::npos) {
          check_normal(values, scaled && is_output ? 0.006 / std::sqrt(6.0) : 0.006, kBf16Rounding);
        }
      }
      CHECK(outputs == (mixtral ? 3 + 3 * 2 : 3 + 3));
    }
  }
}

TEST_CASE("the values of a tensor depend only on seed and name") {
  const TempDir folder;
  InitSettings settings;
  settings.config = write_config(folder, {});
  settings.out = folder / "whole";
  const io::Checkpoint whole = make(settings);
  settings.out = folder / "sharded";
  settings.shard_bytes = 6000;
  const io::Checkpoint sharded = make(settings);
  CHECK(std::filesystem::exists(folder / "sharded/model.safetensors.index.json"));
  settings.out = folder / "mixture";
  settings.experts = 4;
  settings.layers = "1";
  settings.router = route::parse_router("top1");
  const io::Checkpoint mixture = make(settings);
  settings.out = folder / "seed";
  settings.seed = 2;
  const io::Checkpoint seed = make(settings);
  for (const auto& info : whole.tensors()) {
    INFO(info.name);
    CHECK(floats(whole, info.name) == floats(sharded, info.name));
    if (mixture.has(info.name)) {
      CHECK(floats(whole, info.name) == floats(mixture, info.name));
      CHECK((info.shape.size() == 1 || floats(seed, info.name) != floats(mixture, info.name)));
    }
  }
}

TEST_CASE("a dense config becomes a mixture by --experts, with independent or equal experts") {
  const TempDir folder;
  InitSettings settings = settings_for(folder, {.dtype = io::DType::kBF16});
  settings.experts = 4;
  settings.router = route::parse_router("topp:0.4");
  settings.ep_ranks = 2;
  const io::Checkpoint made = make(settings);
  const ModelConfig config = parse_config(made.config(), "made");
  REQUIRE(config.moe);
  CHECK(config.moe->layers == std::vector<int64_t>{0, 1, 2});
  CHECK(config.moe->ep_ranks == 2);
  CHECK(config.moe->entropy_coef == 1e-4);
  CHECK(config.moe->router == settings.router);
  CHECK(config.moe->source_name.empty());
  CHECK(made.info("model.layers.2.mlp.gate.weight").dtype == io::DType::kF32);
  const auto expert = [](int64_t j) {
    return fmt::format("model.layers.1.mlp.experts.{}.up_proj.weight", j);
  };
  CHECK(floats(made, expert(0)) != floats(made, expert(3)));
  settings.out = folder / "same";
  settings.same_experts = true;
  const io::Checkpoint same = make(settings);
  CHECK(floats(same, expert(0)) == floats(same, expert(3)));
  CHECK(floats(same, expert(0)) == floats(made, expert(0)));
  CHECK(floats(same, "model.layers.0.mlp.experts.1.up_proj.weight") != floats(same, expert(1)));
}

TEST_CASE("a config with a moe object is initialised as it says, with finer experts too") {
  const TempDir folder;
  const Json moe = {{"format", 1},
                    {"layers", {0, 1, 2}},
                    {"granularity", 2},
                    {"router", route::to_json(route::parse_router("relu:k=2"))},
                    {"router_init", {{"std", 0.01}, {"seed", 5}}}};
  InitSettings settings = settings_for(folder, {},
                                       {{"moe", moe},
                                        {"num_experts", 8},
                                        {"moe_intermediate_size", 12},
                                        {"initializer_range", 0.5}});
  const io::Checkpoint made = make(settings);
  CHECK(made.config()["model_type"] == "moe_relu");
  CHECK(made.info("model.layers.0.mlp.experts.7.down_proj.weight").shape ==
        std::vector<int64_t>{16, 12});
  check_normal(floats(made, "model.layers.0.mlp.gate.weight"), 0.01);
  settings.experts = 4;
  CHECK_THAT(user_error_of([&] { plan_init(settings); }),
             contains_text(settings.config.string()) && contains_text("--experts"));
}

TEST_CASE("granularity G makes E G experts of width F / G and scales k, max and cf by G") {
  struct Case {
    const char *written, *stored;
  };
  for (const Case& c : {Case{"top2+ir:cf=1.5", "top8+ir:cf=6"},
                        Case{"topp:0.4,max=2", "topp:0.4,max=8"}, Case{"relu:k=1", "relu:k=4"}}) {
    INFO(c.written);
    const TempDir folder;
    InitSettings settings = settings_for(folder);
    settings.experts = 8;
    settings.granularity = 4;
    settings.router = route::parse_router(c.written);
    const io::Checkpoint made = make(settings);
    const ModelConfig config = parse_config(made.config(), "made");
    CHECK(config.moe->experts == 32);
    CHECK(config.moe->expert_width == 6);
    CHECK(config.moe->granularity == 4);
    CHECK(config.moe->ep_ranks == 8);
    CHECK(route::to_string(config.moe->router) == c.stored);
    CHECK(made.info("model.layers.0.mlp.experts.31.up_proj.weight").shape ==
          std::vector<int64_t>{6, 16});
    const Json report = read_json(folder / "out/init.json");
    CHECK((report["experts"] == 32 && report["expert_width"] == 6 && report["granularity"] == 4));
  }
}

TEST_CASE("a tokenizer comes from a file or a folder, and must fit") {
  const std::filesystem::path tiny = tiny_model_folder();
  for (const auto& from : {tiny, tiny / "tokenizer.model"}) {
    const TempDir folder;
    InitSettings settings = settings_for(folder, {.vocab = 1024});
    settings.tokenizer = from;
    make(settings);
    CHECK(read_file(folder / "out/tokenizer.model") == read_file(tiny / "tokenizer.model"));
    CHECK(std::filesystem::exists(folder / "out/tokenizer_config.json"));
    CHECK_FALSE(std::filesystem::exists(folder / "out/tokenizer"));

    settings.out = folder / "small";
    settings.config = write_config(folder, {.vocab = 1000});
    const std::string message = user_error_of([&] { make(settings); });
    CHECK_THAT(message,
               contains_text("--tokenizer " + from.string() + ": ") && contains_text("1024"));
    CHECK_FALSE(std::filesystem::exists(folder / "small"));
  }
}

TEST_CASE("impossible settings of init are refused by name") {
  const TempDir folder;
  InitSettings settings = settings_for(folder);
  std::filesystem::create_directory(folder / "empty");
  const auto message = [&](const std::function<void(InitSettings&)>& change) {
    InitSettings changed = settings;
    change(changed);
    return user_error_of([&] { make(changed); });
  };
  const auto with = [](int64_t experts, int64_t granularity, int64_t ranks = 1,
                       const char* layers = "all") {
    return [=](InitSettings& changed) {
      changed.experts = experts;
      changed.granularity = granularity;
      changed.ep_ranks = ranks;
      changed.layers = layers;
    };
  };
  struct Case {
    std::function<void(InitSettings&)> change;
    std::string fact;
  };
  for (const Case& c :
       {Case{[&](auto& s) { s.config = folder / "none.json"; }, "none.json"},
        Case{[](auto& s) { s.experts = 0; }, "0"},
        Case{with(4, 1, 1, "7"), "--layers 7: layer 7 does not exist"},
        Case{with(4, 1, 3),
             settings.config.string() + ": 4 experts do not divide over moe.ep_ranks 3"},
        Case{with(4, 5), "--granularity 5"},
        Case{with(int64_t{1} << 40, 24), "--experts 1099511627776 with --granularity 24"},
        Case{[&](auto& s) { s.tokenizer = folder / "none.model"; }, "none.model"},
        Case{[&](auto& s) { s.tokenizer = folder / "empty"; },
             "--tokenizer " + (folder / "empty").string()}}) {
    CHECK_THAT(message(c.change), contains_text(c.fact));
  }
  CHECK_FALSE(std::filesystem::exists(folder / "out"));
  make(settings);
  CHECK_THAT(message([](auto&) {}), contains_text(settings.out.string() + ": exists already"));
  CHECK(message([](auto& s) { s.force = true; }).empty());
}

TEST_CASE("a stock mixture is initialised under its own tensor names") {
  for (const auto kind : {Foreign::kMixtral, Foreign::kQwen2Moe}) {
    const TempDir folder;
    const ForeignCheckpoint options{.kind = kind, .dense_layers = {}};
    write_file(folder / "config.json", foreign_config(options).dump());
    InitSettings settings;
    settings.config = folder / "config.json";
    settings.out = folder / "out";
    settings.same_experts = true;
    const io::Checkpoint made = make(settings);
    const bool mixtral = kind == Foreign::kMixtral;
    const std::string block = mixtral ? "model.layers.1.block_sparse_moe." : "model.layers.1.mlp.";
    const std::string end = mixtral ? ".w1.weight" : ".gate_proj.weight";
    CHECK(made.config()["model_type"] == (mixtral ? "mixtral" : "qwen2_moe"));
    CHECK(floats(made, block + "experts.0" + end) == floats(made, block + "experts.3" + end));
    CHECK(floats(made, block + "gate.weight") != std::vector<float>(4 * 16, 0.0F));
    if (!mixtral) {
      CHECK(floats(made, "model.layers.0.self_attn.k_proj.bias") == std::vector<float>(8, 0.0F));
    }
  }
}

}  // namespace
}  // namespace moe::model
