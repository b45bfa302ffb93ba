// Thread of ProcessGroup that finds the rank which keeps the run from making progress.

#include <algorithm>
#include <sstream>

#include "core/base/text.h"
#include "core/distributed/process_group.h"

namespace moe::distributed {
namespace {

constexpr std::chrono::microseconds kPoll{20};
constexpr double kNever = 1e9;  // seconds since the last long operation if there was none

}  // namespace

ProcessGroup::ProcessGroup(Store its_store, int64_t its_rank, std::vector<Member> its_members,
                           Seconds its_timeout, int64_t store_rank,
                           std::function<void(ExitReason)> on_deadline)
    : store(std::move(its_store)),
      rank(its_rank),
      size(static_cast<int64_t>(its_members.size())),
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
  thread_ = std::thread([this] { run(); });
}

ProcessGroup::~ProcessGroup() {
  {
    const std::lock_guard lock(mutex_);
    is_stopped_ = true;
  }
  changed_.notify_all();
  thread_.join();
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
  {
    const std::lock_guard lock(mutex_);
    broken_ = broken_.value_or(text);
  }
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

void ProcessGroup::run() {
  std::optional<ExitReason> verdict;
  while (!verdict) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, tick_, [this] { return is_stopped_ || broken_; });
      if (is_stopped_) {
        return;
      }
    }
    try {
      verdict = look();
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
  if (!changed_.wait_for(lock, kHardDeadline, [this] { return is_stopped_; }) && on_deadline_) {
    lock.unlock();
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
  if (oldest != watched_) {
    watched_ = oldest;
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
std::optional<ExitReason> ProcessGroup::look() {
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
  const auto verdict = judge(answers);
  return verdict ? std::optional(set_verdict(connection_, *verdict)) : std::nullopt;
}

// Returns nothing for an answer that is missing or cannot be parsed.
std::optional<ProcessGroup::Position> ProcessGroup::read_answer(int64_t other) {
  std::istringstream lines(connection_.read(answer_key(other)).value_or(""));
  Position position;
  lines >> position.waited >> position.idle >> std::ws;
  if (!std::getline(lines, position.operation)) {
    return std::nullopt;
  }
  std::getline(lines, position.broken);
  position.operation = printable(position.operation);
  position.broken = printable(position.broken, 1000);
  return position;
}

// Writes this rank's answer and waits for the answers of the other ranks, at most answer_time_ or
// until there is a verdict.
ProcessGroup::Answers ProcessGroup::collect_answers(const Position& own) {
  Answers answers(size);
  answers[rank] = own;
  connection_.set(answer_key(rank),
                  fmt::format("{} {}\n{}\n{}", own.waited, own.idle, own.operation, own.broken));
  const auto is_missing = [](const auto& answer) { return !answer; };
  for (WaitClock clock; clock.elapsed() < answer_time_ && !read_verdict(connection_) &&
                        std::any_of(answers.begin(), answers.end(), is_missing);
       std::this_thread::sleep_for(tick_ / 4)) {
    for (int64_t other = 0; other < size; ++other) {
      answers[other] = answers[other] ? answers[other] : read_answer(other);
    }
  }
  return answers;
}

// Returns the verdict that follows from the answers, or nothing if the run continues.
std::optional<ExitReason> ProcessGroup::judge(const Answers& answers) {
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
    return verdict_on(silent, broken.empty() ? "does not answer" : "is gone");
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
    return verdict_on(
        late, fmt::format("did not come (its last operation: {})", answers[late]->operation));
  }
  return ExitReason{-1, kFailed, "every rank waits and nothing arrives"};
}

}  // namespace moe::distributed
