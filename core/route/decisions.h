#pragma once
// A finished plan in the words of the papers: who was accepted where and in which slot, who was
// dropped, who filled in, who was rectified. Lists on the host, for people and for files; the
// layers work on the plan itself.

#include <cstdint>
#include <vector>

#include "core/route/rule.h"

namespace moe::route {

struct Decisions {
  using List = std::vector<int64_t>;
  std::vector<std::vector<List>> slots;  // [W][E] tokens of that rank, in slot order
  std::vector<List> accepted;            // [T] experts that accepted the token, best first
  std::vector<List> drops;               // [token, choice from 1, expert], ascending
  std::vector<List> fr_filled;           // [token, expert], ascending
  std::vector<List> ir;                  // [token, expert, multiplicity], ascending
};

Decisions decisions_of(const RouteInput& input, const Plan& plan);

}  // namespace moe::route
