#pragma once
// Plans in expert order and their layouts (kernels/ops/expert_rows.h) as tensors, for tests.

#include "kernels/ops/expert_rows.h"
#include "tests/support/selection.h"

namespace moe::test {

struct LayoutTensors {
  at::Tensor origin, position, expert, times, ends;

  kernels::LayoutMemory memory() const {
    return {origin.data_ptr<int32_t>(), position.data_ptr<int32_t>(), expert.data_ptr<int32_t>(),
            times.data_ptr<int32_t>(), ends.data_ptr<int32_t>()};
  }
};

inline LayoutTensors layout_room(const kernels::LayoutShape& shape, const at::Tensor& like) {
  const auto room = [&](int64_t count) {
    return at::full({count}, -7, like.options().dtype(at::kInt));
  };
  const int64_t cells = shape.tokens * shape.columns;
  return {room(kernels::padded_rows(shape.rows, shape.experts)), room(cells), room(cells),
          room(cells), room(shape.experts)};
}

inline kernels::PlanRows plan_rows(const SelectedTensors& plan) {
  return {plan.token.const_data_ptr<int64_t>(), plan.expert.const_data_ptr<int64_t>(),
          plan.choice.const_data_ptr<int64_t>(), plan.count.const_data_ptr<int64_t>(),
          plan.rows.const_data_ptr<int64_t>()};
}

struct Laid {
  SelectedTensors plan;
  kernels::LayoutShape shape;
  LayoutTensors layout;  // by the reference
};

// top-k+ir+fr over random logits, `slots` a group; `favour` is added to the logits of expert 1.
inline Laid random_layout(int64_t tokens, int64_t experts, int64_t k, int32_t slots,
                          double favour = 0) {
  at::Tensor logits = at::randn({tokens, experts});
  logits.select(1, experts > 1 ? 1 : 0).add_(favour);
  const at::Tensor home = at::zeros({tokens}, at::kInt), capacity = at::full({1}, slots, at::kInt);
  const bool fill = k < experts;
  const int64_t choices = fill ? k + 1 : k;
  const kernels::SelectShape select{tokens, experts, 1, choices, k, fill, true, false};
  Laid laid;
  laid.plan = selected_by_reference(select, choices_of(logits, home, 1, choices), home, capacity);
  laid.shape = {tokens, k + 2, experts, laid.plan.token.size(0)};
  laid.layout = layout_room(laid.shape, home);
  kernels::lay_out_reference(laid.shape, plan_rows(laid.plan), laid.layout.memory());
  return laid;
}

}  // namespace moe::test
