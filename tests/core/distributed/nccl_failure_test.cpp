// Exchanges between GPUs that fail, without a GPU: this file's make_nccl takes the place of the one
// of the library, and makes a backend whose works end as WorkNCCL's do when NCCL reports an error:
// completed, with an exception that wait() does not throw.

#include <future>
#include <thread>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "core/distributed/backends.h"
#include "tests/support/catch.h"
#include "tests/support/matchers.h"

namespace moe::distributed {
namespace {

using at::Tensor;
using test::contains_text;

class FailedWork : public c10d::Work {
 public:
  explicit FailedWork(const std::string& words) {
    finish(words.empty() ? nullptr : std::make_exception_ptr(std::runtime_error(words)));
  }
  bool wait(std::chrono::milliseconds /*timeout*/) override { return true; }
};

// What works of this thread's rank end with; "" is well.
thread_local std::string failure_words;  // NOLINT: read by make_nccl's backend alone
thread_local int aborted = 0;            // NOLINT: backends that were told to abort

class FakeNccl : public c10d::Backend {
 public:
  explicit FakeNccl(const BackendGroup& group)
      : c10d::Backend(static_cast<int>(group.rank), static_cast<int>(group.size)) {}

  const std::string getBackendName() const override { return "nccl"; }
  void setTimeout(std::chrono::milliseconds /*timeout*/) override {}
  void abort() override { ++aborted; }
  c10::intrusive_ptr<c10d::Work> _allgather_base(
      Tensor& /*output*/, Tensor& /*input*/, const c10d::AllgatherOptions& /*options*/) override {
    return c10::make_intrusive<FailedWork>(failure_words);
  }
  c10::intrusive_ptr<c10d::Work> alltoall_base(Tensor& /*output*/, Tensor& /*input*/,
                                               std::vector<int64_t>& /*output_counts*/,
                                               std::vector<int64_t>& /*input_counts*/,
                                               const c10d::AllToAllOptions& /*options*/) override {
    return c10::make_intrusive<FailedWork>(failure_words);
  }
};

// What rank 0 of two says of `exchange`, whose works end with `words`; rank 1 does `other` instead,
// and lives until then.
template <typename Exchange, typename Other>
std::string said_of(const std::string& words, const Exchange& exchange, const Other& other) {
  const auto store = local_store();
  std::string said;
  std::promise<void> done;
  std::vector<std::thread> ranks;
  for (int64_t rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      const auto membership = std::make_shared<Membership>(store, rank, 2, Seconds{3});
      membership->check_in(this_member("127.0.0.1"), "moe");
      const auto comm = process_comm(membership, at::Device(at::kCUDA, 0));
      if (rank == 1) {
        other(membership->rendezvous);
        return done.get_future().wait();
      }
      failure_words = words;
      comm->position = {7, 3};
      try {
        exchange(*comm);
      } catch (const RankFailed& error) {  // exit code 1 (session.cpp)
        said = error.what();
      }
      CHECK(aborted == (said.empty() ? 0 : 1));
      done.set_value();
    });
  }
  for (auto& rank : ranks) {
    rank.join();
  }
  return said;
}

void gather(Comm& comm) { comm.all_gather(at::zeros({2}), at::zeros({4})); }

void do_nothing(Rendezvous& /*rendezvous*/) {}

}  // namespace

BackendPointer make_nccl(const Membership& /*membership*/, const BackendGroup& group,
                         at::Device /*device*/) {
  return c10::make_intrusive<FakeNccl>(group);
}

TEST_CASE("an exchange of NCCL that ends well is no failure") {
  CHECK(said_of("", gather, do_nothing) == "");
}

TEST_CASE("what NCCL reports of a work that is over ends the run in one sentence") {
  const auto to_all = [](Comm& comm) {
    comm.all_to_all(at::zeros({2}), {1, 1}, at::zeros({2}), {1, 1})->wait();
  };
  CHECK(said_of("NCCL error in: ProcessGroupNCCL.cpp:3690, unhandled system error (run with "
                "NCCL_DEBUG=INFO for details), NCCL version 2.28.9\nncclSystemError: System call "
                "failed.\nLast error:\nCall to ibv_reg_mr failed with error No space left\n"
                "Exception raised from checkForNCCLErrors\nframe #0: 0x1",
                to_all, do_nothing) ==
        "the exchange between GPUs failed (Call to ibv_reg_mr failed with error No space left): "
        "step 7, layer 3, all_to_all");
  CHECK(said_of("CUDA error: an illegal memory access was encountered\nFor debugging consider ..",
                gather, do_nothing) ==
        "the exchange between GPUs failed (CUDA error: an illegal memory access was encountered): "
        "step 7, layer 3, all_gather");
}

TEST_CASE("where another rank failed by itself, it is named and not NCCL") {
  CHECK_THAT(said_of("NCCL error: remote process exited", gather,
                     [](Rendezvous& rendezvous) {
                       rendezvous.write_final_record({1, Ending::kFailed, 1, "the disk is full"});
                     }),
             contains_text("rank 1 (host ") &&
                 contains_text(") failed (the disk is full): step 7, layer 3, all_gather"));
}

}  // namespace moe::distributed
