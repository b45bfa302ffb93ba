#pragma once
// From what tokens request to the rows that experts get: capacity, fill-in and rectification of
// top-k routing in one operation, with the plan of core/route/plan.h as its result. A group is one
// (expert e, home rank w), number e * W + w.
//
//   1. The requests of a group stand in slot order: choice by choice, within a choice by score and
//      then by token; or all k choices together by score (order=score). The first C_w stay,
//      the others overflow.
//   2. fill: then the (k+1)-th choices, in the same order, take the slots that are left.
//   3. rectify: then a token with fewer than k rows gets one row at its best expert at home, in
//      token order, which counts for all it lacks.
//
// T tokens, E experts, W ranks, C columns of `choice`. All sizes are known on the host; nothing is
// read back.

#include <algorithm>
#include <cstdint>

namespace moe::kernels {

struct TopKPlanShape {
  int64_t tokens, experts, ranks;
  int64_t choices;  // C >= k, >= k + 1 with fill
  int64_t k;
  bool fill, rectify, by_score;
};

// What kernels/ops/router.h leaves, and the slots of each rank; all on the device of the run.
struct TopKPlanInput {
  const float* scores;       // [T, E]
  const int32_t* choice;     // [T, C]
  const int32_t* at_home;    // [T]
  const int32_t* home;       // [T], W = padding
  const int32_t* requested;  // [C, E * W]; not read on the CPU
  const int32_t* capacity;   // [W], INT32_MAX for no limit
};

// As route::Plan: rows by (expert, home, slot), unused ones last with expert = E and zeros.
// rows_max holds all there are; refused requests beyond overflow_max (0: nobody asks) are left out.
struct TopKPlanRows {
  int64_t *token, *expert, *choice, *count;  // [rows_max]
  int64_t rows_max;
  int64_t* rows;                                                // [E]
  int64_t *overflow_token, *overflow_expert, *overflow_choice;  // [overflow_max]
  int64_t overflow_max;
};

// Blocks that share the tokens of one group: of some 1,024 tokens each, and no more than fill a
// GPU.
constexpr int64_t top_k_plan_parts(const TopKPlanShape& shape) {
  constexpr int64_t kTokens = 1024, kBlocks = 1024;
  const int64_t groups = shape.experts * shape.ranks;
  const int64_t by_tokens = (shape.tokens + kTokens * shape.ranks - 1) / (kTokens * shape.ranks);
  return std::clamp<int64_t>(std::min(by_tokens, (kBlocks + groups - 1) / groups), 1, 32);
}

// Room that the kernels want: so many int32, on the device. Five lists of requests; rows of each
// token; two ends a rank and one number; and a part's tokens to rectify, and the place and the
// length of its requests of each choice.
constexpr int64_t top_k_plan_scratch(const TopKPlanShape& shape) {
  const int64_t blocks = shape.experts * shape.ranks * top_k_plan_parts(shape);
  return 5 * shape.tokens * (shape.k + 1) + shape.tokens + 2 * shape.ranks + 1 +
         blocks * (1 + 2 * (shape.k + 1));
}

// All pointers are the device's; T * C < 2^31.
struct TopKPlanArgs {
  TopKPlanShape shape;
  TopKPlanInput in;
  TopKPlanRows out;
  int32_t* scratch;  // [top_k_plan_scratch(shape)]; not read on the CPU
};
void top_k_plan_cuda(const TopKPlanArgs& args, void* stream);
void top_k_plan_cpu(const TopKPlanArgs& args);

}  // namespace moe::kernels
