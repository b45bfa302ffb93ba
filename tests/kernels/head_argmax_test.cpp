#include "kernels/ops/head_argmax.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <limits>
#include <vector>

#include "kernels/ops/linear.h"
#include "tests/support/catch.h"

using at::Tensor;
using moe::kernels::HeadArgmax;

namespace {

// The slow way: all logits in f32, of every row by itself.
std::vector<int64_t> by_whole_logits(const Tensor& hidden, const Tensor& weight) {
  std::vector<int64_t> tokens;
  for (int64_t row = 0; row < hidden.size(0); ++row) {
    const Tensor logits = moe::kernels::linear_to_f32(hidden.narrow(0, row, 1), weight);
    const float* numbers = logits.const_data_ptr<float>();
    int64_t largest = 0;
    for (int64_t j = 1; j < weight.size(0); ++j) {
      const bool is_first_number = !(numbers[largest] == numbers[largest]);
      largest = numbers[j] > numbers[largest] || (is_first_number && numbers[j] == numbers[j])
                    ? j
                    : largest;
    }
    tokens.push_back(largest);
  }
  return tokens;
}

void check(const Tensor& hidden, const Tensor& weight) {
  if (!HeadArgmax::serves(weight)) {
    MOE_SKIP("this processor does not multiply bf16");
  }
  const HeadArgmax argmax(weight);
  const auto expected = by_whole_logits(hidden, weight);
  const int threads = at::get_num_threads();
  for (const int count : {1, 2, 3}) {
    at::set_num_threads(count);
    CHECK(argmax(hidden) == expected);
  }
  at::set_num_threads(threads);
}

Tensor bf16_weight(int64_t vocabulary, int64_t width) {
  return (at::randn({vocabulary, width}) / 8).to(at::kBFloat16);
}

}  // namespace

TEST_CASE("the likeliest tokens are those of whole logits in f32", "[kernels]") {
  at::manual_seed(1);
  for (const int64_t rows : {0, 1, 31, 33, 48}) {
    for (const auto& [vocabulary, width] : std::vector<std::pair<int64_t, int64_t>>{
             {1, 1}, {7, 33}, {513, 64}, {2100, 257}, {3000, 600}}) {
      CAPTURE(rows, vocabulary, width);
      check(at::randn({rows, width}), bf16_weight(vocabulary, width));
    }
  }
}

// In bf16 every number of a row is 1, and every column has the same numbers in another order: what
// tells their logits apart is what bf16 rounds away. Few columns are computed one by one, many all.
TEST_CASE("logits that are equal in bf16 are told apart by f32", "[kernels]") {
  at::manual_seed(2);
  const int64_t width = 64;
  const Tensor hidden = 1 + at::rand({33, width}) * 0x1p-10;
  const Tensor base = at::randn({width});
  for (const int64_t vocabulary : {50, 900}) {
    std::vector<Tensor> columns;
    for (int64_t j = 0; j < vocabulary; ++j) {
      columns.push_back(base.index_select(0, at::randperm(width)));
    }
    const Tensor weight = at::stack(columns).to(at::kBFloat16);
    check(hidden, weight);
    const Tensor rounded = hidden.to(at::kBFloat16).to(at::kFloat);
    CHECK(by_whole_logits(hidden, weight) != by_whole_logits(rounded, weight));
  }
}

TEST_CASE("of equal logits the first is taken, were they all equal", "[kernels]") {
  at::manual_seed(3);
  const Tensor hidden = at::randn({9, 40});
  const Tensor some = bf16_weight(300, 40);
  check(hidden, at::cat({some, some.flip({0}), some}));
  check(hidden, some.narrow(0, 0, 1).expand({1500, 40}).contiguous());
  check(at::zeros({9, 40}), some);
}

TEST_CASE("numbers that bf16 cannot hold, or no sum, are left to f32", "[kernels]") {
  at::manual_seed(4);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float odd : {nan, infinity, -infinity, 3.4e38F, 1e30F, 1e-30F, 1e-42F}) {
    CAPTURE(odd);
    Tensor hidden = at::randn({8, 24});
    hidden[3][5] = odd;
    hidden[4].fill_(odd);
    Tensor weight = bf16_weight(700, 24);
    check(hidden, weight);
    weight[600][7] = odd;
    check(hidden, weight);
  }
  for (const double scale : {1e-25, 1e25}) {
    check(at::randn({8, 24}) * scale, (at::randn({700, 24}) * scale).to(at::kBFloat16));
  }
}

TEST_CASE("a head whose weight is not bf16 on the CPU is not served", "[kernels]") {
  CHECK_FALSE(HeadArgmax::serves(at::zeros({8, 8})));
  CHECK_FALSE(HeadArgmax::serves(at::zeros({8, 8}, at::kHalf)));
  CHECK_FALSE(HeadArgmax::serves(at::zeros({0, 8}, at::kBFloat16)));
  CHECK_THROWS(HeadArgmax(at::zeros({8, 8})));
}
