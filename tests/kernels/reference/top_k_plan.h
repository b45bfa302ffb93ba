#pragma once
// The plan of a top-k router from sorted lists, one list a group (expert, home rank).

#include <algorithm>
#include <bit>
#include <vector>

#include "kernels/ops/top_k_plan.h"

namespace moe::test {

using kernels::order_key;

inline void top_k_plan_reference(const kernels::TopKPlanArgs& args) {
  struct Request {
    int64_t token, choice, count;
  };
  const auto& [shape, in, out, scratch] = args;
  std::vector<std::vector<Request>> accepted(static_cast<size_t>(shape.experts * shape.ranks));
  auto refused = accepted;
  std::vector<int64_t> missing(static_cast<size_t>(shape.tokens), shape.k);
  // Choices that are ordered together by score.
  std::vector<std::pair<int64_t, int64_t>> phases;
  for (int64_t c = 0; c < shape.k && !shape.by_score; ++c) {
    phases.emplace_back(c, c + 1);
  }
  if (shape.by_score) {
    phases.emplace_back(0, shape.k);
  }
  if (shape.fill) {
    phases.emplace_back(shape.k, shape.k + 1);
  }
  for (size_t group = 0; group < accepted.size(); ++group) {
    const auto expert = static_cast<int64_t>(group) / shape.ranks;
    const auto rank = static_cast<int64_t>(group) % shape.ranks;
    for (const auto& [first, last] : phases) {
      std::vector<Request> requests;
      for (int64_t t = 0; t < shape.tokens; ++t) {
        for (int64_t c = first; c < last && in.source_rank[t] == rank; ++c) {
          if (in.choice[t * shape.choices + c] == expert) {
            requests.push_back({t, c, 1});
          }
        }
      }
      const auto key = [&](const Request& each) {
        return order_key(std::bit_cast<uint32_t>(in.scores[each.token * shape.experts + expert]));
      };
      std::stable_sort(requests.begin(), requests.end(),
                       [&](const Request& a, const Request& b) { return key(a) > key(b); });
      for (const Request& each : requests) {
        if (static_cast<int64_t>(accepted[group].size()) < in.capacity[rank]) {
          accepted[group].push_back(each);
          --missing[static_cast<size_t>(each.token)];
        } else if (first < shape.k) {
          refused[group].push_back(each);
        }
      }
    }
  }
  for (int64_t t = 0; t < shape.tokens && shape.rectify; ++t) {
    if (missing[static_cast<size_t>(t)] > 0 && in.source_rank[t] < shape.ranks) {
      accepted[static_cast<size_t>(in.local_choice[t] * shape.ranks + in.source_rank[t])].push_back(
          {t, shape.k + 1, missing[static_cast<size_t>(t)]});
    }
  }

  for (int64_t* list : {out.token, out.choice, out.count}) {
    std::fill_n(list, out.rows_max, 0);
  }
  std::fill_n(out.expert, out.rows_max, shape.experts);
  std::fill_n(out.rows, shape.experts, 0);
  std::fill_n(out.overflow_token, out.overflow_max, 0);
  std::fill_n(out.overflow_expert, out.overflow_max, shape.experts);
  std::fill_n(out.overflow_choice, out.overflow_max, 0);
  int64_t row = 0, overflow = 0;
  for (size_t group = 0; group < accepted.size(); ++group) {
    const auto expert = static_cast<int64_t>(group) / shape.ranks;
    for (const Request& each : accepted[group]) {
      out.token[row] = each.token;
      out.expert[row] = expert;
      out.choice[row] = each.choice;
      out.count[row++] = each.count;
      ++out.rows[expert];
    }
    for (const Request& each : refused[group]) {
      if (overflow < out.overflow_max) {
        out.overflow_token[overflow] = each.token;
        out.overflow_expert[overflow] = expert;
        out.overflow_choice[overflow++] = each.choice;
      }
    }
  }
}

}  // namespace moe::test
