// This file calls no function of Gloo, because the headers (libgloo-dev) and the Gloo in LibTorch
// have different versions.

#define USE_C10D_GLOO
#include "core/distributed/process_group.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <sstream>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "core/base/error.h"
#include "core/base/text.h"
#include "kernels/ops/cuda_functions.h"
#include "kernels/ops/device.h"

namespace moe::distributed {
namespace {

using at::Tensor;
using c10d::ProcessGroupGloo;
using WorkPointer = c10::intrusive_ptr<c10d::Work>;
using BackendPointer = c10::intrusive_ptr<c10d::Backend>;

constexpr std::chrono::microseconds kPoll{20};
constexpr double kNever = 1e9;  // seconds since the last long operation if there was none
constexpr std::chrono::milliseconds kCheckInterval{250};  // between two checks for a verdict
// Timeout of Gloo after it has connected. ProcessGroup limits waits instead, because it excludes
// long operations and time in which the process was stopped.
constexpr std::chrono::hours kUnlimited{24 * 365};
// Longer than any evaluation or checkpoint for which a collective may wait.
constexpr std::chrono::hours kNcclTimeout{24};
constexpr int64_t kBlockBytes = 64 << 20;  // summed at a time, to bound the copies

Tensor as_bytes(const Tensor& tensor) {
  MOE_CHECK(tensor.is_contiguous(), "a tensor of a collective must be contiguous");
  return tensor.detach().view({-1}).view(at::kByte);
}

// Returns the number of bytes of `rows[r]` rows of `tensor`, for each rank r.
std::vector<int64_t> row_bytes(std::vector<int64_t> rows, const Tensor& tensor, int64_t size) {
  MOE_CHECK(std::ssize(rows) == size &&
                std::accumulate(rows.begin(), rows.end(), int64_t{0}) == tensor.size(0),
            "row counts of all_to_all do not match its tensors");
  const int64_t bytes = c10::multiply_integers(tensor.sizes().slice(1)) * tensor.element_size();
  std::transform(rows.begin(), rows.end(), rows.begin(), [&](int64_t row) { return row * bytes; });
  return rows;
}

// Returns the cause in the message of an exception of Gloo or NCCL: CAUSE of "[enforce fail at
// FILE] VALUES. CAUSE", the line after "Last error:", or the first line (a stack trace may follow).
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

// Enables the error handling of c10d: after an error its watchdog thread throws, which ends the
// process (on_terminate(), launch.cpp).
BackendPointer make_nccl(const ProcessGroup& group, const c10::intrusive_ptr<c10d::Store>& store,
                         int rank, int size, at::Device device) {
  const Member& first = group.members.front();
  if (std::ranges::all_of(group.members, [&](const Member& member) {
        return member.machine == first.machine && member.address == first.address;
      })) {
    setenv("NCCL_SOCKET_IFNAME", "lo", 0);  // else its sockets are open to the network
  }
  return kernels::cuda_functions().make_nccl(store, rank, size, kNcclTimeout, device);
}

// Returns true if a collective of GPUs is complete. Throws std::runtime_error if it failed.
bool is_done(c10d::Work& work) {
  try {
    const bool is_complete = work.isCompleted();
    if (is_complete && work.exception() != nullptr) {
      std::rethrow_exception(work.exception());
    }
    return is_complete;
  } catch (const std::exception& error) {
    throw std::runtime_error(
        fmt::format("a collective of the GPUs failed ({})", library_cause(error.what())));
  }
}

class ProcessComm : public Comm {
 public:
  // `ranks` are the members, numbered as in the run; `name` is the prefix of their keys in the
  // store. Gloo connects in a thread, because it blocks until its timeout if a rank has exited.
  ProcessComm(ProcessGroup& group, at::Device device, const std::string& name,
              const std::vector<int64_t>& ranks)
      : Comm(device, std::find(ranks.begin(), ranks.end(), group.rank) - ranks.begin(),
             std::ssize(ranks)),
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
    } catch (const std::exception& error) {  // fail() throws the verdict if there is one
      group.fail(fmt::format("ranks cannot connect ({})", library_cause(error.what())));
    }
    group.end(number);
  }

  // The destructor of a c10d backend blocks while an operation is under way. After a failure other
  // ranks never complete the operation, so the backend is leaked.
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

  Transfer all_to_all(const Tensor& input, at::IntArrayRef input_rows, const Tensor& output,
                      at::IntArrayRef output_rows) override {
    return transfer("all_to_all", exchange(input, row_bytes(input_rows.vec(), input, size()),
                                           output, row_bytes(output_rows.vec(), output, size())));
  }

  void all_reduce(const Tensor& tensor) override {
    if (tensor.numel() > 0) {
      std::vector<Tensor> tensors = {tensor.detach().view({-1})};
      finish("all_reduce", trace, backend().allreduce(tensors));
    }
  }

  // On CPUs sums exchanged blocks in rank order: c10d's Gloo reduces the whole input on every rank.
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

  Transfer start_all_gather(const Tensor& input, const Tensor& output) override {
    if (input.numel() == 0) {
      return Transfer();
    }
    Tensor to = as_bytes(output), from = as_bytes(input);
    return transfer("all_gather", backend()._allgather_base(to, from));
  }

  void barrier() override {
    std::vector<Tensor> byte = {at::zeros({1}, at::TensorOptions(at::kByte).device(device()))};
    finish("barrier", trace, backend().allreduce(byte));
    synchronize();
  }

  void synchronize() override {
    if (is_on_gpu()) {
      group_.wait_for_all();
    }
  }

  std::unique_ptr<Comm> split(at::IntArrayRef members) override {
    const std::string key = fmt::format("{}/split.{}.{}", name_, num_splits_++, members.front());
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
  Transfer transfer(const char* operation, WorkPointer work) {
    return Transfer([this, operation, context = trace, work = std::move(work)] {
      finish(operation, context, work);
    });
  }

  bool is_on_gpu() const { return kernels::device_traits(device()).has_streams; }

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

  ProcessGroup& group_;
  std::string name_;
  std::vector<int64_t> ranks_;
  int64_t num_splits_ = 0;
  bool has_failed_ = false;
  BackendPointer backend_;
};

}  // namespace

ProcessGroup::ProcessGroup(Store its_store, int64_t its_rank, std::vector<Member> its_members,
                           Seconds its_timeout, int64_t store_rank,
                           std::function<void(ExitReason)> on_deadline)
    : store(std::move(its_store)),
      rank(its_rank),
      size(std::ssize(its_members)),
      members(std::move(its_members)),
      timeout(its_timeout),
      store_rank_(store_rank),
      // Increases with the number of ranks, because each reads the store at every tick. Less than
      // 0.7 s, because WaitClock treats a longer gap as a stopped process.
      tick_(
          std::min(timeout / 20, Seconds{std::clamp(static_cast<double>(size) / 100, 0.25, 0.5)})),
      answer_time_(std::min(timeout / 5, Seconds{3})),
      limit_(timeout - answer_time_ - 2 * tick_),  // so that the rank is named within `timeout`
      on_deadline_(std::move(on_deadline)),
      connection_(store.connect_again()) {
  idle_clock_.set(Seconds{kNever});
  thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
}

int64_t ProcessGroup::begin(const char* operation, const TraceContext& trace,
                            std::function<bool()> is_done) {
  const std::lock_guard lock(mutex_);
  last_ = {last_.number + 1, operation, trace, nullptr};
  pending_.push_back({last_.number, operation, trace, std::move(is_done)});
  return last_.number;
}

void ProcessGroup::end(int64_t number) {
  const std::lock_guard lock(mutex_);
  pending_.remove_if([&](const Pending& pending) { return pending.number == number; });
}

void ProcessGroup::wait_for_all() {
  for (;; std::this_thread::sleep_for(kPoll)) {
    std::unique_lock lock(mutex_);
    update();
    changed_.wait(lock, [this] { return !broken_ || failure_; });  // the thread finds the reason
    if (failure_) {
      throw *failure_;
    }
    if (pending_.empty()) {
      return;
    }
  }
}

void ProcessGroup::check() const {
  const std::lock_guard lock(mutex_);
  if (failure_) {
    throw *failure_;
  }
}

void ProcessGroup::report_broken(const std::string& text) {
  const std::lock_guard lock(mutex_);
  broken_ = broken_.value_or(text);
  changed_.notify_all();
}

void ProcessGroup::fail(const std::string& text) {
  report_broken(text);
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return failure_.has_value(); });
  throw *failure_;
}

std::shared_ptr<void> ProcessGroup::long_operation() {
  const std::lock_guard lock(mutex_);
  ++num_long_operations_;
  return {nullptr, [this](void* /*none*/) {
            const std::lock_guard lock(mutex_);
            --num_long_operations_;
            idle_clock_ = {};
          }};
}

void ProcessGroup::run(const std::stop_token& stop) {
  std::optional<ExitReason> verdict;
  while (!verdict) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, stop, tick_, [this] { return broken_.has_value(); });
    lock.unlock();
    if (stop.stop_requested()) {
      return;
    }
    try {
      verdict = poll_store();
    } catch (const std::exception&) {  // thrown by the store
      verdict = {store_rank_, kFailed,
                 (store_rank_ < 0 ? "the launcher" : describe(store_rank_, members[store_rank_])) +
                     " does not answer"};
    }
  }
  if (verdict->exit_code == kUserError) {
    verdict->text.insert(0, verdict->rank > 0 ? fmt::format("[rank {}] ", verdict->rank) : "");
  } else {
    const Position own = position();
    verdict->text += fmt::format(": {}{}{}", own.waited == 0 ? "after " : "", own.operation,
                                 own.waited < 1 ? "" : fmt::format(", after {:.0f} s", own.waited));
  }
  std::unique_lock lock(mutex_);
  failure_.emplace(*verdict);
  changed_.notify_all();
  changed_.wait_for(lock, stop, kHardDeadline, [] { return false; });
  lock.unlock();
  if (!stop.stop_requested() && on_deadline_) {
    on_deadline_(*verdict);
  }
}

void ProcessGroup::update() {
  try {
    pending_.remove_if([](const Pending& pending) { return pending.is_done && pending.is_done(); });
  } catch (const std::exception& error) {
    broken_ = broken_.value_or(error.what());
    changed_.notify_all();
  }
  const int64_t oldest = pending_.empty() ? 0 : pending_.front().number;
  if (std::exchange(watched_, oldest) != oldest) {
    watched_clock_ = {};
  }
}

ProcessGroup::Position ProcessGroup::position() {
  const std::lock_guard lock(mutex_);
  update();
  const auto& [number, operation, trace, is_done] = pending_.empty() ? last_ : pending_.front();
  const double waited = std::max(0.001, watched_clock_.elapsed().count());
  const double idle = idle_clock_.elapsed().count();
  return {(trace.step >= 0 ? fmt::format("step {}, ", trace.step) : "") +
              (trace.layer >= 0 ? fmt::format("layer {}, ", trace.layer) : "") + operation,
          pending_.empty() ? 0 : waited, num_long_operations_ > 0 ? 0 : idle, broken_.value_or("")};
}

// Polls the store. Returns the verdict of the run, or nothing if the run continues.
std::optional<ExitReason> ProcessGroup::poll_store() {
  if (auto verdict = read_verdict(connection_)) {
    return verdict;
  }
  const Position own = position();
  const std::string question = fmt::format("question/{}", question_ + 1);
  if (!own.broken.empty() || own.waited > limit_.count()) {
    connection_.set(question, "");
  } else if (!connection_.read(question)) {
    return std::nullopt;
  }
  ++question_;
  const Answers answers = collect_answers(own);
  if (auto verdict = read_verdict(connection_)) {
    return verdict;
  }
  const auto verdict = find_failed_rank(answers);
  return verdict ? std::optional(set_verdict(connection_, *verdict)) : std::nullopt;
}

// Writes this rank's answer and waits for the answers of the other ranks, at most answer_time_ or
// until there is a verdict.
ProcessGroup::Answers ProcessGroup::collect_answers(const Position& own) {
  const auto key = [&](int64_t other) { return fmt::format("answer/{}/{}", question_, other); };
  // Returns nothing for an answer that is missing or cannot be parsed.
  const auto read_answer = [&](int64_t other) -> std::optional<Position> {
    std::istringstream lines(connection_.read(key(other)).value_or(""));
    Position position;
    lines >> position.waited >> position.idle >> std::ws;
    if (!std::getline(lines, position.operation)) {
      return std::nullopt;
    }
    std::getline(lines, position.broken);
    position.operation = printable(position.operation);
    position.broken = printable(position.broken, 1000);
    return position;
  };
  Answers answers(size);
  answers[rank] = own;
  connection_.set(key(rank),
                  fmt::format("{} {}\n{}\n{}", own.waited, own.idle, own.operation, own.broken));
  for (WaitClock clock; clock.elapsed() < answer_time_ && !read_verdict(connection_) &&
                        std::count(answers.begin(), answers.end(), std::nullopt) > 0;
       std::this_thread::sleep_for(tick_ / 4)) {
    for (int64_t other = 0; other < size; ++other) {
      answers[other] = answers[other] ? answers[other] : read_answer(other);
    }
  }
  return answers;
}

// Returns the verdict that follows from the answers, or nothing if the run continues.
std::optional<ExitReason> ProcessGroup::find_failed_rank(const Answers& answers) {
  const auto verdict_on = [&](int64_t other, const std::string& text) {
    return ExitReason{other, kFailed, describe(other, members[other]) + " " + text};
  };
  std::string broken;
  double max_waited = 0;
  Seconds idle{kNever};
  int64_t silent = -1, late = rank;
  for (int64_t other = size - 1; other >= 0; --other) {
    if (const auto& answer = answers[other]) {
      broken = answer->broken.empty() ? broken : answer->broken;
      max_waited = std::max(max_waited, answer->waited);
      idle = std::min(idle, Seconds{answer->idle});
      late = answer->waited <= answers[late]->waited ? other : late;
    } else {
      silent = other;
    }
  }
  if (broken.empty() && max_waited < limit_.count()) {
    return std::nullopt;  // the collective that led to the question is complete
  }
  if (silent >= 0) {
    return verdict_on(silent, broken.empty() ? "does not answer" : "has exited");
  }
  if (!broken.empty()) {
    return ExitReason{-1, kFailed, broken};
  }
  if (idle < limit_) {  // waits count from the end of the long operation
    const std::lock_guard lock(mutex_);
    watched_clock_.set(std::min(idle, watched_clock_.elapsed()));
    return std::nullopt;
  }
  if (answers[late]->waited < limit_.count() / 2) {
    return verdict_on(late, fmt::format("is not in the collective (its last operation: {})",
                                        answers[late]->operation));
  }
  return ExitReason{-1, kFailed, "all ranks wait in a collective that does not complete"};
}

std::unique_ptr<Comm> make_process_comm(ProcessGroup& group, at::Device device) {
  std::vector<int64_t> ranks(group.members.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  return std::make_unique<ProcessComm>(group, device, "all", ranks);
}

}  // namespace moe::distributed
