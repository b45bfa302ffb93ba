#pragma once
// A routing drawn for a person: a token a line and an expert a column, the slots of every expert,
// and the counts. Rectify-Router's Figure 2 for one's own numbers.

#include <cstdint>
#include <string>

#include "core/route/routing_json.h"

namespace moe::cli {

struct TableStyle {
  int64_t max_tokens = 64;  // lines; the rest is only counted
  int64_t columns = 100;    // of the terminal; wider tables list a token's experts instead
  bool color = false;
};

std::string route_table(const route::RoutingProblem& problem, const TableStyle& style);

}  // namespace moe::cli
