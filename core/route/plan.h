#pragma once
// Plans and routing rules. A plan assigns tokens to experts and slots; it has integers only and no
// gradient. A router is a list of rules: functions that take a plan and return the modified plan.
// Rules run on the device of the logits, are deterministic and copy nothing to the host: tensor
// sizes follow from T, E, k, W and the capacities.
//
// T tokens, E experts, W logical ranks, k choices per token. The `source_rank` of a token is the
// logical rank that holds it.

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "core/route/router.h"

namespace moe::route {

// List of n routed rows. Unused rows have expert = E and 0 in the other members.
struct Rows {
  at::Tensor token, expert;  // [n] i64
  at::Tensor choice;         // [n] i64: index of the choice (0..k-1), k for fill-in, k+1 for IR
  at::Tensor count;          // [n] i64, multiplicity: 1, or for IR the number of missing experts
};

// Rows [rows_max] sorted by (expert, source_rank, slot), unused rows last.
struct Plan : Rows {
  at::Tensor rows;  // [E] i64, number of used rows of each expert
  // Refused requests, sorted by (expert, source_rank, order of refusal); unused entries last.
  // [T * k] i64, or [0] if no rule can refuse.
  at::Tensor overflow_token, overflow_expert, overflow_choice;
};

// Tokens that are routed together: one micro-batch, or one evaluation batch.
struct RoutingGroup {
  std::vector<int64_t> source_rank;  // [T], -1 = padding
  int64_t ranks = 1;                 // W
  // Inputs of additional losses (route.h). They do not affect the plan.
  bool compute_z_loss = false;
  bool sum_losses = false;  // as RouteInput::sum_losses
  // [T], sequence number of each token, from 0. Enables sequence_balance_loss().
  std::optional<std::vector<int64_t>> sequence = {};
};

// Assigns `tokens` = T tokens, none of them padding, to W logical ranks: token v gets rank
// floor(v * W / T) (README.md, "Ranks are logical").
RoutingGroup partition_tokens(int64_t tokens, int64_t ranks);

// Returns C_r, the number of slots that one expert has for tokens of source rank r:
// max(1, ceil(CF * T_r / E - 1e-6)), or 0 if the rank has no tokens. Returns T_r if
// `capacity_factor` is empty (dropless). README.md, "Capacity is counted per source rank".
int64_t capacity_slots(std::optional<double> capacity_factor, int64_t rank_tokens, int64_t experts);

// Read-only input of the rules. Tensors are detached.
struct RouteInput {
  at::Tensor logits;                 // [T, E] f32, compared within a token
  at::Tensor scores;                 // [T, E] f32, compared between tokens
  at::Tensor experts_by_logit;       // [T, E] i64, descending; ties: lower index first
  at::Tensor experts_by_choice;      // [T, E] i64, order of choice: experts_by_logit unless biased
  at::Tensor source_rank;            // [T] i64, W for padding
  std::vector<int64_t> capacity;     // [W], C_r (capacity_slots()); 0 without slots
  std::vector<int64_t> rank_tokens;  // [W], T_r
  int64_t ranks = 1;                 // W
  int64_t k = 1;                     // max_choices() of the router
  bool is_dropless = false;          // no capacity limit
  bool compute_z_loss = false;
  // Losses are sums over tokens, and balance losses are replaced by AuxLosses::balance, because the
  // group of tokens extends over processes or micro-batches.
  bool sum_losses = false;
  at::Tensor sequence;       // [T] i64 as in RoutingGroup, or undefined
  int64_t sequences = 0;     // largest sequence number + 1
  int64_t valid_tokens = 0;  // tokens that are not padding

  int64_t tokens() const { return logits.size(0); }
  int64_t experts() const { return logits.size(1); }
};

// Builds the input of the rules. `bias` [E] f32 is added to the scores when tokens choose experts
// (README.md, "Balance by bias"); undefined means zero. Requires source ranks in -1..W-1 and a W
// that divides E.
RouteInput make_input(const at::Tensor& logits, const at::Tensor& scores,
                      const RouterSettings& settings, const RoutingGroup& group,
                      const at::Tensor& bias = {});

// ----------------------------------------------------------------------------------------- rules
// Rules that several routers can share. The first rule of each family is in routers/.

using Rule = std::function<Plan(const RouteInput&, const Plan&)>;

// Refuses requests beyond the capacity of their group (source rank, expert) and moves them to the
// overflow. Earlier rows of a group are accepted first (Rectify-Router, section 3).
Plan apply_capacity(const RouteInput& input, const Plan& plan);

// Fill-in rectification (FR): gives the free slots to the (k+1)-th choices of all tokens, highest
// score first (Rectify-Router, section 4.2). Unless order=score, the resulting slots equal those of
// top-(k+1) with the same capacity factor. Refused fill-ins are not added to the overflow.
Plan fill_in(const RouteInput& input, const Plan& plan);

// Intra-GPU rectification (IR): adds one row of multiplicity m for each token with m missing
// experts, at the best expert of the token's own rank (Rectify-Router, section 4.1, Eq. 3). The row
// needs no slot and no communication. The expert may have accepted or refused the token
// (README.md, "The rectifying expert may be any local one").
Plan intra_gpu(const RouteInput& input, const Plan& plan);

// ------------------------------------------------------------------------------- rows and groups
// A group is a pair (expert, source rank), numbered expert * W + source_rank. Unused rows have
// group E * W.

// Counts each of 0..size-1 in `values` [n] i64. Returns [size] i64. It does not wait for the
// device, unlike at::bincount().
at::Tensor count_values(const at::Tensor& values, int64_t size);
// Copies [n] i64 to the host; waits for the device.
std::vector<int64_t> to_host(const at::Tensor& numbers);
// Returns `numbers` as [n] i64. Does not wait for the device: page-locked memory is copied.
at::Tensor to_device(const std::vector<int64_t>& numbers, at::Device device);

// Returns T * n rows, token-major: token i requests expert[i, c] as choice first_choice + c.
// expert [T, n] i64, keep [T, n] bool. Rows of padding and rows where `keep` is false are unused.
Rows request_rows(const RouteInput& input, const at::Tensor& expert, const at::Tensor& keep,
                  int64_t first_choice);

// Returns the rows at `index` [n] i64.
Rows take(const Rows& rows, const at::Tensor& index);

// Returns `rows` in their order; rows where `keep` [n] bool is false become unused.
Rows keep_only(const Rows& rows, const at::Tensor& keep, int64_t experts);

Rows concatenate(const Rows& first, const Rows& second);

// Returns the group of each row, [n] i64.
at::Tensor row_groups(const RouteInput& input, const Rows& rows);

// Returns the index of each row within its group, [n] i64, for rows sorted by group.
at::Tensor slot_indices(const RouteInput& input, const at::Tensor& sorted_groups);

// Returns true for each row, [n] bool, that is among the first slots[g] of its group g. Requires
// rows sorted by group. slots [E * W + 1] i64.
at::Tensor fit_slots(const RouteInput& input, const Rows& rows, const at::Tensor& slots);

// Returns the number of slots of each group, [E * W + 1] i64; 0 for the group of unused rows.
at::Tensor group_capacity(const RouteInput& input);

// Returns the rows in a stable sort by group, unused rows last.
Rows sort_by_group(const RouteInput& input, const Rows& rows);

// Returns the rows in a stable sort by descending score of (token, expert).
Rows sort_by_score(const RouteInput& input, const Rows& rows);

// Returns a plan with the first `rows_max` of `rows` and the overflow of `before`. Requires rows
// sorted by group, with unused rows last.
Plan with_rows(const RouteInput& input, const Rows& rows, int64_t rows_max, const Plan& before);

// Returns the number of used rows of each token, [T] i64.
at::Tensor rows_per_token(const RouteInput& input, const Rows& rows);

// Returns an upper bound of the number of rows that capacity accepts from `requests` requests.
int64_t max_accepted_rows(const RouteInput& input, int64_t requests);

}  // namespace moe::route
