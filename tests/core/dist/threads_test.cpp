// Collectives between threads against what they say: every rank's tensor is a known function of its
// rank.

#include "core/dist/threads.h"

#include <c10/core/AutogradState.h>

#include <mutex>
#include <set>

#include "core/dist/solo.h"
#include "tests/support/catch.h"

using namespace moe;
using torch::Tensor;

namespace {

Tensor numbers(std::vector<float> values) { return torch::tensor(values); }

// Catch2's assertions are for one thread: each rank says whether all was well.
template <typename Body>
void on_ranks(int64_t ranks, const Body& body) {
  std::mutex mutex;
  std::set<int64_t> wrong;
  dist::run_as_threads(ranks, [&](dist::Comm& comm) {
    if (!body(comm)) {
      const std::lock_guard lock(mutex);
      wrong.insert(comm.rank());
    }
  });
  CHECK(wrong.empty());
}

}  // namespace

TEST_CASE("rows arrive in rank order, also where some send none") {
  // Rank r sends (r + to) % 3 rows of the number 10 r + to.
  on_ranks(4, [](dist::Comm& comm) {
    std::vector<int64_t> sent, received;
    std::vector<Tensor> parts, wanted;
    for (int64_t other = 0; other < 4; ++other) {
      sent.push_back((comm.rank() + other) % 3);
      received.push_back((other + comm.rank()) % 3);
      parts.push_back(at::full({sent.back(), 2}, 10.0 * comm.rank() + other));
      wanted.push_back(at::full({received.back(), 2}, 10.0 * other + comm.rank()));
    }
    const Tensor expected = at::cat(wanted);
    const Tensor output = at::empty_like(expected);
    comm.all_to_all(at::cat(parts), sent, output, received)->wait();
    return at::equal(output, expected);
  });
}

TEST_CASE("sums and gathered pieces are the same on all ranks") {
  on_ranks(3, [](dist::Comm& comm) {
    const auto r = static_cast<float>(comm.rank());
    const Tensor sum = numbers({r, 1});
    comm.all_reduce(sum);
    const Tensor gathered = at::empty({6});
    comm.all_gather(numbers({r, 10 * r}), gathered);
    const Tensor piece = at::empty({1});
    comm.reduce_scatter(numbers({r, r + 1, r + 2}), piece);
    const Tensor told = numbers({r});
    comm.broadcast(told, 2);
    comm.barrier();
    return at::equal(sum, numbers({3, 3})) && at::equal(gathered, numbers({0, 0, 1, 10, 2, 20})) &&
           at::equal(piece, numbers({3 + 3 * r})) && at::equal(told, numbers({2}));
  });
}

TEST_CASE("numbers and texts of the host travel") {
  on_ranks(3, [](dist::Comm& comm) {
    const auto numbers = dist::gather_numbers(comm, {comm.rank(), 7});
    const auto texts = dist::gather_texts(comm, std::string(comm.rank(), 'x'));
    const auto sums = dist::sum_numbers(comm, {0.5, 1.0 * comm.rank()});
    return numbers == std::vector<std::vector<int64_t>>{{0, 7}, {1, 7}, {2, 7}} &&
           texts == std::vector<std::string>{"", "x", "xx"} && sums == std::vector<double>{1.5, 3};
  });
}

TEST_CASE("parts of a Comm talk among themselves") {
  on_ranks(4, [](dist::Comm& comm) {
    const bool is_odd = comm.rank() % 2 == 1;
    const auto part =
        comm.part("parity", is_odd ? std::vector<int64_t>{1, 3} : std::vector<int64_t>{0, 2});
    const Tensor sum = numbers({static_cast<float>(comm.rank())});
    part->all_reduce(sum);
    return part->size() == 2 && part->rank() == comm.rank() / 2 &&
           at::equal(sum, numbers({is_odd ? 4.0F : 2.0F}));
  });
}

TEST_CASE("a rank that fails ends the others, and its own words are what is heard") {
  CHECK_THROWS_WITH(dist::run_as_threads(3,
                                         [](dist::Comm& comm) {
                                           if (comm.rank() == 1) {
                                             throw std::runtime_error("rank 1 is unwell");
                                           }
                                           const auto part = comm.part("all", {0, 1, 2});
                                           part->barrier();
                                         }),
                    "rank 1 is unwell");
}

TEST_CASE("each rank runs its own backward") {
  on_ranks(2, [](dist::Comm&) {
    return !c10::AutogradState::get_tls_state().get_multithreading_enabled();
  });
}

TEST_CASE("one rank alone keeps what it has") {
  const auto comm = dist::solo_comm();
  const Tensor rows = at::arange(6, at::kFloat).view({3, 2}), output = at::empty_like(rows);
  comm->all_to_all(rows, {3}, output, {3})->wait();
  CHECK(at::equal(rows, output));
  comm->all_reduce(output);
  CHECK(at::equal(rows, output));
  CHECK(comm->part("any", {0})->size() == 1);
}
