// Finer experts (slices of a feed-forward) against plain loops over the parent's matrices, and
// against the mixture of whole feed-forwards with the same routers.

#include <cmath>
#include <cstring>

#include "core/model/moe/layer.h"
#include "core/upcycle/expert_sources.h"
#include "core/upcycle/inspect.h"
#include "core/upcycle/verify.h"
#include "tests/core/upcycle/upcycled.h"
#include "tests/support/matchers.h"
#include "tests/support/stored_numbers.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"
#include "tests/support/user_error.h"

namespace moe::model {
namespace {

using test::contains_text;
using test::cosine;
using test::floats;
using test::TempDir;
using test::user_error_of;

constexpr int64_t kWidth = 24, kHidden = 16;  // of write_tiny_checkpoint()
const std::string kLayer = "model.layers.0.mlp.";
const char* const kMatrices[] = {"gate_proj", "up_proj", "down_proj"};

UpcycleSettings settings_for(int64_t granularity, const std::string& router = "top2:cf=inf") {
  UpcycleSettings settings = test::upcycle_settings({}, router);
  settings.granularity = granularity;
  settings.force = true;
  return settings;
}

// Upcycles dir/dense, which is written if it is absent, to dir/name.
io::Checkpoint upcycled(const TempDir& dir, const std::string& name, UpcycleSettings settings) {
  if (!std::filesystem::exists(dir / "dense")) {
    test::write_tiny_checkpoint(dir / "dense");
  }
  settings.out = dir / name;
  return test::Upcycled(dir / "dense", settings).child;
}

// Returns slice `slice` of a matrix of the parent, by plain loops.
std::vector<float> plain_slice(const io::Checkpoint& parent, const std::string& matrix,
                               int64_t slice, int64_t granularity) {
  const auto whole = floats(parent, kLayer + matrix + ".weight");
  const int64_t width = kWidth / granularity;
  const bool is_down = matrix == "down_proj";
  std::vector<float> part;
  for (int64_t row = 0; row < (is_down ? kHidden : width); ++row) {
    for (int64_t column = 0; column < (is_down ? width : kHidden); ++column) {
      const int64_t at = is_down ? row * kWidth + slice * width + column
                                 : (slice * width + row) * kHidden + column;
      part.push_back(whole[static_cast<size_t>(at)] *
                     (is_down ? static_cast<float>(granularity) : 1.0F));
    }
  }
  return part;
}

std::vector<float> slice_of_matrices(const io::Checkpoint& parent, int64_t slice,
                                     int64_t granularity) {
  std::vector<float> all;
  for (const char* matrix : kMatrices) {
    const auto part = plain_slice(parent, matrix, slice, granularity);
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

std::string expert_name(int64_t expert, const std::string& matrix) {
  return fmt::format("{}experts.{}.{}.weight", kLayer, expert, matrix);
}

// Returns the three matrices of an expert, one after another.
std::vector<float> expert_matrices(const io::Checkpoint& mixture, int64_t expert) {
  std::vector<float> all;
  for (const char* matrix : kMatrices) {
    const auto part = floats(mixture, expert_name(expert, matrix));
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

TEST_CASE("an expert is a slice of the feed-forward, down times G; a group has one router row",
          "[model][upcycle]") {
  for (const auto dtype : {io::DType::kF32, io::DType::kBF16, io::DType::kF16}) {
    const TempDir dir;
    test::write_tiny_checkpoint(dir / "dense", {.dtype = dtype});
    const io::Checkpoint dense(dir / "dense"), coarse = upcycled(dir, "1", settings_for(1));
    const auto rows = floats(coarse, kLayer + "gate.weight");
    for (const int64_t granularity : {2, 3, 4, 8, 24}) {
      INFO(io::dtype_name(dtype) << " G " << granularity);
      if (dtype != io::DType::kF32 && kWidth % granularity == 0 && granularity % 3 == 0) {
        continue;  // refused, as tested below
      }
      const io::Checkpoint fine =
          upcycled(dir, fmt::format("{}", granularity), settings_for(granularity));
      const ModelConfig config = parse_config(fine.config(), "fine");
      CHECK(config.moe->granularity == granularity);
      CHECK(fine.config()["num_experts"] == 4 * granularity);
      CHECK(fine.config()["num_experts_per_tok"] == 2 * granularity);
      CHECK(fine.config()["moe_intermediate_size"] == kWidth / granularity);
      CHECK(config.moe->ep_ranks == 4);
      const auto fine_rows = floats(fine, kLayer + "gate.weight");
      REQUIRE(fine_rows.size() == rows.size() * static_cast<size_t>(granularity));
      for (int64_t expert = 0; expert < 4 * granularity; ++expert) {
        CHECK(fine.info(expert_name(expert, "down_proj")).dtype == dtype);
        CHECK(expert_matrices(fine, expert) ==
              slice_of_matrices(dense, expert % granularity, granularity));
        CHECK(std::equal(fine_rows.begin() + expert * kHidden,
                         fine_rows.begin() + (expert + 1) * kHidden,
                         rows.begin() + expert / granularity * kHidden));
      }
      // Other tensors have the parent's bytes.
      for (const char* name : {"model.layers.0.self_attn.o_proj.weight",
                               "model.layers.1.mlp.down_proj.weight", "lm_head.weight"}) {
        CHECK(test::same_bytes(fine.bytes(name), dense.bytes(name)));
      }
    }
  }
}

TEST_CASE("slices are converted after they are multiplied", "[model][upcycle]") {
  const TempDir dir;
  test::write_tiny_checkpoint(dir / "dense");
  const io::Checkpoint dense(dir / "dense");
  UpcycleSettings settings = settings_for(4);
  settings.dtype = io::DType::kBF16;
  const io::Checkpoint fine = upcycled(dir, "fine", settings);
  auto expected = slice_of_matrices(dense, 3, 4);
  for (float& value : expected) {
    value = bf16_to_float(test::to_bf16(value));
  }
  CHECK(expert_matrices(fine, 7) == expected);
  // A matrix larger than a block, of strided rows.
  test::write_tiny_checkpoint(dir / "wide", {.hidden = 1200, .intermediate = 2000, .layers = 1});
  UpcycleSettings large = settings_for(2, "top1:cf=inf");
  large.experts = 1;
  large.out = dir / "large";
  const test::Upcycled pair(dir / "wide", large);
  const auto whole = floats(pair.dense, kLayer + "down_proj.weight");
  const auto part = floats(pair.child, expert_name(1, "down_proj"));
  REQUIRE(part.size() == 1200 * 1000);
  size_t same = 0;
  for (size_t i = 0; i < part.size(); ++i) {
    same += part[i] == 2 * whole[i / 1000 * 2000 + 1000 + i % 1000] ? 1 : 0;
  }
  CHECK(same == part.size());
}

Certificate compare(const io::Checkpoint& parent, const io::Checkpoint& child) {
  return verify_equality(parent, child, verify_text(io::Checkpoint(parent.folder()), "", 200));
}

TEST_CASE("dropless slices keep the parent's function, for any G and k", "[model][upcycle]") {
  const TempDir dir;
  for (const int64_t granularity : {1, 2, 3, 4, 12}) {
    for (const char* router : {"top1:cf=inf", "top2:cf=inf", "top2+ir:cf=inf", "top4:cf=inf",
                               "top2:bias=0.001,cf=inf", "top2:cf=inf,lb=selected"}) {
      for (const std::optional<double> router_std : {std::optional<double>(), {0.0}}) {
        INFO(router << " G " << granularity << " tied rows " << router_std.has_value());
        UpcycleSettings settings = settings_for(granularity, router);
        settings.layers = "all";
        settings.router_std = router_std;
        const io::Checkpoint fine = upcycled(dir, "fine", settings);
        const Certificate certificate = compare(io::Checkpoint(dir / "dense"), fine);
        CHECK(certificate.verdict == Verdict::kIdentical);
        CHECK(certificate.max_abs_logit_difference < 1e-5);  // f32 rounding on logits of order 1
      }
    }
  }
  // Without the factor of down_proj the function changes.
  const io::Checkpoint fine = upcycled(dir, "unscaled", settings_for(2));
  std::vector<io::TensorSource> halved;
  for (const auto& info : fine.tensors()) {
    halved.push_back({info, [&fine, info](io::SafetensorsWriter& writer) {
                        auto values = floats(fine, info.name);
                        const bool is_down = info.name.find(".experts.") != std::string::npos &&
                                             info.name.ends_with("down_proj.weight");
                        for (float& value : values) {
                          value /= is_down ? 2 : 1;
                        }
                        writer.write(std::as_bytes(std::span(values)));
                      }});
  }
  std::filesystem::create_directory(dir / "halved");
  std::filesystem::copy(dir / "unscaled/config.json", dir / "halved/config.json");
  io::write_tensors(dir / "halved", halved, uint64_t{1} << 40);
  CHECK(compare(io::Checkpoint(dir / "dense"), io::Checkpoint(dir / "halved"))
            .max_abs_logit_difference > 1e-3);
}

TEST_CASE("equal rows of a router give equal logits, bit for bit", "[model][upcycle]") {
  at::manual_seed(1);
  for (const int64_t hidden : {16, 100, 256}) {
    for (const auto& [groups, slices] :
         std::vector<std::pair<int64_t, int64_t>>{{4, 4}, {8, 2}, {8, 3}, {7, 5}, {16, 8}}) {
      for (const int64_t tokens : {6, 7, 64, 301}) {
        INFO(hidden << " " << groups << "x" << slices << " " << tokens);
        const at::Tensor router = at::randn({groups, hidden}).repeat_interleave(slices, 0);
        const at::Tensor logits = kernels::linear_in_f32(at::randn({tokens, hidden}), router);
        const at::Tensor by_group = logits.view({tokens, groups, slices});
        CHECK(by_group.eq(by_group.narrow(2, 0, 1)).all().item<bool>());
      }
    }
  }
}

TEST_CASE("capacity drops whole groups: finer experts drop what whole ones drop",
          "[model][upcycle]") {
  const TempDir dir;
  for (const int64_t granularity : {4, 6}) {
    for (const char* router : {"top1:cf=0.5", "top2:cf=0.5", "top2", "top2:cf=1,order=score"}) {
      for (const int64_t ranks : {1, 2, 4}) {
        INFO(router << " G " << granularity << " ranks " << ranks);
        UpcycleSettings settings = settings_for(1, router);
        settings.ep_ranks = ranks;
        const io::Checkpoint coarse = upcycled(dir, "coarse", settings);
        settings.granularity = granularity;
        const io::Checkpoint fine = upcycled(dir, "fine", settings);
        const Certificate between = compare(coarse, fine);
        CHECK(between.max_abs_logit_difference < 1e-5);
        CHECK(between.dropped_share > 0);
        const Certificate to_dense = compare(io::Checkpoint(dir / "dense"), fine);
        CHECK(to_dense.max_abs_logit_difference > 1e-4);
        CHECK(to_dense.verdict != Verdict::kIdentical);
        CHECK_THAT(to_dense.words, contains_text("cf=inf"));
      }
    }
  }
}

TEST_CASE("upcycling reports which routers do not preserve the function with finer experts",
          "[model][upcycle]") {
  const TempDir dir;
  for (const auto& [router, words] : {std::pair{"top2+fr:cf=inf", "+fr"},
                                      {"top1+ir+fr", "+fr"},
                                      {"top2+ir:cf=0.5", "+ir"},
                                      {"topp:0.4", "top-p"},
                                      {"top2:cf=inf,gate=none", "gate=none"}}) {
    INFO(router);
    UpcycleSettings settings = settings_for(4, router);
    const io::Checkpoint fine = upcycled(dir, "fine", settings);
    const Certificate certificate = compare(io::Checkpoint(dir / "dense"), fine);
    CHECK(certificate.verdict != Verdict::kIdentical);
    CHECK_THAT(certificate.words, contains_text(words));
    CHECK(certificate.max_abs_logit_difference > 1e-4);
    const Json report = read_json(dir / "fine/upcycle.json");
    CHECK(report["preserves_function"]["exact"] == false);
    CHECK_THAT(report["preserves_function"]["words"].get<std::string>(), contains_text(words));
    CHECK(report["granularity"] == 4);
    CHECK(report["experts"] == 16);
  }
  MoeConfig moe;
  moe.granularity = 2;
  moe.router = route::parse_router("top2:cf=inf");
  CHECK(preserves_function(moe, 1.0).exact);
  CHECK_THAT(preserves_function(moe, 2.0).words, contains_text("gate_scale 2"));
  moe.granularity = 1;
  moe.router = route::parse_router("top2+ir+fr");
  CHECK(preserves_function(moe, 1.0).exact);
}

TEST_CASE("a gate_scale of 1 / G of that of whole experts gives the same function",
          "[model][upcycle]") {
  // Every slice has the weight of its group, so that the weights of a token sum to G times as much.
  const TempDir dir;
  for (const int64_t granularity : {1, 4}) {
    UpcycleSettings settings = settings_for(granularity, "relu:k=1");
    settings.router_std = 0.5;
    settings.gate_scale = granularity == 1 ? 0.8 : 0.2;
    upcycled(dir, fmt::format("{}", granularity), settings);
  }
  CHECK(compare(io::Checkpoint(dir / "1"), io::Checkpoint(dir / "4")).max_abs_logit_difference <
        1e-5);
}

TEST_CASE("each slice is varied independently", "[model][upcycle]") {
  const TempDir dir;
  test::write_tiny_checkpoint(dir / "dense");
  const io::Checkpoint dense(dir / "dense");
  UpcycleSettings settings = settings_for(2);
  settings.vary = parse_variation("drop:0.5");
  const io::Checkpoint fine = upcycled(dir, "fine", settings);
  for (int64_t expert = 0; expert < 8; ++expert) {
    std::vector<std::vector<bool>> changed(3, std::vector<bool>(12, false));
    for (size_t m = 0; m < 3; ++m) {
      const auto mine = floats(fine, expert_name(expert, kMatrices[m]));
      const auto theirs = plain_slice(dense, kMatrices[m], expert % 2, 2);
      for (size_t i = 0; i < mine.size(); ++i) {
        if (mine[i] != theirs[i]) {
          changed[m][m == 2 ? i % 12 : i / kHidden] = true;
        }
      }
    }
    CHECK(std::count(changed[0].begin(), changed[0].end(), true) == 6);
    CHECK(changed[1] == changed[0]);
    CHECK(changed[2] == changed[0]);
  }
  settings.vary = parse_variation("drop:0.08");  // one of 24, none of 12
  settings.out = dir / "few";
  CHECK_THAT(user_error_of([&] { plan_upcycle(dense, settings); }),
             contains_text("--vary drop:0.08") && contains_text("12 dimensions"));
}

TEST_CASE("slices come from the parent of their group", "[model][upcycle]") {
  const TempDir dir;
  test::write_tiny_checkpoint(dir / "dense");
  test::write_tiny_checkpoint(dir / "code", {.seed = 2});
  test::write_tiny_checkpoint(dir / "math", {.seed = 3});
  UpcycleSettings settings = settings_for(3);
  settings.expert_parents = {{dir / "code", 1}, {dir / "math", 2}};
  settings.experts = 3;
  settings.mean_rest = true;
  const io::Checkpoint fine = upcycled(dir, "fine", settings);
  const io::Checkpoint code(dir / "code"), math(dir / "math");
  for (int64_t expert = 0; expert < 9; ++expert) {
    CHECK(expert_matrices(fine, expert) ==
          slice_of_matrices(expert < 3 ? code : math, expert % 3, 3));
  }
  const Json report = read_json(dir / "fine/upcycle.json");
  CHECK(report["experts_from"][0]["experts"] == Json({0, 1, 2}));
  CHECK(report["experts_from"][1]["experts"] == Json({3, 4, 5, 6, 7, 8}));
}

TEST_CASE("finer experts are compared slice by slice", "[model][inspect]") {
  const TempDir dir;
  const io::Checkpoint copies = upcycled(dir, "copies", settings_for(4));
  const io::Checkpoint dense(dir / "dense");
  const auto plain = expert_distances(copies, dense);
  REQUIRE(plain.size() == 2);
  CHECK(plain[0].between_experts == Approx(1).margin(1e-12));
  CHECK(plain[0].to_other == Approx(1).margin(1e-12));
  CHECK(plain[0].between_routers < 0.9);  // of the four groups
  const auto coarse = expert_distances(upcycled(dir, "coarse", settings_for(1)), dense);
  CHECK(plain[0].between_routers == Approx(coarse[0].between_routers).margin(1e-9));

  UpcycleSettings settings = settings_for(2);
  settings.vary = parse_variation("noise:1");
  const io::Checkpoint varied = upcycled(dir, "varied", settings);
  double between = 0, to_parent = 0;
  for (int64_t a = 0; a < 8; ++a) {
    to_parent += cosine(expert_matrices(varied, a), slice_of_matrices(dense, a % 2, 2)) / 8;
    for (int64_t b = 0; b < 8; ++b) {
      between += a != b && a % 2 == b % 2
                     ? cosine(expert_matrices(varied, a), expert_matrices(varied, b)) / (8 * 3)
                     : 0;
    }
  }
  const auto found = expert_distances(varied, dense);
  CHECK(found[0].between_experts == Approx(between).margin(1e-9));
  CHECK(found[0].to_other == Approx(to_parent).margin(1e-9));
  CHECK(expert_distances(varied, varied)[0].to_other == Approx(1).margin(1e-12));

  test::write_tiny_checkpoint(dir / "narrow", {.intermediate = 12});
  CHECK_THAT(user_error_of([&] { expert_distances(varied, io::Checkpoint(dir / "narrow")); }),
             contains_text("the experts of layer 0 have width 24"));
}

TEST_CASE("a granularity that is impossible or would round is refused, and nothing is written",
          "[model][upcycle]") {
  const TempDir dir;
  test::write_tiny_checkpoint(dir / "dense");
  test::write_tiny_checkpoint(dir / "bf16", {.dtype = io::DType::kBF16});
  test::write_tiny_checkpoint(dir / "fp16", {.dtype = io::DType::kF16, .std = 10000});
  const auto error = [&](const char* parent, const std::function<void(UpcycleSettings&)>& change) {
    UpcycleSettings settings = settings_for(2);
    settings.out = dir / "out";
    change(settings);
    const std::string words = user_error_of([&] { test::Upcycled(dir / parent, settings); });
    CHECK(std::filesystem::exists(dir / "out") == words.empty());
    std::filesystem::remove_all(dir / "out");
    return words;
  };
  const auto by = [](int64_t granularity, std::optional<io::DType> dtype = {}) {
    return [=](UpcycleSettings& settings) {
      settings.granularity = granularity;
      settings.dtype = dtype;
    };
  };
  for (const int64_t granularity : {-1, 0, 5, 48, 1 << 30}) {
    CHECK_THAT(
        error("dense", by(granularity)),
        contains_text(fmt::format("--granularity {}", granularity)) && contains_text("24 wide"));
  }
  CHECK_THAT(error("dense", [](auto& s) { s.experts = 65536; }),
             contains_text("--experts 65536 with --granularity 2"));
  CHECK_THAT(error("dense", [](auto& s) { s.router = route::parse_router("top5"); }),
             contains_text("'top5' asks for 5 experts per token, the layers have 4"));
  CHECK_THAT(error("dense", [](auto& s) { s.ep_ranks = 3; }),
             contains_text("--ep-ranks 3: 8 experts"));
  CHECK(error("dense", [](auto& s) { s.ep_ranks = 8; }).empty());
  CHECK(error("dense", by(3)).empty());
  CHECK_THAT(error("bf16", by(3)),
             contains_text("--granularity 3") && contains_text("stored in bfloat16"));
  CHECK_THAT(error("dense", by(3, io::DType::kBF16)), contains_text("stored in bfloat16"));
  CHECK(error("bf16", by(3, io::DType::kF32)).empty());
  // A weight near the largest fp16 is found when it is multiplied.
  CHECK_THAT(error("fp16", by(8)),
             contains_text("down_proj.weight: 8 times") && contains_text("beyond fp16"));
}

}  // namespace
}  // namespace moe::model
