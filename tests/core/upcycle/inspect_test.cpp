// The description of a folder, and the distances between the experts of two folders.

#include "core/upcycle/inspect.h"

#include <optional>

#include "core/upcycle/verify.h"
#include "tests/core/upcycle/upcycled.h"
#include "tests/support/foreign_checkpoint.h"
#include "tests/support/stored_numbers.h"
#include "tests/support/user_error.h"

namespace moe::model {
namespace {

using namespace moe::test;
using Lines = std::vector<std::string>;

Inspection inspect_upcycled(const TempDir& folder, const std::string& router) {
  write_tiny_checkpoint(folder / "dense", {.dtype = io::DType::kBF16});
  UpcycleSettings settings = upcycle_settings(folder / "out", router);
  settings.ep_ranks = 2;
  settings.force = true;
  Upcycled(folder / "dense", settings);
  return inspect(folder / "out");
}

Certificate certificate_of(const std::string& router,
                           std::optional<Foreign> parent_kind = std::nullopt,
                           bool shared_expert = false) {
  const TempDir folder;
  if (parent_kind) {
    write_foreign_checkpoint(
        folder / "dense",
        {.kind = *parent_kind, .dense_layers = {}, .tiny = {.head_dim = 6, .tied = true}});
  } else {
    write_tiny_checkpoint(folder / "dense", {});
  }
  UpcycleSettings settings = upcycle_settings(folder / "moe", router);
  settings.shared_expert = shared_expert;
  const Upcycled pair(folder / "dense", settings);
  return verify_equality(pair.dense, pair.child, verify_text(pair.dense, "", 200));
}

TEST_CASE("a dense folder is described from its headers") {
  const TempDir folder;
  write_tiny_checkpoint(folder / "dense", {.tied = true, .shard_bytes = 8000});
  const Inspection found = inspect(folder / "dense");
  CHECK(found.model_type == "llama");
  CHECK_FALSE(found.config.moe);
  CHECK(found.bytes == 4 * static_cast<uint64_t>(found.parameters.total));
  CHECK(found.bytes_per_rank == found.bytes);
  CHECK(found.bytes_by_dtype ==
        std::vector<std::pair<std::string, uint64_t>>{{"F32", found.bytes}});
  CHECK(found.tokenizer == "none");
  CHECK(found.stock == Lines{"all of it: a dense llama folder"});
  CHECK(found.needs_moe.empty());
  CHECK(to_json(found)["moe"].is_null());
  CHECK(to_json(found)["tie_word_embeddings"] == true);
}

TEST_CASE("a mixture's bytes are counted whole and per expert-parallel rank") {
  const TempDir folder;
  const Inspection found = inspect_upcycled(folder, "top2+ir:cf=1.5");
  // Layers 0 and 2: 4 experts of 3 matrices [16, 24] in bf16; routers [4, 16] in F32; a zero
  // shared-expert gate [1, 16] per layer.
  const uint64_t experts = 2 * 4 * 3 * 16 * 24 * 2, routers = 2 * 4 * 16 * 4;
  CHECK(found.bytes_per_rank == found.bytes - experts / 2);
  CHECK(found.bytes_by_dtype.front() ==
        std::pair<std::string, uint64_t>{"BF16", found.bytes - routers});
  CHECK(found.bytes_by_dtype.back() == std::pair<std::string, uint64_t>{"F32", routers});
  CHECK(found.model_type == "qwen2_moe");
  const OrderedJson json = to_json(found);
  CHECK(json["moe"]["router"] == "top2+ir:cf=1.5");
  CHECK(json["moe"]["layers"] == Json({0, 2}));
  CHECK(json["moe"]["ep_ranks"] == 2);
  CHECK(json["parameters"]["total"] == found.parameters.total);
}

TEST_CASE("the description says what stock tools compute and what needs moe") {
  const TempDir folder;
  struct Case {
    std::string router;
    std::vector<std::string> stock, needs_moe;  // a part of each line
  };
  const std::vector<Case> cases = {
      {"top2:cf=inf", {"top-2 of 4 experts without dropping, weights summing to 1"}, {}},
      {"top1+ir+fr:cf=0.5,gate=none",
       {"top-1 of 4 experts without dropping, weights as the softmax gives them"},
       {"cf=0.5", "+ir", "+fr"}},
      {"topp:0.4", {"top-2 of 4 experts, not renormalised"}, {"top-p routing (p=0.4)"}},
      {"relu:k=1", {"model_type moe_relu is refused"}, {"ReLU routing"}},
      {"top2:cf=inf,bias=0.001", {"model_type moe_biased is refused"}, {"bias"}}};
  for (const Case& c : cases) {
    INFO(c.router);
    const Inspection found = inspect_upcycled(folder, c.router);
    for (const auto& [lines, parts] :
         {std::pair(found.stock, c.stock), std::pair(found.needs_moe, c.needs_moe)}) {
      REQUIRE(lines.size() == parts.size());
      for (size_t i = 0; i < lines.size(); ++i) {
        CHECK_THAT(lines[i], contains_text(parts[i]));
      }
    }
  }
}

TEST_CASE("a stock mixture is described by its own model_type, with its shared experts") {
  const TempDir folder;
  write_foreign_checkpoint(folder / "m", {.dense_layers = {}});
  Json config = read_json(folder / "m/config.json");
  config["router_jitter_noise"] = 0.1;
  write_file(folder / "m/config.json", config.dump());
  const Inspection found = inspect(folder / "m");
  CHECK(found.model_type == "mixtral");
  REQUIRE(found.stock.size() == 2);
  CHECK_THAT(found.stock[1], contains_text("router_jitter_noise 0.1"));
  CHECK(found.needs_moe.empty());
  // Three layers of 4 experts of three matrices [16, 24] in f32, on four ranks.
  CHECK(found.bytes_per_rank == found.bytes - 3 * 4 * 3 * 16 * 24 * 4 * 3 / 4);
  write_foreign_checkpoint(folder / "q",
                           {.kind = Foreign::kQwen2Moe, .dense_layers = {}, .shared_width = 20});
  const Inspection shared = inspect(folder / "q");
  CHECK(to_json(shared)["moe"]["shared_expert_width"] == 20);
  // Experts of three matrices [12, 16]; the shared expert is on every rank.
  CHECK(shared.bytes_per_rank == shared.bytes - 3 * 4 * 3 * 12 * 16 * 4 * 3 / 4);
  CHECK(shared.function.state == StoredVerdict::State::kNoCertificate);
}

TEST_CASE("layers are printed as ranges") {
  CHECK(layer_ranges({}) == "none");
  CHECK(layer_ranges({3}) == "3");
  CHECK(layer_ranges({0, 2, 4}) == "0, 2, 4");
  CHECK(layer_ranges({0, 1, 2, 5, 6}) == "0-2, 5-6");
}

std::vector<double> numbers(const io::Checkpoint& folder, const std::vector<std::string>& names) {
  std::vector<double> all;
  for (const auto& name : names) {
    const auto values = floats(folder, name);
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

std::vector<double> expert(const io::Checkpoint& folder, int64_t layer, const std::string& middle) {
  const std::string prefix = fmt::format("model.layers.{}.mlp.{}", layer, middle);
  return numbers(folder, {prefix + "gate_proj.weight", prefix + "up_proj.weight",
                          prefix + "down_proj.weight"});
}

TEST_CASE("equal copies have cosine 1, varied ones what plain sums give") {
  const TempDir dir;
  // 300 x 304 numbers a matrix: more than a block of expert_distances().
  write_tiny_checkpoint(
      dir / "dense", {.hidden = 304, .intermediate = 300, .layers = 2, .dtype = io::DType::kBF16});
  UpcycleSettings settings = upcycle_settings(dir / "copies", "top2:cf=inf", 3);
  Upcycled(dir / "dense", settings);
  settings.out = dir / "varied";
  settings.vary = parse_variation("drop:0.5");
  settings.seed = 7;
  Upcycled(dir / "dense", settings);
  const io::Checkpoint dense(dir / "dense"), copies(dir / "copies"), varied(dir / "varied");
  const auto plain = expert_distances(copies, dense);
  REQUIRE(plain.size() == 1);
  CHECK(plain[0].layer == 0);
  CHECK(plain[0].between_experts == Approx(1).margin(1e-12));
  CHECK(plain[0].to_other == Approx(1).margin(1e-12));
  CHECK_FALSE(plain[0].router_to_other);

  const auto e = [&](int64_t i) { return expert(varied, 0, fmt::format("experts.{}.", i)); };
  const auto parent = expert(dense, 0, "");
  const double between = (cosine(e(0), e(1)) + cosine(e(0), e(2)) + cosine(e(1), e(2))) / 3;
  const double to_parent = (cosine(e(0), parent) + cosine(e(1), parent) + cosine(e(2), parent)) / 3;
  const auto against_dense = expert_distances(varied, dense);
  CHECK(against_dense[0].between_experts == Approx(between).margin(1e-9));
  CHECK(against_dense[0].to_other == Approx(to_parent).margin(1e-9));
  CHECK(between < 0.5);
  CHECK(to_parent < 0.7);
  const auto against_copies = expert_distances(varied, copies);
  CHECK(against_copies[0].to_other == Approx(to_parent).margin(1e-9));  // every copy is the parent

  const auto row = [](const io::Checkpoint& folder, size_t i) {
    const auto all = numbers(folder, {"model.layers.0.mlp.gate.weight"});
    return std::vector<double>(all.begin() + static_cast<int64_t>(i * 304),
                               all.begin() + static_cast<int64_t>((i + 1) * 304));
  };
  double routers = 0, to_others = 0;
  for (size_t i = 0; i < 3; ++i) {
    routers += cosine(row(varied, i), row(varied, (i + 1) % 3)) / 3;
    to_others += cosine(row(varied, i), row(copies, i)) / 3;
  }
  CHECK(against_copies[0].between_routers == Approx(routers).margin(1e-9));
  CHECK(*against_copies[0].router_to_other == Approx(to_others).margin(1e-9));
}

TEST_CASE("folders whose experts cannot be compared are refused with both names") {
  const TempDir dir;
  write_tiny_checkpoint(dir / "dense", {});
  write_tiny_checkpoint(dir / "wide", {.hidden = 32});
  write_tiny_checkpoint(dir / "narrow", {.intermediate = 12});
  write_tiny_checkpoint(dir / "short", {.layers = 2});
  Upcycled(dir / "dense", upcycle_settings(dir / "three", "top2:cf=inf", 3));
  Upcycled(dir / "dense", upcycle_settings(dir / "four"));
  struct Case {
    std::string first, second, fact;
  };
  for (const Case& c : {Case{"dense", "three", "the first is a dense folder"},
                        Case{"three", "wide", "widths 16 and 32"},
                        Case{"three", "narrow", "the experts of layer 0 have width 24"},
                        Case{"three", "short", "only the first has a layer 2"},
                        Case{"three", "four", "layer 0 has 3 experts and 4"}}) {
    const auto first = dir / c.first, second = dir / c.second;
    CHECK_THAT(
        user_error_of([&] { expert_distances(io::Checkpoint(first), io::Checkpoint(second)); }),
        contains_text(first.string() + " and " + second.string()) && contains_text(c.fact));
  }
}

// The certificate of an upcycled mixture: identical to the parent if the router preserves the
// function, different otherwise.

TEST_CASE("a mixture whose router preserves the function equals its parent to rounding") {
  struct Case {
    const char* router;
    std::optional<Foreign> parent = {};
  };
  for (const auto& [router, parent] :
       {Case{"top1:cf=inf"}, Case{"top2:cf=inf"}, Case{"top1+ir:cf=0.25"},
        Case{"top2+ir+fr:cf=0.5"}, Case{"top2:cf=inf", Foreign::kMistral},
        Case{"top2:cf=inf", Foreign::kQwen2}, Case{"top2:cf=inf", Foreign::kQwen3}}) {
    CAPTURE(router, parent.has_value());
    const auto certificate = certificate_of(router, parent);
    CHECK(certificate.verdict == Verdict::kIdentical);
    CHECK(certificate.tokens == 200);
    CHECK(certificate.max_abs_logit_difference < 1e-5);  // f32 rounding on logits of order 1
    CHECK(certificate.words.starts_with("identical to the dense model"));
    CHECK(certificate.tolerance > 0);
    if (!parent) {
      CHECK(certificate.tolerance < 1e-4);
      CHECK(std::abs(certificate.mean_kl) < 1e-9);
    }
  }
}

TEST_CASE("a mixture with a shared expert has the bits of its parent for any router") {
  for (const auto& [router, parent_kind] :
       {std::pair("top1:cf=0.25", std::optional<Foreign>()),
        std::pair("relu:k=1", std::optional<Foreign>()),
        std::pair("topp:0.4", std::optional(Foreign::kMistral)),
        std::pair("top2:cf=inf", std::optional(Foreign::kQwen2))}) {
    CAPTURE(router, parent_kind.has_value());
    const auto certificate = certificate_of(router, parent_kind, /*shared_expert=*/true);
    CHECK(certificate.verdict == Verdict::kIdentical);
    CHECK(certificate.max_abs_logit_difference == 0);
    CHECK_THAT(certificate.words, contains_text("shared expert"));
  }
}

TEST_CASE("a router that drops tokens, or gates that do not sum to 1, are reported") {
  const auto dropped = certificate_of("top1:cf=0.25");
  CHECK(dropped.verdict != Verdict::kIdentical);
  CHECK(dropped.dropped_share > 0.5);  // a quarter of the slots for all tokens
  CHECK(dropped.max_abs_logit_difference > 1e-4);
  CHECK_THAT(dropped.words, contains_text("dropped"));
  CHECK((dropped.mean_kl < kCloseKl) == (dropped.verdict == Verdict::kClose));
  const auto json = to_json(dropped);
  CHECK(json["preserves_function"] == false);
  CHECK(json["verdict"] == to_string(dropped.verdict));
  CHECK(json["close_below_kl"] == kCloseKl);
  const auto gates = certificate_of("topp:0.4");
  CHECK(gates.verdict != Verdict::kIdentical);
  CHECK(gates.max_abs_logit_difference > 1e-4);
}

TEST_CASE("a gate_scale on weights that sum to 1 is reported") {
  const TempDir folder;
  write_tiny_checkpoint(folder / "dense", {});
  UpcycleSettings settings = upcycle_settings(folder / "moe");
  settings.gate_scale = 2.0;
  const Upcycled pair(folder / "dense", settings);
  const auto text = verify_text(pair.dense, "", 100);
  const auto scaled = verify_equality(pair.dense, pair.child, text);
  CHECK(scaled.verdict != Verdict::kIdentical);
  CHECK(scaled.gate_scale == 2.0);
  CHECK(scaled.max_abs_logit_difference > 1e-4);
  CHECK_THAT(scaled.words, contains_text("gate_scale 2"));
  const auto without = verify_equality(pair.dense, pair.child, text, 1.0);
  CHECK(without.verdict == Verdict::kIdentical);
  CHECK(without.max_abs_logit_difference < 1e-5);
}

}  // namespace
}  // namespace moe::model
