// Collectives of GPUs, without a GPU: the table of CUDA functions is that of this file. Its
// FakeWork behaves like WorkNCCL on the host: wait() orders streams and returns at once; it is
// complete when the GPU has completed it; after an error of NCCL it is complete with an exception
// that wait() does not throw.

#include <atomic>
#include <future>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "core/distributed/process_group.h"
#include "kernels/ops/cuda_functions.h"
#include "tests/support/local_store.h"
#include "tests/support/matchers.h"

namespace moe::distributed {
namespace {

using at::Tensor;
using test::contains_text;

class FakeWork : public c10d::Work {
 public:
  // Completes the work, with an exception unless `words` is "".
  void end(const std::string& words) {
    finish(words.empty() ? nullptr : std::make_exception_ptr(std::runtime_error(words)));
  }
  bool wait(std::chrono::milliseconds /*timeout*/) override {
    ++ordered;
    return true;
  }
  std::atomic<int> ordered = 0;  // streams that wait for it
};

// Works that the backend of a rank has made.
struct FakeGpu {
  std::vector<c10::intrusive_ptr<FakeWork>> works;
};

thread_local FakeGpu* gpu_of_this_rank = nullptr;  // NOLINT: read by make_fake_nccl alone

class FakeNccl : public c10d::Backend {
 public:
  FakeNccl(int rank, int size, FakeGpu& gpu) : c10d::Backend(rank, size), gpu_(gpu) {}

  const std::string getBackendName() const override { return "nccl"; }
  void setTimeout(std::chrono::milliseconds /*timeout*/) override {}
  c10::intrusive_ptr<c10d::Work> _allgather_base(
      Tensor& /*output*/, Tensor& /*input*/, const c10d::AllgatherOptions& /*options*/) override {
    return made();
  }
  c10::intrusive_ptr<c10d::Work> alltoall_base(Tensor& /*output*/, Tensor& /*input*/,
                                               std::vector<int64_t>& /*output_counts*/,
                                               std::vector<int64_t>& /*input_counts*/,
                                               const c10d::AllToAllOptions& /*options*/) override {
    return made();
  }

 private:
  c10::intrusive_ptr<c10d::Work> made() {
    gpu_.works.push_back(c10::make_intrusive<FakeWork>());
    return gpu_.works.back();
  }
  FakeGpu& gpu_;
};

// Program of a rank, whose Comm is at step 7 and layer 3.
using Body = std::function<void(Comm&, FakeGpu&, Store&)>;

constexpr Seconds kTimeout{2};

// Returns the message with which rank 0 of two fails, "" if it does not.
std::string failure_of(const Body& body, const Body& other) {
  const Store store = test::make_local_store();
  const std::vector<Member> members(2, this_member("127.0.0.1"));
  std::string failure;
  std::promise<void> done;
  const auto is_done = done.get_future().share();
  std::vector<std::thread> ranks;
  for (int64_t rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      FakeGpu gpu;
      gpu_of_this_rank = &gpu;
      ProcessGroup group(store, rank, members, kTimeout);
      auto comm = make_process_comm(group, at::Device(at::kCUDA, 0));
      comm->trace = {7, 3};
      std::string own;
      try {
        (rank == 0 ? body : other)(*comm, gpu, group.store);
        group.check();
      } catch (const RankFailed& error) {
        own = error.what();
      }
      if (rank == 0) {
        failure = own;
        done.set_value();
      }
      is_done.wait();
      for (const auto& work : gpu.works) {
        if (!work->isCompleted()) {
          work->end("");
        }
      }
    });
  }
  for (auto& rank : ranks) {
    rank.join();
  }
  return failure;
}

void gather(Comm& comm) { comm.all_gather(at::zeros({2}), at::zeros({4})); }
void send_to_all(Comm& comm) {
  comm.all_to_all(at::zeros({2}), {1, 1}, at::zeros({2}), {1, 1}).wait();
}

// Returns a body that runs `exchange`, which the GPU ends with `words` while the host is at the
// next layer.
template <typename Exchange>
Body ends_with(const std::string& words, const Exchange& exchange) {
  return [=](Comm& comm, FakeGpu& gpu, Store& /*store*/) {
    exchange(comm);
    comm.trace.layer = 4;
    gpu.works.back()->end(words);
    comm.synchronize();
  };
}

c10::intrusive_ptr<c10d::Backend> make_fake_nccl(const c10::intrusive_ptr<c10d::Store>& /*store*/,
                                                 int rank, int size,
                                                 std::chrono::milliseconds /*timeout*/,
                                                 at::Device /*device*/) {
  return c10::make_intrusive<FakeNccl>(rank, size, *gpu_of_this_rank);
}

void do_nothing(Comm& /*comm*/, FakeGpu& /*gpu*/, Store& /*store*/) {}
void hang(Comm& comm, FakeGpu& /*gpu*/, Store& /*store*/) {
  gather(comm);
  comm.synchronize();
}

}  // namespace

TEST_CASE("collectives on GPUs do not block the host until synchronize()") {
  const auto body = [](Comm& comm, FakeGpu& gpu, Store& /*store*/) {
    const auto transfer = comm.start_all_gather(at::zeros({2}), at::zeros({4}));
    CHECK(gpu.works[0]->ordered == 0);
    transfer.wait();
    send_to_all(comm);  // begins before the first is complete
    REQUIRE(gpu.works.size() == 2);
    for (const auto& work : gpu.works) {
      CHECK(work->ordered == 1);  // the next work of the stream waits for it
      CHECK(!work->isCompleted());
    }
    std::atomic<bool> is_over = false;
    std::thread device([&] {
      gpu.works[0]->end("");
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      is_over = true;
      gpu.works[1]->end("");
    });
    comm.synchronize();
    CHECK(is_over);
    device.join();
  };
  CHECK(failure_of(body, do_nothing) == "");
}

TEST_CASE("an error that NCCL reports ends the run with its message") {
  const std::string nccl =
      "NCCL error in: ProcessGroupNCCL.cpp:3690, unhandled system error, NCCL version 2.28.9\n"
      "ncclSystemError: System call failed.\nLast error:\n"
      "Call to ibv_reg_mr failed with error No space left\n"
      "Exception raised from checkForNCCLErrors\nframe #0: 0x1";
  CHECK(failure_of(ends_with(nccl, send_to_all), do_nothing) ==
        "a collective of the GPUs failed (Call to ibv_reg_mr failed with error No space left): "
        "step 7, layer 3, all_to_all");
  const std::string cuda = "CUDA error: an illegal memory access was encountered\nFor debugging ..";
  CHECK(failure_of(ends_with(cuda, gather), do_nothing) ==
        "a collective of the GPUs failed (CUDA error: an illegal memory access was encountered): "
        "step 7, layer 3, all_gather");
}

TEST_CASE("operations after a failed one throw its failure") {
  const auto body = [](Comm& comm, FakeGpu& gpu, Store& /*store*/) {
    gather(comm);
    gpu.works.back()->end("NCCL error: invalid usage");
    comm.trace = {8, 0};
    for (int i = 0; i < 4000; ++i) {  // at most 20 s
      send_to_all(comm);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  };
  CHECK(failure_of(body, do_nothing) ==
        "a collective of the GPUs failed (NCCL error: invalid usage): step 7, layer 3, "
        "all_gather");
}

TEST_CASE("the message of a failed collective names a rank that failed on its own") {
  const auto fail = [](Comm& /*comm*/, FakeGpu& /*gpu*/, Store& store) {
    set_verdict(store, {1, 1, "rank 1 failed (the disk is full)"});
  };
  for (const Body& body : {ends_with("NCCL error: remote process exited", gather), Body(hang)}) {
    CHECK_THAT(failure_of(body, fail),
               contains_text("rank 1 failed (the disk is full): step 7, layer 3, all_gather"));
  }
}

TEST_CASE("a rank that is not in a GPU collective is named by the one that waits in it") {
  CHECK_THAT(failure_of(hang, do_nothing),
             contains_text("rank 1 (host ") &&
                 contains_text(
                     " is not in the collective (its last operation: connecting): step 7, layer 3, "
                     "all_gather, after "));
}

}  // namespace moe::distributed

// In place of the table in libmoe_cuda.so (kernels/ops/cuda_functions.cpp).
extern "C" const moe::kernels::CudaFunctions* moe_cuda_functions() {
  static const moe::kernels::CudaFunctions functions = [] {
    moe::kernels::CudaFunctions table{};
    table.make_nccl = moe::distributed::make_fake_nccl;
    return table;
  }();
  return &functions;
}
