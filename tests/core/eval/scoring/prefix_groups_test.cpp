#include <algorithm>
#include <random>

#include "core/eval/scoring/requests.h"
#include "tests/support/catch.h"

namespace moe::eval {
namespace {

// Inputs and one token to score.
Request request_of(std::vector<int64_t> inputs) {
  inputs.push_back(7);
  return {std::move(inputs), 1, false};
}

// The inputs of a member as its group lays them out.
std::vector<int64_t> laid_out(const std::vector<Request>& requests, const PrefixGroup& group,
                              const PrefixGroup::Member& member) {
  const auto& root = requests[group.request].tokens;
  std::vector<int64_t> inputs(root.begin(), root.begin() + group.root);
  if (member.branch >= 0) {
    const auto& branch = group.branches.at(static_cast<size_t>(member.branch));
    const auto from = requests[branch.request].tokens.begin() + group.root;
    inputs.insert(inputs.end(), from, from + branch.length);
  } else {
    inputs.resize(static_cast<size_t>(requests[member.request].inputs()));
  }
  return inputs;
}

void check_families(const std::vector<Request>& requests) {
  std::vector<int> seen(requests.size());
  int64_t tokens = 0, alone = 0, largest = std::numeric_limits<int64_t>::max();
  for (const auto& group : find_prefix_groups(requests)) {
    CHECK(group.root > 0);
    CHECK(group.tokens() <= largest);
    largest = group.tokens();
    tokens += group.tokens();
    for (const auto& member : group.members) {
      ++seen[member.request];
      const auto& whole = requests[member.request].tokens;
      CHECK(laid_out(requests, group, member) ==
            std::vector<int64_t>(whole.begin(), whole.end() - 1));
    }
  }
  for (const auto& request : requests) {
    alone += request.inputs();
  }
  CHECK(std::all_of(seen.begin(), seen.end(), [](int count) { return count == 1; }));
  CHECK(tokens <= alone);
}

TEST_CASE("the choices of a question share its context", "[eval]") {
  const std::vector<Request> requests = {
      request_of({1, 2, 3, 4, 10, 11}), request_of({9, 9, 9}), request_of({1, 2, 3, 4, 12}),
      request_of({1, 2, 3, 4, 10, 11}), request_of({1, 2, 3, 4})};
  const auto groups = find_prefix_groups(requests);
  REQUIRE(groups.size() == 2);
  CHECK(groups[0].root == 4);
  CHECK(groups[0].branches.size() == 2);  // two requests are equal
  CHECK(groups[0].tokens() == 7);
  CHECK(groups[0].members.size() == 4);
  CHECK(groups[1].tokens() == 3);
  check_families(requests);
}

TEST_CASE("every request is in one group, whose parts spell it out", "[eval]") {
  std::mt19937_64 random(3);
  for (int round = 0; round < 50; ++round) {
    std::vector<Request> requests;
    for (int i = 0; i < 60; ++i) {
      std::vector<int64_t> inputs;
      const auto length = 1 + random() % 30;
      for (uint64_t t = 0; t < length; ++t) {
        inputs.push_back(static_cast<int64_t>(random() % (t < 12 ? 2 : 5)));  // often alike
      }
      requests.push_back(request_of(inputs));
    }
    check_families(requests);
  }
  check_families({});
}

TEST_CASE("a beginning that is too short to be worth it is not shared", "[eval]") {
  std::vector<int64_t> one(40, 1), other(40, 2);
  one[0] = other[0] = 5;
  CHECK(find_prefix_groups({request_of(one), request_of(other)}).size() == 2);
}

}  // namespace
}  // namespace moe::eval
