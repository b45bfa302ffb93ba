#include "core/route/kernel_plan.h"

#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <array>
#include <limits>

#include "core/base/error.h"
#include "core/route/rows.h"
#include "kernels/ops/cuda_functions.h"

namespace moe::route {

namespace {

using kernels::TopKPlanShape;

// [W] i32 on the device of the logits, filled there: a copy from the host would wait.
at::Tensor slots_of_ranks(const RouteInput& input) {
  const auto ranks = static_cast<int64_t>(input.capacity.size());
  const at::Tensor slots = at::full({ranks}, std::numeric_limits<int32_t>::max(),
                                    input.logits.options().dtype(at::kInt));
  for (int64_t first = 0, end = 0; !input.dropless && first < ranks; first = end) {
    const int64_t capacity = input.capacity[first];
    while (end < ranks && input.capacity[end] == capacity) {
      ++end;
    }
    slots.narrow(0, first, end - first).fill_(capacity);
  }
  return slots;
}

// Rows that there can be at most, and that the rules make room for.
int64_t most_rows(const RouteInput& input, const TopKPlanShape& shape) {
  int64_t rows = shape.tokens * shape.k;
  rows = input.dropless ? rows : accepted_max(input, rows);
  if (shape.fill) {
    rows += shape.tokens;
    rows = input.dropless ? rows : accepted_max(input, rows);
  }
  return rows + (shape.rectify ? shape.tokens : 0);
}

Plan room_for(const RouteInput& input, const TopKPlanShape& shape) {
  const auto longs = [&](int64_t count) {
    return at::empty({count}, input.logits.options().dtype(at::kLong));
  };
  const int64_t rows = most_rows(input, shape);
  const int64_t refused = input.dropless ? 0 : shape.tokens * shape.k;
  return {longs(rows),          longs(rows),    longs(rows),    longs(rows),
          longs(shape.experts), longs(refused), longs(refused), longs(refused)};
}

kernels::TopKPlanRows memory_of(const Plan& plan) {
  return {plan.token.data_ptr<int64_t>(),
          plan.expert.data_ptr<int64_t>(),
          plan.choice.data_ptr<int64_t>(),
          plan.count.data_ptr<int64_t>(),
          plan.token.size(0),
          plan.rows.data_ptr<int64_t>(),
          plan.overflow_token.data_ptr<int64_t>(),
          plan.overflow_expert.data_ptr<int64_t>(),
          plan.overflow_choice.data_ptr<int64_t>(),
          plan.overflow_token.size(0)};
}

// An operation on the device of `on`: by the kernel of a GPU, or by the loop of the CPU.
template <typename Args, typename OnGpu, typename OnCpu>
void run_on(const at::Tensor& on, const Args& args, OnGpu on_gpu, OnCpu on_cpu) {
  if (on.is_cuda()) {
    (kernels::cuda_functions().*on_gpu)(args, kernels::current_stream(on));
  } else {
    on_cpu(args);
  }
}

// What the choices of tokens are written to.
struct ChoiceTensors {
  at::Tensor scores, choice, at_home, requested;
};

// Where a bias orders a token's choices, they are read out of that order: on the CPU alone.
ChoiceTensors choose(const RouteInput& input, const at::Tensor& home, const TopKPlanShape& shape) {
  const auto ints = input.logits.options().dtype(at::kInt);
  ChoiceTensors to{at::empty_like(input.logits, at::MemoryFormat::Contiguous),
                   at::empty({shape.tokens, shape.choices}, ints), at::empty({shape.tokens}, ints),
                   at::empty({shape.choices, shape.experts * shape.ranks}, ints)};
  const at::Tensor logits = input.logits.contiguous();
  run_on(logits,
         kernels::RouterChoicesArgs{
             logits.const_data_ptr<float>(),
             home.const_data_ptr<int32_t>(),
             {shape.tokens, shape.experts, shape.ranks, shape.choices, /*is_relu=*/false},
             to.scores.data_ptr<float>(),
             to.choice.data_ptr<int32_t>(),
             to.at_home.data_ptr<int32_t>(),
             to.requested.data_ptr<int32_t>()},
         &kernels::CudaFunctions::router_choices, kernels::router_choices_cpu);
  if (!input.ranked.is_same(input.by_logit)) {
    MOE_CHECK(input.logits.is_cpu());
    to.choice = input.ranked.narrow(1, 0, shape.choices).to(at::kInt).contiguous();
  }
  return to;
}

// A finished plan as the kernels of its weights read it.
kernels::PlanRows rows_in(const RouteInput& input, const Plan& plan) {
  return {plan.token.const_data_ptr<int64_t>(),
          plan.expert.const_data_ptr<int64_t>(),
          plan.choice.const_data_ptr<int64_t>(),
          plan.count.const_data_ptr<int64_t>(),
          input.home.const_data_ptr<int64_t>(),
          plan.token.size(0),
          input.tokens(),
          input.experts(),
          input.ranks,
          input.k};
}

kernels::PlanWeightsKind kind_of(const RouteInput& input, const KernelGates& gates) {
  const auto in_use = std::count_if(input.rank_tokens.begin(), input.rank_tokens.end(),
                                    [](int64_t tokens) { return tokens > 0; });
  return {gates.normalise, gates.straight_through, gates.lb_choices, std::max<int64_t>(in_use, 1)};
}

const float* pointer_to(const at::Tensor& f32) {
  return f32.defined() ? f32.const_data_ptr<float>() : nullptr;
}

// What was decided, kept for the gradient: none of it has one.
struct Decided : torch::CustomClassHolder {
  Decided(const RouteInput& input, const Plan& plan, const KernelGates& gates)
      : kept{plan.token, plan.expert, plan.choice, plan.count, input.home},
        rows(rows_in(input, plan)),
        kind(kind_of(input, gates)) {}
  std::array<at::Tensor, 5> kept;  // what `rows` points to
  kernels::PlanRows rows;
  kernels::PlanWeightsKind kind;
};

struct WeighPlan : torch::autograd::Function<WeighPlan> {
  // combine [T, E], weights [R], load balance [], z [].
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* context,
                                                const at::Tensor& given, const at::Tensor& count,
                                                const RouteInput& input, const Plan& plan,
                                                const KernelGates& gates) {
    const at::Tensor logits = given.contiguous(), by_logit = input.by_logit.contiguous();
    const auto options = logits.options();
    const at::Tensor combine = at::empty_like(logits, at::MemoryFormat::Contiguous);
    const at::Tensor weights = at::empty({plan.token.size(0)}, options);
    const at::Tensor load_balance = at::empty({}, options), z = at::empty({}, options);
    const at::Tensor chosen =
        at::empty({input.ranks * (input.experts() + 1)}, options.dtype(at::kInt));
    const at::Tensor sums =
        at::empty({2 * kernels::plan_weights_sums(input.tokens())}, options.dtype(at::kDouble));
    const auto decided = c10::make_intrusive<Decided>(input, plan, gates);
    run_on(logits,
           kernels::PlanWeightsArgs{
               decided->rows, decided->kind, logits.const_data_ptr<float>(),
               count.const_data_ptr<float>(), by_logit.const_data_ptr<int64_t>(),
               combine.data_ptr<float>(), weights.data_ptr<float>(), chosen.data_ptr<int32_t>(),
               sums.data_ptr<double>(), load_balance.data_ptr<float>(), z.data_ptr<float>()},
           &kernels::CudaFunctions::plan_weights, kernels::plan_weights_cpu);
    context->set_materialize_grads(false);
    context->save_for_backward({logits, count, combine, chosen});
    context->saved_data["decided"] = c10::IValue::make_capsule(decided);
    return {combine, weights, load_balance, z};
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list upstream) {
    const auto saved = context->get_saved_variables();
    const auto held = context->saved_data["decided"].toCapsule();
    const auto& decided = static_cast<const Decided&>(*held);
    for (at::Tensor& of_one : upstream) {
      of_one = of_one.defined() ? of_one.contiguous() : of_one;
    }
    const at::Tensor& logits = saved[0];
    const at::Tensor pulled = at::empty_like(logits), grad = at::empty_like(logits);
    run_on(logits,
           kernels::PlanWeightsBackwardArgs{
               decided.rows, decided.kind, logits.const_data_ptr<float>(),
               saved[1].const_data_ptr<float>(), saved[2].const_data_ptr<float>(),
               saved[3].const_data_ptr<int32_t>(), pointer_to(upstream[1]), pointer_to(upstream[0]),
               pointer_to(upstream[2]), pointer_to(upstream[3]), pulled.data_ptr<float>(),
               grad.data_ptr<float>()},
           &kernels::CudaFunctions::plan_weights_backward, kernels::plan_weights_backward_cpu);
    return {grad, {}, {}, {}, {}};
  }
};

}  // namespace

Plan plan_by_kernels(const RouteInput& input, const RouterSettings& settings) {
  MOE_CHECK(input.logits.scalar_type() == at::kFloat);
  const int64_t experts = input.experts();
  const bool has_next = input.k < experts;
  const TopKPlanShape shape{input.tokens(), experts,
                            input.ranks,    has_next ? input.k + 1 : input.k,
                            input.k,        settings.fr && has_next,
                            settings.ir,    settings.slot_order == SlotOrder::kScore};
  const at::Tensor home = input.home.to(at::kInt), slots = slots_of_ranks(input);
  const at::Tensor scores = input.scores.contiguous();  // what the rules compare by
  const ChoiceTensors from = choose(input, home, shape);
  const kernels::TopKPlanInput in{
      scores.const_data_ptr<float>(),           from.choice.const_data_ptr<int32_t>(),
      from.at_home.const_data_ptr<int32_t>(),   home.const_data_ptr<int32_t>(),
      from.requested.const_data_ptr<int32_t>(), slots.const_data_ptr<int32_t>()};
  const Plan plan = room_for(input, shape);
  const at::Tensor scratch =
      at::empty({home.is_cuda() ? kernels::top_k_plan_scratch(shape) : 0}, home.options());
  run_on(input.logits,
         kernels::TopKPlanArgs{shape, in, memory_of(plan), scratch.data_ptr<int32_t>()},
         &kernels::CudaFunctions::top_k_plan, kernels::top_k_plan_cpu);
  return plan;
}

KernelCounts count_by_kernels(const RouteInput& input, const Plan& plan,
                              const RouterSettings& settings) {
  const auto options = input.logits.options();
  const KernelCounts to{
      at::empty({input.tokens(), input.experts()}, options),
      at::empty({(input.ranks + 1) * kernels::kRowKinds + 2}, options.dtype(at::kLong))};
  const at::Tensor sums =
      at::empty({kernels::plan_weights_sums(input.tokens())}, options.dtype(at::kDouble));
  const at::Tensor logits = input.logits.contiguous(), scores = input.scores.contiguous();
  run_on(logits,
         kernels::PlanCountsArgs{rows_in(input, plan), logits.const_data_ptr<float>(),
                                 scores.const_data_ptr<float>(), settings.ir, input.dropless,
                                 to.count.data_ptr<float>(), to.counted.data_ptr<int64_t>(),
                                 sums.data_ptr<double>()},
         &kernels::CudaFunctions::plan_counts, kernels::plan_counts_cpu);
  return to;
}

KernelWeights weigh_by_kernels(const at::Tensor& logits, const at::Tensor& count,
                               const RouteInput& input, const Plan& plan,
                               const KernelGates& gates) {
  const auto found = WeighPlan::apply(logits, count, input, plan, gates);
  return {found[0], found[1], found[2], input.wants_z_loss ? found[3] : at::Tensor()};
}

}  // namespace moe::route
