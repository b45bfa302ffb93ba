#include "kernels/ops/expert_rows.h"

#include "tests/support/card.h"
#include "tests/support/layout.h"

using at::Tensor;
using moe::kernels::RowsShape;
using moe::test::Laid;
using moe::test::poisoned;
using moe::test::stream_of;
using moe::test::to_card;

namespace {

void check_layout(const Laid& laid) {
  const auto& plan = laid.plan;
  const moe::test::SelectedTensors there{to_card(plan.token),
                                         to_card(plan.expert),
                                         to_card(plan.choice),
                                         to_card(plan.count),
                                         to_card(plan.rows),
                                         {},
                                         {},
                                         {}};
  const auto actual = moe::test::layout_room(laid.shape, there.token);
  moe::kernels::lay_out_cuda(laid.shape, moe::test::plan_rows(there), actual.memory(),
                             stream_of(there.token));
  CHECK(at::equal(actual.origin.cpu(), laid.layout.origin));
  CHECK(at::equal(actual.position.cpu(), laid.layout.position));
  CHECK(at::equal(actual.expert.cpu(), laid.layout.expert));
  CHECK(at::equal(actual.times.cpu(), laid.layout.times));
  CHECK(at::equal(actual.ends.cpu(), laid.layout.ends));
}

RowsShape rows_shape(const Laid& laid, int64_t width) {
  const auto& shape = laid.shape;
  return {shape.tokens, shape.columns, shape.experts, width,
          moe::kernels::padded_rows(shape.rows, shape.experts)};
}

Tensor exact_in_bf16(at::IntArrayRef shape) {
  return at::randn(shape).to(at::kBFloat16).to(at::kFloat);
}

const int32_t* ints(const Tensor& tensor) { return tensor.const_data_ptr<int32_t>(); }
const float* floats(const Tensor& tensor) { return tensor.const_data_ptr<float>(); }

void check_moves(const Laid& laid, int64_t width, at::ScalarType type) {
  const RowsShape shape = rows_shape(laid, width);
  const bool is_bf16 = type == at::kBFloat16;
  const Tensor origin = to_card(laid.layout.origin), position = to_card(laid.layout.position);
  const Tensor ends = to_card(laid.layout.ends);
  const int64_t used = laid.layout.ends[-1].item<int64_t>();
  const auto same_rows = [&](const Tensor& actual, const Tensor& expected, double epsilon) {
    return at::allclose(actual.cpu().to(at::kFloat).narrow(0, 0, used), expected.narrow(0, 0, used),
                        epsilon, 0);
  };

  const Tensor x = exact_in_bf16({shape.tokens, width}), gathered = at::empty({shape.rows, width});
  moe::kernels::gather_rows_reference(shape, ints(laid.layout.origin), ints(laid.layout.ends),
                                      floats(x), gathered.data_ptr<float>());
  const Tensor in = to_card(x.to(type)), out = poisoned({shape.rows, width}, type);
  moe::kernels::gather_rows_cuda(shape, ints(origin), ints(ends), in.const_data_ptr(),
                                 out.data_ptr(), is_bf16, stream_of(in));
  CHECK(same_rows(out, gathered, 0));  // copies

  const Tensor rows = exact_in_bf16({shape.rows, width});
  const Tensor weight = at::randn({shape.tokens, shape.columns});
  const Tensor rows_there = to_card(rows.to(type)), weight_there = to_card(weight);
  for (const bool weighs : {true, false}) {
    const Tensor expected = at::empty({shape.tokens, width});
    moe::kernels::combine_rows_reference(shape, ints(laid.layout.position),
                                         weighs ? floats(weight) : nullptr, floats(rows),
                                         expected.data_ptr<float>());
    const auto y_type = weighs ? at::kFloat : type;
    const Tensor y = poisoned({shape.tokens, width}, y_type);
    moe::kernels::combine_rows_cuda(shape, ints(position), weighs ? floats(weight_there) : nullptr,
                                    rows_there.const_data_ptr(), y.data_ptr(), is_bf16,
                                    y_type == at::kBFloat16, stream_of(rows_there));
    // Four products and sums of numbers below 20; bf16: one more rounding, of 2^-9.
    CHECK(at::allclose(y.cpu().to(at::kFloat), expected,
                       y_type == at::kBFloat16 ? 1.0 / (1 << 8) : 1e-6, 1e-5));
  }

  const Tensor grad_y = exact_in_bf16({shape.tokens, width});
  const Tensor grad_rows = at::empty({shape.rows, width}), grad_weight = at::empty_like(weight);
  moe::kernels::combine_rows_backward_reference(
      shape, ints(laid.layout.origin), ints(laid.layout.ends), floats(weight), floats(rows),
      floats(grad_y), grad_rows.data_ptr<float>(), grad_weight.data_ptr<float>());
  const Tensor upstream = to_card(grad_y), to_rows = poisoned({shape.rows, width}, type);
  const Tensor to_weight = poisoned(weight.sizes(), at::kFloat);
  moe::kernels::combine_rows_backward_cuda(shape, ints(origin), ints(ends), floats(weight_there),
                                           rows_there.const_data_ptr(), floats(upstream),
                                           to_rows.data_ptr(), to_weight.data_ptr<float>(), is_bf16,
                                           stream_of(upstream));
  CHECK(same_rows(to_rows, grad_rows, is_bf16 ? 1.0 / (1 << 8) : 1e-6));
  // A lane adds width / 32 products below 16, then 5 levels.
  CHECK(at::allclose(to_weight.cpu(), grad_weight, 1e-6, 1e-4));
}

}  // namespace

TEST_CASE("rows are laid out as the reference lays them out", "[kernels][gpu]") {
  MOE_NEED_CARD();
  at::manual_seed(7);
  for (const int64_t tokens : {0, 1, 31, 33, 300}) {
    for (const int32_t slots : {0, 1, 8, 0x7fffffff}) {
      CAPTURE(tokens, slots);
      check_layout(moe::test::random_layout(tokens, 4, 2, slots));
      check_layout(moe::test::random_layout(tokens, 1, 1, slots));
      check_layout(moe::test::random_layout(tokens, 40, 1, slots, 30));  // one expert has all
    }
  }
}

TEST_CASE("rows are gathered and combined as by the reference, with its gradients",
          "[kernels][gpu]") {
  MOE_NEED_CARD();
  at::manual_seed(8);
  for (const int64_t tokens : {0, 1, 31, 33}) {
    for (const int64_t width : {1, 7, 33, 64, 132}) {
      for (const auto type : {at::kFloat, at::kBFloat16}) {
        CAPTURE(tokens, width);
        check_moves(moe::test::random_layout(tokens, 5, 2, 6), width, type);
        check_moves(moe::test::random_layout(tokens, 3, 1, 0x7fffffff, 30), width, type);
      }
    }
  }
}
