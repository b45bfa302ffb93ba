// Gloo's headers are those of libgloo-dev, which are of another version than the Gloo in LibTorch.
// So no function of Gloo is called here: devices are only passed on.

#define USE_C10D_GLOO
#include "core/distributed/process_group.h"

#include <algorithm>
#include <csignal>
#include <future>
#include <numeric>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "core/base/error.h"

namespace moe::distributed {
namespace {

using at::Tensor;
using c10d::ProcessGroupGloo;
using WorkPointer = c10::intrusive_ptr<c10d::Work>;
using BackendPointer = std::shared_ptr<c10d::Backend>;

constexpr std::chrono::milliseconds kCheckInterval{250};  // of the monitor, in a wait
constexpr std::chrono::milliseconds kConnectPoll{2};
// Set on Gloo after it has connected: Monitor limits waits, because it knows about long operations
// and about time in which the process was stopped.
constexpr std::chrono::hours kUnlimited{24 * 365};
constexpr int64_t kBlockBytes = 64 << 20;  // summed at a time, to bound the copies

// Returns the memory of a tensor as bytes [nbytes].
Tensor as_bytes(const Tensor& tensor) {
  MOE_CHECK(tensor.is_contiguous(), "a tensor of a collective must be contiguous");
  return tensor.detach().view({-1}).view(at::kByte);
}

// Returns the bytes of `rows[r]` rows of `tensor`, for each r.
std::vector<int64_t> row_bytes(std::vector<int64_t> rows, const Tensor& tensor, int64_t size) {
  MOE_CHECK(static_cast<int64_t>(rows.size()) == size &&
                std::accumulate(rows.begin(), rows.end(), int64_t{0}) == tensor.size(0),
            "row counts of all_to_all do not match its tensors");
  const int64_t bytes = c10::multiply_integers(tensor.sizes().slice(1)) * tensor.element_size();
  std::transform(rows.begin(), rows.end(), rows.begin(), [&](int64_t row) { return row * bytes; });
  return rows;
}

// Returns the line of an exception of NCCL that says what happened: the one after "Last error:",
// else the first. A stack trace of LibTorch may follow.
std::string nccl_cause(const std::string& text) {
  constexpr std::string_view kCause = "Last error:\n";
  const size_t cause = text.find(kCause);
  const size_t begin = cause == std::string::npos ? 0 : cause + kCause.size();
  const std::string line = text.substr(begin, text.find('\n', begin) - begin);
  return line.empty() ? text.substr(0, text.find('\n')) : line;
}

BackendPointer make_gloo(const ProcessGroup& group, const BackendGroup& subset) {
  const auto timeout = std::chrono::duration_cast<std::chrono::milliseconds>(group.timeout);
  const auto options = ProcessGroupGloo::Options::create(timeout);
  options->threads = 1;  // collectives run one after the other
  options->devices.push_back(
      group.interface.empty()
          ? ProcessGroupGloo::createDeviceForHostname(group.members[group.rank].address)
          : ProcessGroupGloo::createDeviceForInterface(group.interface));
  const auto store = c10::intrusive_ptr<c10d::Store>::reclaim_copy(group.store.c10d().get());
  auto gloo = c10::make_intrusive<ProcessGroupGloo>(
      c10::make_intrusive<c10d::PrefixStore>(subset.name, store), static_cast<int>(subset.rank),
      static_cast<int>(subset.size), options);
  gloo->setTimeout(kUnlimited);
  c10d::Backend* const pointer = gloo.get();
  return {pointer, [held = std::move(gloo)](c10d::Backend* /*pointer*/) {}};
}

class ProcessComm : public Comm {
 public:
  // `ranks`: its members, numbered as in the run.
  ProcessComm(ProcessGroup& group, at::Device device, const std::string& name,
              std::vector<int64_t> ranks)
      : group_(group), device_(device), name_(name), ranks_(std::move(ranks)) {
    const auto own = std::find(ranks_.begin(), ranks_.end(), group_.rank);
    MOE_CHECK(own != ranks_.end(), "rank {} is not in {}", group_.rank, name);
    rank_ = own - ranks_.begin();
    connect();
  }

  // The destructor of a c10d backend blocks while an operation is under way. After a failure the
  // other ranks will not complete it, so the backend is left to the end of the process.
  ~ProcessComm() override {
    bool is_broken = has_failed_ || std::uncaught_exceptions() > 0;
    try {
      if (!is_broken) {
        synchronize();
      }
    } catch (const RankFailed&) {  // thrown again by the next collective or by Monitor::check
      is_broken = true;
    }
    if (is_broken) {
      static_cast<void>(new BackendPointer(std::move(backend_)));  // NOLINT: never destroyed
    }
  }

  int64_t rank() const override { return rank_; }
  int64_t size() const override { return static_cast<int64_t>(ranks_.size()); }
  at::Device device() const override { return device_; }

  std::unique_ptr<Transfer> all_to_all(const Tensor& input, const std::vector<int64_t>& input_rows,
                                       const Tensor& output,
                                       const std::vector<int64_t>& output_rows) override {
    return std::make_unique<Pending>(*this, "all_to_all",
                                     exchange(input, row_bytes(input_rows, input, size()), output,
                                              row_bytes(output_rows, output, size())));
  }

  void all_reduce(const Tensor& tensor) override {
    if (tensor.numel() > 0) {
      std::vector<Tensor> tensors = {tensor.detach().view({-1})};
      finish("all_reduce", trace, backend().allreduce(tensors));
    }
  }

  // On CPUs here, because c10d's Gloo reduces the whole input for it.
  void reduce_scatter(const Tensor& input, const Tensor& output) override {
    MOE_CHECK(input.numel() == size() * output.numel(), "{} of {}", input.numel(), output.numel());
    Tensor from = input.detach().view({-1}), to = output.detach().view({-1});
    if (is_on_gpu()) {
      return to.numel() == 0
                 ? void()
                 : finish("reduce_scatter", trace, backend()._reduce_scatter_base(to, from));
    }
    const Tensor pieces = from.view({size(), to.numel()});
    const int64_t block = std::max<int64_t>(1, kBlockBytes / from.element_size() / size());
    for (int64_t first = 0; first < to.numel(); first += block) {
      const int64_t length = std::min(block, to.numel() - first);
      sum_pieces(pieces.narrow(1, first, length), to.narrow(0, first, length));
    }
  }

  void all_gather(const Tensor& input, const Tensor& output) override {
    start_gather(input, output, "all_gather")->wait();
  }
  std::unique_ptr<Transfer> start_all_gather(const Tensor& input, const Tensor& output) override {
    return start_gather(input, output, "all_gather");
  }

  void broadcast(const Tensor& tensor, int64_t root) override {
    if (tensor.numel() > 0) {
      std::vector<Tensor> tensors = {as_bytes(tensor)};
      c10d::BroadcastOptions options;
      options.rootRank = root;
      finish("broadcast", trace, backend().broadcast(tensors, options));
    }
  }

  void barrier() override {
    const Tensor byte = at::zeros({1}, at::TensorOptions(at::kByte).device(device_));
    start_gather(byte, at::empty({size()}, byte.options()), "barrier")->wait();
    synchronize();
  }

  void synchronize() override {
    if (is_on_gpu()) {
      group_.monitor.wait_for_all();
    }
  }

  std::unique_ptr<Comm> part(const std::string& name,
                             const std::vector<int64_t>& members) override {
    const std::string key =
        fmt::format("{}/{}.{}.{}", name_, name, num_parts_++, ranks_.at(members.front()));
    if (members.size() == 1) {
      return solo_comm(device_);
    }
    std::vector<int64_t> ranks;
    for (const int64_t member : members) {
      ranks.push_back(ranks_.at(member));
    }
    auto comm = std::make_unique<ProcessComm>(group_, device_, key, std::move(ranks));
    comm->trace = trace;
    return comm;
  }

  std::shared_ptr<void> long_operation() override {
    Monitor& monitor = group_.monitor;
    monitor.begin_long_operation();
    return {nullptr, [&monitor](void* /*none*/) { monitor.end_long_operation(); }};
  }

 private:
  // A collective under way. Must not outlive its ProcessComm.
  class Pending : public Transfer {
   public:
    Pending(ProcessComm& comm, const char* operation, WorkPointer work)
        : comm_(comm), operation_(operation), trace_(comm.trace), work_(std::move(work)) {}
    void wait() override { comm_.finish(operation_, trace_, work_); }

   private:
    ProcessComm& comm_;
    const char* operation_;
    TraceContext trace_;
    WorkPointer work_;
  };

  bool is_on_gpu() const { return !device_.is_cpu(); }

  // In a thread, because Gloo blocks until its timeout if a rank is gone. Gloo's threads inherit
  // its signal mask: writing to a rank that is gone must not end the process.
  void connect() {
    Monitor& monitor = group_.monitor;
    const int64_t number = monitor.begin("connecting", trace);
    const auto task = std::make_shared<std::packaged_task<BackendPointer()>>(
        [&group = group_, subset = BackendGroup{name_ + "/", rank_, size()}, device = device_] {
          return device.is_cpu() ? make_gloo(group, subset) : make_nccl(group, subset, device);
        });
    auto made = task->get_future();
    if (is_on_gpu()) {
      (*task)();
    } else {
      std::thread([task] {
        sigset_t pipe;
        sigemptyset(&pipe);
        sigaddset(&pipe, SIGPIPE);
        pthread_sigmask(SIG_BLOCK, &pipe, nullptr);
        (*task)();
      }).detach();
    }
    while (made.wait_for(kConnectPoll) != std::future_status::ready) {
      monitor.check();
    }
    try {
      backend_ = made.get();
    } catch (const std::exception& error) {
      monitor.fail(fmt::format("ranks cannot connect ({})", nccl_cause(error.what())));
    }
    monitor.end(number);
  }

  // Returns the backend to start a collective.
  c10d::Backend& backend() {
    group_.monitor.check();
    return *backend_;
  }

  // Blocks until the work is complete (CPU), or enqueues the wait on the current stream (GPU).
  void finish(const char* operation, const TraceContext& context, const WorkPointer& work) {
    Monitor& monitor = group_.monitor;
    if (is_on_gpu()) {
      work->wait();
      monitor.begin(operation, context, [work] { return is_done(*work); });
      return;
    }
    const int64_t number = monitor.begin(operation, context);
    has_failed_ = true;  // unless the following returns
    while (!work->isCompleted()) {
      try {
        work->wait(kCheckInterval);
      } catch (const std::exception&) {  // the interval is over, or the work failed
      }
      monitor.check();
    }
    if (work->exception() != nullptr) {
      monitor.fail("a connection broke");
    }
    work->wait();
    has_failed_ = false;
    monitor.end(number);
  }

  static bool is_done(c10d::Work& work) {
    if (!work.isCompleted()) {
      return false;
    }
    try {
      if (work.exception() != nullptr) {
        std::rethrow_exception(work.exception());
      }
    } catch (const std::exception& error) {
      throw std::runtime_error(
          fmt::format("a collective of the GPUs failed ({})", nccl_cause(error.what())));
    }
    return true;
  }

  WorkPointer exchange(const Tensor& input, std::vector<int64_t> input_bytes, const Tensor& output,
                       std::vector<int64_t> output_bytes) {
    Tensor from = as_bytes(input), to = as_bytes(output);
    return backend().alltoall_base(to, from, output_bytes, input_bytes);
  }

  std::unique_ptr<Transfer> start_gather(const Tensor& input, const Tensor& output,
                                         const char* operation) {
    if (input.numel() == 0) {
      return std::make_unique<Transfer>();
    }
    Tensor to = as_bytes(output), from = as_bytes(input);
    return std::make_unique<Pending>(*this, operation, backend()._allgather_base(to, from));
  }

  // Receives this rank's piece of every other rank and sums them in rank order. `pieces` [size, n],
  // `output` [n], which may alias this rank's piece.
  void sum_pieces(const Tensor& pieces, const Tensor& output) {
    std::vector<int64_t> bytes(size(), output.numel() * pieces.element_size());
    bytes[rank_] = 0;
    std::vector<Tensor> terms = pieces.unbind();
    const Tensor own = terms[rank_];
    terms.erase(terms.begin() + rank_);
    const Tensor leaving = terms.size() == 1 ? terms.front() : at::cat(terms);
    const Tensor others = at::empty({size() - 1, output.numel()}, pieces.options());
    finish("reduce_scatter", trace, exchange(leaving, bytes, others, bytes));
    terms = others.unbind();
    terms.insert(terms.begin() + rank_, own);
    Tensor sum = output;
    at::add_out(sum, terms[0], terms[1]);
    for (size_t rank = 2; rank < terms.size(); ++rank) {
      sum += terms[rank];
    }
  }

  ProcessGroup& group_;
  at::Device device_;
  std::string name_;
  std::vector<int64_t> ranks_;
  int64_t rank_ = 0;
  int64_t num_parts_ = 0;
  bool has_failed_ = false;
  BackendPointer backend_;
};

}  // namespace

std::unique_ptr<Comm> make_process_comm(ProcessGroup& group, at::Device device) {
  std::vector<int64_t> ranks(group.members.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  return std::make_unique<ProcessComm>(group, device, "all", std::move(ranks));
}

}  // namespace moe::distributed
