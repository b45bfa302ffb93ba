#include "core/upcycle/upcycle.h"

#include <bit>
#include <vector>

#include "core/io/file.h"
#include "core/model/config/folder_tensors.h"
#include "core/upcycle/expert_sources.h"
#include "tests/core/upcycle/upcycled.h"
#include "tests/support/data.h"
#include "tests/support/foreign_checkpoint.h"
#include "tests/support/stored_numbers.h"
#include "tests/support/user_error.h"

namespace moe::model {
namespace {

using namespace moe::test;

bool is_router(const std::string& name) { return name.ends_with("mlp.gate.weight"); }
bool is_shared(const std::string& name) { return name.find("shared_expert") != std::string::npos; }

// Checks that every tensor but routers and the empty shared expert has the bytes of the parent's
// tensor of its layer.
void check_copies(const Upcycled& pair) {
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

TEST_CASE("every expert is a bitwise copy of its layer's feed-forward; the rest is copied") {
  struct Case {
    io::DType dtype;
    bool tied;
    const char* layers;
  };
  for (const auto& [dtype, tied, layers] :
       {Case{io::DType::kF32, false, "even"}, Case{io::DType::kBF16, true, "odd"},
        Case{io::DType::kF16, false, "all"}, Case{io::DType::kF32, true, "2"},
        Case{io::DType::kBF16, false, "0,2"}}) {
    INFO(io::dtype_name(dtype) << " tied " << tied << " layers " << layers);
    const TempDir folder;
    write_tiny_checkpoint(folder / "dense", {.dtype = dtype, .tied = tied});
    UpcycleSettings settings = upcycle_settings(folder / "out");
    settings.layers = layers;
    check_copies(Upcycled(folder / "dense", settings));
  }
}

TEST_CASE("a model of one layer, one expert, and shards in and out") {
  const TempDir folder;
  write_tiny_checkpoint(folder / "one", {.layers = 1});
  UpcycleSettings settings = upcycle_settings(folder / "one-out");
  settings.experts = 1;
  settings.router = route::parse_router("top1");
  check_copies(Upcycled(folder / "one", settings));

  write_tiny_checkpoint(folder / "sharded", {.shard_bytes = 8000});
  REQUIRE(fs::exists(folder / "sharded/model.safetensors.index.json"));
  settings = upcycle_settings(folder / "sharded-out");
  settings.shard_bytes = 10'000;
  const Upcycled sharded(folder / "sharded", settings);
  CHECK(fs::exists(folder / "sharded-out/model.safetensors.index.json"));
  check_copies(sharded);

  write_tiny_checkpoint(folder / "whole");
  settings.out = folder / "whole-out";
  settings.shard_bytes = uint64_t{1} << 40;
  const Upcycled whole(folder / "whole", settings);
  CHECK(fs::exists(folder / "whole-out/model.safetensors"));
  for (const auto& info : whole.child.tensors()) {
    CHECK(same_bytes(whole.child.bytes(info.name), sharded.child.bytes(info.name)));
  }
  CHECK(whole.report["source"]["config_sha256"] == sharded.report["source"]["config_sha256"]);
  const char* sampled = "tensor_names_types_shapes_and_first_4096_bytes_sha256";
  CHECK(whole.report["source"][sampled] == sharded.report["source"][sampled]);
}

TEST_CASE("conversion rounds every value to nearest, and no router") {
  struct Case {
    io::DType from, to;
    const char* dtype;
  };
  for (const Case& c : {Case{io::DType::kF32, io::DType::kBF16, "bfloat16"},
                        Case{io::DType::kF16, io::DType::kF32, "float32"}}) {
    const TempDir folder;
    write_tiny_checkpoint(folder / "dense", {.dtype = c.from});
    UpcycleSettings settings = upcycle_settings(folder / "out");
    settings.dtype = c.to;
    const Upcycled pair(folder / "dense", settings);
    CHECK(pair.config.dtype == c.dtype);
    for (const auto& info : pair.child.tensors()) {
      INFO(info.name);
      CHECK(info.dtype == (is_router(info.name) ? io::DType::kF32 : c.to));
      if (is_router(info.name) || is_shared(info.name)) {
        continue;
      }
      std::vector<float> expected = floats(pair.dense, dense_name(info.name));
      for (float& value : expected) {  // the plain rounding of tests/support
        value =
            c.to == io::DType::kBF16 ? std::bit_cast<float>(uint32_t{to_bf16(value)} << 16) : value;
      }
      CHECK(floats(pair.child, info.name) == expected);
    }
  }
}

TEST_CASE("a router is N(0, std) and depends on its layer and seed alone") {
  const TempDir folder;
  write_tiny_checkpoint(folder / "dense", {.hidden = 256, .intermediate = 8});
  UpcycleSettings settings = upcycle_settings(folder / "a");
  settings.experts = 16;
  settings.router_std = 0.006;
  settings.layers = "all";
  const Upcycled all(folder / "dense", settings);
  settings.out = folder / "b";
  settings.layers = "1";
  settings.shard_bytes = 20'000;
  settings.dtype = io::DType::kBF16;
  const Upcycled one(folder / "dense", settings);
  const char* name = "model.layers.1.mlp.gate.weight";
  CHECK(same_bytes(all.child.bytes(name), one.child.bytes(name)));
  CHECK_FALSE(same_bytes(all.child.bytes(name), all.child.bytes("model.layers.0.mlp.gate.weight")));
  settings.out = folder / "c";
  settings.seed = 2;
  CHECK_FALSE(
      same_bytes(one.child.bytes(name), Upcycled(folder / "dense", settings).child.bytes(name)));

  check_normal(floats(all.child, name), 0.006);
  CHECK(all.config.moe->router_std == 0.006);
}

TEST_CASE("router biases start as zeros in F32") {
  const TempDir folder;
  write_tiny_checkpoint(folder / "dense");
  UpcycleSettings settings = upcycle_settings(folder / "out");
  settings.router = route::parse_router("top2:bias=0.001");
  settings.dtype = io::DType::kBF16;
  const Upcycled pair(folder / "dense", settings);
  CHECK(pair.config.moe->router == settings.router);
  CHECK(pair.config.moe->lb_coef == 0);
  for (const int64_t layer : {0, 2}) {
    const std::string name = fmt::format("model.layers.{}.mlp.gate.e_score_correction_bias", layer);
    CHECK(pair.child.info(name).dtype == io::DType::kF32);
    CHECK(pair.child.info(name).shape == std::vector<int64_t>{4});
    CHECK(floats(pair.child, name) == std::vector<float>(4, 0));
  }
}

TEST_CASE("a shared expert is the feed-forward with doubled down_proj, routed ones are 0") {
  for (const auto& [dtype, type] : {std::pair(io::DType::kF32, std::optional<io::DType>()),
                                    std::pair(io::DType::kF32, std::optional(io::DType::kBF16)),
                                    std::pair(io::DType::kBF16, std::optional<io::DType>()),
                                    std::pair(io::DType::kF16, std::optional(io::DType::kF32))}) {
    INFO(io::dtype_name(dtype) << " as " << (type ? io::dtype_name(*type) : "keep"));
    const TempDir folder;
    write_tiny_checkpoint(folder / "dense", {.dtype = dtype});
    UpcycleSettings settings = upcycle_settings(folder / "out");
    settings.shared_expert = true;
    settings.dtype = type;
    const Upcycled shared(folder / "dense", settings);
    CHECK(shared.config.moe->shared_expert_width == 24);
    CHECK(shared.report["shared_expert"] == true);
    const bool is_rounded = type == io::DType::kBF16 && dtype != io::DType::kBF16;
    CHECK(shared.report["preserves_function"]["exact"] == !is_rounded);
    settings.shared_expert = false;
    settings.out = folder / "plain";
    const Upcycled plain(folder / "dense", settings);
    CHECK(plain.report["shared_expert"] == false);

    for (const int64_t layer : {0, 2}) {
      const std::string mlp = fmt::format("model.layers.{}.mlp.", layer);
      // Every expert of the plain mixture is the dense feed-forward in the requested type.
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
      for (int64_t expert = 0; expert < 4; ++expert) {
        CHECK(floats(shared.child, fmt::format("{}experts.{}.{}", mlp, expert, down)) ==
              std::vector<float>(16 * 24, 0));
      }
      CHECK(floats(shared.child, mlp + "shared_expert_gate.weight") == std::vector<float>(16, 0));
    }
  }
}

TEST_CASE("an impossible shared expert is refused, and nothing is written") {
  const TempDir folder;
  write_foreign_checkpoint(folder / "qwen3", {.kind = Foreign::kQwen3, .dense_layers = {}});
  write_tiny_checkpoint(folder / "dense");
  write_tiny_checkpoint(folder / "large", {.dtype = io::DType::kF16, .std = 1.4e4});
  const auto message = [&](const char* name, const std::function<void(UpcycleSettings&)>& change) {
    UpcycleSettings settings = upcycle_settings(folder / "out");
    settings.shared_expert = true;
    change(settings);
    const std::string error = user_error_of([&] { Upcycled(folder / name, settings); });
    CHECK_FALSE(fs::exists(folder / "out"));
    CHECK_FALSE(fs::exists(folder / "out.partial"));
    return error;
  };
  const auto opened = [&](const char* name, const UpcycleRequest& request,
                          const std::string& router) {
    return user_error_of([&] { open_checkpoint(folder / name, request, {router, "", {}}); });
  };
  for (const std::string& error :
       {message("qwen3", [](auto&) {}),
        opened("qwen3", {.experts = 4, .shared_expert = true}, "top2")}) {
    CHECK_THAT(error, contains_text("--shared-expert: " + (folder / "qwen3").string()));
  }
  CHECK_THAT(message("dense",
                     [&](auto& s) {
                       s.expert_parents = {{folder / "dense", 4}};
                     }),
             contains_text("--shared-expert") && contains_text("--expert folders"));
  CHECK_THAT(opened("dense", {.experts = {}, .shared_expert = true}, ""),
             contains_text("--shared-expert") && contains_text("--upcycle N"));
  CHECK_THAT(message("large", [](auto&) {}),
             contains_text("model.layers.0.mlp.shared_expert.down_proj.weight: 2 times") &&
                 contains_text("range of fp16"));
}

TEST_CASE("config.json and upcycle.json describe the mixture and its source") {
  const TempDir folder;
  write_tiny_checkpoint(folder / "dense");
  io::write_file(folder / "dense/tokenizer.json", std::string("{}"));
  io::write_file(folder / "dense/generation_config.json", std::string("{\"a\": 1}"));
  UpcycleSettings settings = upcycle_settings(folder / "out");
  settings.router = route::parse_router("top1+ir+fr:cf=0.5");
  settings.ep_ranks = 2;
  settings.seed = 11;
  const Upcycled pair(folder / "dense", settings);
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
  CHECK(read_file(folder / "out/generation_config.json") == "{\"a\": 1}");
  CHECK(fs::exists(folder / "out/tokenizer.json"));
  // A second run writes the same bytes.
  settings.out = folder / "again";
  const Upcycled again(folder / "dense", settings);
  for (const char* file : {"config.json", "upcycle.json", "model.safetensors"}) {
    CHECK(read_file(folder / "out" / file) == read_file(folder / "again" / file));
  }
}

TEST_CASE("the parent's config may lack a dtype") {
  const TempDir folder;
  write_tiny_checkpoint(folder / "dense", {.dtype = io::DType::kBF16});
  Json config = read_json(folder / "dense/config.json");
  config.erase("torch_dtype");
  write_file(folder / "dense/config.json", config.dump());
  CHECK(Upcycled(folder / "dense", upcycle_settings(folder / "out")).config.dtype == "bfloat16");
}

TEST_CASE("the certificate is of the staged folder; an error or a full disk leaves none") {
  const TempDir folder;
  write_tiny_checkpoint(folder / "dense");
  const io::Checkpoint dense(folder / "dense");
  const UpcycleSettings settings = upcycle_settings(folder / "out");
  const UpcyclePlan plan = plan_upcycle(dense, settings);
  CHECK_THROWS_AS(upcycle(dense, plan, settings, {.certify = [](const fs::path&) -> OrderedJson {
                            throw UserError("no text");
                          }}),
                  UserError);
  UpcyclePlan large = plan;
  large.bytes = uint64_t{1} << 60;  // more than any disk has
  CHECK_THAT(user_error_of([&] { upcycle(dense, large, settings); }), contains_text("disk full"));
  CHECK_FALSE(fs::exists(folder / "out"));
  CHECK_FALSE(fs::exists(folder / "out.partial"));
  upcycle(dense, plan, settings, {.certify = [&](const fs::path& staged) {
            CHECK_FALSE(fs::exists(folder / "out"));
            return OrderedJson{{"tensors", io::Checkpoint(staged).tensors().size()}};
          }});
  CHECK(read_json(folder / "out/upcycle.json")["certificate"]["tensors"] == plan.tensors.size());
}

TEST_CASE("a dense folder opened as a mixture has the bits that upcycling writes") {
  struct Case {
    std::optional<Foreign> kind;  // or LLaMA
    io::DType dtype;
    int64_t granularity;
    bool shared_expert;
  };
  for (const auto& [kind, dtype, granularity, shared_expert] :
       {Case{{}, io::DType::kF32, 1, false}, Case{{}, io::DType::kF32, 4, true},
        Case{{}, io::DType::kBF16, 1, true}, Case{{}, io::DType::kBF16, 4, false},
        Case{Foreign::kMistral, io::DType::kF32, 4, false},
        Case{Foreign::kQwen2, io::DType::kF32, 1, true},
        Case{Foreign::kQwen3, io::DType::kF32, 1, false}}) {
    INFO(kind.has_value() << " G " << granularity << " shared expert " << shared_expert);
    const TempDir folder;
    const bool is_sharded = dtype == io::DType::kBF16;
    if (kind) {
      write_foreign_checkpoint(folder / "dense", {.kind = *kind, .dense_layers = {}});
    } else {
      write_tiny_checkpoint(
          folder / "dense",
          {.dtype = dtype, .shard_bytes = is_sharded ? uint64_t{4000} : uint64_t{1} << 40});
    }
    UpcycleSettings settings = upcycle_settings(folder / "out");
    settings.layers = is_sharded ? "all" : "odd";
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
  }
}

TEST_CASE("a mixture is opened unchanged; a request that upcycling refuses is refused") {
  const TempDir folder;
  write_tiny_checkpoint(folder / "dense");
  const UpcycleSettings settings = upcycle_settings(folder / "out");
  const Upcycled pair(folder / "dense", settings);
  CHECK(open_checkpoint(settings.out, {}, {}).config() == pair.child.config());
  const auto refusal = [&](const char* name, const UpcycleRequest& request,
                           const std::string& router) {
    return user_error_of([&] { open_checkpoint(folder / name, request, {router, "", {}}); });
  };
  CHECK_THAT(refusal("out", {4}, "top1"), contains_text("is a mixture of experts already"));
  CHECK_THAT(refusal("dense", {2}, "top4"), contains_text("asks for 4 experts"));
  CHECK_THAT(refusal("dense", {4, "9"}, "top1"), contains_text("9"));
  CHECK_THAT(refusal("nothing", {4}, "top1"), contains_text("no such folder"));
  CHECK_THAT(refusal("dense", {4, "even", 1, 5}, "top1"), contains_text("--granularity 5"));
  CHECK_THAT(refusal("out", {{}, "even", 1, 2}, ""), contains_text("--granularity 2"));
}

TEST_CASE("impossible settings are refused by name, and nothing is written") {
  const TempDir folder;
  const fs::path dense = folder / "dense", out = folder / "out";
  write_tiny_checkpoint(dense);
  const auto message = [&](const std::function<void(UpcycleSettings&)>& change,
                           const fs::path& from) {
    UpcycleSettings settings = upcycle_settings(out);
    change(settings);
    return user_error_of([&] { Upcycled(from, settings); });
  };
  struct Case {
    std::function<void(UpcycleSettings&)> change;
    std::string fact;
  };
  std::vector<Case> cases = {
      {[](auto& s) { s.experts = 0; }, "--experts 0: must be between 1 and 65536"},
      {[](auto& s) { s.experts = 1; }, "2 experts per token, the layers have 1"},
      {[](auto& s) { s.ep_ranks = 3; }, "--ep-ranks 3: 4 experts do not divide"},
      {[](auto& s) { s.layers = "0,3"; }, "--layers 0,3: layer 3 does not exist"},
      {[](auto& s) { s.router_std = -1; }, "--router-std -1"},
      {[&](auto& s) { s.out = dense; }, ": contains the dense model " + dense.string()},
      {[&](auto& s) {
         s.out = folder.path().string() + "/";
         s.force = true;
       },
       ": contains the dense model " + dense.string()}};
  for (const double scale : {0.0, std::nan(""), HUGE_VAL}) {
    cases.push_back(
        {[=](auto& s) { s.gate_scale = scale; }, fmt::format("--gate-scale {}", scale)});
  }
  for (const Case& c : cases) {
    CHECK_THAT(message(c.change, dense), contains_text(c.fact));
  }
  CHECK_FALSE(fs::exists(out));

  Upcycled(dense, upcycle_settings(out));
  CHECK_THAT(message([](auto&) {}, dense), contains_text(out.string() + ": exists already"));
  CHECK(message([](auto& s) { s.force = true; }, dense).empty());
  CHECK_THAT(message([&](auto& s) { s.out = folder / "twice"; }, out),
             contains_text(out.string() + ": is a mixture of experts already"));
  CHECK_FALSE(fs::exists(folder / "twice"));
}

TEST_CASE("the sampled digest tells other weights, types and names apart") {
  const TempDir folder;
  write_tiny_checkpoint(folder / "a");
  write_tiny_checkpoint(folder / "same", {.shard_bytes = 8000});
  write_tiny_checkpoint(folder / "seed", {.seed = 2});
  write_tiny_checkpoint(folder / "type", {.dtype = io::DType::kBF16});
  const auto digest = [&](const char* name) {
    return sampled_sha256(io::Checkpoint(folder / name));
  };
  CHECK(digest("a") == digest("same"));
  CHECK(digest("a") != digest("seed"));
  CHECK(digest("a") != digest("type"));
}

TEST_CASE("added tokens get mean rows, first those of a padded vocabulary") {
  for (const auto& [vocab, tied] : {std::pair(1024, true), {1025, false}, {1030, false}}) {
    const TempDir folder;
    write_tiny_checkpoint(folder / "dense", {.vocab = vocab, .tied = tied});
    fs::copy_file(tiny_model_folder() / "tokenizer.model", folder / "dense/tokenizer.model");
    UpcycleSettings settings = upcycle_settings(folder / "out");
    settings.vocabulary = extend_vocabulary(folder / "dense", {"<a>", "</s>", "<b>"});
    CHECK_THAT(settings.vocabulary.words, contains_text("<a> 1024, </s> 2 (in the vocabulary"));
    const Upcycled pair(folder / "dense", settings);
    const int64_t size = std::max(vocab, 1026);
    CHECK(io::Tokenizer::load(folder / "out", size).special_id("<b>") == 1025);
    const auto taken = open_checkpoint(folder / "dense", {.experts = 4}, {"top2:cf=inf", "", {}},
                                       false, settings.vocabulary);
    CHECK(taken.config() == pair.child.config());
    for (const auto& info : pair.child.tensors()) {
      CHECK(same_bytes(taken.bytes(info.name), pair.child.bytes(info.name)));
      if (info.shape == std::vector<int64_t>{size, 16}) {
        const at::Tensor old = at::tensor(floats(pair.dense, info.name)).view({vocab, 16});
        at::Tensor rows = at::cat({old, at::zeros({size - vocab, 16})});
        rows.slice(0, 1024, 1026).copy_(old.slice(0, 0, 1024).to(at::kDouble).mean(0));
        CHECK(at::allclose(at::tensor(floats(pair.child, info.name)), rows.view({-1}), 0, 1e-8));
      }
    }
  }
}

TEST_CASE("convert() equals two conversions by way of F32, between all three types") {
  const std::vector<float> values = {0.0F, -1.5F, 3.14159F, 65504.0F, 1e-8F, -2.5e-5F, 7.0F};
  const std::vector<io::DType> types = {io::DType::kF32, io::DType::kBF16, io::DType::kF16};
  const auto size = [&](io::DType type) {
    return values.size() * static_cast<size_t>(io::dtype_bytes(type));
  };
  for (const auto from : types) {
    std::vector<std::byte> source(size(from));
    convert(std::as_bytes(std::span(values)), io::DType::kF32, source, from);
    for (const auto to : types) {
      std::vector<std::byte> direct(size(to)), wide(size(io::DType::kF32)), twice(size(to));
      convert(source, from, direct, to);
      convert(source, from, wide, io::DType::kF32);  // exact, so that two steps round once
      convert(wide, io::DType::kF32, twice, to);
      CHECK((direct == twice));
    }
  }
}

}  // namespace
}  // namespace moe::model
