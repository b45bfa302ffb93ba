#include "kernels/ops/permute.h"

#include "tests/support/gpu.h"
#include "tests/support/segments.h"

using at::Tensor;
using moe::kernels::PermuteDtype;
using moe::kernels::PermuteShape;
using moe::test::PlanTensors;
using moe::test::poisoned;
using moe::test::Segments;
using moe::test::stream_of;
using moe::test::to_gpu;

namespace {

void check_segments(const Segments& segments) {
  const PlanTensors& plan = segments.plan;
  const PlanTensors there{to_gpu(plan.token),
                          to_gpu(plan.expert),
                          to_gpu(plan.choice),
                          {},
                          to_gpu(plan.rows),
                          {},
                          {},
                          {}};
  const auto actual = segments.room(there.token);
  moe::kernels::segment_rows_cuda(segments.args(there, actual), stream_of(there.token));
  CHECK(at::equal(actual.row_token.cpu(), segments.by_reference.row_token));
  CHECK(at::equal(actual.row_of_token.cpu(), segments.by_reference.row_of_token));
  CHECK(at::equal(actual.row_of_plan.cpu(), segments.by_reference.row_of_plan));
  CHECK(at::equal(actual.ends.cpu(), segments.by_reference.ends));
}

Tensor exact_in_bf16(at::IntArrayRef shape) {
  return at::randn(shape).to(at::kBFloat16).to(at::kFloat);
}

const int32_t* ints(const Tensor& tensor) { return tensor.const_data_ptr<int32_t>(); }
const int64_t* longs(const Tensor& tensor) { return tensor.const_data_ptr<int64_t>(); }

// Rows behind the last segment are left alone.
void check_permute(const Segments& segments, int64_t width, at::ScalarType type) {
  const auto& host = segments.by_reference;
  const PermuteShape shape{segments.tokens, segments.rows(), width, segments.columns};
  const auto dtype = type == at::kBFloat16 ? PermuteDtype::kBF16 : PermuteDtype::kF32;
  const Tensor token = to_gpu(host.row_token), row_of_token = to_gpu(host.row_of_token);
  const Tensor ends = to_gpu(host.ends);
  const int32_t* used = ints(ends) + segments.experts - 1;
  const int64_t used_rows = host.ends[-1].item<int64_t>();
  const auto same_rows = [&](const Tensor& actual, const Tensor& expected, double epsilon) {
    const Tensor on_host = actual.cpu().to(at::kFloat);
    return at::allclose(on_host.narrow(0, 0, used_rows), expected.narrow(0, 0, used_rows), epsilon,
                        0) &&
           on_host.narrow(0, used_rows, shape.rows - used_rows).isnan().all().item<bool>();
  };

  const Tensor x = exact_in_bf16({shape.tokens, width}), rows_of_x = at::empty({shape.rows, width});
  moe::test::permute_reference<float>({longs(host.row_token), nullptr, shape, x.const_data_ptr(),
                                       rows_of_x.data_ptr(), PermuteDtype::kF32});
  const Tensor in = to_gpu(x.to(type)), out = poisoned({shape.rows, width}, type);
  moe::kernels::permute_cuda(
      {longs(token), used, shape, in.const_data_ptr(), out.data_ptr(), dtype}, stream_of(in));
  CHECK(same_rows(out, rows_of_x, 0));  // copies

  const Tensor rows = exact_in_bf16({shape.rows, width}), weight = at::randn({shape.rows});
  const Tensor rows_there = to_gpu(rows.to(type)), weight_there = to_gpu(weight);
  for (const bool is_weighted : {true, false}) {
    const Tensor expected = at::empty({shape.tokens, width});
    moe::test::unpermute_reference<float>(
        {longs(host.row_token), nullptr, shape, rows.const_data_ptr(), is_weighted,
         weight.const_data_ptr(), expected.data_ptr(), PermuteDtype::kF32});
    const auto y_type = is_weighted ? at::kFloat : type;
    const Tensor y = poisoned({shape.tokens, width}, y_type);
    moe::kernels::UnpermuteArgs args{longs(token), ints(row_of_token),
                                     shape,        rows_there.const_data_ptr(),
                                     is_weighted,  weight_there.const_data_ptr(),
                                     y.data_ptr(), dtype};
    moe::kernels::unpermute_cuda(args, stream_of(rows_there));
    if (is_weighted) {  // the numbers of adding a residual afterwards
      const Tensor residual = at::randn({shape.tokens, width}), there = to_gpu(residual);
      const Tensor sum = poisoned({shape.tokens, width}, at::kFloat);
      args.residual = there.const_data_ptr<float>();
      args.y = sum.data_ptr();
      moe::kernels::unpermute_cuda(args, stream_of(rows_there));
      CHECK(at::equal(sum.cpu(), residual + y.cpu()));
    }
    // Four products and sums of numbers below 20; bf16: one more rounding, of 2^-9.
    CHECK(at::allclose(y.cpu().to(at::kFloat), expected,
                       y_type == at::kBFloat16 ? 1.0 / (1 << 8) : 1e-6, 1e-5));
  }

  const Tensor grad_y = exact_in_bf16({shape.tokens, width});
  const Tensor grad_rows = at::empty({shape.rows, width}), grad_weight = at::empty({shape.rows});
  moe::test::unpermute_backward_reference<float>(
      {longs(host.row_token), nullptr, shape, rows.const_data_ptr(), weight.const_data_ptr(),
       grad_y.const_data_ptr(), grad_rows.data_ptr(), grad_weight.data_ptr(), PermuteDtype::kF32});
  const Tensor upstream = to_gpu(grad_y), to_rows = poisoned({shape.rows, width}, type);
  const Tensor to_weight = poisoned({shape.rows}, at::kFloat);
  moe::kernels::unpermute_backward_cuda(
      {longs(token), used, shape, rows_there.const_data_ptr(), weight_there.const_data_ptr(),
       upstream.const_data_ptr(), to_rows.data_ptr(), to_weight.data_ptr(), dtype},
      stream_of(upstream));
  CHECK(same_rows(to_rows, grad_rows, type == at::kBFloat16 ? 1.0 / (1 << 8) : 1e-6));
  // A lane adds width / 32 products below 16, then 5 levels.
  CHECK(at::allclose(to_weight.cpu().narrow(0, 0, used_rows), grad_weight.narrow(0, 0, used_rows),
                     1e-6, 1e-4));
}

}  // namespace

TEST_CASE("rows are laid out in segments as the reference lays them out", "[kernels][gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(7);
  for (const int64_t tokens : {0, 1, 31, 33, 300}) {
    for (const int32_t slots : {0, 1, 8, 0x7fffffff}) {
      CAPTURE(tokens, slots);
      check_segments(moe::test::random_segments(tokens, 4, 2, slots));
      check_segments(moe::test::random_segments(tokens, 1, 1, slots));
      check_segments(moe::test::random_segments(tokens, 40, 1, slots, 30));  // one expert has all
    }
  }
}

TEST_CASE("rows are permuted and unpermuted as by the reference, with its gradients",
          "[kernels][gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(8);
  for (const int64_t tokens : {0, 1, 31, 33}) {
    for (const int64_t width : {1, 7, 33, 64, 132, 264}) {  // in bf16 16 bytes are 8 numbers
      for (const auto type : {at::kFloat, at::kBFloat16}) {
        CAPTURE(tokens, width);
        check_permute(moe::test::random_segments(tokens, 5, 2, 6), width, type);
        check_permute(moe::test::random_segments(tokens, 3, 1, 0x7fffffff, 30), width, type);
      }
    }
  }
}
