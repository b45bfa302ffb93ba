// Comm over the Gloo and NCCL backends of c10d. Functions of Gloo are not called here, because its
// headers are those of libgloo-dev, of another version than the Gloo in LibTorch. Gloo's devices
// are created by and passed to c10d.

#define USE_C10D_GLOO
#include "core/distributed/process_group.h"

#include <algorithm>
#include <numeric>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "core/base/error.h"

namespace moe::distributed {
namespace {

using at::Tensor;
using c10d::ProcessGroupGloo;
using WorkPointer = c10::intrusive_ptr<c10d::Work>;
using BackendPointer = c10::intrusive_ptr<c10d::Backend>;

constexpr std::chrono::milliseconds kCheckInterval{250};  // for a verdict, while waiting
// Set on Gloo after it has connected: ProcessGroup limits waits, because it excludes long
// operations and time in which the process was stopped.
constexpr std::chrono::hours kUnlimited{24 * 365};
constexpr int64_t kBlockBytes = 64 << 20;  // summed at a time, to bound the copies

// Returns the memory of a tensor as bytes [nbytes].
Tensor as_bytes(const Tensor& tensor) {
  MOE_CHECK(tensor.is_contiguous(), "a tensor of a collective must be contiguous");
  return tensor.detach().view({-1}).view(at::kByte);
}

// Returns the number of bytes of `rows[r]` rows of `tensor`, for each rank r.
std::vector<int64_t> row_bytes(std::vector<int64_t> rows, const Tensor& tensor, int64_t size) {
  MOE_CHECK(static_cast<int64_t>(rows.size()) == size &&
                std::accumulate(rows.begin(), rows.end(), int64_t{0}) == tensor.size(0),
            "row counts of all_to_all do not match its tensors");
  const int64_t bytes = c10::multiply_integers(tensor.sizes().slice(1)) * tensor.element_size();
  std::transform(rows.begin(), rows.end(), rows.begin(), [&](int64_t row) { return row * bytes; });
  return rows;
}

// Returns the part of an exception of Gloo or NCCL that names the cause. Gloo's text is "[enforce
// fail at FILE] VALUES. CAUSE". NCCL's cause is the line after "Last error:", else the first line.
// A stack trace of LibTorch may follow.
std::string library_cause(const std::string& text) {
  if (const size_t end = text.rfind(". ");
      text.starts_with("[enforce fail at ") && end != std::string::npos) {
    return text.substr(end + 2);
  }
  constexpr std::string_view kCause = "Last error:\n";
  const size_t cause = text.find(kCause);
  const size_t begin = cause == std::string::npos ? 0 : cause + kCause.size();
  return text.substr(begin, text.find('\n', begin) - begin);
}

BackendPointer make_gloo(const ProcessGroup& group, const c10::intrusive_ptr<c10d::Store>& store,
                         int rank, int size) {
  const auto options = ProcessGroupGloo::Options::create(
      std::chrono::duration_cast<std::chrono::milliseconds>(group.timeout));
  options->threads = 1;  // collectives run one after the other
  options->devices.push_back(
      group.interface.empty()
          ? ProcessGroupGloo::createDeviceForHostname(group.members[group.rank].address)
          : ProcessGroupGloo::createDeviceForInterface(group.interface));
  auto gloo = c10::make_intrusive<ProcessGroupGloo>(store, rank, size, options);
  gloo->setTimeout(kUnlimited);
  return gloo;
}

// Returns true if a collective of GPUs is complete. Throws std::runtime_error if it failed.
bool is_done(c10d::Work& work) {
  try {
    if (!work.isCompleted()) {
      return false;
    }
    if (work.exception() != nullptr) {
      std::rethrow_exception(work.exception());
    }
    return true;
  } catch (const std::exception& error) {
    throw std::runtime_error(
        fmt::format("a collective of the GPUs failed ({})", library_cause(error.what())));
  }
}

class ProcessComm : public Comm {
 public:
  // `ranks` are the members, numbered as in the run. Gloo connects in a thread, because it blocks
  // until its timeout if a rank has exited.
  ProcessComm(ProcessGroup& group, at::Device device, const std::string& name,
              const std::vector<int64_t>& ranks)
      : Comm(device, std::find(ranks.begin(), ranks.end(), group.rank) - ranks.begin(),
             static_cast<int64_t>(ranks.size())),
        group_(group),
        name_(name),
        ranks_(ranks) {
    const int rank = static_cast<int>(this->rank()), size = static_cast<int>(ranks.size());
    MOE_CHECK(rank < size, "rank {} is not in {}", group.rank, name);
    const auto store = group.store.with_prefix(name + "/");
    const int64_t number = group.begin("connecting", trace);
    try {
      backend_ = is_on_gpu()
                     ? make_nccl(group, store, rank, size, device)
                     : run_in_thread([=, &group] { return make_gloo(group, store, rank, size); },
                                     [&group] { group.check(); });
    } catch (const RankFailed&) {
      throw;
    } catch (const std::exception& error) {
      group.fail(fmt::format("ranks cannot connect ({})", library_cause(error.what())));
    }
    group.end(number);
  }

  // The destructor of a c10d backend blocks while an operation is under way. After a failure the
  // other ranks will not complete it, so the backend is left to the end of the process.
  ~ProcessComm() override {
    try {
      if (!has_failed_ && std::uncaught_exceptions() == 0) {
        synchronize();
        return;
      }
    } catch (const RankFailed&) {  // thrown again by the next collective or by ProcessGroup::check
    }
    static_cast<void>(backend_.release());
  }

  std::unique_ptr<Transfer> all_to_all(const Tensor& input, const std::vector<int64_t>& input_rows,
                                       const Tensor& output,
                                       const std::vector<int64_t>& output_rows) override {
    return transfer("all_to_all", exchange(input, row_bytes(input_rows, input, size()), output,
                                           row_bytes(output_rows, output, size())));
  }

  void all_reduce(const Tensor& tensor) override {
    if (tensor.numel() > 0) {
      std::vector<Tensor> tensors = {tensor.detach().view({-1})};
      finish("all_reduce", trace, backend().allreduce(tensors));
    }
  }

  // On CPUs exchanges the blocks and sums them in rank order, because c10d's Gloo reduces the whole
  // input on every rank.
  void reduce_scatter(const Tensor& input, const Tensor& output) override {
    MOE_CHECK(input.numel() == size() * output.numel(), "{} of {}", input.numel(), output.numel());
    Tensor from = input.detach().view({-1}), to = output.detach().view({-1});
    if (is_on_gpu() && to.numel() > 0) {
      return finish("reduce_scatter", trace, backend()._reduce_scatter_base(to, from));
    }
    const int64_t max_length = std::max<int64_t>(1, kBlockBytes / from.element_size() / size());
    for (int64_t first = 0; first < to.numel(); first += max_length) {
      const int64_t length = std::min(max_length, to.numel() - first);
      const Tensor pieces = from.view({size(), -1}).narrow(1, first, length).contiguous();
      const Tensor terms = at::empty_like(pieces);
      const std::vector<int64_t> bytes(size(), length * pieces.element_size());
      finish("reduce_scatter", trace, exchange(pieces, bytes, terms, bytes));
      Tensor sum = to.narrow(0, first, length);
      at::add_out(sum, terms[0], terms[1]);
      for (int64_t rank = 2; rank < size(); ++rank) {
        sum += terms[rank];
      }
    }
  }

  std::unique_ptr<Transfer> start_all_gather(const Tensor& input, const Tensor& output) override {
    return start_gather(input, output, "all_gather");
  }

  void barrier() override {
    const Tensor byte = at::zeros({1}, at::TensorOptions(at::kByte).device(device()));
    start_gather(byte, at::empty({size()}, byte.options()), "barrier")->wait();
    synchronize();
  }

  void synchronize() override {
    if (is_on_gpu()) {
      group_.wait_for_all();
    }
  }

  std::unique_ptr<Comm> part(const std::string& name,
                             const std::vector<int64_t>& members) override {
    const std::string key =
        fmt::format("{}/{}.{}.{}", name_, name, num_parts_++, ranks_.at(members.front()));
    if (members.size() == 1) {
      return solo_comm(device());
    }
    std::vector<int64_t> ranks;
    for (const int64_t member : members) {
      ranks.push_back(ranks_.at(member));
    }
    auto comm = std::make_unique<ProcessComm>(group_, device(), key, ranks);
    comm->trace = trace;
    return comm;
  }

  std::shared_ptr<void> long_operation() override { return group_.long_operation(); }

 private:
  // Returns a handle of `work`, which must not outlive this object.
  std::unique_ptr<Transfer> transfer(const char* operation, WorkPointer work) {
    return std::make_unique<Transfer>([this, operation, context = trace, work = std::move(work)] {
      finish(operation, context, work);
    });
  }

  bool is_on_gpu() const { return !device().is_cpu(); }

  // Returns the backend. Throws RankFailed if there is a verdict.
  c10d::Backend& backend() {
    group_.check();
    return *backend_;
  }

  // Blocks until the work is complete (CPU), or enqueues the wait on the current stream (GPU).
  void finish(const char* operation, const TraceContext& context, const WorkPointer& work) {
    if (is_on_gpu()) {
      work->wait();
      group_.begin(operation, context, [work] { return is_done(*work); });
      return;
    }
    const int64_t number = group_.begin(operation, context);
    has_failed_ = true;  // reset below; an exception leaves it set
    while (!work->isCompleted()) {
      try {
        work->wait(kCheckInterval);
      } catch (const std::exception&) {  // the interval is over, or the work failed
      }
      group_.check();
    }
    if (work->exception() != nullptr) {
      group_.fail("a connection broke");
    }
    work->wait();
    has_failed_ = false;
    group_.end(number);
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
    return transfer(operation, backend()._allgather_base(to, from));
  }

  ProcessGroup& group_;
  std::string name_;
  std::vector<int64_t> ranks_;
  int64_t num_parts_ = 0;
  bool has_failed_ = false;
  BackendPointer backend_;
};

}  // namespace

std::unique_ptr<Comm> make_process_comm(ProcessGroup& group, at::Device device) {
  std::vector<int64_t> ranks(group.members.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  return std::make_unique<ProcessComm>(group, device, "all", ranks);
}

}  // namespace moe::distributed
