// Gloo as processes use it. Ranks are threads, each with a ProcessGroup over one store.
// tests/cli/ranks_test.cpp runs processes.

#include "core/distributed/process_group.h"

#include <c10/util/Flags.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <csignal>
#include <cstdlib>
#include <mutex>
#include <set>
#include <thread>

#include "core/distributed/comm.h"
#include "core/distributed/rendezvous.h"
#include "tests/support/collectives.h"
#include "tests/support/local_store.h"
#include "tests/support/rank_threads.h"
#include "tests/support/temp_dir.h"
#include "tests/support/user_error.h"

using namespace moe;
using namespace moe::test;
using at::Tensor;
using distributed::Seconds;
using distributed::Store;

namespace {

// Returns the message with which each rank failed, "" for none. Turns off LibTorch's flight
// recorder, which records the operations of all Gloo groups of a process without a lock: ranks that
// are threads race on it.
template <typename Body>
std::vector<std::string> run_ranks(int64_t ranks, const Body& body) {
  setenv("TORCH_FR_BUFFER_SIZE", "0", 0);
  const distributed::Store store = make_local_store();
  const std::vector<distributed::Member> members(ranks, distributed::this_member("127.0.0.1"));
  std::vector<std::string> failures(ranks);
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      distributed::ProcessGroup group(store, rank, members, distributed::Seconds{20});
      try {
        const auto comm = distributed::make_process_comm(group, at::kCPU);
        body(*comm);
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
  const auto failures = run_ranks(ranks, [&](distributed::Comm& comm) {
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

uint16_t port(int offset) { return static_cast<uint16_t>(20000 + (getpid() + offset) % 12000); }

}  // namespace

TEST_CASE("collectives of Gloo return the expected values on every rank") {
  on_ranks(3, [](distributed::Comm& comm) {
    bool is_right = one_rank_may_get_all(comm) && sums_and_pieces_are_right(comm) &&
                    numbers_and_texts_travel(comm);
    for (const auto type : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kLong, at::kInt,
                            at::kByte, at::kBool}) {
      is_right = rows_arrive_in_rank_order(comm, type) && is_right;
    }
    for (const auto type : {at::kLong, at::kInt, at::kDouble, at::kBFloat16, at::kByte}) {
      const Tensor sum = at::full({5}, comm.rank() + 1, at::TensorOptions(type));
      comm.all_reduce(sum);
      is_right = is_right && sum.eq(6).all().item<bool>();
    }
    const Tensor nothing = at::empty({0, 5});
    comm.all_to_all(nothing, {0, 0, 0}, at::empty({0, 5}), {0, 0, 0}).wait();
    comm.all_reduce(nothing);
    comm.all_gather(nothing, at::empty({0, 5}));
    return is_right;
  });
  on_ranks(4, splits_exchange_among_themselves);
}

TEST_CASE("several all-to-alls may be in flight") {
  on_ranks(2, [](distributed::Comm& comm) {
    const Tensor one = at::full({2}, 1.0 + comm.rank()), two = at::full({2}, 10.0 + comm.rank());
    const Tensor from_one = at::empty({2}), from_two = at::empty({2});
    const auto first = comm.all_to_all(one, {1, 1}, from_one, {1, 1});
    const auto second = comm.all_to_all(two, {1, 1}, from_two, {1, 1});
    second.wait();
    first.wait();
    return at::equal(from_one, numbers({1, 2})) && at::equal(from_two, numbers({10, 11}));
  });
}

TEST_CASE("an all-gather may be in flight during other collectives") {
  on_ranks(3, [](distributed::Comm& comm) {
    const auto r = static_cast<float>(comm.rank());
    constexpr int64_t kMany = 300000;
    const Tensor large = at::full({kMany}, r), gathered = at::empty({3 * kMany});
    const auto first = comm.start_all_gather(large, gathered);
    const Tensor small = at::empty({3}), piece = at::empty({1});
    const auto second = comm.start_all_gather(numbers({r}), small);
    comm.reduce_scatter(numbers({r, r + 1, r + 2}), piece);
    second.wait();
    first.wait();
    comm.start_all_gather(at::empty({0}), at::empty({0})).wait();
    return at::equal(gathered.view({3, kMany}), at::arange(3.0).view({3, 1}).expand({3, kMany})) &&
           at::equal(small, numbers({0, 1, 2})) && at::equal(piece, numbers({3 + 3 * r}));
  });
}

// reduce_scatter sums in rank order, as threads do. Gloo chooses the order of all_reduce, which for
// 3 terms changes a sum by at most two roundings of the partial sums, each below 3 in magnitude.
TEST_CASE("sums equal those of thread ranks, on every rank and in every repetition") {
  for (const int64_t count : {7, 100'003}) {
    std::vector<Tensor> wanted(3), wanted_pieces(3), sums(3);
    const int64_t length = count / 3;
    run_as_threads(3, [&](distributed::Comm& comm) {
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

TEST_CASE("a broken connection ends the collectives of other ranks without a stack trace") {
  const auto failures = run_ranks(2, [&](distributed::Comm& comm) {
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

// Stores of a run: the memory file that ranks inherit, and the TCP store at one address.

C10_DECLARE_int(caffe2_log_level);

TEST_CASE("processes that inherit a store read the values of each other") {
  const Descriptor file = make_memory_file();
  Store one = distributed::open_inherited_store(file, Seconds{20});
  Store other = one.connect_again();
  CHECK_FALSE(one.read("key"));
  one.set("key", "first");
  CHECK(other.read("key") == "first");
  other.set("key", "");
  CHECK(one.read("key") == "");
  CHECK((one.set_once("once", "first") == "first" && other.set_once("once", "second") == "first"));
}

// A process that was stopped while it wrote holds the lock of the file.
TEST_CASE("a store whose file another process holds throws after the time limit") {
  const Descriptor file = make_memory_file();
  Store store = distributed::open_inherited_store(file, Seconds{0.6});
  store.set("key", "text");
  const Descriptor holder(open(fmt::format("/proc/self/fd/{}", file.get()).c_str(), O_RDWR));
  REQUIRE(flock(holder.get(), LOCK_EX) == 0);
  CHECK_THROWS_WITH(store.read("key"), "the store of the run does not answer");
  flock(holder.get(), LOCK_UN);
}

// A write to a client that has disconnected raises SIGPIPE, which must not end the process.
TEST_CASE("clients that disconnect early do not disturb the store") {
  std::signal(SIGPIPE, SIG_DFL);
  FLAGS_caffe2_log_level = 3;  // fatal: c10d logs a line for each
  Store store = distributed::serve_store("127.0.0.1", port(0), "run", Seconds{20});
  // The greeting of c10d's protocol, and 2,000 requests for the number of keys.
  std::string questions("\x00\xce\xf7\x85\x3c", 5);
  questions.append(2000, '\x07');
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port(0));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  for (int client = 0; client < 50; ++client) {
    const Descriptor socket(::socket(AF_INET, SOCK_STREAM, 0));
    REQUIRE(connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
    const linger at_once{1, 0};
    setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
    send(socket.get(), questions.data(), questions.size(), MSG_NOSIGNAL);
  }
  store.set("key", "text");
  CHECK(store.read("key") == "text");
}

TEST_CASE("a store listens only at the given address") {
  FLAGS_caffe2_log_level = 3;
  const Store first = distributed::serve_store("127.0.0.1", port(1), "run", Seconds{5});
  const Store second = distributed::serve_store("127.0.0.2", port(1), "run", Seconds{5});
  CHECK_THROWS_WITH(distributed::serve_store("127.0.0.1", port(1), "run", Seconds{5}),
                    contains_text(fmt::format("rank 0 cannot listen on port {}", port(1))));
  Store client = distributed::connect_store("127.0.0.2", port(1), "run", Seconds{5});
  client.set("key", "text");
  CHECK(client.read("key") == "text");
  CHECK_THROWS_WITH(distributed::connect_store("127.0.0.1", port(2), "run", Seconds{1}),
                    contains_text(fmt::format("127.0.0.1 port {} within 1 s", port(2))));
}

TEST_CASE("MASTER_ADDR must be an address of one host") {
  CHECK(distributed::local_address("127.0.0.1", 29500) == "127.0.0.1");
  for (const char* host : {"0.0.0.0", "0", "::"}) {
    INFO(host);
    CHECK_THAT(user_error_of([&] { distributed::local_address(host, 1); }),
               contains_text("MASTER_ADDR '" + std::string(host) + "'") &&
                   contains_text("every interface"));
    CHECK_THAT(user_error_of([&] { distributed::serve_store(host, port(3), "run", Seconds{1}); }),
               contains_text("every interface"));
  }
  CHECK_THAT(user_error_of([] { distributed::local_address("no.such.host.invalid", 1); }),
             contains_text("MASTER_ADDR 'no.such.host.invalid'"));
}

TEST_CASE("a loopback interface that is down is named") {
  const pid_t child = fork();
  if (child == 0) {
    if (unshare(CLONE_NEWNET) != 0) {
      _exit(77);
    }
    const std::string error = user_error_of([] { distributed::local_address("127.0.0.1", 1); });
    _exit(error.find("bring the loopback interface up") != std::string::npos ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (WEXITSTATUS(status) == 77) {
    MOE_SKIP("needs the right to make a network namespace");
  }
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 0));
}

TEST_CASE("a descriptor that is not a memory file is refused as a store") {
  const TempDir folder;
  write_file(folder / "file", "text");
  const Descriptor file(open((folder / "file").c_str(), O_RDWR));
  CHECK_THROWS_WITH(distributed::open_inherited_store(file, Seconds{1}),
                    contains_text("is not the store of a run that moe --ranks started"));
  CHECK_THROWS_WITH(distributed::open_inherited_store(Descriptor(-1), Seconds{1}),
                    contains_text("descriptor -1 is not the store"));
  CHECK(read_file(folder / "file") == "text");
}
