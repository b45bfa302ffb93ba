#pragma once
// Requests that begin alike, so that what they share is computed once: the choices of a question
// share its context, requests that are equal share everything.

#include <cstdint>
#include <vector>

#include "core/eval/scoring/requests.h"

namespace moe::eval {

// A group is laid out as its shared beginning, the root, and for each different rest a branch that
// goes on from it (model::Packed::continues).
struct PrefixGroup {
  struct Branch {
    size_t request;  // whose inputs from `root` on it is; not empty
    int64_t length;
  };
  struct Member {
    size_t request;
    int64_t branch;  // index into branches, -1: its inputs are the root's first
  };
  size_t request = 0;  // whose first `root` inputs are the shared beginning
  int64_t root = 0;
  std::vector<Branch> branches;
  std::vector<Member> members;

  int64_t tokens() const;  // computed for the whole group
};

// All requests, each in one group; the largest groups first, ties in file order of their first
// request. Scores do not depend on it but for rounding.
std::vector<PrefixGroup> find_prefix_groups(const std::vector<Request>& requests);

}  // namespace moe::eval
