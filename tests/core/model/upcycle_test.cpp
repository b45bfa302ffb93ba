#include "core/model/convert/upcycle.h"

#include <cmath>
#include <cstring>

#include "core/io/file.h"
#include "core/model/convert/dtype_conversion.h"
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
using test::same_bytes;
using test::TempDir;

UpcycleSettings settings_for(const std::filesystem::path& out) {
  UpcycleSettings settings;
  settings.out = out;
  settings.experts = 4;
  settings.router = route::parse_router("top2:cf=inf");
  return settings;
}

// Upcycles `dense` to `out` and opens both.
struct Pair {
  Pair(const std::filesystem::path& dense_folder, const UpcycleSettings& settings)
      : dense(dense_folder),
        report(upcycle(dense, plan_upcycle(dense, settings), settings)),
        child(settings.out),
        config(parse_config(child.config(), "child")) {
    check_tensors(child, config);
  }
  io::Checkpoint dense;
  OrderedJson report;
  io::Checkpoint child;
  ModelConfig config;
};

bool is_router(const std::string& name) { return name.ends_with("mlp.gate.weight"); }
bool is_shared(const std::string& name) { return name.find("shared_expert") != std::string::npos; }

// Every tensor but routers and the empty shared expert is, byte for byte, the parent's tensor of
// its layer.
void check_copies(const Pair& pair) {
  size_t copies = 0, experts = 0;
  for (const auto& info : pair.child.tensors()) {
    if (is_router(info.name) || is_shared(info.name)) {
      continue;
    }
    INFO(info.name);
    const std::string parent = dense_name(info.name);
    CHECK(info.dtype == pair.dense.info(parent).dtype);
    CHECK(same_bytes(pair.child.bytes(info.name), pair.dense.bytes(parent)));
    ++copies;
    experts += parent != info.name ? 1 : 0;
  }
  const auto layers = static_cast<size_t>(pair.config.moe->layers.size());
  CHECK(experts == layers * static_cast<size_t>(pair.config.moe->experts) * 3);
  CHECK(copies == experts + pair.dense.tensors().size() - 3 * layers);
}

TEST_CASE("every expert is a bitwise copy of its layer's feed-forward, all else of its tensor",
          "[model][upcycle]") {
  for (const auto dtype : {io::DType::kF32, io::DType::kBF16, io::DType::kF16}) {
    for (const bool tied : {false, true}) {
      for (const char* layers : {"even", "odd", "all", "1", "2", "0,2"}) {
        INFO(io::dtype_name(dtype) << " tied " << tied << " layers " << layers);
        const TempDir folder;
        test::write_tiny_checkpoint(folder / "dense", {.dtype = dtype, .tied = tied});
        UpcycleSettings settings = settings_for(folder / "out");
        settings.layers = layers;
        check_copies(Pair(folder / "dense", settings));
      }
    }
  }
}

TEST_CASE("a model of one layer, one expert, and shards in and out", "[model][upcycle]") {
  const TempDir folder;
  test::write_tiny_checkpoint(folder / "one", {.layers = 1});
  UpcycleSettings settings = settings_for(folder / "one-out");
  settings.experts = 1;
  settings.router = route::parse_router("top1");
  check_copies(Pair(folder / "one", settings));

  test::write_tiny_checkpoint(folder / "sharded", {.shard_bytes = 8000});
  REQUIRE(std::filesystem::exists(folder / "sharded/model.safetensors.index.json"));
  settings = settings_for(folder / "sharded-out");
  settings.shard_bytes = 10'000;
  const Pair sharded(folder / "sharded", settings);
  CHECK(std::filesystem::exists(folder / "sharded-out/model.safetensors.index.json"));
  check_copies(sharded);

  test::write_tiny_checkpoint(folder / "whole");
  settings.out = folder / "whole-out";
  settings.shard_bytes = uint64_t{1} << 40;
  const Pair whole(folder / "whole", settings);
  CHECK(std::filesystem::exists(folder / "whole-out/model.safetensors"));
  for (const auto& info : whole.child.tensors()) {
    CHECK(same_bytes(whole.child.bytes(info.name), sharded.child.bytes(info.name)));
  }
  CHECK(whole.report["source"]["config_sha256"] == sharded.report["source"]["config_sha256"]);
  const char* sampled = "tensor_names_types_shapes_and_first_4096_bytes_sha256";
  CHECK(whole.report["source"][sampled] == sharded.report["source"][sampled]);
}

TEST_CASE("conversion changes every value to its nearest and no router", "[model][upcycle]") {
  struct Case {
    io::DType from;
    io::DType type;
    io::DType to;
    const char* dtype;
  };
  for (const Case& c : {Case{io::DType::kF32, io::DType::kBF16, io::DType::kBF16, "bfloat16"},
                        Case{io::DType::kBF16, io::DType::kF32, io::DType::kF32, "float32"},
                        Case{io::DType::kF16, io::DType::kBF16, io::DType::kBF16, "bfloat16"},
                        Case{io::DType::kF16, io::DType::kF32, io::DType::kF32, "float32"}}) {
    const TempDir folder;
    test::write_tiny_checkpoint(folder / "dense", {.dtype = c.from});
    UpcycleSettings settings = settings_for(folder / "out");
    settings.dtype = c.type;
    const Pair pair(folder / "dense", settings);
    CHECK(pair.config.dtype == c.dtype);
    for (const auto& info : pair.child.tensors()) {
      INFO(info.name);
      if (is_router(info.name)) {
        CHECK(info.dtype == io::DType::kF32);
        continue;
      }
      CHECK(info.dtype == c.to);
      if (is_shared(info.name)) {
        continue;
      }
      std::vector<float> expected = floats(pair.dense, dense_name(info.name));
      for (float& value : expected) {  // the plain rounding of tests/support
        value = c.to == io::DType::kBF16 ? bf16_to_float(test::to_bf16(value)) : value;
      }
      CHECK(floats(pair.child, info.name) == expected);
    }
  }
}

TEST_CASE("a router is N(0, std) and depends on its layer and seed alone", "[model][upcycle]") {
  const TempDir folder;
  test::write_tiny_checkpoint(folder / "dense", {.hidden = 256, .intermediate = 8});
  UpcycleSettings settings = settings_for(folder / "a");
  settings.experts = 16;
  settings.router_std = 0.006;
  settings.layers = "all";
  const Pair all(folder / "dense", settings);
  settings.out = folder / "b";
  settings.layers = "1";
  settings.shard_bytes = 20'000;
  settings.dtype = io::DType::kBF16;
  const Pair one(folder / "dense", settings);
  const char* name = "model.layers.1.mlp.gate.weight";
  CHECK(same_bytes(all.child.bytes(name), one.child.bytes(name)));
  CHECK_FALSE(same_bytes(all.child.bytes(name), all.child.bytes("model.layers.0.mlp.gate.weight")));
  settings.out = folder / "c";
  settings.seed = 2;
  CHECK_FALSE(
      same_bytes(one.child.bytes(name), Pair(folder / "dense", settings).child.bytes(name)));

  double sum = 0, square = 0;
  const std::vector<float> values = floats(all.child, name);
  for (const float value : values) {
    sum += value;
    square += double{value} * value;
  }
  // Five standard errors of the mean and of the variance, n = 4096.
  const auto count = static_cast<double>(values.size());
  CHECK(std::abs(sum / count) < 5 * 0.006 / std::sqrt(count));
  CHECK(std::abs(square / count / (0.006 * 0.006) - 1) < 5 * std::sqrt(2 / count));
  CHECK(all.config.moe->router_std == 0.006);
}

TEST_CASE("a router with a bias begins with zeros in F32, and a folder without them is refused",
          "[model][upcycle]") {
  const TempDir folder;
  test::write_tiny_checkpoint(folder / "dense");
  UpcycleSettings settings = settings_for(folder / "out");
  settings.router = route::parse_router("top2:bias=0.001");
  settings.dtype = io::DType::kBF16;
  const Pair pair(folder / "dense", settings);
  CHECK(pair.config.moe->router == settings.router);
  CHECK(pair.config.moe->lb_coef == 0);
  for (const int64_t layer : {0, 2}) {
    const std::string name = fmt::format("model.layers.{}.mlp.gate.e_score_correction_bias", layer);
    CHECK(pair.child.info(name).dtype == io::DType::kF32);
    CHECK(pair.child.info(name).shape == std::vector<int64_t>{4});
    CHECK(floats(pair.child, name) == std::vector<float>(4, 0));
  }
  // The config of a router with a bias on the tensors of one without.
  settings.out = folder / "plain";
  settings.router = route::parse_router("top2");
  const Pair plain(folder / "dense", settings);
  CHECK_FALSE(plain.child.has("model.layers.0.mlp.gate.e_score_correction_bias"));
  CHECK(test::user_error_of([&] {
          check_tensors(plain.child, pair.config);
        }).find("tensor 'model.layers.0.mlp.gate.e_score_correction_bias' [4] is missing") !=
        std::string::npos);
}

TEST_CASE("a shared expert is the dense feed-forward with down doubled, routed experts add zeros",
          "[model][upcycle]") {
  for (const auto dtype : {io::DType::kF32, io::DType::kBF16, io::DType::kF16}) {
    for (const auto type :
         std::vector<std::optional<io::DType>>{{}, io::DType::kF32, io::DType::kBF16}) {
      INFO(io::dtype_name(dtype) << " as " << (type ? io::dtype_name(*type) : "keep"));
      const TempDir folder;
      test::write_tiny_checkpoint(folder / "dense", {.dtype = dtype});
      UpcycleSettings settings = settings_for(folder / "out");
      settings.shared_expert = true;
      settings.dtype = type;
      const Pair shared(folder / "dense", settings);
      CHECK(shared.config.moe->shared_expert_width == 24);
      CHECK(shared.report["shared_expert"] == true);
      const bool is_rounded = type == io::DType::kBF16 && dtype != io::DType::kBF16;
      CHECK(shared.report["preserves_function"]["exact"] == !is_rounded);
      settings.shared_expert = false;
      settings.out = folder / "plain";
      const Pair plain(folder / "dense", settings);
      CHECK(plain.report["shared_expert"] == false);
      size_t zeros = 0;
      for (const int64_t layer : {0, 2}) {
        const std::string mlp = fmt::format("model.layers.{}.mlp.", layer);
        // Every expert of the plain mixture is the dense feed-forward in the type asked for.
        for (const char* part : {"gate_proj.weight", "up_proj.weight"}) {
          const auto copy = plain.child.bytes(mlp + "experts.1." + part);
          CHECK(same_bytes(shared.child.bytes(mlp + "shared_expert." + part), copy));
          CHECK(same_bytes(shared.child.bytes(mlp + "experts.3." + part), copy));
        }
        const std::string down = "down_proj.weight";
        const auto once = floats(plain.child, mlp + "experts.1." + down);
        const auto twice = floats(shared.child, mlp + "shared_expert." + down);
        REQUIRE(once.size() == twice.size());
        for (size_t i = 0; i < once.size(); ++i) {
          CHECK(twice[i] == 2 * once[i]);
        }
        CHECK(shared.child.info(mlp + "shared_expert." + down).dtype ==
              plain.child.info(mlp + "experts.1." + down).dtype);
        std::vector<std::string> zero = {mlp + "shared_expert_gate.weight"};
        for (int64_t expert = 0; expert < 4; ++expert) {
          zero.push_back(fmt::format("{}experts.{}.{}", mlp, expert, down));
        }
        for (const auto& name : zero) {
          INFO(name);
          for (const float value : floats(shared.child, name)) {
            CHECK(value == 0);
            ++zeros;
          }
        }
      }
      CHECK(zeros == 2 * (16 + 4 * 16 * 24));
      // All else is what the plain mixture has.
      for (const auto& info : plain.child.tensors()) {
        if (!is_shared(info.name) && !info.name.ends_with("down_proj.weight")) {
          CHECK(same_bytes(shared.child.bytes(info.name), plain.child.bytes(info.name)));
        }
      }
    }
  }
}

TEST_CASE("beside a shared expert varied copies keep the function, as gate_scale does",
          "[model][upcycle]") {
  const TempDir folder;
  test::write_tiny_checkpoint(folder / "dense");
  UpcycleSettings settings = settings_for(folder / "out");
  settings.shared_expert = true;
  settings.vary = parse_variation("drop:0.5");
  settings.gate_scale = 2.0;
  const Pair pair(folder / "dense", settings);
  CHECK(changes_function(settings, plan_upcycle(pair.dense, settings)).empty());
  CHECK(pair.report["preserves_function"]["exact"] == true);
  const std::string mlp = "model.layers.0.mlp.experts.";
  CHECK_FALSE(same_bytes(pair.child.bytes(mlp + "0.up_proj.weight"),
                         pair.child.bytes(mlp + "1.up_proj.weight")));
  CHECK(floats(pair.child, mlp + "1.down_proj.weight") == std::vector<float>(16 * 24, 0));
  CHECK(read_json(folder / "out/config.json")["model_type"] == "moe_scaled");
  CHECK(read_json(folder / "out/config.json")["shared_expert_intermediate_size"] == 24);
}

TEST_CASE("a shared expert that cannot be is refused before anything is written",
          "[model][upcycle]") {
  const TempDir folder;
  test::write_foreign_checkpoint(folder / "qwen3",
                                 {.kind = test::Foreign::kQwen3, .dense_layers = {}});
  test::write_tiny_checkpoint(folder / "dense");
  const auto message = [&](const char* name, const std::function<void(UpcycleSettings&)>& change) {
    UpcycleSettings settings = settings_for(folder / "out");
    settings.shared_expert = true;
    change(settings);
    const std::string error = test::user_error_of([&] { Pair(folder / name, settings); });
    CHECK_FALSE(std::filesystem::exists(folder / "out"));
    return error;
  };
  const std::string qwen3 = "--shared-expert: " + (folder / "qwen3").string() +
                            " is a qwen3, whose mixture is a qwen3_moe, and qwen3_moe has no "
                            "shared expert; LLaMA, Mistral and Qwen2 folders can keep one";
  CHECK(message("qwen3", [](auto&) {}) == qwen3);
  CHECK(message("qwen3", [](auto& s) { s.router = route::parse_router("relu:k=1"); }) == qwen3);
  CHECK(message("dense",
                [&](auto& s) {
                  s.expert_parents = {{folder / "dense", 4}};
                }) ==
        "--shared-expert: routed experts begin with a down_proj of zeros, so that nothing of the "
        "--expert folders would be computed; leave one of the two out");
  CHECK(
      test::user_error_of([&] {
        open_checkpoint(folder / "qwen3", {.experts = 4, .shared_expert = true}, {"top2", "", {}});
      }) == qwen3);
  CHECK(test::user_error_of([&] {
          open_checkpoint(folder / "dense", {.experts = {}, .shared_expert = true}, {});
        }) ==
        "--shared-expert: is of a dense folder that is taken as a mixture; add --upcycle N, or "
        "leave it out");
}

TEST_CASE("a down_proj whose double does not fit is named, and nothing is left",
          "[model][upcycle]") {
  const TempDir folder;
  test::write_tiny_checkpoint(folder / "dense", {.dtype = io::DType::kF16, .std = 1.4e4});
  UpcycleSettings settings = settings_for(folder / "out");
  settings.shared_expert = true;
  const std::string message = test::user_error_of([&] { Pair(folder / "dense", settings); });
  INFO(message);
  CHECK(message.find("model.layers.0.mlp.shared_expert.down_proj.weight: 2 times ") == 0);
  CHECK(message.find(": 2 times a weight of it is beyond fp16; give --dtype bf16 or fp32") !=
        std::string::npos);
  CHECK_FALSE(std::filesystem::exists(folder / "out"));
  CHECK_FALSE(std::filesystem::exists(folder / "out.partial"));
}

TEST_CASE("the folder says what it is and where it comes from", "[model][upcycle]") {
  const TempDir folder;
  test::write_tiny_checkpoint(folder / "dense");
  io::write_file(folder / "dense/tokenizer.json", std::string("{}"));
  io::write_file(folder / "dense/generation_config.json", std::string("{\"a\": 1}"));
  UpcycleSettings settings = settings_for(folder / "out");
  settings.router = route::parse_router("top1+ir+fr:cf=0.5");
  settings.ep_ranks = 2;
  settings.seed = 11;
  const Pair pair(folder / "dense", settings);
  const MoeConfig& moe = *pair.config.moe;
  CHECK(moe.layers == std::vector<int64_t>{0, 2});
  CHECK(moe.experts == 4);
  CHECK(moe.expert_width == 24);
  CHECK(moe.ep_ranks == 2);
  CHECK(moe.router == settings.router);
  CHECK(moe.lb_coef == 0.01);
  CHECK(moe.router_std == 0.02);  // transformers' initializer_range, which the config does not give
  CHECK(moe.router_seed == 11);
  CHECK(moe.source_name == "dense");
  CHECK(moe.source_sha256.size() == 64);
  CHECK(read_json(folder / "out/upcycle.json") == Json(pair.report));
  CHECK(pair.report["router"] == "top1+ir+fr:cf=0.5");
  CHECK(pair.report["parameters"]["total"] == count_parameters(pair.config).total);
  CHECK(test::read_file(folder / "out/generation_config.json") == "{\"a\": 1}");
  CHECK(std::filesystem::exists(folder / "out/tokenizer.json"));
  for (const auto& info : pair.child.tensors()) {
    if (is_shared(info.name)) {
      for (const std::byte byte : pair.child.bytes(info.name)) {
        CHECK(byte == std::byte{0});
      }
    }
  }
  // Once more: the same bytes in every file.
  settings.out = folder / "again";
  const Pair again(folder / "dense", settings);
  for (const char* file : {"config.json", "upcycle.json", "model.safetensors"}) {
    CHECK(test::read_file(folder / "out" / file) == test::read_file(folder / "again" / file));
  }
}

TEST_CASE("a parent whose config names no dtype gives a child of the stored one",
          "[model][upcycle]") {
  const TempDir folder;
  test::write_tiny_checkpoint(folder / "dense", {.dtype = io::DType::kBF16});
  Json config = read_json(folder / "dense/config.json");
  config.erase("torch_dtype");
  test::write_file(folder / "dense/config.json", config.dump());
  CHECK(Pair(folder / "dense", settings_for(folder / "out")).config.dtype == "bfloat16");
}

TEST_CASE("a stored head of a tied model and rope leftovers are not carried over",
          "[model][upcycle]") {
  const TempDir folder;
  test::write_tiny_checkpoint(folder / "dense");
  Json config = read_json(folder / "dense/config.json");
  config["tie_word_embeddings"] = true;
  test::write_file(folder / "dense/config.json", config.dump());
  CHECK_FALSE(Pair(folder / "dense", settings_for(folder / "out")).child.has("lm_head.weight"));
}

TEST_CASE("the certificate is made from the staged folder and a failing one leaves nothing",
          "[model][upcycle]") {
  const TempDir folder;
  test::write_tiny_checkpoint(folder / "dense");
  const io::Checkpoint dense(folder / "dense");
  const UpcycleSettings settings = settings_for(folder / "out");
  const UpcyclePlan plan = plan_upcycle(dense, settings);
  CHECK_THROWS_AS(
      upcycle(dense, plan, settings, {.certify = [](const std::filesystem::path&) -> OrderedJson {
                throw UserError("no text");
              }}),
      UserError);
  CHECK_FALSE(std::filesystem::exists(folder / "out"));
  CHECK_FALSE(std::filesystem::exists(folder / "out.partial"));
  upcycle(dense, plan, settings, {.certify = [&](const std::filesystem::path& staged) {
            CHECK_FALSE(std::filesystem::exists(folder / "out"));
            return OrderedJson{{"tensors", io::Checkpoint(staged).tensors().size()}};
          }});
  CHECK(read_json(folder / "out/upcycle.json")["certificate"]["tensors"] == plan.tensors.size());
}

TEST_CASE("a gate_scale is stored, and stock tools are told", "[model][upcycle]") {
  const TempDir folder;
  test::write_tiny_checkpoint(folder / "dense");
  UpcycleSettings settings = settings_for(folder / "out");
  settings.router = route::parse_router("topp:0.4");
  settings.gate_scale = 1.75;
  const Pair pair(folder / "dense", settings);
  CHECK(pair.config.moe->gate_scale == 1.75);
  CHECK(pair.child.config()["model_type"] == "moe_scaled");
  CHECK(pair.report["gate_scale"] == 1.75);
  CHECK_FALSE(pair.report.contains("calibration"));
}

TEST_CASE("a calibration sees the written folder and its scale goes into config.json",
          "[model][upcycle]") {
  const TempDir folder;
  test::write_tiny_checkpoint(folder / "dense");
  const io::Checkpoint dense(folder / "dense");
  UpcycleSettings settings = settings_for(folder / "out");
  settings.router = route::parse_router("topp:0.4");
  settings.gate_scale.reset();
  double certified = 0;
  const OrderedJson report =
      upcycle(dense, plan_upcycle(dense, settings), settings,
              {{},
               [&](const std::filesystem::path& staged) -> OrderedJson {
                 certified = read_json(staged / "config.json")["moe"]["gate_scale"];
                 return {{"words", "seen"}};
               },
               [](const std::filesystem::path& staged) {
                 CHECK(read_json(staged / "config.json")["moe"]["gate_scale"] == 1.0);
                 CHECK(io::Checkpoint(staged).has("model.layers.0.mlp.gate.weight"));
                 return Calibration{2.5, {{"words", "measured"}}, {"a warning"}};
               }});
  CHECK(certified == 2.5);
  CHECK(read_json(folder / "out/config.json")["moe"]["gate_scale"] == 2.5);
  CHECK(read_json(folder / "out/config.json")["model_type"] == "moe_scaled");
  CHECK(report["calibration"]["words"] == "measured");
  CHECK(read_json(folder / "out/upcycle.json")["warnings"] == Json({"a warning"}));
}

TEST_CASE("a folder taken as a mixture is what upcycling writes, bit for bit", "[model][upcycle]") {
  const auto granularity = GENERATE(as<int64_t>(), 1, 4);
  for (const auto& [kind, shared_expert] : {std::pair{0, false},
                                            {1, false},
                                            {2, false},
                                            {3, false},
                                            {4, false},
                                            {0, true},
                                            {1, true},
                                            {3, true}}) {
    INFO("kind " << kind << " G " << granularity << " shared expert " << shared_expert);
    const TempDir folder;
    if (kind < 2) {
      test::TinyCheckpoint options;
      options.dtype = kind == 0 ? io::DType::kF32 : io::DType::kBF16;
      options.shard_bytes = kind == 0 ? options.shard_bytes : 4000;
      test::write_tiny_checkpoint(folder / "dense", options);
    } else {
      constexpr test::Foreign kKinds[] = {test::Foreign::kMistral, test::Foreign::kQwen2,
                                          test::Foreign::kQwen3};
      test::write_foreign_checkpoint(folder / "dense",
                                     {.kind = kKinds[kind - 2], .dense_layers = {}});
    }
    UpcycleSettings settings = settings_for(folder / "out");
    settings.layers = kind == 1 ? "all" : "odd";
    settings.seed = 7;
    settings.ep_ranks = 2;
    settings.granularity = granularity;
    settings.router = route::parse_router("top1+ir+fr");
    settings.shared_expert = shared_expert;
    const io::Checkpoint dense(folder / "dense");
    upcycle(dense, plan_upcycle(dense, settings), settings);
    const io::Checkpoint written(settings.out);
    const io::Checkpoint taken =
        open_checkpoint(folder / "dense", {4, settings.layers, 7, granularity, shared_expert},
                        {"top1+ir+fr", "", 2});
    CHECK(taken.config() == written.config());
    const auto expected = written.tensors(), tensors = taken.tensors();
    REQUIRE(tensors.size() == expected.size());
    for (size_t index = 0; index < tensors.size(); ++index) {
      const io::TensorInfo& info = tensors[index];
      INFO(info.name);
      CHECK(info.name == expected[index].name);
      CHECK((info.dtype == expected[index].dtype && info.shape == expected[index].shape));
      CHECK(same_bytes(taken.bytes(info.name), written.bytes(info.name)));
    }
    // Experts are the dense matrices themselves, not copies of them; the slices of all groups are
    // one, zeros are made once.
    for (const std::string part : {"up_proj.weight", "down_proj.weight"}) {
      const auto one = fmt::format("model.layers.1.mlp.experts.{}.{}", 3 * granularity, part);
      const std::string other = "model.layers.1.mlp.experts.0." + part;
      CHECK(taken.bytes(one).data() == taken.bytes(other).data());
      CHECK(&taken.file_of(one).file() == &taken.file_of(other).file());
    }
  }
}

TEST_CASE("a folder is taken as it is, or refused as upcycling refuses it", "[model][upcycle]") {
  const TempDir folder;
  test::write_tiny_checkpoint(folder / "dense");
  const UpcycleSettings settings = settings_for(folder / "out");
  const Pair pair(folder / "dense", settings);
  CHECK(open_checkpoint(settings.out, {}, {}).config() == pair.child.config());
  const auto refusal = [&](const char* name, const UpcycleRequest& request,
                           const std::string& router) {
    return test::user_error_of([&] { open_checkpoint(folder / name, request, {router, "", {}}); });
  };
  CHECK(refusal("out", {4}, "top1").find("is a mixture of experts already") != std::string::npos);
  CHECK(refusal("dense", {2}, "top4").find("asks for 4 experts") != std::string::npos);
  CHECK(refusal("dense", {4, "9"}, "top1").find("9") != std::string::npos);
  CHECK(refusal("nothing", {4}, "top1").find("no such folder") != std::string::npos);
  CHECK(refusal("dense", {4, "even", 1, 5}, "top1").find("--granularity 5: the feed-forward is") ==
        0);
  CHECK(
      refusal("out", {{}, "even", 1, 2}, "")
          .find("--granularity 2: cuts the experts of a dense folder that is taken as a mixture") ==
      0);
}

TEST_CASE("progress grows to the bytes announced", "[model][upcycle]") {
  const TempDir folder;
  test::write_tiny_checkpoint(folder / "dense");
  const io::Checkpoint dense(folder / "dense");
  UpcycleSettings settings = settings_for(folder / "out");
  settings.shard_bytes = 10'000;
  const UpcyclePlan plan = plan_upcycle(dense, settings);
  uint64_t last = 0;
  upcycle(dense, plan, settings, {[&](uint64_t done) {
            CHECK(done >= last);
            last = done;
          }});
  CHECK(last == plan.bytes);
}

TEST_CASE("what cannot be upcycled is refused before anything is written", "[model][upcycle]") {
  const TempDir folder;
  const std::filesystem::path dense = folder / "dense", out = folder / "out";
  test::write_tiny_checkpoint(dense);
  const auto message = [&](const std::function<void(UpcycleSettings&)>& change,
                           const std::filesystem::path& from) {
    UpcycleSettings settings = settings_for(out);
    change(settings);
    return test::user_error_of([&] { Pair(from, settings); });
  };
  CHECK(message([](auto& s) { s.experts = 0; }, dense) ==
        "--experts 0: must be between 1 and 65536");
  CHECK(message([](auto& s) { s.experts = 1 << 20; }, dense) ==
        "--experts 1048576: must be between 1 and 65536");
  CHECK(message([](auto& s) { s.experts = 1; }, dense) ==
        "router 'top2:cf=inf' asks for 2 experts per token, the layers have 1: give a smaller k or "
        "more experts");
  CHECK(message([](auto& s) { s.ep_ranks = 3; }, dense) ==
        "--ep-ranks 3: 4 experts do not divide over so many ranks; give a divisor of 4");
  CHECK(message([](auto& s) { s.ep_ranks = 0; }, dense) ==
        "--ep-ranks 0: 4 experts do not divide over so many ranks; give a divisor of 4");
  CHECK(message([](auto& s) { s.layers = "0,3"; }, dense) ==
        "--layers 0,3: layer 3 does not exist; the model has layers 0 to 2");
  CHECK(message([](auto& s) { s.router_std = -1; }, dense) ==
        "--router-std -1: must be zero or a positive number");
  for (const double scale : {0.0, -1.0, std::nan(""), HUGE_VAL}) {
    CHECK(message([&](auto& s) { s.gate_scale = scale; }, dense) ==
          fmt::format("--gate-scale {}: must be a positive number, or auto", scale));
  }
  CHECK(message([&](auto& s) { s.out = dense; }, dense) ==
        dense.string() + ": holds the dense model " + dense.string() +
            "; give another output folder");
  CHECK(message(
            [&](auto& s) {
              s.out = folder.path().string() + "/";
              s.force = true;
            },
            dense) == folder.path().string() + "/: holds the dense model " + dense.string() +
                          "; give another output folder");
  CHECK_FALSE(std::filesystem::exists(out));

  Pair(dense, settings_for(out));
  CHECK(message([](auto&) {}, dense) ==
        out.string() + ": exists already; give another output folder, or --force to replace it");
  CHECK(message([](auto& s) { s.force = true; }, dense).empty());
  CHECK(message([&](auto& s) { s.out = folder / "twice"; }, out) ==
        out.string() +
            ": is a mixture of experts already (router top2:cf=inf); upcycling starts from a dense "
            "folder");
  CHECK_FALSE(std::filesystem::exists(folder / "twice"));
}

TEST_CASE("space is checked before the first byte", "[model][upcycle]") {
  const TempDir folder;
  test::write_tiny_checkpoint(folder / "dense");
  const io::Checkpoint dense(folder / "dense");
  const UpcycleSettings settings = settings_for(folder / "out");
  UpcyclePlan plan = plan_upcycle(dense, settings);
  plan.bytes = uint64_t{1} << 60;  // more than any disk has
  const std::string message = test::user_error_of([&] { upcycle(dense, plan, settings); });
  CHECK(message.find("disk full: ") != std::string::npos);
  CHECK_FALSE(std::filesystem::exists(folder / "out"));
  CHECK_FALSE(std::filesystem::exists(folder / "out.partial"));
}

TEST_CASE("the sampled digest tells other weights, types and names apart", "[model][upcycle]") {
  const TempDir folder;
  test::write_tiny_checkpoint(folder / "a");
  test::write_tiny_checkpoint(folder / "same", {.shard_bytes = 8000});
  test::write_tiny_checkpoint(folder / "seed", {.seed = 2});
  test::write_tiny_checkpoint(folder / "type", {.dtype = io::DType::kBF16});
  const auto digest = [&](const char* name) {
    return sampled_sha256(io::Checkpoint(folder / name));
  };
  CHECK(digest("a") == digest("same"));
  CHECK(digest("a") != digest("seed"));
  CHECK(digest("a") != digest("type"));
}

TEST_CASE("the real stories260K upcycles with every expert a copy", "[model][upcycle]") {
  MOE_NEED_SHARED_DATA();
  const TempDir folder;
  UpcycleSettings settings = settings_for(folder / "out");
  settings.experts = 8;
  const Pair pair(test::shared_data() / "stories260K-hf", settings);
  check_copies(pair);
  CHECK(pair.config.moe->layers == std::vector<int64_t>{0, 2, 4});
  CHECK(pair.config.tie_word_embeddings);
  CHECK(std::filesystem::exists(folder / "out/tokenizer.model"));
  CHECK(read_json(folder / "out/tokenizer_config.json")["tokenizer_class"] == "LlamaTokenizer");
  CHECK(test::read_file(folder / "out/tokenizer.model") ==
        test::read_file(test::shared_data() / "stories260K-hf/tokenizer.model"));
}

}  // namespace
}  // namespace moe::model
