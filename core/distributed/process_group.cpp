// Bytes travel by three operations of a backend (all_to_all, all_gather, broadcast), whatever the
// dtype; on CPU sums are ours, so that their order is.

#include "core/distributed/process_group.h"

#include <algorithm>
#include <numeric>
#include <thread>

#include "core/base/error.h"
#include "core/distributed/backends.h"
#include "core/distributed/own_work.h"
#include "core/distributed/wait_clock.h"

namespace moe::distributed {
namespace {

using at::Tensor;
using Clock = std::chrono::steady_clock;
using WorkPointer = c10::intrusive_ptr<c10d::Work>;

constexpr std::chrono::milliseconds kGlance{250};  // how often the others' notes are read
constexpr Seconds kTelling{2};                     // between words of a rank at work of its own
// Ours is the shorter patience: it knows whom to blame, and who is excused.
constexpr std::chrono::hours kNeverMind{24 * 365};
constexpr int64_t kBlockBytes = 64 << 20;     // summed at a time: bounds the copies
constexpr int64_t kHostBlockBytes = 2 << 20;  // the same in shared memory: stays in a cache
constexpr int64_t kSmallBytes = 32 << 10;     // up to here one exchange beats two short ones

Seconds since(Clock::time_point begin) { return Clock::now() - begin; }

// A margin for finding who is to blame, so that the whole fits the user's limit.
Seconds patience(Seconds timeout) { return timeout - std::min(Seconds{2}, timeout / 5); }

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

// "step 7, layer 3, all_to_all".
std::string describe(const Position& position, const char* operation) {
  std::string text;
  if (position.step >= 0) {
    text += fmt::format("step {}, ", position.step);
  }
  if (position.layer >= 0) {
    text += fmt::format("layer {}, ", position.layer);
  }
  return text + operation;
}

// A wait that takes long.
struct Waiting {
  Seconds patience;
  WaitClock clock = {};
};

class ProcessComm : public Comm {
 public:
  // `everybody`: of all ranks of the run, by their numbers there.
  ProcessComm(std::shared_ptr<Membership> membership, at::Device device, const std::string& name,
              std::vector<int64_t> everybody);
  ~ProcessComm() override;

  int64_t rank() const override { return rank_; }
  int64_t size() const override { return static_cast<int64_t>(everybody_.size()); }
  at::Device device() const override { return device_; }

  std::unique_ptr<Transfer> all_to_all(const Tensor& input, const std::vector<int64_t>& input_rows,
                                       const Tensor& output,
                                       const std::vector<int64_t>& output_rows) override;
  void all_reduce(const Tensor& tensor) override;
  void reduce_scatter(const Tensor& input, const Tensor& output) override;
  void all_gather(const Tensor& input, const Tensor& output) override {
    gather(input, output, "all_gather");
  }
  void broadcast(const Tensor& tensor, int64_t root) override;
  void barrier() override;
  std::unique_ptr<Comm> part(const std::string& name, const std::vector<int64_t>& members) override;

  std::unique_ptr<LongOperation> long_operation(const std::string& /*name*/) override {
    return tell_of_own_work(membership_->roll,
                            std::min(kTelling, membership_->timeout / 5).count());
  }

  // Until `work`, begun at `place`, is done; throws RankFailed.
  void finish(const WorkPointer& work, const Position& its_place, const char* operation);

 private:
  WorkPointer exchange(const Tensor& input, std::vector<int64_t> input_counts, const Tensor& output,
                       std::vector<int64_t> output_counts);
  void gather(const Tensor& input, const Tensor& output, const char* operation);
  void reduce_small(const Tensor& flat);
  int64_t block_length(const Tensor& of) const;
  void scatter_sums(const Tensor& pieces, const Tensor& output, const char* operation);
  [[noreturn]] void fail(const Verdict& verdict, const std::string& where);
  void look_around(const WorkPointer& work, const std::string& where, Waiting& waiting);
  BackendPointer connect();
  bool is_one_host() const;

  std::shared_ptr<Membership> membership_;
  at::Device device_;
  std::string name_;
  std::vector<int64_t> everybody_;
  int64_t rank_ = 0;
  int64_t parts_ = 0;
  bool has_failed_ = false;
  BackendPointer backend_;
};

// An exchange that its ProcessComm outlives.
class Pending : public Transfer {
 public:
  Pending(ProcessComm& comm, WorkPointer work, const Position& place)
      : comm_(comm), work_(std::move(work)), place_(place) {}
  void wait() override { comm_.finish(work_, place_, "all_to_all"); }

 private:
  ProcessComm& comm_;
  WorkPointer work_;
  Position place_;
};

ProcessComm::ProcessComm(std::shared_ptr<Membership> membership, at::Device device,
                         const std::string& name, std::vector<int64_t> everybody)
    : membership_(std::move(membership)),
      device_(device),
      name_(name),
      everybody_(std::move(everybody)) {
  const auto mine = std::find(everybody_.begin(), everybody_.end(), membership_->rank);
  MOE_CHECK(mine != everybody_.end(), "rank {} is not in {}", membership_->rank, name);
  rank_ = mine - everybody_.begin();
  backend_ = connect();
}

// A backend with an operation under way waits for it when it is destroyed, and the others will not
// come: it lives on with the membership, which the end of the process ends.
ProcessComm::~ProcessComm() {
  if (has_failed_ || std::uncaught_exceptions() > 0) {
    const std::shared_ptr<c10d::Backend> kept(backend_.get(), [held = backend_](auto*) {});
    membership_->abandoned.push_back(kept);
  }
}

BackendPointer ProcessComm::connect() {
  const BackendPlace place{fmt::format("{}/{}/", membership_->roll.run(), name_), rank_, size()};
  try {
    const BackendPointer backend = !device_.is_cpu() ? make_nccl(*membership_, place, device_)
                                   : is_one_host()   ? make_host(*membership_, place)
                                                     : make_gloo(*membership_, place);
    backend->setTimeout(kNeverMind);
    return backend;
  } catch (const std::exception& error) {
    fail(membership_->who_broke_off(error.what(), everybody_), "connecting");
  }
}

// Nobody has asked for an interface, either.
bool ProcessComm::is_one_host() const {
  std::vector<Member> members;
  for (const int64_t rank : everybody_) {
    members.push_back(membership_->roll.members()[rank]);
  }
  return membership_->interface.empty() && are_on_one_host(members);
}

void ProcessComm::fail(const Verdict& verdict, const std::string& where) {
  has_failed_ = true;
  if (backend_ && !device_.is_cpu()) {
    backend_->abort();
  }
  throw RankFailed(verdict, fmt::format("{}: {}", verdict.text, where));
}

// While it takes long: says where we wait, hears what became of the others, and loses patience.
void ProcessComm::look_around(const WorkPointer& work, const std::string& where, Waiting& waiting) {
  RollCall& roll = membership_->roll;
  Verdict verdict;
  roll.wait_at(fmt::format("{} of {}", where, name_));
  const bool has_heard = !roll.bad_news(verdict).empty();
  if (work->isCompleted()) {
    return;
  }
  const double waited_s = waiting.clock.look().count();
  if (waiting.clock.has_stood_still()) {
    roll.forgive_silence();
  }
  const std::string so_far =
      waited_s < 1 ? where : fmt::format("{}, after {:.0f} s", where, waited_s);
  if (has_heard) {
    fail(verdict, so_far);
  }
  if (Seconds{waited_s} > waiting.patience) {
    if (const auto late = roll.who_is_late(everybody_, membership_->timeout)) {
      fail(*late, so_far);
    }
    waiting.patience = Seconds{waited_s} + membership_->timeout / 10;  // asked again then
  }
}

void ProcessComm::finish(const WorkPointer& work, const Position& its_place,
                         const char* operation) {
  Waiting waiting{patience(membership_->timeout)};
  const std::string where = describe(its_place, operation);
  std::string broken;
  try {
    while (!work->isCompleted()) {
      if (device_.is_cpu()) {
        try {
          work->wait(kGlance);
        } catch (const std::exception& error) {
          if (work->isCompleted()) {  // else only this glance's time is over
            broken = error.what();
            break;
          }
        }
      } else {
        for (const auto pause = Clock::now(); !work->isCompleted() && since(pause) < kGlance;) {
          std::this_thread::yield();
        }
      }
      if (!work->isCompleted()) {
        look_around(work, where, waiting);
      }
    }
    if (broken.empty()) {
      work->wait();  // CUDA: in the order of this stream
      membership_->roll.go_on();
      return;
    }
  } catch (const RankFailed&) {
    throw;
  } catch (const std::exception& error) {
    broken = error.what();
  }
  fail(membership_->who_broke_off(broken, everybody_), where);
}

WorkPointer ProcessComm::exchange(const Tensor& input, std::vector<int64_t> input_counts,
                                  const Tensor& output, std::vector<int64_t> output_counts) {
  Tensor from = input, to = output;
  return backend_->alltoall_base(to, from, output_counts, input_counts);
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
      exchange(bytes_of(input), times(input_rows, row_bytes(input)), bytes_of(output),
               times(output_rows, row_bytes(output))),
      position);
}

void ProcessComm::gather(const Tensor& input, const Tensor& output, const char* operation) {
  if (input.numel() > 0) {
    Tensor to = bytes_of(output), from = bytes_of(input);
    finish(backend_->_allgather_base(to, from), position, operation);
  }
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
  if (!device_.is_cpu()) {
    std::vector<Tensor> tensors = {flat};
    return finish(backend_->allreduce(tensors), position, "all_reduce");
  }
  if (flat.numel() * flat.element_size() <= kSmallBytes) {
    return reduce_small(flat);
  }
  const int64_t even = flat.numel() / size() * size();
  const int64_t block = block_length(flat) * size();
  for (int64_t first = 0; first < even; first += block) {
    const Tensor part = flat.narrow(0, first, std::min(block, even - first));
    const Tensor mine = at::empty({part.numel() / size()}, flat.options());
    scatter_sums(part.view({size(), -1}), mine, "all_reduce");
    gather(mine, part, "all_reduce");
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
  finish(exchange(bytes_of(input), counts, bytes_of(others), counts), position, operation);
  std::vector<Tensor> terms = others.unbind();
  terms.insert(terms.begin() + rank_, own);
  add_up(terms, output);
}

// Elements of a piece that are summed at a time.
int64_t ProcessComm::block_length(const Tensor& of) const {
  const int64_t bytes = is_one_host() ? kHostBlockBytes : kBlockBytes;
  return std::max<int64_t>(1, bytes / of.element_size() / size());
}

void ProcessComm::reduce_scatter(const Tensor& input, const Tensor& output) {
  MOE_CHECK(input.numel() == size() * output.numel(), "{} of {}", input.numel(), output.numel());
  if (output.numel() == 0) {
    return;
  }
  Tensor from = input.detach().view({-1}), to = output.detach().view({-1});
  if (!device_.is_cpu()) {
    return finish(backend_->_reduce_scatter_base(to, from), position, "reduce_scatter");
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
    finish(backend_->broadcast(tensors, options), position, "broadcast");
  }
}

void ProcessComm::barrier() {
  const Tensor mine = at::zeros({1}, at::TensorOptions(at::kByte).device(device_));
  gather(mine, at::empty({size()}, mine.options()), "barrier");
}

std::unique_ptr<Comm> ProcessComm::part(const std::string& name,
                                        const std::vector<int64_t>& members) {
  const std::string key =
      fmt::format("{}/{}.{}.{}", name_, name, parts_++, members.empty() ? 0 : members.front());
  if (members.size() == 1) {
    return solo_comm(device_);
  }
  std::vector<int64_t> everybody;
  for (const int64_t member : members) {
    everybody.push_back(everybody_.at(member));
  }
  auto comm = std::make_unique<ProcessComm>(membership_, device_, key, std::move(everybody));
  comm->position = position;
  return comm;
}

}  // namespace

Verdict Membership::who_broke_off(const std::string& error, const std::vector<int64_t>& among) {
  try {
    return roll.who_broke_off(error, among);
  } catch (const StoreIsSilent&) {
    return who_lost_the_store("does not answer");
  } catch (const std::exception&) {
    return who_lost_the_store("is gone");
  }
}

Verdict Membership::who_lost_the_store(const char* how) const {
  const std::string server = store_rank < 0
                                 ? "the launcher"
                                 : distributed::describe(store_rank, roll.members()[store_rank]);
  return {store_rank, fmt::format("{} {}", server, how)};
}

std::unique_ptr<Comm> process_comm(std::shared_ptr<Membership> membership, at::Device device) {
  std::vector<int64_t> everybody(static_cast<size_t>(membership->size));
  std::iota(everybody.begin(), everybody.end(), 0);
  return std::make_unique<ProcessComm>(std::move(membership), device, "all", std::move(everybody));
}

}  // namespace moe::distributed
