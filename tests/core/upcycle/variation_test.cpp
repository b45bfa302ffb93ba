// Copies of the feed-forward that --vary makes different.

#include <cmath>

#include "core/upcycle/expert_sources.h"
#include "tests/core/upcycle/upcycled.h"
#include "tests/support/stored_numbers.h"
#include "tests/support/tiny_checkpoint.h"
#include "tests/support/user_error.h"

namespace moe::model {
namespace {

using namespace moe::test;

constexpr int64_t kWidth = 60, kHidden = 64;
constexpr const char* kParts[] = {"gate_proj", "up_proj", "down_proj"};

Upcycled varied(const TempDir& dir, const std::string& vary, io::DType dtype = io::DType::kF32,
                int64_t seed = 1) {
  const auto dense = dir / io::dtype_name(dtype);
  if (!std::filesystem::exists(dense)) {
    write_tiny_checkpoint(dense,
                          {.hidden = kHidden, .intermediate = kWidth, .layers = 1, .dtype = dtype});
  }
  static int made = 0;
  UpcycleSettings settings = upcycle_settings(dir / fmt::format("out{}", made++), "top2:cf=inf", 3);
  settings.vary = parse_variation(vary);
  settings.seed = seed;
  return {dense, settings};
}

std::string expert_name(int64_t expert, const std::string& part) {
  return fmt::format("model.layers.0.mlp.experts.{}.{}.weight", expert, part);
}
std::string dense_part(const std::string& part) { return "model.layers.0.mlp." + part + ".weight"; }

// Returns a matrix, [F, D] f64.
at::Tensor matrix(const io::Checkpoint& folder, const std::string& name) {
  const at::Tensor values = at::tensor(floats(folder, name)).to(at::kDouble);
  const bool is_down = name.find("down_proj") != std::string::npos;
  return is_down ? values.view({kHidden, kWidth}).t() : values.view({kWidth, kHidden});
}

// Weights that are not the parent's.
struct Changes {
  at::Tensor dimensions;     // [F] bool, with at least one
  at::Tensor mine, parents;  // the changed weights, and the parent's in their place
};

Changes changes_of(const Upcycled& pair, int64_t expert, const std::string& part) {
  const at::Tensor mine = matrix(pair.child, expert_name(expert, part));
  const at::Tensor theirs = matrix(pair.dense, dense_part(part)), changed = mine != theirs;
  return {changed.any(1), mine.masked_select(changed), theirs.masked_select(changed)};
}

double number(const at::Tensor& value) { return value.item<double>(); }

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

TEST_CASE("dropped dimensions are drawn with the parent's mean and deviation") {
  const TempDir dir;
  for (const auto dtype : {io::DType::kF32, io::DType::kBF16}) {
    const auto pair = varied(dir, "drop:0.4", dtype);
    std::vector<at::Tensor> by_expert;
    for (int64_t expert = 0; expert < 3; ++expert) {
      for (const char* part : kParts) {
        INFO(io::dtype_name(dtype) << " expert " << expert << " " << part);
        const auto [dimensions, mine, parents] = changes_of(pair, expert, part);
        CHECK(dimensions.sum().item<int64_t>() == 24);  // floor(0.4 * 60)
        // A few weights round to the parent's value.
        CHECK(mine.numel() > 0.97 * 24 * kHidden);
        // Standard errors of n normal numbers: std / sqrt(n) of the mean, std / sqrt(2 n) of the
        // deviation. The bounds are five standard errors.
        const double n = 24 * kHidden, deviation = number(parents.std());
        CHECK(std::fabs(number(mine.mean() - parents.mean())) < 5 * deviation / std::sqrt(n));
        CHECK(std::fabs(number(mine.std()) - deviation) < 5 * deviation / std::sqrt(2 * n));
        if (part == kParts[0]) {
          by_expert.push_back(dimensions);
        }
        CHECK(at::equal(dimensions, by_expert.back()));  // one set for gate, up and down
      }
    }
    CHECK_FALSE(at::equal(by_expert[0], by_expert[1]));
    CHECK_FALSE(at::equal(by_expert[1], by_expert[2]));
  }
}

TEST_CASE("drop:R,separate drops other dimensions in each matrix") {
  const TempDir dir;
  const auto pair = varied(dir, "drop:0.5,separate");
  const at::Tensor gate = changes_of(pair, 0, "gate_proj").dimensions;
  CHECK(gate.sum().item<int64_t>() == 30);
  CHECK_FALSE(at::equal(gate, changes_of(pair, 0, "up_proj").dimensions));
  CHECK_FALSE(at::equal(gate, changes_of(pair, 0, "down_proj").dimensions));
}

TEST_CASE("noise is relative to the deviation of each matrix") {
  const TempDir dir;
  const auto pair = varied(dir, "noise:0.1");
  for (int64_t expert = 0; expert < 3; ++expert) {
    for (const char* part : kParts) {
      const at::Tensor theirs = matrix(pair.dense, dense_part(part));
      const at::Tensor noise = matrix(pair.child, expert_name(expert, part)) - theirs;
      // The parent's mean is 0 up to 1 / sqrt(n); the ratio's deviation is 0.1 / sqrt(2 n).
      const auto n = static_cast<double>(theirs.numel());
      CHECK(std::fabs(number(noise.norm() / theirs.norm()) - 0.1) <
            5 * 0.1 / std::sqrt(2 * n) + 0.1 / n);
    }
  }
  CHECK(floats(pair.child, expert_name(0, "up_proj")) !=
        floats(pair.child, expert_name(1, "up_proj")));
}

TEST_CASE("the seed determines the variation, and attention is not varied") {
  const TempDir dir;
  const auto first = varied(dir, "drop:0.5"), again = varied(dir, "drop:0.5"),
             other = varied(dir, "drop:0.5", io::DType::kF32, 2);
  const auto weights = [](const Upcycled& pair) {
    return floats(pair.child, expert_name(1, "down_proj"));
  };
  CHECK(weights(first) == weights(again));
  CHECK(weights(first) != weights(other));
  const std::string attention = "model.layers.0.self_attn.o_proj.weight";
  CHECK(floats(first.child, attention) == floats(first.dense, attention));
  CHECK(first.report["vary"] == "drop:0.5");
  CHECK(first.report["preserves_function"]["exact"] == false);
  CHECK_THAT(first.report["preserves_function"]["words"].get<std::string>(),
             contains_text("not preserved") && contains_text("--vary drop:0.5"));
}

TEST_CASE("impossible variations are refused, others are printed as they were given") {
  struct Case {
    std::vector<std::string> texts;
    std::string fact;
  };
  for (const Case& c : {Case{{"drop", "drop:", "drop:x", "drop:0.5,apart", "noise:0.1,separate",
                              "shake:0.5", "", "drop:0.5 ", "drop:nan", "noise:inf", "noise:nan"},
                             "must be none, drop:0.5, drop:0.5,separate or noise:0.01"},
                        Case{{"drop:0", "drop:1", "drop:-1"}, "must be between 0 and 1"},
                        Case{{"noise:0", "noise:-1"}, "must be positive"}}) {
    for (const auto& text : c.texts) {
      CHECK_THAT(user_error_of([&] { parse_variation(text); }), contains_text(c.fact));
    }
  }
  CHECK_THAT(user_error_of([&] { check_variation(parse_variation("drop:0.01"), 60); }),
             contains_text("--vary drop:0.01") && contains_text("60 dimensions"));
  for (const char* text : {"none", "drop:0.5", "drop:0.25,separate", "noise:0.01"}) {
    CHECK(to_string(parse_variation(text)) == text);
  }
}

// Mixtures whose experts come from several parents.

TEST_CASE("experts are copies of their own parents, other tensors are the base's") {
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

TEST_CASE("with --rest mean other tensors are the mean of the parents, each counted once") {
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

TEST_CASE("--expert FOLDER:N is parsed, also if the folder has a colon") {
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
    CHECK_THAT(
        user_error_of([&] { parse_expert_parent(text); }),
        contains_text(fmt::format("--expert '{}'", text)) && contains_text("between 1 and 65536"));
  }
}

TEST_CASE("parents that do not fit are refused by name, and nothing is written") {
  const Folders folders;
  const fs::path other = folders.dir / "other";
  const Json llama3 = {{"rope_type", "llama3"},
                       {"factor", 8.0},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", 64}};
  const TinyCheckpoint same{};
  struct Case {
    TinyCheckpoint shape;
    Json changes;  // of config.json
    std::string fact;
  };
  for (const auto& [shape, changes, fact] : std::vector<Case>{
           {{.hidden = 32}, Json::object(), "hidden_size is 32, but 16"},
           {{.intermediate = 48}, Json::object(), "intermediate_size is 48, but 24"},
           {{.tied = true}, Json::object(), "tie_word_embeddings is true, but false"},
           {same, {{"rope_theta", 500000.0}}, "rope_theta is 500000, but 10000"},
           {same, {{"rms_norm_eps", 1e-6}}, "rms_norm_eps is 1e-06, but 1e-05"},
           {same,
            {{"rope_scaling", {{"rope_type", "linear"}, {"factor", 2.0}}}},
            "rope_type is linear, but default"},
           {same, {{"rope_scaling", llama3}}, "rope_type is llama3, but default"},
           {same,
            {{"model_type", "mistral"}, {"architectures", nullptr}, {"sliding_window", 64}},
            "sliding_window is 64, but 0"}}) {
    write_tiny_checkpoint(other, shape);
    Json config(tiny_config(shape));
    config.update(changes);
    io::write_file(other / "config.json", config.dump());
    CHECK_THAT(user_error_of([&] {
                 folders.make(folders.settings({{other, 2}}));
               }),
               contains_text(fmt::format("--expert {}: {} in {}", other.string(), fact,
                                         (folders.dir / "base").string())));
    fs::remove_all(other);
  }
  auto settings = folders.settings({{folders.dir / "code", 2}});
  settings.experts = 4;
  CHECK_THAT(user_error_of([&] { folders.make(settings); }),
             contains_text("--experts 4: the --expert folders provide 2"));
  settings = folders.settings({});
  settings.experts = 4;
  settings.mean_rest = true;
  CHECK_THAT(user_error_of([&] { folders.make(settings); }), contains_text("--rest mean"));
  settings = folders.settings({{folders.dir / "code", 2}});
  settings.out = folders.dir / "code";
  CHECK_THAT(user_error_of([&] { folders.make(settings); }),
             contains_text("contains the dense model"));
  CHECK_FALSE(fs::exists(folders.dir / "out"));
}

}  // namespace
}  // namespace moe::model
