// Mixtures whose experts come from several parents.

#include "core/upcycle/expert_sources.h"
#include "tests/core/upcycle/upcycled.h"
#include "tests/support/matchers.h"
#include "tests/support/stored_numbers.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"
#include "tests/support/user_error.h"

namespace moe::model {
namespace {

namespace fs = std::filesystem;

using namespace moe::test;

// A base and two parents with other weights; the second is stored in bf16.
struct Folders {
  Folders() {
    write_tiny_checkpoint(dir / "base", {});
    write_tiny_checkpoint(dir / "code", {.seed = 2});
    write_tiny_checkpoint(dir / "math", {.dtype = io::DType::kBF16, .seed = 3});
  }
  UpcycleSettings settings(std::vector<ExpertParent> parents) const {
    UpcycleSettings settings = upcycle_settings(dir / "out", "top2:cf=inf", count_copies(parents));
    settings.expert_parents = std::move(parents);
    settings.force = true;
    return settings;
  }
  OrderedJson make(const UpcycleSettings& settings) const {
    return Upcycled(dir / "base", settings).report;
  }
  TempDir dir;
};

TEST_CASE("experts are copies of their own parents, other tensors are the base's",
          "[model][upcycle]") {
  const Folders folders;
  const auto settings = folders.settings({{folders.dir / "code", 1}, {folders.dir / "math", 2}});
  const OrderedJson report = folders.make(settings);
  const io::Checkpoint base(folders.dir / "base"), code(folders.dir / "code"),
      math(folders.dir / "math"), child(folders.dir / "out");
  size_t experts = 0;
  for (const auto& info : child.tensors()) {
    INFO(info.name);
    const std::string source = dense_name(info.name);
    if (info.name.ends_with("mlp.gate.weight") ||
        info.name.find("shared_expert") != std::string::npos) {
      continue;
    }
    if (source == info.name) {
      CHECK(same_bytes(child.bytes(info.name), base.bytes(info.name)));
    } else if (info.name.find("experts.0.") != std::string::npos) {
      CHECK(same_bytes(child.bytes(info.name), code.bytes(source)));
      ++experts;
    } else {  // stored in the base's type
      CHECK(info.dtype == io::DType::kF32);
      CHECK(floats(child, info.name) == floats(math, source));
      ++experts;
    }
  }
  CHECK(experts == 2 * 3 * 3);  // layers 0 and 2, three experts, three matrices
  REQUIRE(report["experts_from"].size() == 2);
  CHECK(report["experts_from"][0]["name"] == "code");
  CHECK(report["experts_from"][0]["experts"] == Json({0}));
  CHECK(report["experts_from"][1]["name"] == "math");
  CHECK(report["experts_from"][1]["experts"] == Json({1, 2}));
  CHECK(report["experts_from"][0]["config_sha256"].get<std::string>().size() == 64);
  CHECK(report["rest"] == "base");
  CHECK(report["preserves_function"]["exact"] == false);
}

TEST_CASE("with --rest mean other tensors are the mean of the parents, each counted once",
          "[model][upcycle]") {
  const Folders folders;
  auto settings = folders.settings({{folders.dir / "code", 3}, {folders.dir / "math", 1}});
  settings.mean_rest = true;
  const OrderedJson report = folders.make(settings);
  CHECK(report["rest"] == "mean");
  const io::Checkpoint code(folders.dir / "code"), math(folders.dir / "math"),
      child(folders.dir / "out");
  for (const char* name : {"model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight",
                           "model.layers.1.mlp.up_proj.weight", "model.norm.weight"}) {
    INFO(name);
    const auto mine = floats(child, name), a = floats(code, name), b = floats(math, name);
    for (size_t i = 0; i < mine.size(); ++i) {
      REQUIRE(mine[i] == static_cast<float>((static_cast<double>(a[i]) + b[i]) / 2));
    }
  }
  CHECK(floats(child, "model.layers.0.mlp.experts.2.up_proj.weight") ==
        floats(code, "model.layers.0.mlp.up_proj.weight"));
}

TEST_CASE("--expert FOLDER:N is parsed, also if the folder has a colon", "[model][upcycle]") {
  const TempDir dir;
  fs::create_directories(dir / "v1:2");
  const auto parse = [](const std::string& text) {
    const ExpertParent parent = parse_expert_parent(text);
    return std::pair(parent.folder.string(), parent.copies);
  };
  CHECK(parse("code") == std::pair(std::string("code"), int64_t{1}));
  CHECK(parse("a/code:3") == std::pair(std::string("a/code"), int64_t{3}));
  CHECK(parse("c:/code") == std::pair(std::string("c:/code"), int64_t{1}));
  CHECK(parse((dir / "v1:2").string()) == std::pair((dir / "v1:2").string(), int64_t{1}));
  for (const char* text : {"code:0", "code:65537"}) {
    CHECK_THAT(user_error_of([&] { parse_expert_parent(text); }),
               contains_text(fmt::format("--expert '{}'", text)) && contains_text("1 to 65536"));
  }
}

TEST_CASE("parents that do not fit are refused by name, and nothing is written",
          "[model][upcycle]") {
  const Folders folders;
  const fs::path other = folders.dir / "other";
  struct Case {
    TinyCheckpoint shape;
    std::string fact;
  };
  for (const Case& c : {Case{{.hidden = 32}, "hidden_size is 32, but 16"},
                        Case{{.intermediate = 48}, "intermediate_size is 48, but 24"},
                        Case{{.tied = true}, "tie_word_embeddings is 1, but 0"}}) {
    write_tiny_checkpoint(other, c.shape);
    CHECK_THAT(user_error_of([&] {
                 folders.make(folders.settings({{other, 2}}));
               }),
               contains_text(fmt::format("--expert {}: {} in {}", other.string(), c.fact,
                                         (folders.dir / "base").string())));
    fs::remove_all(other);
  }
  auto settings = folders.settings({{folders.dir / "code", 2}});
  settings.experts = 4;
  CHECK_THAT(user_error_of([&] { folders.make(settings); }),
             contains_text("--experts 4: the --expert folders make 2"));
  settings = folders.settings({});
  settings.experts = 4;
  settings.mean_rest = true;
  CHECK_THAT(user_error_of([&] { folders.make(settings); }), contains_text("--rest mean"));
  settings = folders.settings({{folders.dir / "code", 2}});
  settings.out = folders.dir / "code";
  CHECK_THAT(user_error_of([&] { folders.make(settings); }),
             contains_text("holds the dense model"));
  CHECK_FALSE(fs::exists(folders.dir / "out"));
}

}  // namespace
}  // namespace moe::model
