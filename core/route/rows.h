#pragma once
// The few moves that all rules are made of: number the rows of a group, keep some, sort by group.
// A group is one (expert, home rank): expert * W + home, E * W for unused rows. All of it runs on
// the device of its tensors, deterministically, and never reads a size back.

#include <vector>

#include "core/route/plan.h"
#include "core/route/rule.h"

namespace moe::route {

// [n] i64 as a list on the host: waits for the device.
std::vector<int64_t> to_host(const at::Tensor& numbers);

Rows rows_of(const Plan& plan);

// Rows that ask for `expert` [T, n] at choice `first_choice` + column, token-major; `keep` [T, n]
// bool says which are real. Padding tokens never are.
Rows requests(const RouteInput& input, const at::Tensor& expert, const at::Tensor& keep,
              int64_t first_choice);

// The rows at `index` [n] i64.
Rows take(const Rows& rows, const at::Tensor& index);

// Rows where `keep` [n] bool does not hold become unused, in place.
Rows keep_only(const Rows& rows, const at::Tensor& keep, int64_t experts);

Rows concatenate(const Rows& first, const Rows& second);

// [n] i64: the group of each row.
at::Tensor groups_of(const RouteInput& input, const Rows& rows);

// [E * W + 1] i64: rows in each group, unused ones last.
at::Tensor group_sizes(const RouteInput& input, const at::Tensor& groups);

// [n] i64: how many rows of the same group stand before each row of rows sorted by group.
at::Tensor slots_of(const RouteInput& input, const at::Tensor& sorted_groups);

// [E * W + 1] i64: slots of each group, 0 for unused rows.
at::Tensor group_capacity(const RouteInput& input);

// Stable: rows of a group keep their order. Unused rows come last.
Rows sort_by_group(const RouteInput& input, const Rows& rows);

// Stable, by descending score of (token, expert).
Rows sort_by_score(const RouteInput& input, const Rows& rows);

// The plan of `rows`, which are sorted by group, cut to the first `rows_max`; overflow as in
// `before`.
Plan with_rows(const RouteInput& input, const Rows& rows, int64_t rows_max, const Plan& before);

// [T] i64: rows of each token.
at::Tensor rows_per_token(const RouteInput& input, const Rows& rows);

// Most rows that capacity lets through, of `requests` requests.
int64_t accepted_max(const RouteInput& input, int64_t requests);

}  // namespace moe::route
