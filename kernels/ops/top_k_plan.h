#pragma once
// Routing plan of a top-k router in one operation: capacity, fill-in rectification (FR) and
// intra-GPU rectification (IR). The result is a plan as in core/route/plan.h. A group is a pair
// (expert e, rank w of the tokens), with index e * W + w.
//
//   1. The requests of a group are ordered by choice, then score, then token; with by_score all k
//      choices are ordered together by score. The first C_w are accepted, the others overflow.
//   2. fill: the (k+1)-th choices, in the same order, take the remaining slots.
//   3. rectify: each token with fewer than k rows gets one row at the best expert of its own rank,
//      in token order. The `count` of this row is the number of missing choices.
//
// T tokens, E experts, W ranks, C columns of `choice`. All sizes are known on the host; nothing is
// copied to it.

#include <algorithm>
#include <cstdint>

namespace moe::kernels {

struct TopKPlanShape {
  int64_t tokens, experts, ranks;
  int64_t choices;  // C >= k; C >= k + 1 with fill
  int64_t k;
  bool fill, rectify, by_score;
};

// Results of router_choices (router.h), and the capacity of each rank. All pointers of the structs
// below are on the device of the run.
struct TopKPlanInput {
  const float* scores;          // [T, E]
  const int32_t* choice;        // [T, C]
  const int32_t* local_choice;  // [T]
  const int32_t* source_rank;   // [T], rank of each token; W: padding
  const int32_t* requested;     // [C, E * W]; not read on the CPU
  const int32_t* capacity;      // [W], slots of each expert; INT32_MAX: no limit
};

// Rows sorted by (expert, rank, slot). Unused rows are last and have expert = E and 0 in the other
// lists. REQUIRES: rows_max >= number of rows. Requests that overflow beyond overflow_max are not
// written; overflow_max = 0 disables the list.
struct TopKPlanRows {
  int64_t *token, *expert, *choice, *count;  // [rows_max]
  int64_t rows_max;
  int64_t* rows;                                                // [E], used rows of each expert
  int64_t *overflow_token, *overflow_expert, *overflow_choice;  // [overflow_max]
  int64_t overflow_max;
};

// Returns the number of blocks per group on a GPU, 1 to 32: about one per 1,024 tokens, limited to
// about 1,024 blocks for all groups together.
constexpr int64_t top_k_plan_parts(const TopKPlanShape& shape) {
  constexpr int64_t kTokens = 1024, kBlocks = 1024;
  const int64_t groups = shape.experts * shape.ranks;
  const int64_t by_tokens = (shape.tokens + kTokens * shape.ranks - 1) / (kTokens * shape.ranks);
  return std::clamp<int64_t>(std::min(by_tokens, (kBlocks + groups - 1) / groups), 1, 32);
}

// Returns the number of int32 of device scratch: five lists of requests; the number of rows of each
// token; two ends per rank and a counter; for each block the number of tokens to rectify, and start
// and length of its list of each choice.
constexpr int64_t top_k_plan_scratch(const TopKPlanShape& shape) {
  const int64_t blocks = shape.experts * shape.ranks * top_k_plan_parts(shape);
  return 5 * shape.tokens * (shape.k + 1) + shape.tokens + 2 * shape.ranks + 1 +
         blocks * (1 + 2 * (shape.k + 1));
}

struct TopKPlanArgs {
  TopKPlanShape shape;  // T * C < 2^31
  TopKPlanInput in;
  TopKPlanRows out;
  int32_t* scratch;  // [top_k_plan_scratch(shape)]; not used on the CPU
};
void top_k_plan_cuda(const TopKPlanArgs& args, void* stream);
void top_k_plan_cpu(const TopKPlanArgs& args);

// Functions shared by the CPU and CUDA kernels (C++17).

constexpr void write_row(const TopKPlanRows& to, int64_t row, int64_t token, int64_t expert,
                         int64_t choice, int64_t count) {
  to.token[row] = token;
  to.expert[row] = expert;
  to.choice[row] = choice;
  to.count[row] = count;
}
constexpr void write_overflow(const TopKPlanRows& to, int64_t row, int64_t token, int64_t expert,
                              int64_t choice) {
  if (row < to.overflow_max) {
    to.overflow_token[row] = token;
    to.overflow_expert[row] = expert;
    to.overflow_choice[row] = choice;
  }
}

// Returns an integer key in the order of f32 numbers with these bits. 0 and -0 have equal keys; NaN
// is the largest, as in torch.sort.
constexpr uint32_t order_key(uint32_t bits) {
  constexpr uint32_t kSign = 0x80000000U, kInfinite = 0x7f800000U;
  const uint32_t magnitude = bits & ~kSign;
  if (magnitude > kInfinite) {
    return 0xffffffffU;
  }
  if (magnitude == 0) {
    return kSign;
  }
  return (bits & kSign) != 0 ? ~bits : bits | kSign;
}

// Returns a key, never 0, that is larger for a larger f32 and, among equal numbers, for the lower
// index.
constexpr uint64_t ranked_key(uint32_t bits, uint32_t index) {
  return uint64_t{order_key(bits)} << 32 | (0xffffffffU - index);
}
constexpr uint32_t key_index(uint64_t key) {
  return 0xffffffffU - static_cast<uint32_t>(key & 0xffffffffU);
}

}  // namespace moe::kernels
