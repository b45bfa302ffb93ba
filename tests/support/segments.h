#pragma once
// Random plans in expert order with their rows in segments (kernels/ops/permute.h).

#include "kernels/ops/permute.h"
#include "tests/kernels/reference/permute.h"
#include "tests/support/top_k_plan.h"

namespace moe::test {

struct SegmentTensors {
  at::Tensor row_token, row_of_token, row_of_plan, ends;
};

struct Segments {
  PlanTensors plan;
  int64_t tokens, columns, experts;
  SegmentTensors by_reference;

  int64_t rows() const { return kernels::segmented_rows(plan.token.size(0), experts); }

  // Returns the arguments that lay out the plan `from` into `to`, on any device.
  kernels::SegmentRowsArgs args(const PlanTensors& from, const SegmentTensors& to) const {
    return {from.token.const_data_ptr<int64_t>(),
            from.expert.const_data_ptr<int64_t>(),
            from.choice.const_data_ptr<int64_t>(),
            from.rows.const_data_ptr<int64_t>(),
            tokens,
            columns,
            experts,
            from.token.size(0),
            to.row_token.data_ptr<int64_t>(),
            to.row_of_token.data_ptr<int32_t>(),
            to.row_of_plan.data_ptr<int64_t>(),
            to.ends.data_ptr<int32_t>()};
  }

  // Returns buffers for the result, full of -7, on the device of `like`.
  SegmentTensors room(const at::Tensor& like) const {
    const auto full = [&](int64_t count, at::ScalarType type) {
      return at::full({count}, -7, like.options().dtype(type));
    };
    return {full(rows(), at::kLong), full(tokens * columns, at::kInt),
            full(plan.token.size(0), at::kLong), full(experts, at::kInt)};
  }
};

// top-k+ir+fr over random logits, `slots` a group; `favour` is added to the logits of expert 1.
inline Segments random_segments(int64_t tokens, int64_t experts, int64_t k, int32_t slots,
                                double favour = 0) {
  at::Tensor logits = at::randn({tokens, experts});
  logits.select(1, experts > 1 ? 1 : 0).add_(favour);
  const at::Tensor source_rank = at::zeros({tokens}, at::kInt),
                   capacity = at::full({1}, slots, at::kInt);
  const bool fill = k < experts;
  const int64_t choices = fill ? k + 1 : k;
  const kernels::TopKPlanShape shape{tokens, experts, 1, choices, k, fill, true, false};
  Segments segments{
      plan_by_reference(shape, choices_of(logits, source_rank, 1, choices), source_rank, capacity),
      tokens,
      k + 2,
      experts,
      {}};
  segments.by_reference = segments.room(source_rank);
  segment_rows_reference(segments.args(segments.plan, segments.by_reference));
  return segments;
}

}  // namespace moe::test
