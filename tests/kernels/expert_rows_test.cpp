// The references of expert_rows.h and row_gates.h by themselves: what they promise, and their
// gradients by finite differences in f64.

#include "kernels/ops/expert_rows.h"

#include "kernels/ops/row_gates.h"
#include "tests/support/catch.h"
#include "tests/support/gradcheck.h"
#include "tests/support/layout.h"

using at::Tensor;
using moe::kernels::GateRule;
using moe::kernels::GateShape;
using moe::kernels::RowsShape;

namespace {

const int32_t* ints(const Tensor& tensor) { return tensor.const_data_ptr<int32_t>(); }
double* doubles(const Tensor& tensor) { return tensor.data_ptr<double>(); }

}  // namespace

TEST_CASE("segments start at multiples of 8, hold the plan's rows and end in gaps", "[kernels]") {
  at::manual_seed(1);
  for (const int64_t tokens : {0, 1, 31, 33}) {
    const auto laid = moe::test::random_layout(tokens, 4, 2, 5);
    const auto& layout = laid.layout;
    int64_t start = 0, row = 0;
    for (int64_t expert = 0; expert < 4; ++expert) {
      const int64_t rows = laid.plan.rows[expert].item<int64_t>();
      const int64_t end = layout.ends[expert].item<int64_t>();
      CHECK(end % 8 == 0);
      CHECK(end - start >= rows);
      CHECK(end - start < rows + 8);
      for (int64_t place = start; place < end; ++place) {
        const int64_t cell = layout.origin[place].item<int64_t>();
        if (place - start >= rows) {
          CHECK(cell == -1);
          continue;
        }
        CHECK(cell / 4 == laid.plan.token[row].item<int64_t>());
        CHECK(cell % 4 == laid.plan.choice[row].item<int64_t>());
        CHECK(layout.position[cell].item<int64_t>() == place);
        CHECK(layout.expert[cell].item<int64_t>() == expert);
        CHECK(layout.times[cell].item<int64_t>() == laid.plan.count[row].item<int64_t>());
        ++row;
      }
      start = end;
    }
    CHECK((layout.position >= 0).sum().item<int64_t>() == row);
    CHECK(start <= layout.origin.size(0));
  }
}

TEST_CASE("combining has the gradients of its finite differences", "[kernels]") {
  at::manual_seed(2);
  const auto laid = moe::test::random_layout(6, 3, 2, 2);
  const int64_t width = 3, rows_count = moe::kernels::padded_rows(laid.shape.rows, 3);
  const RowsShape shape{6, 4, 3, width, rows_count};
  const Tensor rows = at::randn({rows_count, width}, at::kDouble);
  const Tensor weight = at::randn({6, 4}, at::kDouble), grad_y = at::randn({6, width}, at::kDouble);
  const auto loss = [&](const Tensor& r, const Tensor& w) {
    const Tensor y = at::empty({6, width}, at::kDouble);
    moe::kernels::combine_rows_reference(shape, ints(laid.layout.position), doubles(w), doubles(r),
                                         doubles(y));
    return (y * grad_y).sum();
  };
  const Tensor grad_rows = at::zeros_like(rows), grad_weight = at::empty_like(weight);
  moe::kernels::combine_rows_backward_reference(
      shape, ints(laid.layout.origin), ints(laid.layout.ends), doubles(weight), doubles(rows),
      doubles(grad_y), doubles(grad_rows), doubles(grad_weight));
  const auto of_rows = [&](const Tensor& r) { return loss(r, weight); };
  const auto of_weight = [&](const Tensor& w) { return loss(rows, w); };
  CHECK(moe::test::distance(grad_rows, moe::test::finite_difference(of_rows, rows)) <
        moe::test::kGradTolerance);
  CHECK(moe::test::distance(grad_weight, moe::test::finite_difference(of_weight, weight)) <
        moe::test::kGradTolerance);
}

TEST_CASE("gathering and unweighted combining are each other's transpose", "[kernels]") {
  at::manual_seed(3);
  const auto laid = moe::test::random_layout(7, 3, 1, 3);
  const int64_t rows_count = moe::kernels::padded_rows(laid.shape.rows, 3);
  const RowsShape shape{7, 3, 3, 2, rows_count};
  const Tensor x = at::randn({7, 2}, at::kDouble),
               gathered = at::zeros({rows_count, 2}, at::kDouble);
  const Tensor grad = at::randn({rows_count, 2}, at::kDouble),
               back = at::empty({7, 2}, at::kDouble);
  moe::kernels::gather_rows_reference(shape, ints(laid.layout.origin), ints(laid.layout.ends),
                                      doubles(x), doubles(gathered));
  moe::kernels::combine_rows_reference<double>(shape, ints(laid.layout.position), nullptr,
                                               doubles(grad), doubles(back));
  CHECK((gathered * grad).sum().item<double>() == Approx((x * back).sum().item<double>()));
}

TEST_CASE("gates have the gradients of their finite differences", "[kernels]") {
  at::manual_seed(4);
  const auto laid = moe::test::random_layout(9, 4, 2, 2);
  const auto &expert = laid.layout.expert, &times = laid.layout.times;
  const Tensor logits = at::randn({9, 4}, at::kDouble), upstream = at::randn({36}, at::kDouble);
  for (const auto rule : {GateRule::kSelected, GateRule::kProbability, GateRule::kPositive}) {
    const GateShape shape{9, 4, 4, rule, false};
    const Tensor weight = at::empty({36}, at::kDouble), grad = at::empty_like(logits);
    const auto loss = [&](const Tensor& a) {
      const Tensor w = at::empty({36}, at::kDouble);
      moe::kernels::row_gates_reference(shape, doubles(a), ints(expert), ints(times), doubles(w));
      return (w * upstream).sum();
    };
    moe::kernels::row_gates_reference(shape, doubles(logits), ints(expert), ints(times),
                                      doubles(weight));
    moe::kernels::row_gates_backward_reference(shape, doubles(logits), ints(expert), ints(times),
                                               doubles(weight), doubles(upstream), doubles(grad));
    CHECK(moe::test::distance(grad, moe::test::finite_difference(loss, logits)) <
          moe::test::kGradTolerance);
  }
}
