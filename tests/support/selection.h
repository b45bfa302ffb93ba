#pragma once
// The buffers of kernels/ops/router.h and kernels/ops/top_k_plan.h as tensors, for tests that fill
// and compare them.

#include <ATen/ATen.h>

#include "kernels/ops/router.h"
#include "kernels/ops/top_k_plan.h"

namespace moe::test {

struct RouterTensors {
  at::Tensor scores, choice, at_home, requested;
};

// By the reference of router.h: logits [T, E], home [T] i32.
inline RouterTensors choices_of(const at::Tensor& logits, const at::Tensor& home, int64_t ranks,
                                int64_t choices) {
  const int64_t tokens = logits.size(0), experts = logits.size(1);
  RouterTensors to{at::empty({tokens, experts}), at::empty({tokens, choices}, at::kInt),
                   at::empty({tokens}, at::kInt), at::empty({choices, experts * ranks}, at::kInt)};
  kernels::router_choices_reference(
      logits.const_data_ptr<float>(), home.const_data_ptr<int32_t>(),
      {tokens, experts, ranks, choices, /*is_relu=*/false},
      {to.scores.data_ptr<float>(), to.choice.data_ptr<int32_t>(), to.at_home.data_ptr<int32_t>(),
       to.requested.data_ptr<int32_t>()});
  return to;
}

inline kernels::SelectInput select_input(const RouterTensors& from, const at::Tensor& home,
                                         const at::Tensor& capacity) {
  return {from.scores.const_data_ptr<float>(),      from.choice.const_data_ptr<int32_t>(),
          from.at_home.const_data_ptr<int32_t>(),   home.const_data_ptr<int32_t>(),
          from.requested.const_data_ptr<int32_t>(), capacity.const_data_ptr<int32_t>()};
}

struct SelectedTensors {
  at::Tensor token, expert, choice, count, rows;
  at::Tensor overflow_token, overflow_expert, overflow_choice;

  kernels::SelectedRows memory() const {
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

// Room for every row there can be, full of -1. On the device of `like`.
inline SelectedTensors selected_room(const kernels::SelectShape& shape, const at::Tensor& like) {
  const auto room = [&](int64_t count) {
    return at::full({count}, -1, like.options().dtype(at::kLong));
  };
  const int64_t most = shape.tokens * (shape.k + (shape.fill ? 1 : 0) + (shape.rectify ? 1 : 0));
  const int64_t refused = shape.tokens * shape.k;
  return {room(most),          room(most),    room(most),    room(most),
          room(shape.experts), room(refused), room(refused), room(refused)};
}

inline SelectedTensors selected_by_reference(const kernels::SelectShape& shape,
                                             const RouterTensors& from, const at::Tensor& home,
                                             const at::Tensor& capacity) {
  SelectedTensors to = selected_room(shape, home);
  kernels::select_rows_reference(shape, select_input(from, home, capacity), to.memory());
  return to;
}

}  // namespace moe::test
