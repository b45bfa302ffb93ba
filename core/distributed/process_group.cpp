// Bytes travel by three operations of a backend (all_to_all, all_gather, broadcast), whatever the
// dtype; on CPU sums are ours, so that their order is.

#include "core/distributed/process_group.h"

#include <algorithm>
#include <numeric>
#include <thread>

#include "core/base/error.h"
#include "core/distributed/backends.h"
#include "core/distributed/failure_search.h"
#include "core/distributed/wait_clock.h"
#include "core/distributed/watchdog.h"

namespace moe::distributed {
namespace {

using at::Tensor;
using WorkPointer = c10::intrusive_ptr<c10d::Work>;

constexpr std::chrono::milliseconds kGlance{250};  // how often a wait asks the health monitor
// The health monitor's time limit is the one that counts: it knows of long operations.
constexpr std::chrono::hours kNoLimit{24 * 365};
constexpr int64_t kBlockBytes = 64 << 20;     // summed at a time: bounds the copies
constexpr int64_t kHostBlockBytes = 2 << 20;  // the same in shared memory: stays in a cache
constexpr int64_t kSmallBytes = 32 << 10;     // up to here one exchange beats two short ones

// The same memory as bytes, flat.
Tensor bytes_of(const Tensor& tensor) {
  MOE_CHECK(tensor.is_contiguous(), "a tensor on its way to other ranks must be contiguous");
  return tensor.detach().view({-1}).view(at::kByte);
}

int64_t row_bytes(const Tensor& tensor) {
  const auto row = tensor.sizes().slice(1);
  return std::accumulate(row.begin(), row.end(), tensor.element_size(), std::multiplies<>());
}

std::vector<int64_t> times(std::vector<int64_t> counts, int64_t factor) {
  for (auto& count : counts) {
    count *= factor;
  }
  return counts;
}

// `terms` [n], at least 2, added up in their order into `sum` [n].
void add_up(const std::vector<Tensor>& terms, Tensor sum) {
  at::add_out(sum, terms[0], terms[1]);
  for (size_t rank = 2; rank < terms.size(); ++rank) {
    sum += terms[rank];
  }
}

class AnnouncedOperation : public LongOperation {
 public:
  AnnouncedOperation(HealthMonitor& monitor, const std::string& name) : monitor_(monitor) {
    monitor_.begin_long_operation(name);
  }
  ~AnnouncedOperation() override { monitor_.end_long_operation(); }

 private:
  HealthMonitor& monitor_;
};

class ProcessComm : public Comm {
 public:
  // `ranks`: its members, by their numbers in the run.
  ProcessComm(std::shared_ptr<Membership> membership, at::Device device, const std::string& name,
              std::vector<int64_t> ranks);
  ~ProcessComm() override;

  int64_t rank() const override { return rank_; }
  int64_t size() const override { return static_cast<int64_t>(ranks_.size()); }
  at::Device device() const override { return device_; }

  std::unique_ptr<Transfer> all_to_all(const Tensor& input, const std::vector<int64_t>& input_rows,
                                       const Tensor& output,
                                       const std::vector<int64_t>& output_rows) override;
  void all_reduce(const Tensor& tensor) override;
  void reduce_scatter(const Tensor& input, const Tensor& output) override;
  void all_gather(const Tensor& input, const Tensor& output) override {
    gather(input, output, "all_gather");
  }
  std::unique_ptr<Transfer> start_all_gather(const Tensor& input, const Tensor& output) override;
  void broadcast(const Tensor& tensor, int64_t root) override;
  void barrier() override;
  std::unique_ptr<Comm> part(const std::string& name, const std::vector<int64_t>& members) override;

  std::unique_ptr<LongOperation> long_operation(const std::string& name) override {
    return std::make_unique<AnnouncedOperation>(*membership_->monitor, name);
  }

  void synchronize() override;

  Operation begun(const char* name, const WorkPointer& work) {
    return {name, position, ++communicator_.started, work};
  }
  // On CPU until it is done; on a GPU what comes next on the current stream waits for it there.
  // Throws RankFailed.
  void finish(const Operation& operation);

 private:
  WorkPointer exchange(const Tensor& input, std::vector<int64_t> input_counts, const Tensor& output,
                       std::vector<int64_t> output_counts);
  void gather(const Tensor& input, const Tensor& output, const char* operation);
  void reduce_small(const Tensor& flat);
  int64_t block_length(const Tensor& tensor) const;
  void scatter_sums(const Tensor& pieces, const Tensor& output, const char* operation);
  bool is_on_gpu() const { return !device_.is_cpu(); }
  c10d::Backend& backend();
  [[noreturn]] void fail(const RankFailed& failure);
  void look_for_failure(const Operation& operation, Seconds waited);
  void wait(const Operation& operation);
  template <typename Wait>
  void announced(const Operation& operation, const Wait& wait);
  BackendPointer connect();
  bool is_one_host() const;

  std::shared_ptr<Membership> membership_;
  at::Device device_;
  std::string name_;
  std::vector<int64_t> ranks_;
  int64_t rank_ = 0;
  int64_t parts_ = 0;
  bool has_failed_ = false;
  Communicator& communicator_;  // of the health monitor
  FailureSearch search_;
  BackendPointer backend_;
};

// An exchange that its ProcessComm outlives.
class Pending : public Transfer {
 public:
  Pending(ProcessComm& comm, Operation operation) : comm_(comm), operation_(std::move(operation)) {}
  void wait() override { comm_.finish(operation_); }

 private:
  ProcessComm& comm_;
  Operation operation_;
};

ProcessComm::ProcessComm(std::shared_ptr<Membership> membership, at::Device device,
                         const std::string& name, std::vector<int64_t> ranks)
    : membership_(std::move(membership)),
      device_(device),
      name_(name),
      ranks_(std::move(ranks)),
      communicator_(membership_->monitor->join(name)),
      search_(*membership_, ranks_, is_on_gpu()) {
  const auto own = std::find(ranks_.begin(), ranks_.end(), membership_->rank);
  MOE_CHECK(own != ranks_.end(), "rank {} is not in {}", membership_->rank, name);
  rank_ = own - ranks_.begin();
  backend_ = connect();
  if (is_on_gpu() && membership_->watchdog == nullptr) {
    membership_->watchdog = std::make_shared<Watchdog>(*membership_->monitor);
  }
}

// A backend with an operation under way waits for it when it is destroyed, and the others will not
// come: it lives on with the membership, which the end of the process ends.
ProcessComm::~ProcessComm() {
  const auto& watchdog = membership_->watchdog;
  bool is_broken = has_failed_ || std::uncaught_exceptions() > 0;
  if (is_on_gpu() && watchdog != nullptr) {
    try {
      if (!is_broken) {
        watchdog->synchronize(communicator_);
      }
    } catch (const RankFailed&) {  // the next operation of another Comm, or the end, says it
      is_broken = true;
    }
    watchdog->forget(communicator_);
  }
  if (is_broken) {
    const std::shared_ptr<c10d::Backend> backend(backend_.get(), [held = backend_](auto*) {});
    membership_->abandoned.push_back(backend);
  }
  membership_->monitor->leave(communicator_);
}

BackendPointer ProcessComm::connect() {
  const Operation connecting{"connecting", {}, ++communicator_.started, nullptr};
  WaitClock clock;
  const BackendGroup group{fmt::format("{}/{}/", membership_->rendezvous.run(), name_), rank_,
                           size(), [&] { look_for_failure(connecting, clock.look()); }};
  BackendPointer backend;
  announced(connecting, [&] {
    backend = is_on_gpu()     ? make_nccl(*membership_, group, device_)
              : is_one_host() ? make_shared_memory(*membership_, group)
                              : make_gloo(*membership_, group);
    backend->setTimeout(kNoLimit);
  });
  return backend;
}

// With memory in common, unless the user asked for an interface.
bool ProcessComm::is_one_host() const {
  std::vector<Member> members;
  for (const int64_t rank : ranks_) {
    members.push_back(membership_->rendezvous.members()[rank]);
  }
  return membership_->interface.empty() && are_on_one_host(members);
}

void ProcessComm::fail(const RankFailed& failure) {
  has_failed_ = true;
  throw RankFailed(failure);
}

void ProcessComm::look_for_failure(const Operation& operation, Seconds waited) {
  if (const auto failure = search_.find(operation, waited)) {
    fail(*failure);
  }
}

// To start an operation: on a GPU one that failed before may only now be known.
c10d::Backend& ProcessComm::backend() {
  if (is_on_gpu()) {
    membership_->watchdog->check();
  }
  return *backend_;
}

void ProcessComm::wait(const Operation& operation) {
  WaitClock clock;
  c10d::Work& work = *operation.work;
  while (!work.isCompleted()) {
    try {
      work.wait(kGlance);
    } catch (const std::exception&) {  // the time of this glance is over
    }
    if (!work.isCompleted()) {
      look_for_failure(operation, clock.look());
    }
  }
  if (const std::exception_ptr failure = work.exception()) {
    std::rethrow_exception(failure);
  }
  work.wait();
}

// While `wait` lasts this rank's heartbeats say that it waits. What it throws is a failure of
// another rank, named, or of a connection.
template <typename Wait>
void ProcessComm::announced(const Operation& operation, const Wait& wait) {
  HealthMonitor& monitor = *membership_->monitor;
  monitor.begin_wait(communicator_, operation.number, operation.position.step,
                     operation.position.layer, operation.name);
  try {
    wait();
  } catch (const RankFailed&) {
    throw;
  } catch (const std::exception& error) {
    fail(search_.find_broken(operation, error.what()));
  }
  monitor.end_wait(communicator_, operation.number);
}

void ProcessComm::finish(const Operation& operation) {
  if (!is_on_gpu()) {
    return announced(operation, [&] { wait(operation); });
  }
  // NCCL's wait() puts this stream behind the work, and throws nothing of a work that failed.
  operation.work->wait();
  membership_->watchdog->watch({&communicator_, backend_, search_}, operation);
}

void ProcessComm::synchronize() {
  if (is_on_gpu()) {
    membership_->watchdog->synchronize(communicator_);
  }
}

WorkPointer ProcessComm::exchange(const Tensor& input, std::vector<int64_t> input_counts,
                                  const Tensor& output, std::vector<int64_t> output_counts) {
  Tensor from = input, to = output;
  return backend().alltoall_base(to, from, output_counts, input_counts);
}

std::unique_ptr<Transfer> ProcessComm::all_to_all(const Tensor& input,
                                                  const std::vector<int64_t>& input_rows,
                                                  const Tensor& output,
                                                  const std::vector<int64_t>& output_rows) {
  MOE_CHECK(static_cast<int64_t>(input_rows.size()) == size() &&
                static_cast<int64_t>(output_rows.size()) == size(),
            "rows for each of {} ranks", size());
  MOE_CHECK(
      std::accumulate(input_rows.begin(), input_rows.end(), int64_t{0}) == input.size(0) &&
          std::accumulate(output_rows.begin(), output_rows.end(), int64_t{0}) == output.size(0),
      "rows sent and received are those of the tensors");
  return std::make_unique<Pending>(
      *this,
      begun("all_to_all", exchange(bytes_of(input), times(input_rows, row_bytes(input)),
                                   bytes_of(output), times(output_rows, row_bytes(output)))));
}

void ProcessComm::gather(const Tensor& input, const Tensor& output, const char* operation) {
  if (input.numel() > 0) {
    Tensor to = bytes_of(output), from = bytes_of(input);
    finish(begun(operation, backend()._allgather_base(to, from)));
  }
}

std::unique_ptr<Transfer> ProcessComm::start_all_gather(const Tensor& input, const Tensor& output) {
  if (input.numel() == 0) {
    return finished_transfer();
  }
  Tensor to = bytes_of(output), from = bytes_of(input);
  return std::make_unique<Pending>(*this, begun("all_gather", backend()._allgather_base(to, from)));
}

void ProcessComm::reduce_small(const Tensor& flat) {
  const Tensor all = at::empty({size(), flat.numel()}, flat.options());
  gather(flat, all, "all_reduce");
  add_up(all.unbind(), flat);
}

void ProcessComm::all_reduce(const Tensor& tensor) {
  if (tensor.numel() == 0) {
    return;
  }
  Tensor flat = tensor.detach().view({-1});
  if (is_on_gpu()) {
    std::vector<Tensor> tensors = {flat};
    return finish(begun("all_reduce", backend().allreduce(tensors)));
  }
  if (flat.numel() * flat.element_size() <= kSmallBytes) {
    return reduce_small(flat);
  }
  const int64_t even = flat.numel() / size() * size();
  const int64_t block = block_length(flat) * size();
  for (int64_t first = 0; first < even; first += block) {
    const Tensor part = flat.narrow(0, first, std::min(block, even - first));
    const Tensor piece = at::empty({part.numel() / size()}, flat.options());
    scatter_sums(part.view({size(), -1}), piece, "all_reduce");
    gather(piece, part, "all_reduce");
  }
  if (even < flat.numel()) {
    reduce_small(flat.narrow(0, even, flat.numel() - even));
  }
}

// One block of a reduce_scatter: what the others have of our piece comes here and is added up.
// `pieces` [size, n], `output` [n], which may be our piece.
void ProcessComm::scatter_sums(const Tensor& pieces, const Tensor& output, const char* operation) {
  std::vector<int64_t> counts(size(), output.numel() * pieces.element_size());
  counts[rank_] = 0;
  std::vector<Tensor> leaving = pieces.unbind();
  const Tensor own = leaving[rank_];
  leaving.erase(leaving.begin() + rank_);
  const Tensor input = leaving.size() == 1 ? leaving.front() : at::cat(leaving);
  const Tensor others = at::empty({size() - 1, output.numel()}, pieces.options());
  finish(begun(operation, exchange(bytes_of(input), counts, bytes_of(others), counts)));
  std::vector<Tensor> terms = others.unbind();
  terms.insert(terms.begin() + rank_, own);
  add_up(terms, output);
}

// Elements of a piece that are summed at a time.
int64_t ProcessComm::block_length(const Tensor& tensor) const {
  const int64_t bytes = is_one_host() ? kHostBlockBytes : kBlockBytes;
  return std::max<int64_t>(1, bytes / tensor.element_size() / size());
}

void ProcessComm::reduce_scatter(const Tensor& input, const Tensor& output) {
  MOE_CHECK(input.numel() == size() * output.numel(), "{} of {}", input.numel(), output.numel());
  if (output.numel() == 0) {
    return;
  }
  Tensor from = input.detach().view({-1}), to = output.detach().view({-1});
  if (is_on_gpu()) {
    return finish(begun("reduce_scatter", backend()._reduce_scatter_base(to, from)));
  }
  const Tensor pieces = from.view({size(), -1});
  const int64_t block = block_length(from);
  for (int64_t first = 0; first < to.numel(); first += block) {
    const int64_t length = std::min(block, to.numel() - first);
    scatter_sums(pieces.narrow(1, first, length), to.narrow(0, first, length), "reduce_scatter");
  }
}

void ProcessComm::broadcast(const Tensor& tensor, int64_t root) {
  if (tensor.numel() > 0) {
    std::vector<Tensor> tensors = {bytes_of(tensor)};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    finish(begun("broadcast", backend().broadcast(tensors, options)));
  }
}

void ProcessComm::barrier() {
  const Tensor byte = at::zeros({1}, at::TensorOptions(at::kByte).device(device_));
  gather(byte, at::empty({size()}, byte.options()), "barrier");
  synchronize();
}

std::unique_ptr<Comm> ProcessComm::part(const std::string& name,
                                        const std::vector<int64_t>& members) {
  const std::string key =
      fmt::format("{}/{}.{}.{}", name_, name, parts_++, members.empty() ? 0 : members.front());
  if (members.size() == 1) {
    return solo_comm(device_);
  }
  std::vector<int64_t> ranks;
  for (const int64_t member : members) {
    ranks.push_back(ranks_.at(member));
  }
  auto comm = std::make_unique<ProcessComm>(membership_, device_, key, std::move(ranks));
  comm->position = position;
  return comm;
}

}  // namespace

void Membership::check_in(const Member& member, const std::string& version) {
  rendezvous.check_in(member, version, timeout);
  monitor.emplace(rendezvous,
                  pool == nullptr
                      ? heartbeats_in_store(store, rendezvous.run())
                      : heartbeats_in_memory(pool->map_reserved(heartbeat_bytes(size)), size),
                  rank, timeout, store_rank);
  monitor->start();
}

std::unique_ptr<Comm> process_comm(std::shared_ptr<Membership> membership, at::Device device) {
  std::vector<int64_t> ranks(static_cast<size_t>(membership->size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return std::make_unique<ProcessComm>(std::move(membership), device, "all", std::move(ranks));
}

std::exception_ptr unseen_failure(Membership& membership) {
  if (membership.watchdog == nullptr) {
    return nullptr;
  }
  const auto failure = membership.watchdog->failure();
  membership.watchdog.reset();  // its thread has ended
  return failure ? std::make_exception_ptr(*failure) : nullptr;
}

}  // namespace moe::distributed
