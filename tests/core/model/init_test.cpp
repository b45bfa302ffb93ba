#include "core/model/convert/init.h"

#include <cmath>

#include "tests/support/catch.h"
#include "tests/support/data.h"
#include "tests/support/foreign_checkpoint.h"
#include "tests/support/stored_numbers.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"
#include "tests/support/user_error.h"

namespace moe::model {
namespace {

using test::floats;
using test::TempDir;

std::filesystem::path write_config(const TempDir& folder, const test::TinyCheckpoint& options,
                                   const Json& patch = {}) {
  Json config = Json(test::tiny_config(options));
  if (patch.is_object()) {
    config.merge_patch(patch);
  }
  test::write_file(folder / "config.json", config.dump());
  return folder / "config.json";
}

io::Checkpoint make(const InitSettings& settings) {
  init(plan_init(settings), settings);
  io::Checkpoint checkpoint(settings.out);
  check_tensors(checkpoint, parse_config(checkpoint.config(), "made"));
  return checkpoint;
}

void check_normal(const std::vector<float>& values, double std) {
  double sum = 0, square = 0;
  for (const float value : values) {
    sum += value;
    square += double{value} * value;
  }
  // Five standard errors of mean and variance, plus what rounding to bf16 (2^-9 relative) can move.
  const auto count = static_cast<double>(values.size());
  CHECK(std::abs(sum / count) < 5 * std / std::sqrt(count));
  CHECK(std::abs(square / count / (std * std) - 1) < 5 * std::sqrt(2 / count) + 0x1p-8);
}

TEST_CASE("random weights are N(0, initializer_range), norms are one", "[model][init]") {
  const TempDir folder;
  InitSettings settings;
  settings.config =
      write_config(folder, {.hidden = 128, .intermediate = 256, .dtype = io::DType::kBF16},
                   {{"initializer_range", 0.006}});
  settings.out = folder / "out";
  const io::Checkpoint made = make(settings);
  CHECK(made.tensors().size() == 3 * 9 + 3);
  for (const auto& info : made.tensors()) {
    INFO(info.name);
    CHECK(info.dtype == io::DType::kBF16);
    const std::vector<float> values = floats(made, info.name);
    if (info.shape.size() == 1) {
      CHECK(values == std::vector<float>(values.size(), 1.0F));
    } else {
      check_normal(values, 0.006);
    }
  }
  CHECK(floats(made, "model.layers.0.mlp.up_proj.weight") !=
        floats(made, "model.layers.0.mlp.gate_proj.weight"));
}

TEST_CASE("what adds to the residual stream is drawn smaller by depth, if asked", "[model][init]") {
  const TempDir folder;
  InitSettings settings;
  settings.scaled_outputs = true;
  for (const bool stock : {false, true}) {  // Mixtral calls its down projections w2
    settings.config = write_config(
        folder, {.hidden = 128, .intermediate = 256, .layers = 3, .dtype = io::DType::kBF16},
        stock ? Json{{"model_type", "mixtral"},
                     {"architectures", {"MixtralForCausalLM"}},
                     {"num_local_experts", 2},
                     {"initializer_range", 0.006}}
              : Json{{"initializer_range", 0.006}});
    settings.out = folder / (stock ? "mixtral" : "llama");
    int64_t outputs = 0;
    const io::Checkpoint made = make(settings);
    for (const auto& info : made.tensors()) {
      const std::string& name = info.name;
      if (info.shape.size() < 2) {
        continue;
      }
      INFO(name);
      const bool is_output = name.find("o_proj") != std::string::npos ||
                             name.find("down_proj") != std::string::npos ||
                             name.find(".w2.") != std::string::npos;
      outputs += is_output ? 1 : 0;
      if (name.find("gate.weight") == std::string::npos) {
        check_normal(floats(made, name), is_output ? 0.006 / std::sqrt(6.0) : 0.006);
      }
    }
    CHECK(outputs == (stock ? 3 + 3 * 2 : 3 + 3));
  }
}

TEST_CASE("a tensor's values depend on seed and name, not on shards or neighbours",
          "[model][init]") {
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

TEST_CASE("a dense config becomes a mixture by --experts, independent or equal ones",
          "[model][init]") {
  const TempDir folder;
  InitSettings settings;
  settings.config = write_config(folder, {.dtype = io::DType::kBF16});
  settings.out = folder / "out";
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

TEST_CASE("a config with a moe object is made as it says, granular experts too", "[model][init]") {
  const TempDir folder;
  const Json moe = {{"format", 1},
                    {"layers", {0, 1, 2}},
                    {"granularity", 2},
                    {"router", route::to_json(route::parse_router("relu:k=2"))},
                    {"router_init", {{"std", 0.01}, {"seed", 5}}}};
  InitSettings settings;
  settings.config = write_config(folder, {},
                                 {{"moe", moe},
                                  {"num_experts", 8},
                                  {"moe_intermediate_size", 12},
                                  {"initializer_range", 0.5}});
  settings.out = folder / "out";
  const io::Checkpoint made = make(settings);
  CHECK(made.config()["model_type"] == "moe_relu");
  CHECK(made.info("model.layers.0.mlp.experts.7.down_proj.weight").shape ==
        std::vector<int64_t>{16, 12});
  check_normal(floats(made, "model.layers.0.mlp.gate.weight"), 0.01);
  settings.experts = 4;
  CHECK(test::user_error_of([&] { plan_init(settings); }) ==
        settings.config.string() + ": describes a mixture already; --experts is for dense configs");
}

TEST_CASE("granularity G makes E G experts of width F / G and scales what counts experts",
          "[model][init]") {
  struct Case {
    const char *written, *stored;
  };
  for (const Case& c :
       {Case{"top1", "top4"}, Case{"top2+ir:cf=1.5", "top8+ir:cf=6"},
        Case{"top1:cf=inf,gate=none,lb=selected", "top4:cf=inf,gate=none,lb=selected"},
        Case{"topp:0.4,max=2", "topp:0.4,max=8"}, Case{"relu:k=1", "relu:k=4"}}) {
    INFO(c.written);
    const TempDir folder;
    InitSettings settings;
    settings.config = write_config(folder, {});
    settings.out = folder / "out";
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
    CHECK(report["experts"] == 32);
    CHECK(report["expert_width"] == 6);
    CHECK(report["granularity"] == 4);
    // As many parameters as with G = 1, the router's rows apart.
    settings.granularity = 1;
    settings.out = folder / "coarse";
    make(settings);
    const Json coarse = read_json(folder / "coarse/init.json");
    CHECK(report["parameters"]["total"].get<int64_t>() -
              coarse["parameters"]["total"].get<int64_t>() ==
          3 * (32 - 8) * 16);
  }
}

TEST_CASE("from 4 to 128 experts and granularity to 64, in all layers or every other",
          "[model][init]") {
  for (const auto& [experts, granularity] : std::vector<std::pair<int64_t, int64_t>>{
           {4, 1}, {8, 2}, {16, 16}, {32, 8}, {64, 1}, {128, 1}, {4, 64}}) {
    for (const char* layers : {"all", "even"}) {
      INFO(experts << " x " << granularity << " in " << layers);
      const TempDir folder;
      InitSettings settings;
      settings.config = write_config(folder, {.intermediate = 64, .layers = 2});
      settings.out = folder / "out";
      settings.experts = experts;
      settings.granularity = granularity;
      settings.layers = layers;
      settings.router = route::parse_router("relu:k=1");
      const io::Checkpoint made = make(settings);
      const ModelConfig config = parse_config(made.config(), "made");
      CHECK(config.moe->experts == experts * granularity);
      CHECK(config.moe->layers.size() == (std::string(layers) == "all" ? 2 : 1));
    }
  }
}

TEST_CASE("--dtype overrides the config's", "[model][init]") {
  for (const char* dtype : {"float32", "bfloat16", "float16"}) {
    const TempDir folder;
    InitSettings settings;
    settings.config = write_config(folder, {});
    settings.out = folder / "out";
    settings.dtype = dtype;
    const io::Checkpoint made = make(settings);
    CHECK(made.config()["torch_dtype"] == dtype);
    CHECK(parse_config(made.config(), "made").dtype == dtype);
    CHECK(made.info("model.norm.weight").bytes() == (std::string(dtype) == "float32" ? 64 : 32));
  }
}

TEST_CASE("a tokenizer comes from a file or a folder, and must fit", "[model][init]") {
  MOE_NEED_SHARED_DATA();
  const std::filesystem::path stories = test::shared_data() / "stories260K-hf";
  for (const auto& from : {stories, stories / "tokenizer.model"}) {
    const TempDir folder;
    InitSettings settings;
    settings.config = write_config(folder, {.vocab = 512});
    settings.out = folder / "out";
    settings.tokenizer = from;
    make(settings);
    CHECK(test::read_file(folder / "out/tokenizer.model") ==
          test::read_file(stories / "tokenizer.model"));
    CHECK(std::filesystem::exists(folder / "out/tokenizer_config.json"));
    CHECK_FALSE(std::filesystem::exists(folder / "out/tokenizer"));

    settings.out = folder / "small";
    settings.config = write_config(folder, {.vocab = 500});
    const std::string message = test::user_error_of([&] { make(settings); });
    CHECK(message.rfind("--tokenizer " + from.string() + ": ", 0) == 0);
    CHECK(message.find("512") != std::string::npos);
    CHECK_FALSE(std::filesystem::exists(folder / "small"));
  }
}

TEST_CASE("what cannot be initialised is refused by name", "[model][init]") {
  const TempDir folder;
  InitSettings settings;
  settings.config = write_config(folder, {});
  settings.out = folder / "out";
  const auto message = [&](const std::function<void(InitSettings&)>& change) {
    InitSettings changed = settings;
    change(changed);
    return test::user_error_of([&] { make(changed); });
  };
  CHECK(message([&](auto& s) { s.config = folder / "none.json"; }).find("none.json") !=
        std::string::npos);
  CHECK(message([](auto& s) { s.experts = 0; }).find("0") != std::string::npos);
  CHECK(message([](auto& s) {
          s.experts = 4;
          s.layers = "7";
        }) == "--layers 7: layer 7 does not exist; the model has layers 0 to 2");
  CHECK(message([](auto& s) {
          s.experts = 1;
          s.router.k = 2;
        }) ==
        "router 'top2:cf=inf' asks for 2 experts per token, the layers have 1: give a smaller k or "
        "more experts");
  CHECK(message([](auto& s) {
          s.experts = 4;
          s.ep_ranks = 3;
        }) == settings.config.string() + ": 4 experts do not divide over moe.ep_ranks 3");
  for (const int64_t granularity : {0, 5, 48, 1 << 20}) {
    CHECK(message([&](auto& s) {
            s.experts = 4;
            s.granularity = granularity;
          }) ==
          fmt::format("--granularity {}: the feed-forward is 24 wide and cannot be cut into so "
                      "many equal parts; give a divisor of 24",
                      granularity));
  }
  CHECK(message([](auto& s) {
          s.experts = int64_t{1} << 40;
          s.granularity = 24;
        }) ==
        "--experts 1099511627776 with --granularity 24: a layer has 1 to 262144 experts in all");
  CHECK(message([&](auto& s) { s.tokenizer = folder / "none.model"; }).find("none.model") !=
        std::string::npos);
  std::filesystem::create_directory(folder / "empty");
  CHECK(message([&](auto& s) { s.tokenizer = folder / "empty"; }) ==
        "--tokenizer " + (folder / "empty").string() +
            ": holds neither tokenizer.model nor tokenizer.json");
  CHECK_FALSE(std::filesystem::exists(folder / "out"));
  make(settings);
  CHECK(message([](auto&) {}) ==
        settings.out.string() +
            ": exists already; give another output folder, or --force to replace it");
  CHECK(message([](auto& s) { s.force = true; }).empty());
}

TEST_CASE("a stock mixture's config is drawn in its own names", "[model][init]") {
  for (const auto kind : {test::Foreign::kMixtral, test::Foreign::kQwen2Moe}) {
    const TempDir folder;
    const test::ForeignCheckpoint options{.kind = kind, .dense_layers = {}};
    test::write_file(folder / "config.json", test::foreign_config(options).dump());
    InitSettings settings;
    settings.config = folder / "config.json";
    settings.out = folder / "out";
    settings.same_experts = true;
    const io::Checkpoint made = make(settings);
    const bool mixtral = kind == test::Foreign::kMixtral;
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
