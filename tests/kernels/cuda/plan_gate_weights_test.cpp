#include "kernels/ops/plan_gate_weights.h"

#include "tests/kernels/reference/weight_cases.h"
#include "tests/support/gpu.h"

using at::Tensor;
using namespace moe::kernels;
using namespace moe::test;

namespace {

// Runs a kernel on the current stream.
template <auto kKernel, typename Args>
void run(const Args& args) {
  kKernel(args, current_stream_cuda(kGpu));
}

const PlanKernels kGpuKernels{poisoned,
                              to_gpu,
                              run<plan_counts_cuda, PlanCountsArgs>,
                              run<plan_gate_weights_cuda, PlanGateWeightsArgs>,
                              run<plan_gate_weights_backward_cuda, PlanGateWeightsBackwardArgs>,
                              [](auto results) { return in_two_orders(results); }};

}  // namespace

TEST_CASE("the kernels count and weigh a plan as plain loops in double do, and its gradient",
          "[kernels][gpu]") {
  MOE_NEED_GPU();
  check_small_plans(kGpuKernels);
  check_plan_gate_weights(kGpuKernels, 19, 35, 5, 3);
  check_plan_gate_weights(kGpuKernels, 19, 65, 1, 3);
  check_plan_gate_weights(kGpuKernels, 19, 130, 2, 3);
  check_plan_gate_weights(kGpuKernels, 19, 256, 16, 3);   // more counts than shared memory holds
  check_plan_gate_weights(kGpuKernels, 19, 256, 256, 1);  // and more kinds of rows
}

TEST_CASE("the kernels weigh plans of more tokens than they have warps",
          "[.][slow][kernels][gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(10);
  const GivenPlan given = random_plan(8300, 4, 2, 2, 2);
  check_plan_counts(kGpuKernels, given);
  check_plan_gate_weights(kGpuKernels, given, {true, true, 1, 2});
}

TEST_CASE("the kernels refuse more experts than their lanes can hold", "[kernels][gpu]") {
  MOE_NEED_GPU();
  const GivenPlan there = random_plan(1, 257, 1, 1, 1).moved(to_gpu);
  REQUIRE_THROWS_AS(counts(there, false, false, poisoned, kGpuKernels.counts), std::runtime_error);
}
