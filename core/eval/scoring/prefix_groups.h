#pragma once
// Requests with a shared prefix, which is computed once for all of them: the choices of a question
// have its context in common, equal requests have all of it in common.

#include <cstdint>
#include <vector>

#include "core/eval/scoring/requests.h"

namespace moe::eval {

// A group is laid out as its shared prefix, the root, and for each different rest a branch that
// continues it (model::Packed::continues).
struct PrefixGroup {
  struct Branch {
    size_t request;  // whose inputs from `root` on it is; not empty
    int64_t length;
  };
  struct Member {
    size_t request;
    int64_t branch;  // index into branches, -1: its inputs are the root's first
  };
  size_t request = 0;  // whose first `root` inputs are the shared prefix
  int64_t root = 0;
  std::vector<Branch> branches;
  std::vector<Member> members;

  int64_t tokens() const;  // computed for the whole group
};

// All requests, each in one group; the largest groups first, ties in file order of their first
// request. Scores do not depend on it but for rounding.
std::vector<PrefixGroup> find_prefix_groups(const std::vector<Request>& requests);

}  // namespace moe::eval
