#include "core/model/convert/expert_distances.h"

#include <cmath>

#include "core/model/convert/upcycle.h"
#include "tests/support/catch.h"
#include "tests/support/foreign_checkpoint.h"
#include "tests/support/stored_numbers.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"
#include "tests/support/user_error.h"

namespace moe::model {
namespace {

using test::TempDir;
using test::user_error_of;

void make_mixture(const TempDir& dir, const std::string& name, const std::string& vary,
                  int64_t experts = 3, int64_t seed = 1) {
  const io::Checkpoint dense(dir / "dense");
  UpcycleSettings settings;
  settings.out = dir / name;
  settings.experts = experts;
  settings.router = route::parse_router("top2:cf=inf");
  settings.vary = parse_variation(vary);
  settings.seed = seed;
  upcycle(dense, plan_upcycle(dense, settings), settings);
}

std::vector<double> numbers(const io::Checkpoint& folder, const std::vector<std::string>& names) {
  std::vector<double> all;
  for (const auto& name : names) {
    const auto values = test::floats(folder, name);
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

std::vector<double> expert(const io::Checkpoint& folder, int64_t layer, const std::string& middle) {
  const std::string prefix = fmt::format("model.layers.{}.mlp.{}", layer, middle);
  return numbers(folder, {prefix + "gate_proj.weight", prefix + "up_proj.weight",
                          prefix + "down_proj.weight"});
}

double cosine(const std::vector<double>& a, const std::vector<double>& b) {
  double ab = 0, aa = 0, bb = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    ab += a[i] * b[i];
    aa += a[i] * a[i];
    bb += b[i] * b[i];
  }
  return ab / std::sqrt(aa * bb);
}

TEST_CASE("equal copies have cosine 1, varied ones what plain sums give", "[model][inspect]") {
  const TempDir dir;
  // 300 x 304 numbers a matrix: more than a block.
  test::write_tiny_checkpoint(
      dir / "dense", {.hidden = 304, .intermediate = 300, .layers = 2, .dtype = io::DType::kBF16});
  make_mixture(dir, "copies", "none");
  make_mixture(dir, "varied", "drop:0.5", 3, 7);
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

  const auto rows = numbers(varied, {"model.layers.0.mlp.gate.weight"});
  const auto others = numbers(copies, {"model.layers.0.mlp.gate.weight"});
  const auto row = [](const std::vector<double>& all, size_t i) {
    return std::vector<double>(all.begin() + static_cast<int64_t>(i * 304),
                               all.begin() + static_cast<int64_t>((i + 1) * 304));
  };
  double routers = 0, to_others = 0;
  for (size_t i = 0; i < 3; ++i) {
    routers += cosine(row(rows, i), row(rows, (i + 1) % 3)) / 3;
    to_others += cosine(row(rows, i), row(others, i)) / 3;
  }
  CHECK(against_copies[0].between_routers == Approx(routers).margin(1e-9));
  CHECK(*against_copies[0].router_to_other == Approx(to_others).margin(1e-9));
}

TEST_CASE("one expert is alike with itself alone", "[model][inspect]") {
  const TempDir dir;
  test::write_tiny_checkpoint(dir / "dense", {.layers = 1});
  const io::Checkpoint dense(dir / "dense");
  UpcycleSettings settings;
  settings.out = dir / "one";
  settings.experts = 1;
  settings.router = route::parse_router("top1");
  upcycle(dense, plan_upcycle(dense, settings), settings);
  const auto found = expert_distances(io::Checkpoint(dir / "one"), dense);
  CHECK(found.at(0).between_experts == 1);
  CHECK(found.at(0).to_other == Approx(1).margin(1e-12));
}

TEST_CASE("what cannot be compared is said with both folders", "[model][inspect]") {
  const TempDir dir;
  test::write_tiny_checkpoint(dir / "dense", {});
  test::write_tiny_checkpoint(dir / "wide", {.hidden = 32});
  test::write_tiny_checkpoint(dir / "narrow", {.intermediate = 12});
  test::write_tiny_checkpoint(dir / "short", {.layers = 2});
  make_mixture(dir, "three", "none", 3);
  make_mixture(dir, "four", "none", 4);
  const auto words = [&](const char* first, const char* second) {
    return user_error_of(
        [&] { expert_distances(io::Checkpoint(dir / first), io::Checkpoint(dir / second)); });
  };
  const auto both = [&](const char* first, const char* second) {
    return fmt::format("{} and {}: ", (dir / first).string(), (dir / second).string());
  };
  CHECK(words("dense", "three") ==
        both("dense", "three") +
            "the first is a dense folder; experts are compared, so a mixture stands first");
  CHECK(words("three", "wide") == both("three", "wide") + "widths 16 and 32 cannot be compared");
  CHECK(words("three", "narrow") ==
        both("three", "narrow") +
            "the experts of layer 0 have width 24, what they are compared with 12");
  CHECK(words("three", "short") == both("three", "short") + "layer 2 is in the first alone");
  CHECK(words("three", "four") == both("three", "four") + "layer 0 has 3 experts and 4");
}

}  // namespace
}  // namespace moe::model
