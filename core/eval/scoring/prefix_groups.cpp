// Requests are sorted by their inputs, so that those with a common prefix are neighbours; a group
// grows as long as the prefix that it has in common with the next request is long enough to pay.

#include "core/eval/scoring/prefix_groups.h"

#include <algorithm>
#include <numeric>

namespace moe::eval {

namespace {

// Branches are computed under one mask over root and branches, whose cost grows with their square.
constexpr int64_t kMostBranchTokens = 1024;

int64_t shared(const Request& a, const Request& b, int64_t most) {
  const int64_t limit = std::min({a.inputs(), b.inputs(), most});
  const auto end = a.tokens.begin() + limit;
  return std::mismatch(a.tokens.begin(), end, b.tokens.begin()).first - a.tokens.begin();
}

bool same_inputs(const Request& a, const Request& b) {
  return a.inputs() == b.inputs() && shared(a, b, a.inputs()) == a.inputs();
}

// The group of sorted requests begin..end-1, which share their first `root` inputs.
PrefixGroup make_prefix_group(const std::vector<Request>& requests,
                              const std::vector<size_t>& sorted, size_t begin, size_t end,
                              int64_t root) {
  PrefixGroup group;
  group.request = sorted[begin];
  group.root = root;
  for (size_t i = begin; i < end; ++i) {
    const Request& request = requests[sorted[i]];
    const int64_t rest = request.inputs() - root;
    const bool is_new =
        rest > 0 &&
        (group.branches.empty() || !same_inputs(requests[group.branches.back().request], request));
    if (is_new) {
      group.branches.push_back({sorted[i], rest});
    }
    group.members.push_back(
        {sorted[i], rest > 0 ? static_cast<int64_t>(group.branches.size()) - 1 : -1});
  }
  return group;
}

}  // namespace

int64_t PrefixGroup::tokens() const {
  return std::accumulate(branches.begin(), branches.end(), root,
                         [](int64_t sum, const Branch& branch) { return sum + branch.length; });
}

std::vector<PrefixGroup> find_prefix_groups(const std::vector<Request>& requests) {
  std::vector<size_t> sorted(requests.size());
  std::iota(sorted.begin(), sorted.end(), size_t{0});
  const auto inputs_end = [&](size_t index) { return requests[index].tokens.end() - 1; };
  std::stable_sort(sorted.begin(), sorted.end(), [&](size_t a, size_t b) {
    return std::lexicographical_compare(requests[a].tokens.begin(), inputs_end(a),
                                        requests[b].tokens.begin(), inputs_end(b));
  });
  std::vector<PrefixGroup> groups;
  for (size_t begin = 0; begin < sorted.size();) {
    const Request& first = requests[sorted[begin]];
    int64_t root = first.inputs(), rest = 0;
    size_t end = begin + 1;
    for (; end < sorted.size(); ++end) {
      const Request& next = requests[sorted[end]];
      const int64_t common = shared(first, next, root);
      // A shorter root makes the branches before this one longer.
      const int64_t longer = (root - common) * static_cast<int64_t>(end - begin);
      const int64_t with_it = rest + longer + next.inputs() - common;
      if (2 * common < root || longer > common || with_it > kMostBranchTokens) {
        break;
      }
      rest = with_it;
      root = common;
    }
    groups.push_back(make_prefix_group(requests, sorted, begin, end, root));
    begin = end;
  }
  std::stable_sort(groups.begin(), groups.end(), [](const PrefixGroup& a, const PrefixGroup& b) {
    return a.tokens() != b.tokens() ? a.tokens() > b.tokens() : a.request < b.request;
  });
  return groups;
}

}  // namespace moe::eval
