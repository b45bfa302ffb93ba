#include "kernels/ops/top_k_plan.h"

#include "kernels/ops/plan_gate_weights.h"
#include "tests/kernels/reference/plan_cases.h"
#include "tests/kernels/reference/weight_cases.h"
#include "tests/support/gpu.h"

using namespace moe::kernels;
using namespace moe::test;
using at::Tensor;

namespace {

std::vector<Tensor> run(const TopKPlanShape& shape, const ChoiceTensors& from,
                        const Tensor& source_rank, const Tensor& capacity) {
  const ChoiceTensors there{to_gpu(from.scores), to_gpu(from.choice), to_gpu(from.local_choice),
                            to_gpu(from.requested)};
  const Tensor homes = to_gpu(source_rank), slots = to_gpu(capacity);
  const Tensor scratch = poisoned({top_k_plan_scratch(shape)}, at::kInt);
  const auto to = plan_room(shape, homes);
  top_k_plan_cuda(
      {shape, plan_input(there, homes, slots), to.memory(), scratch.data_ptr<int32_t>()},
      stream_of(homes));
  std::vector<Tensor> all = to.all();
  for (Tensor& each : all) {
    each = each.cpu();
  }
  return all;
}

// Blocks whose warps share memory give the same numbers in two orders of the emulator's threads.
std::vector<Tensor> run_in_two_orders(const TopKPlanShape& shape, const ChoiceTensors& from,
                                      const Tensor& source_rank, const Tensor& capacity) {
  return in_two_orders([&] { return run(shape, from, source_rank, capacity); });
}

// Runs a kernel on the current stream.
template <auto kKernel, typename Args>
void run_kernel(const Args& args) {
  kKernel(args, current_stream_cuda(kGpu));
}

const PlanKernels kGpuKernels{
    poisoned,
    to_gpu,
    run_kernel<plan_counts_cuda, PlanCountsArgs>,
    run_kernel<plan_gate_weights_cuda, PlanGateWeightsArgs>,
    run_kernel<plan_gate_weights_backward_cuda, PlanGateWeightsBackwardArgs>,
    [](auto results) { return in_two_orders(results); }};

}  // namespace

TEST_CASE("the kernels select the rows that the reference selects", "[gpu]") {
  MOE_NEED_GPU();
  check_batches(run, {0, 1, 33}, {0, 3, 0x7fffffff});
}

TEST_CASE("the kernels keep the order of ties, and serve one expert that has all", "[gpu]") {
  MOE_NEED_GPU();
  check_ties(run, 40);
}

TEST_CASE("the kernels select where the tokens of a rank are consecutive", "[gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(6);
  const int64_t tokens = 400, ranks = 4;
  Tensor source_rank = at::arange(tokens, at::kInt).floor_divide(tokens / ranks);
  const auto check_homes = [&](const Tensor& homes) {
    check_plan(run, at::randn({tokens, 8}), homes, at::full({ranks}, 28, at::kInt),
               {tokens, 8, ranks, 3, 2, true, true, false});
  };
  check_homes(source_rank);
  source_rank.narrow(0, 310, 90)
      .fill_(static_cast<int>(ranks));  // padding last; no token of rank 3
  source_rank.masked_fill_(source_rank == 3, 2);
  check_homes(source_rank);
  check_homes(source_rank.flip(0));
}

TEST_CASE("blocks that share a group's tokens select what one block selects", "[gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(7);
  const int64_t tokens = 2100, experts = 4;  // three parts of one rank, of which the last is short
  const auto check_parts = [&](const Tensor& logits, const Tensor& source_rank,
                               const Tensor& capacity, int64_t parts, bool by_score) {
    const TopKPlanShape shape{tokens, experts, capacity.size(0), 3, 2, true, true, by_score};
    REQUIRE(top_k_plan_parts(shape) == parts);
    check_plan(run, logits, source_rank, capacity, shape);
  };
  const Tensor one_rank = at::zeros({tokens}, at::kInt), slots = at::tensor({800}, at::kInt);
  check_parts(at::zeros({tokens, experts}), one_rank, slots, 3, false);         // only ties
  check_parts(at::randn({tokens, experts}).round(), one_rank, slots, 3, true);  // across parts
  Tensor skewed = at::randn({tokens, experts});
  skewed.select(1, 1) += 20;
  check_parts(skewed, home_ranks(tokens, 1), at::tensor({1400}, at::kInt), 3, false);
  const Tensor capacity = at::tensor({420, 20}, at::kInt);
  Tensor together = at::zeros({tokens}, at::kInt);
  together.narrow(0, 930, 1170).fill_(1);
  check_parts(at::randn({tokens, experts}), together, capacity, 2, true);
  check_parts(at::randn({tokens, experts}), home_ranks(tokens, 2), capacity, 2, false);
}

TEST_CASE("the kernels sort lists that are longer than a block", "[gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(6);
  Tensor logits = at::randn({1300, 4});  // a block sorts with 512 threads
  logits.select(1, 1) += 4;
  check_plan(run_in_two_orders, logits, home_ranks(1300, 2), at::tensor({500, 20}, at::kInt),
             {1300, 4, 2, 3, 2, true, true, true});
}

TEST_CASE("the kernels select for the tokens of a large batch", "[.][slow][gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(2);
  for (const auto& [experts, ranks] :
       std::vector<std::pair<int64_t, int64_t>>{{8, 2}, {64, 8}, {256, 1}}) {
    const int64_t tokens = 16'384, slots = tokens * 2 * 9 / 10 / experts / ranks;
    check_plan(run_in_two_orders, at::randn({tokens, experts}) * 2, home_ranks(tokens, ranks),
               at::full({ranks}, slots, at::kInt),
               {tokens, experts, ranks, 3, 2, true, true, false});
  }
}

TEST_CASE("the kernels count and weigh a plan as plain loops in double do, and its gradient",
          "[gpu]") {
  MOE_NEED_GPU();
  check_small_plans(kGpuKernels);
  check_plan_gate_weights(kGpuKernels, 19, 35, 5, 3);
  check_plan_gate_weights(kGpuKernels, 19, 65, 1, 3);
  check_plan_gate_weights(kGpuKernels, 19, 130, 2, 3);
  check_plan_gate_weights(kGpuKernels, 19, 256, 16, 3);   // more counts than shared memory holds
  check_plan_gate_weights(kGpuKernels, 19, 256, 256, 1);  // and more kinds of rows
}

TEST_CASE("the kernels weigh plans of more tokens than they have warps", "[.][slow][gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(10);
  const GivenPlan given = random_plan(8300, 4, 2, 2, 2);
  check_plan_counts(kGpuKernels, given);
  check_plan_gate_weights(kGpuKernels, given, {true, true, 1, 2});
}

TEST_CASE("the kernels refuse more experts than their lanes can hold", "[gpu]") {
  MOE_NEED_GPU();
  const GivenPlan there = random_plan(1, 257, 1, 1, 1).moved(to_gpu);
  REQUIRE_THROWS_AS(counts(there, false, false, poisoned, kGpuKernels.counts), std::runtime_error);
}
