#include "core/base/random.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include "tests/support/catch.h"

namespace moe {
namespace {

TEST_CASE("Equal seeds and streams give equal numbers, others different ones", "[base][random]") {
  Random a(1, "x"), again(1, "x"), other_seed(2, "x"), other_stream(1, "y");
  std::set<uint64_t> seen;
  for (int i = 0; i < 100; ++i) {
    const uint64_t drawn = a.bits();
    CHECK(drawn == again.bits());
    seen.insert({drawn, other_seed.bits(), other_stream.bits()});
  }
  CHECK(seen.size() == 300);
}

TEST_CASE("The numbers are equal on every machine", "[base][random]") {
  // Computed in Python from the definitions of splitmix64, FNV-1a and xoshiro256++.
  Random random(1, "model.layers.0.mlp.gate.weight");
  CHECK(random.bits() == 0xa466d2c1529d4c94ULL);
}

TEST_CASE("Normal numbers have the moments of N(0, 1)", "[base][random]") {
  Random random(3, "moments");
  constexpr int kCount = 1'000'000;
  double sum = 0, square = 0, cube = 0, fourth = 0;
  int beyond_tail = 0;
  for (int i = 0; i < kCount; ++i) {
    const double x = random.normal();
    sum += x;
    square += x * x;
    cube += x * x * x;
    fourth += x * x * x * x;
    beyond_tail += std::abs(x) > 3.6541528853610088 ? 1 : 0;
  }
  // Five standard errors: Var(x) = 1, Var(x^2) = 2, Var(x^3) = 15, Var(x^4) = 105 - 9 = 96.
  const double five = 5.0 / std::sqrt(static_cast<double>(kCount));
  CHECK(std::abs(sum / kCount) < five);
  CHECK(std::abs(square / kCount - 1) < five * std::sqrt(2.0));
  CHECK(std::abs(cube / kCount) < five * std::sqrt(15.0));
  CHECK(std::abs(fourth / kCount - 3) < five * std::sqrt(96.0));
  // The tail beyond layer 0 of the ziggurat: P = erfc(r / sqrt 2) = 2.58e-4, about 258 numbers,
  // within five standard deviations.
  const double expected = kCount * std::erfc(3.6541528853610088 / std::sqrt(2.0));
  CHECK(std::abs(beyond_tail - expected) < 5 * std::sqrt(expected));
}

TEST_CASE("fill_normal() gives the numbers of normal()", "[base][random]") {
  Random one(5, "block"), block(5, "block");
  std::vector<float> values(100'003);
  block.fill_normal(values, 0.02);
  bool same = true;
  for (const float value : values) {
    same = same && value == static_cast<float>(one.normal() * 0.02);
  }
  CHECK(same);
  CHECK(block.bits() == one.bits());
}

TEST_CASE("Uniform numbers are in [0, 1), and below() is uniform", "[base][random]") {
  Random random(6);
  std::vector<int> counts(7);
  double smallest = 1, largest = 0;
  for (int i = 0; i < 70'000; ++i) {
    const double u = random.uniform();
    smallest = std::min(smallest, u);
    largest = std::max(largest, u);
    ++counts[random.below(7)];
  }
  CHECK(smallest >= 0);
  CHECK(smallest < 1e-3);
  CHECK(largest < 1);
  CHECK(largest > 1 - 1e-3);
  for (const int count : counts) {
    CHECK(std::abs(count - 10'000) <
          5 * std::sqrt(10'000.0));  // five standard deviations of a Poisson count
  }
  CHECK(random.below(1) == 0);
}

}  // namespace
}  // namespace moe
