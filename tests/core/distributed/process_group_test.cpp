// Gloo as processes use it. Ranks are threads, each with a ProcessGroup over one store.
// tests/cli/ranks_test.cpp runs processes.

#include "core/distributed/process_group.h"

#include <cstdlib>
#include <mutex>
#include <set>
#include <thread>

#include "core/base/error.h"
#include "core/distributed/comm.h"
#include "tests/support/catch.h"
#include "tests/support/collectives.h"
#include "tests/support/matchers.h"
#include "tests/support/rank_threads.h"

using namespace moe;
using at::Tensor;
using moe::test::contains_text;

namespace {

// Returns the message with which each rank failed, "" for none. Turns off LibTorch's flight
// recorder, which records the operations of all Gloo groups of a process without a lock: ranks that
// are threads race on it.
template <typename Body>
std::vector<std::string> run_ranks(int64_t ranks, double timeout_s, const Body& body) {
  setenv("TORCH_FR_BUFFER_SIZE", "0", 0);
  const distributed::Store store = distributed::make_local_store();
  const std::vector<distributed::Member> members(ranks, distributed::this_member("127.0.0.1"));
  std::vector<std::string> failures(ranks);
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      distributed::ProcessGroup group(store, rank, members, distributed::Seconds{timeout_s});
      try {
        const auto comm = distributed::make_process_comm(group, at::kCPU);
        body(*comm, group.store);
      } catch (const std::exception& error) {
        failures[rank] = error.what();
      }
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  return failures;
}

template <typename Body>
void on_ranks(int64_t ranks, const Body& body) {
  std::mutex mutex;
  std::set<int64_t> wrong;
  const auto failures = run_ranks(ranks, 30, [&](distributed::Comm& comm, distributed::Store&) {
    const bool is_right = body(comm);
    comm.barrier();
    const std::lock_guard lock(mutex);
    if (!is_right) {
      wrong.insert(comm.rank());
    }
  });
  CHECK(wrong.empty());
  CHECK(failures == std::vector<std::string>(ranks));
}

// Returns numbers of a rank whose sums are rounded.
Tensor some_numbers(int64_t rank, int64_t count) {
  return at::arange(count, at::kFloat).add(0.1F + static_cast<float>(rank)).sin();
}

}  // namespace

TEST_CASE("rows of every kind arrive in rank order, also where some send none") {
  for (const auto type : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kLong, at::kInt,
                          at::kByte, at::kBool}) {
    on_ranks(3,
             [&](distributed::Comm& comm) { return test::rows_arrive_in_rank_order(comm, type); });
  }
}

TEST_CASE("one rank may get all, and nobody may get anything") {
  on_ranks(3, test::one_rank_may_get_all);
  on_ranks(3, [](distributed::Comm& comm) {
    const Tensor nothing = at::empty({0, 5});
    comm.all_to_all(nothing, {0, 0, 0}, at::empty({0, 5}), {0, 0, 0})->wait();
    comm.all_reduce(nothing);
    comm.all_gather(nothing, at::empty({0, 5}));
    return true;
  });
}

TEST_CASE("sums and gathered pieces are the same on all ranks") {
  on_ranks(3, test::sums_and_pieces_are_right);
}

TEST_CASE("numbers and texts of the host travel") { on_ranks(3, test::numbers_and_texts_travel); }

TEST_CASE("parts of a Comm talk among themselves") {
  on_ranks(4, test::parts_talk_among_themselves);
}

TEST_CASE("several exchanges may be under way") {
  on_ranks(2, [](distributed::Comm& comm) {
    const Tensor one = at::full({2}, 1.0 + comm.rank()), two = at::full({2}, 10.0 + comm.rank());
    const Tensor from_one = at::empty({2}), from_two = at::empty({2});
    const auto first = comm.all_to_all(one, {1, 1}, from_one, {1, 1});
    const auto second = comm.all_to_all(two, {1, 1}, from_two, {1, 1});
    second->wait();
    first->wait();
    return at::equal(from_one, test::numbers({1, 2})) &&
           at::equal(from_two, test::numbers({10, 11}));
  });
}

TEST_CASE("a gather may be under way while sums are made and another one is waited for") {
  on_ranks(3, [](distributed::Comm& comm) {
    const auto r = static_cast<float>(comm.rank());
    constexpr int64_t kMany = 300000;
    const Tensor large = at::full({kMany}, r), gathered = at::empty({3 * kMany});
    const auto first = comm.start_all_gather(large, gathered);
    const Tensor small = at::empty({3}), piece = at::empty({1});
    const auto second = comm.start_all_gather(test::numbers({r}), small);
    comm.reduce_scatter(test::numbers({r, r + 1, r + 2}), piece);
    second->wait();
    first->wait();
    comm.start_all_gather(at::empty({0}), at::empty({0}))->wait();
    return at::equal(gathered.view({3, kMany}), at::arange(3.0).view({3, 1}).expand({3, kMany})) &&
           at::equal(small, test::numbers({0, 1, 2})) &&
           at::equal(piece, test::numbers({3 + 3 * r}));
  });
}

// reduce_scatter sums in rank order, as threads do. Gloo chooses the order of all_reduce, which for
// 3 terms changes a sum by at most two roundings of the partial sums, each below 3 in magnitude.
TEST_CASE("sums are those that threads give, the same on every rank and every time") {
  // Small, not a multiple of the ranks, and over several blocks.
  for (const int64_t count : {7, 100'003, 3 * 2'000'000}) {
    std::vector<Tensor> wanted(3), wanted_pieces(3), sums(3);
    const int64_t length = count / 3;
    test::run_as_threads(3, [&](distributed::Comm& comm) {
      const Tensor mine = some_numbers(comm.rank(), count);
      wanted_pieces[comm.rank()] = at::empty({length});
      comm.reduce_scatter(mine.narrow(0, 0, 3 * length), wanted_pieces[comm.rank()]);
      comm.all_reduce(mine);
      wanted[comm.rank()] = mine;
    });
    on_ranks(3, [&](distributed::Comm& comm) {
      const Tensor mine = some_numbers(comm.rank(), count), piece = at::empty({length});
      const Tensor again = mine.clone();
      comm.reduce_scatter(mine.narrow(0, 0, 3 * length), piece);
      comm.all_reduce(mine);
      comm.all_reduce(again);
      sums[comm.rank()] = mine;
      return at::equal(mine, again) && at::equal(piece, wanted_pieces[comm.rank()]) &&
             (mine - wanted[comm.rank()]).abs().max().item<float>() <= 4 * 1.2e-7F * 3;
    });
    CHECK((at::equal(sums[0], sums[1]) && at::equal(sums[0], sums[2])));
  }
}

TEST_CASE("whole numbers, doubles and bf16 are summed as what they are") {
  on_ranks(3, [](distributed::Comm& comm) {
    bool is_right = true;
    for (const auto type : {at::kLong, at::kInt, at::kDouble, at::kBFloat16, at::kByte}) {
      const Tensor sum = at::full({5}, comm.rank() + 1, at::TensorOptions(type));
      comm.all_reduce(sum);
      is_right = is_right && sum.eq(6).all().item<bool>();
    }
    return is_right;
  });
}

TEST_CASE("a rank that does not come is named, with step, layer and operation") {
  const auto failures = run_ranks(3, 5, [](distributed::Comm& comm, distributed::Store&) {
    comm.trace = {7, 3};
    if (comm.rank() == 2) {
      std::this_thread::sleep_for(std::chrono::seconds(8));
      return;
    }
    comm.all_to_all(at::zeros({3}), {1, 1, 1}, at::zeros({3}), {1, 1, 1})->wait();
  });
  for (const int64_t rank : {0, 1}) {
    CHECK_THAT(failures[rank], contains_text("rank 2 (host ") &&
                                   contains_text(" did not come (its last operation: connecting): "
                                                 "step 7, layer 3, all_to_all"));
  }
}

// Longer than the limit, and than the timeout with which Gloo connects.
TEST_CASE("a rank in a long operation is waited for, and its data arrive") {
  const auto failures = run_ranks(3, 3, [](distributed::Comm& comm, distributed::Store&) {
    if (comm.rank() == 2) {
      const auto writing = comm.long_operation();
      std::this_thread::sleep_for(std::chrono::seconds(9));
    }
    const Tensor sum = at::ones({2});
    comm.all_reduce(sum);
    if (sum[0].item<float>() != 3) {
      throw std::runtime_error("a wrong sum");
    }
  });
  CHECK(failures == std::vector<std::string>(3));
}

TEST_CASE("a rank that reports a failure of its own is named within two seconds") {
  const auto failures = run_ranks(2, 20, [&](distributed::Comm& comm, distributed::Store& store) {
    if (comm.rank() == 1) {
      distributed::set_verdict(store, {1, 1, "rank 1 failed (the disk is full)"});
      std::this_thread::sleep_for(std::chrono::seconds(3));
      return;
    }
    comm.trace.step = 1;
    const auto begin = std::chrono::steady_clock::now();
    try {
      comm.barrier();
    } catch (const std::exception&) {
      CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(2));
      throw;
    }
  });
  CHECK_THAT(failures[0], contains_text("failed (the disk is full): step 1, barrier"));
}

TEST_CASE("a connection that breaks ends the collectives of the others, without a stack trace") {
  const auto failures = run_ranks(2, 20, [&](distributed::Comm& comm, distributed::Store&) {
    comm.barrier();
    if (comm.rank() == 0) {
      comm.all_reduce(at::ones({100000}));  // the other rank destroys its connections
    }
  });
  CHECK(failures[1].empty());
  CHECK_THAT(failures[0], contains_text("all_reduce"));
  CHECK(failures[0].find("gloo") == std::string::npos);
  CHECK(failures[0].find(".cc") == std::string::npos);
}

TEST_CASE("ranks that disagree are told on what") {
  std::vector<std::string> texts = {"lr = 1\nseed = 1", "lr = 1\nseed = 1", "lr = 1\nseed = 2"};
  const auto failures = run_ranks(3, 20, [&](distributed::Comm& comm, distributed::Store&) {
    distributed::check_same_on_all_ranks(comm, "the weather", "fine");
    distributed::check_same_on_all_ranks(comm, "the settings", texts[comm.rank()]);
  });
  CHECK(failures == std::vector<std::string>(
                        3,
                        "rank 2 disagrees with rank 0 on the settings ('seed = 2' where rank 0 "
                        "has 'seed = 1'); start all ranks with the same"));
}
