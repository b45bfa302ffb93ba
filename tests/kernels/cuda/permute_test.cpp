#include "kernels/ops/permute.h"

#include "tests/support/gpu.h"
#include "tests/support/segments.h"

using at::Tensor;
using namespace moe::kernels;
using namespace moe::test;

namespace {

void check_segments(const moe::test::Segments& segments) {
  PlanTensors there = segments.plan;
  for (Tensor* list : {&there.token, &there.expert, &there.choice, &there.rows}) {
    *list = to_gpu(*list);
  }
  const auto actual = in_two_orders([&] {
    const auto to = segments.room(there.token);
    segment_rows_cuda(segments.args(there, to), stream_of(there.token));
    return std::vector{to.row_token, to.row_of_token, to.row_of_plan, to.ends};
  });
  const auto& expected = segments.by_reference;
  CHECK(at::equal(actual[0], expected.row_token));
  CHECK(at::equal(actual[1], expected.row_of_token));
  CHECK(at::equal(actual[2], expected.row_of_plan));
  CHECK(at::equal(actual[3], expected.ends));
}

// Rows in the last segment's gap are zeros; rows after it are not written.
void check_permute(const moe::test::Segments& segments, int64_t width, at::ScalarType type) {
  CAPTURE(segments.tokens, width, type);
  const auto& host = segments.by_reference;
  const PermuteShape shape{segments.tokens, segments.rows(), width, segments.columns};
  const bool is_bf16 = type == at::kBFloat16;
  const Tensor row_token = to_gpu(host.row_token), row_of_token = to_gpu(host.row_of_token);
  const Tensor ends = to_gpu(host.ends);
  const auto* token = row_token.const_data_ptr<int64_t>();
  const auto* used_there = ends.const_data_ptr<int32_t>() + segments.experts - 1;
  const int64_t used = host.ends[-1].item<int64_t>(), rest = shape.rows - used;
  const auto exact = [&](int64_t rows) { return at::randn({rows, width}).to(type); };
  const auto wide = [](const Tensor& x) { return x.cpu().to(at::kDouble); };
  const double rounding = type == at::kBFloat16 ? 1.0 / (1 << 8) : 1e-6;

  // Rows of a gap have no token. They gather a row of zeros that is appended to the tokens.
  const Tensor tokens = host.row_token.narrow(0, 0, used), has_token = tokens >= 0;
  const Tensor source = at::where(has_token, tokens, shape.tokens);
  const auto gather = [&](const Tensor& x) {
    return at::cat({wide(x), at::zeros({1, width}, at::kDouble)}).index_select(0, source);
  };
  const auto same_rows = [&](const Tensor& found, const Tensor& expected, double epsilon) {
    return at::allclose(wide(found).narrow(0, 0, used), expected, epsilon, 0) &&
           found.cpu().narrow(0, used, rest).isnan().all().item<bool>();
  };

  const Tensor x = exact(shape.tokens), in = to_gpu(x);
  const Tensor out = poisoned({shape.rows, width}, type);
  permute_cuda({token, used_there, shape, in.const_data_ptr(), out.data_ptr(), is_bf16},
               stream_of(in));
  CHECK(same_rows(out, gather(x), 0));  // copies

  const Tensor rows = exact(shape.rows), weight = at::randn({shape.rows});
  const Tensor rows_there = to_gpu(rows), weight_there = to_gpu(weight);
  const Tensor wide_rows = wide(rows).narrow(0, 0, used);
  const Tensor wide_weight = wide(weight).narrow(0, 0, used).unsqueeze(1);
  for (const bool is_weighted : {true, false}) {
    const Tensor expected =
        at::zeros({shape.tokens + 1, width}, at::kDouble)
            .index_add(0, source, is_weighted ? wide_rows * wide_weight : wide_rows)
            .narrow(0, 0, shape.tokens);
    const auto y_type = is_weighted ? at::kFloat : type;
    const Tensor y = poisoned({shape.tokens, width}, y_type);
    UnpermuteArgs args{token,        row_of_token.const_data_ptr<int32_t>(),
                       shape,        rows_there.const_data_ptr(),
                       is_weighted,  weight_there.const_data_ptr(),
                       y.data_ptr(), is_bf16};
    unpermute_cuda(args, stream_of(rows_there));
    if (is_weighted) {  // the numbers of adding a residual afterwards
      const Tensor residual = at::randn({shape.tokens, width}), there = to_gpu(residual);
      const Tensor sum = poisoned({shape.tokens, width}, at::kFloat);
      args.residual = there.const_data_ptr<float>();
      args.y = sum.data_ptr();
      unpermute_cuda(args, stream_of(rows_there));
      CHECK(at::equal(sum.cpu(), residual + y.cpu()));
    }
    // Four products and sums of numbers below 20; bf16: one more rounding, of 2^-9.
    CHECK(at::allclose(wide(y), expected, y_type == at::kBFloat16 ? rounding : 1e-6, 1e-5));
  }

  const Tensor grad_y = at::randn({shape.tokens, width}), upstream = to_gpu(grad_y);
  const Tensor to_rows = poisoned({shape.rows, width}, type);
  const Tensor to_weight = poisoned({shape.rows}, at::kFloat);
  unpermute_backward_cuda(
      {token, used_there, shape, rows_there.const_data_ptr(), weight_there.const_data_ptr(),
       upstream.const_data_ptr(), to_rows.data_ptr(), to_weight.data_ptr(), is_bf16},
      stream_of(upstream));
  CHECK(same_rows(to_rows, gather(grad_y) * wide_weight, rounding));
  // A lane adds width / 32 products below 16, then 5 levels.
  CHECK(at::allclose(wide(to_weight).narrow(0, 0, used), (gather(grad_y) * wide_rows).sum(1), 1e-6,
                     1e-4));
}

}  // namespace

TEST_CASE("rows are laid out in segments as the reference lays them out", "[kernels][gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(7);
  for (const int64_t tokens : {0, 1, 31, 33, 300}) {
    for (const int32_t slots : {0, 1, 8, 0x7fffffff}) {
      CAPTURE(tokens, slots);
      check_segments(random_segments(tokens, 4, 2, slots));
      check_segments(random_segments(tokens, 1, 1, slots));
      check_segments(random_segments(tokens, 40, 1, slots, 30));  // one expert has all
    }
  }
}

TEST_CASE("rows are permuted and unpermuted as in double, with gradients", "[kernels][gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(8);
  for (const int64_t tokens : {0, 1, 31, 33}) {
    for (const int64_t width : {1, 7, 33, 64, 132, 264}) {  // in bf16 16 bytes are 8 numbers
      for (const auto type : {at::kFloat, at::kBFloat16}) {
        check_permute(random_segments(tokens, 5, 2, 6), width, type);
        check_permute(random_segments(tokens, 3, 1, 0x7fffffff, 30), width, type);
      }
    }
  }
}

TEST_CASE("the rows of a large batch are laid out and permuted", "[.][slow][kernels][gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(3);
  for (const int64_t experts : {8, 64, 256}) {
    const auto slots = static_cast<int32_t>(16'384 * 9 / 10 / experts);
    check_segments(random_segments(16'384, experts, 1, slots, 0.5));
    check_permute(random_segments(2048, experts, 1, slots / 8, 0.5), 2048, at::kBFloat16);
  }
}
