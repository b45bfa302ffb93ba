#pragma once
// The plan of a top-k router from sorted lists, one list a group (expert, home rank).

#include <algorithm>
#include <bit>
#include <numeric>
#include <vector>

#include "kernels/ops/top_k_plan.h"

namespace moe::test {

using kernels::order_key;
using kernels::TopKPlanArgs;
using kernels::TopKPlanInput;
using kernels::TopKPlanRows;
using kernels::TopKPlanShape;

struct Request {
  int64_t token, choice, count;
};

struct Group {
  int64_t expert, home;
  std::vector<Request> accepted, refused;
};

// The tokens of the group whose choice is one of first .. last - 1, best first.
inline std::vector<Request> asking(const TopKPlanShape& shape, const TopKPlanInput& in,
                                   const Group& group, int64_t first, int64_t last) {
  std::vector<Request> all;
  for (int64_t t = 0; t < shape.tokens; ++t) {
    for (int64_t c = first; c < last && in.home[t] == group.home; ++c) {
      if (in.choice[t * shape.choices + c] == group.expert) {
        all.push_back({t, c, 1});
      }
    }
  }
  const auto key = [&](const Request& each) {
    return order_key(std::bit_cast<uint32_t>(in.scores[each.token * shape.experts + group.expert]));
  };
  std::stable_sort(all.begin(), all.end(),
                   [&](const Request& a, const Request& b) { return key(a) > key(b); });
  return all;
}

inline void accept(const TopKPlanShape& shape, const TopKPlanInput& in, Group& group, int64_t first,
                   int64_t last) {
  for (const Request& each : asking(shape, in, group, first, last)) {
    if (static_cast<int64_t>(group.accepted.size()) < in.capacity[group.home]) {
      group.accepted.push_back(each);
    } else if (first < shape.k) {
      group.refused.push_back(each);
    }
  }
}

inline void rectify(const TopKPlanShape& shape, const TopKPlanInput& in,
                    std::vector<Group>& groups) {
  std::vector<int64_t> missing(static_cast<size_t>(shape.tokens), shape.k);
  for (const Group& group : groups) {
    for (const Request& each : group.accepted) {
      --missing[static_cast<size_t>(each.token)];
    }
  }
  for (int64_t t = 0; t < shape.tokens; ++t) {
    const int64_t lacks = missing[static_cast<size_t>(t)];
    if (lacks > 0 && in.home[t] < shape.ranks) {
      groups[static_cast<size_t>(in.at_home[t] * shape.ranks + in.home[t])].accepted.push_back(
          {t, shape.k + 1, lacks});
    }
  }
}

inline void write(const TopKPlanShape& shape, const std::vector<Group>& groups,
                  const TopKPlanRows& to) {
  std::fill_n(to.token, to.rows_max, 0);
  std::fill_n(to.expert, to.rows_max, shape.experts);
  std::fill_n(to.choice, to.rows_max, 0);
  std::fill_n(to.count, to.rows_max, 0);
  std::fill_n(to.rows, shape.experts, 0);
  std::fill_n(to.overflow_token, to.overflow_max, 0);
  std::fill_n(to.overflow_expert, to.overflow_max, shape.experts);
  std::fill_n(to.overflow_choice, to.overflow_max, 0);
  int64_t row = 0, refused = 0;
  for (const Group& group : groups) {
    for (const Request& each : group.accepted) {
      to.token[row] = each.token;
      to.expert[row] = group.expert;
      to.choice[row] = each.choice;
      to.count[row++] = each.count;
      ++to.rows[group.expert];
    }
    for (const Request& each : group.refused) {
      if (refused < to.overflow_max) {
        to.overflow_token[refused] = each.token;
        to.overflow_expert[refused] = group.expert;
        to.overflow_choice[refused++] = each.choice;
      }
    }
  }
}

inline void top_k_plan_reference(const TopKPlanArgs& args) {
  const TopKPlanShape& shape = args.shape;
  const TopKPlanInput& in = args.in;
  std::vector<Group> groups;
  for (int64_t expert = 0; expert < shape.experts; ++expert) {
    for (int64_t home = 0; home < shape.ranks; ++home) {
      Group group{expert, home, {}, {}};
      if (shape.by_score) {
        accept(shape, in, group, 0, shape.k);
      }
      for (int64_t c = 0; c < shape.k && !shape.by_score; ++c) {
        accept(shape, in, group, c, c + 1);
      }
      if (shape.fill) {
        accept(shape, in, group, shape.k, shape.k + 1);
      }
      groups.push_back(std::move(group));
    }
  }
  if (shape.rectify) {
    rectify(shape, in, groups);
  }
  write(shape, groups, args.out);
}

}  // namespace moe::test
