// Which experts are shadowed, that their weights arrive, and that gradients go back as sums.

#include "core/model/moe/shadowed_experts.h"

#include "core/distributed/threads.h"
#include "tests/support/catch.h"
#include "tests/support/time_limit.h"

namespace moe::test {
namespace {

using at::Tensor;
using Counts = std::vector<int64_t>;

constexpr int kSeconds = 60;
constexpr int64_t kFew = model::kShadowingRows / 2, kMany = model::kShadowingRows * 10;

// The most rows that any process runs when the rows at `shadowed` experts stay where they are.
int64_t most_rows(const std::vector<Counts>& tokens_per_expert, const Counts& shadowed) {
  const auto processes = static_cast<int64_t>(tokens_per_expert.size());
  const auto experts = static_cast<int64_t>(tokens_per_expert.front().size());
  Counts rows(tokens_per_expert.size(), 0);
  for (int64_t process = 0; process < processes; ++process) {
    for (int64_t expert = 0; expert < experts; ++expert) {
      const bool stays = std::binary_search(shadowed.begin(), shadowed.end(), expert);
      rows[stays ? process : expert / (experts / processes)] += tokens_per_expert[process][expert];
    }
  }
  return *std::max_element(rows.begin(), rows.end());
}

}  // namespace

TEST_CASE("balanced experts are not shadowed", "[model]") {
  CHECK(model::choose_shadowed({{kMany, kMany}, {kMany, kMany}}).empty());
  CHECK(model::choose_shadowed({{kMany, 0, kMany, 0}, {0, kMany, 0, kMany}}).empty());
  CHECK(model::choose_shadowed({{0, 0}, {0, 0}}).empty());
  CHECK(model::choose_shadowed({{kMany, 0, 3}}).empty());  // one process
}

TEST_CASE("few rows are not worth a copy of an expert", "[model]") {
  CHECK(model::choose_shadowed({{kFew, 0}, {kFew, 0}}).empty());
  CHECK((model::choose_shadowed({{kMany, 0}, {kMany, 0}}) == Counts{0}));
}

TEST_CASE("experts with most rows are shadowed until processes are about even", "[model]") {
  // Two experts of one process have all rows: each process runs its own.
  CHECK((model::choose_shadowed({{0, 0, kMany, kMany}, {0, 0, kMany, kMany}}) == Counts{2, 3}));
  // One of them has them, and small ones stay.
  CHECK((model::choose_shadowed({{1, kMany, 1, 1}, {2, kMany, 1, 1}}) == Counts{1}));
  // Rows that are at home already gain nothing by it.
  CHECK(model::choose_shadowed({{kMany, 0}, {0, 0}}).empty());
}

TEST_CASE("shadowing never makes the busiest process busier", "[model]") {
  at::manual_seed(7);
  for (const int64_t processes : {2, 4}) {
    for (int trial = 0; trial < 200; ++trial) {
      std::vector<Counts> tokens_per_expert;
      for (int64_t process = 0; process < processes; ++process) {
        const Tensor random = (at::rand({8}, at::kDouble).pow(6) * 4000).to(at::kLong);
        const int64_t* first = random.const_data_ptr<int64_t>();
        tokens_per_expert.emplace_back(first, first + 8);
      }
      const Counts shadowed = model::choose_shadowed(tokens_per_expert);
      CHECK(most_rows(tokens_per_expert, shadowed) <= most_rows(tokens_per_expert, {}));
    }
  }
}

TEST_CASE("replicas equal the weights, and their gradients are summed at the owner", "[model]") {
  constexpr int64_t kProcesses = 4, kLocal = 2;
  const Counts shadowed = {1, 2, 3, 6};
  const Tensor all = at::arange(kProcesses * kLocal * 6, at::kDouble).view({-1, 3, 2});
  std::vector<Tensor> gradients(kProcesses);
  const TimeLimit limit(kSeconds);
  distributed::run_as_threads(kProcesses, [&](distributed::Comm& comm) {
    const model::Shadowing shadowing(comm, shadowed, kLocal);
    const Tensor held = all.narrow(0, comm.rank() * kLocal, kLocal).clone().requires_grad_(true);
    const model::ShadowedWeights weights = model::shadow_weights(held, shadowing);
    CHECK(at::equal(weights.owned, held));
    std::vector<Tensor> expected;
    for (const int64_t expert : shadowed) {
      if (expert / kLocal != comm.rank()) {
        expected.push_back(all[expert]);
      }
    }
    CHECK(at::equal(weights.replicas, at::stack(expected)));
    const double weight = std::pow(10.0, static_cast<double>(comm.rank()));
    ((weights.owned.sum() + weights.replicas.sum()) * weight).backward();
    gradients[comm.rank()] = held.grad();
  });
  for (int64_t expert = 0; expert < kProcesses * kLocal; ++expert) {
    const bool is_shadowed = std::binary_search(shadowed.begin(), shadowed.end(), expert);
    const double wanted =
        is_shadowed ? 1111.0 : std::pow(10.0, static_cast<double>(expert / kLocal));
    CHECK((gradients[expert / kLocal][expert % kLocal] == wanted).all().item<bool>());
  }
}

TEST_CASE("an empty list exchanges nothing", "[model]") {
  distributed::run_as_threads(2, [&](distributed::Comm& comm) {
    const Tensor held = at::ones({2, 3, 2}).requires_grad_(true);
    const model::ShadowedWeights weights = model::shadow_weights(held, {comm, {}, 2});
    CHECK(weights.owned.is_same(held));
    CHECK(weights.replicas.size(0) == 0);
  });
}

}  // namespace moe::test
