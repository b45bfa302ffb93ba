#pragma once
// The buffers of kernels/ops/router.h and kernels/ops/top_k_plan.h as tensors.

#include <ATen/ATen.h>

#include "kernels/ops/router.h"
#include "kernels/ops/top_k_plan.h"
#include "tests/kernels/reference/router.h"
#include "tests/kernels/reference/top_k_plan.h"

namespace moe::test {

struct ChoiceTensors {
  at::Tensor scores, choice, local_choice, requested;
};

// Computes the choices by the reference of router.h: logits [T, E], source_rank [T] i32.
inline ChoiceTensors choices_of(const at::Tensor& logits, const at::Tensor& source_rank,
                                int64_t ranks, int64_t choices) {
  const int64_t tokens = logits.size(0), experts = logits.size(1);
  ChoiceTensors to{at::empty({tokens, experts}), at::empty({tokens, choices}, at::kInt),
                   at::empty({tokens}, at::kInt), at::empty({choices, experts * ranks}, at::kInt)};
  router_choices_reference({logits.const_data_ptr<float>(),
                            source_rank.const_data_ptr<int32_t>(),
                            {tokens, experts, ranks, choices},
                            to.scores.data_ptr<float>(),
                            to.choice.data_ptr<int32_t>(),
                            to.local_choice.data_ptr<int32_t>(),
                            to.requested.data_ptr<int32_t>()});
  return to;
}

inline kernels::TopKPlanInput plan_input(const ChoiceTensors& from, const at::Tensor& source_rank,
                                         const at::Tensor& capacity) {
  return {from.scores.const_data_ptr<float>(),         from.choice.const_data_ptr<int32_t>(),
          from.local_choice.const_data_ptr<int32_t>(), source_rank.const_data_ptr<int32_t>(),
          from.requested.const_data_ptr<int32_t>(),    capacity.const_data_ptr<int32_t>()};
}

struct PlanTensors {
  at::Tensor token, expert, choice, count, rows;
  at::Tensor overflow_token, overflow_expert, overflow_choice;

  kernels::TopKPlanRows memory() const {
    return {token.data_ptr<int64_t>(),
            expert.data_ptr<int64_t>(),
            choice.data_ptr<int64_t>(),
            count.data_ptr<int64_t>(),
            token.numel(),
            rows.data_ptr<int64_t>(),
            overflow_token.data_ptr<int64_t>(),
            overflow_expert.data_ptr<int64_t>(),
            overflow_choice.data_ptr<int64_t>(),
            overflow_token.numel()};
  }
  std::vector<at::Tensor> all() const {
    return {token, expert, choice, count, rows, overflow_token, overflow_expert, overflow_choice};
  }
};

// Returns buffers for the largest number of rows, full of -1, on the device of `like`.
inline PlanTensors plan_room(const kernels::TopKPlanShape& shape, const at::Tensor& like) {
  const auto room = [&](int64_t count) {
    return at::full({count}, -1, like.options().dtype(at::kLong));
  };
  const int64_t max_rows =
      shape.tokens * (shape.k + (shape.fill ? 1 : 0) + (shape.rectify ? 1 : 0));
  const int64_t max_refused = shape.tokens * shape.k;
  return {room(max_rows),      room(max_rows),    room(max_rows),    room(max_rows),
          room(shape.experts), room(max_refused), room(max_refused), room(max_refused)};
}

inline PlanTensors plan_by_reference(const kernels::TopKPlanShape& shape, const ChoiceTensors& from,
                                     const at::Tensor& source_rank, const at::Tensor& capacity) {
  PlanTensors to = plan_room(shape, source_rank);
  top_k_plan_reference({shape, plan_input(from, source_rank, capacity), to.memory(), nullptr});
  return to;
}

}  // namespace moe::test
