// Finer experts (slices of a feed-forward) against slices of the parent's matrices, and against the
// mixture of whole feed-forwards with the same routers.

#include <bit>

#include "core/model/moe/layer.h"
#include "core/upcycle/expert_sources.h"
#include "core/upcycle/inspect.h"
#include "core/upcycle/verify.h"
#include "tests/core/upcycle/upcycled.h"
#include "tests/support/stored_numbers.h"
#include "tests/support/tiny_checkpoint.h"
#include "tests/support/user_error.h"

namespace moe::model {
namespace {

using namespace moe::test;

constexpr int64_t kWidth = 24, kHidden = 16;  // of write_tiny_checkpoint()
const std::string kLayer = "model.layers.0.mlp.";
const char* const kMatrices[] = {"gate_proj", "up_proj", "down_proj"};

UpcycleSettings settings_for(int64_t granularity, const std::string& router = "top2:cf=inf") {
  UpcycleSettings settings = upcycle_settings({}, router);
  settings.granularity = granularity;
  settings.force = true;
  return settings;
}

// Upcycles dir/dense, which is written if it is absent, to dir/name.
io::Checkpoint upcycled(const TempDir& dir, const std::string& name, UpcycleSettings settings) {
  if (!std::filesystem::exists(dir / "dense")) {
    write_tiny_checkpoint(dir / "dense");
  }
  settings.out = dir / name;
  return Upcycled(dir / "dense", settings).child;
}

// Returns slice `slice` of the three matrices of the parent, one after another.
std::vector<float> slice_of_matrices(const io::Checkpoint& parent, int64_t slice,
                                     int64_t granularity) {
  const int64_t width = kWidth / granularity;
  std::vector<at::Tensor> parts;
  for (const std::string matrix : kMatrices) {
    const at::Tensor whole = at::tensor(floats(parent, kLayer + matrix + ".weight"));
    const bool is_down = matrix == "down_proj";
    const std::vector<int64_t> shape = {is_down ? kHidden : kWidth, is_down ? kWidth : kHidden};
    const at::Tensor part = whole.view(shape).narrow(is_down ? 1 : 0, slice * width, width);
    parts.push_back((is_down ? part * static_cast<double>(granularity) : part).reshape({-1}));
  }
  const at::Tensor all = at::cat(parts);
  return {all.data_ptr<float>(), all.data_ptr<float>() + all.numel()};
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

TEST_CASE("an expert is a slice of the feed-forward, down times G; a group has one router row") {
  for (const auto dtype : {io::DType::kF32, io::DType::kBF16, io::DType::kF16}) {
    const TempDir dir;
    write_tiny_checkpoint(dir / "dense", {.dtype = dtype});
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
        CHECK(same_bytes(fine.bytes(name), dense.bytes(name)));
      }
    }
  }
}

TEST_CASE("slices are converted after they are multiplied") {
  const TempDir dir;
  write_tiny_checkpoint(dir / "dense");
  const io::Checkpoint dense(dir / "dense");
  UpcycleSettings settings = settings_for(4);
  settings.dtype = io::DType::kBF16;
  const io::Checkpoint fine = upcycled(dir, "fine", settings);
  auto expected = slice_of_matrices(dense, 3, 4);
  for (float& value : expected) {
    value = std::bit_cast<float>(uint32_t{to_bf16(value)} << 16);
  }
  CHECK(expert_matrices(fine, 7) == expected);
}

Certificate compare(const io::Checkpoint& parent, const io::Checkpoint& child) {
  return verify_equality(parent, child, verify_text(io::Checkpoint(parent.folder()), "", 200));
}

TEST_CASE("dropless slices keep the parent's function, for any G and k") {
  const TempDir dir;
  struct Case {
    int64_t granularity;
    const char* router;
    std::optional<double> router_std;
  };
  for (const auto& [granularity, router, router_std] :
       {Case{1, "top2+ir:cf=inf", 0.0}, Case{2, "top4:cf=inf", {}}, Case{3, "top1:cf=inf", {}},
        Case{4, "top2:bias=0.001,cf=inf", 0.0}, Case{12, "top2:cf=inf,lb=selected", {}},
        Case{12, "top2+ir:cf=inf", 0.0}}) {
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

TEST_CASE("capacity drops whole groups: finer experts drop what whole ones drop") {
  const TempDir dir;
  struct Case {
    int64_t granularity, ranks;
    const char* router;
  };
  for (const auto& [granularity, ranks, router] :
       {Case{4, 1, "top1:cf=0.5"}, Case{4, 4, "top2"}, Case{6, 2, "top2:cf=1,order=score"}}) {
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
  }
}

TEST_CASE("upcycling reports which routers do not preserve the function with finer experts") {
  const TempDir dir;
  for (const auto& [router, words] : {std::pair{"top2+fr:cf=inf", "+fr"},
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
  }
}

TEST_CASE("slices come from the parent of their group") {
  const TempDir dir;
  write_tiny_checkpoint(dir / "dense");
  write_tiny_checkpoint(dir / "code", {.seed = 2});
  write_tiny_checkpoint(dir / "math", {.seed = 3});
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

TEST_CASE("finer experts are compared slice by slice") {
  const TempDir dir;
  write_tiny_checkpoint(dir / "dense");
  const io::Checkpoint dense(dir / "dense");
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
}

TEST_CASE("a granularity that is impossible or would round is refused, and nothing is written") {
  const TempDir dir;
  write_tiny_checkpoint(dir / "dense");
  write_tiny_checkpoint(dir / "bf16", {.dtype = io::DType::kBF16});
  write_tiny_checkpoint(dir / "fp16", {.dtype = io::DType::kF16, .std = 10000});
  const auto error = [&](const char* parent, const std::function<void(UpcycleSettings&)>& change) {
    UpcycleSettings settings = settings_for(2);
    settings.out = dir / "out";
    change(settings);
    const std::string words = user_error_of([&] { Upcycled(dir / parent, settings); });
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
  for (const int64_t granularity : {0, 5, 48}) {
    CHECK_THAT(
        error("dense", by(granularity)),
        contains_text(fmt::format("--granularity {}", granularity)) && contains_text("width 24"));
  }
  CHECK_THAT(error("dense", [](auto& s) { s.experts = 65536; }),
             contains_text("--experts 65536 with --granularity 2"));
  CHECK(error("dense", [](auto& s) { s.ep_ranks = 8; }).empty());
  CHECK(error("dense", by(3)).empty());
  CHECK_THAT(error("bf16", by(3)),
             contains_text("--granularity 3") && contains_text("stored in bfloat16"));
  CHECK(error("bf16", by(3, io::DType::kF32)).empty());
  // A weight near the fp16 maximum overflows when it is multiplied by G.
  CHECK_THAT(error("fp16", by(8)),
             contains_text("down_proj.weight: 8 times") && contains_text("range of fp16"));
}

}  // namespace
}  // namespace moe::model
