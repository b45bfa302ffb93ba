// Which experts are lent, and that their weights come and gradients go back as sums.

#include "core/dist/threads.h"
#include "core/model/moe/shadowed_experts.h"
#include "tests/support/catch.h"
#include "tests/support/time_limit.h"

namespace moe::test {
namespace {

using at::Tensor;
using Numbers = std::vector<int64_t>;

constexpr int kSeconds = 60;
constexpr int64_t kFew = model::kLendingRows / 2, kMany = model::kLendingRows * 10;

// The most rows that any process runs when `lent` stay where they are.
int64_t most_rows(const std::vector<Numbers>& loads, const Numbers& lent) {
  const auto places = static_cast<int64_t>(loads.size());
  const auto experts = static_cast<int64_t>(loads.front().size());
  Numbers rows(loads.size(), 0);
  for (int64_t place = 0; place < places; ++place) {
    for (int64_t expert = 0; expert < experts; ++expert) {
      const bool stays = std::binary_search(lent.begin(), lent.end(), expert);
      rows[stays ? place : expert / (experts / places)] += loads[place][expert];
    }
  }
  return *std::max_element(rows.begin(), rows.end());
}

}  // namespace

TEST_CASE("balanced experts are not lent", "[model]") {
  CHECK(model::choose_lent({{kMany, kMany}, {kMany, kMany}}).empty());
  CHECK(model::choose_lent({{kMany, 0, kMany, 0}, {0, kMany, 0, kMany}}).empty());
  CHECK(model::choose_lent({{0, 0}, {0, 0}}).empty());
  CHECK(model::choose_lent({{kMany, 0, 3}}).empty());  // one process
}

TEST_CASE("few rows are not worth a copy of an expert", "[model]") {
  CHECK(model::choose_lent({{kFew, 0}, {kFew, 0}}).empty());
  CHECK((model::choose_lent({{kMany, 0}, {kMany, 0}}) == Numbers{0}));
}

TEST_CASE("experts with most rows are lent until processes are about even", "[model]") {
  // Two experts of one process have all rows: each process runs its own.
  CHECK((model::choose_lent({{0, 0, kMany, kMany}, {0, 0, kMany, kMany}}) == Numbers{2, 3}));
  // One of them has them, and small ones stay.
  CHECK((model::choose_lent({{1, kMany, 1, 1}, {2, kMany, 1, 1}}) == Numbers{1}));
  // Rows that are at home already gain nothing by it.
  CHECK(model::choose_lent({{kMany, 0}, {0, 0}}).empty());
}

TEST_CASE("lending never makes the busiest process busier", "[model]") {
  at::manual_seed(7);
  for (const int64_t places : {2, 4}) {
    for (int trial = 0; trial < 200; ++trial) {
      std::vector<Numbers> loads;
      for (int64_t place = 0; place < places; ++place) {
        const Tensor random = (at::rand({8}, at::kDouble).pow(6) * 4000).to(at::kLong);
        const int64_t* first = random.const_data_ptr<int64_t>();
        loads.emplace_back(first, first + 8);
      }
      const Numbers lent = model::choose_lent(loads);
      CHECK(most_rows(loads, lent) <= most_rows(loads, {}));
    }
  }
}

TEST_CASE("lent weights come as they are and their gradients are summed where they are held",
          "[model]") {
  constexpr int64_t kPlaces = 4, kLocal = 2;
  const Numbers lent = {1, 2, 3, 6};
  const Tensor all = at::arange(kPlaces * kLocal * 6, at::kDouble).view({-1, 3, 2});
  std::vector<Tensor> gradients(kPlaces);
  const TimeLimit limit(kSeconds);
  dist::run_as_threads(kPlaces, [&](dist::Comm& comm) {
    const model::Lending lending(comm, lent, kLocal);
    const Tensor held = all.narrow(0, comm.rank() * kLocal, kLocal).clone().requires_grad_(true);
    const model::LentWeights weights = model::lend(held, lending);
    CHECK(at::equal(weights.held, held));
    std::vector<Tensor> expected;
    for (const int64_t expert : lent) {
      if (expert / kLocal != comm.rank()) {
        expected.push_back(all[expert]);
      }
    }
    CHECK(at::equal(weights.borrowed, at::stack(expected)));
    const double weight = std::pow(10.0, static_cast<double>(comm.rank()));
    ((weights.held.sum() + weights.borrowed.sum()) * weight).backward();
    gradients[comm.rank()] = held.grad();
  });
  for (int64_t expert = 0; expert < kPlaces * kLocal; ++expert) {
    const bool is_lent = std::binary_search(lent.begin(), lent.end(), expert);
    const double wanted = is_lent ? 1111.0 : std::pow(10.0, static_cast<double>(expert / kLocal));
    CHECK((gradients[expert / kLocal][expert % kLocal] == wanted).all().item<bool>());
  }
}

TEST_CASE("an empty list exchanges nothing", "[model]") {
  dist::run_as_threads(2, [&](dist::Comm& comm) {
    const Tensor held = at::ones({2, 3, 2}).requires_grad_(true);
    const model::LentWeights weights = model::lend(held, {comm, {}, 2});
    CHECK(weights.held.is_same(held));
    CHECK(weights.borrowed.size(0) == 0);
  });
}

}  // namespace moe::test
