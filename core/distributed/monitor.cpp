#include "core/distributed/monitor.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/text.h"

namespace moe::distributed {
namespace {

// A launcher or a rank may still report why a connection broke.
constexpr Seconds kUntilReported{0.5};
constexpr std::chrono::microseconds kPoll{20};
constexpr double kNever = 1e9;  // seconds since the last long operation if there was none

// Every rank reads the store at every tick: less often the more ranks there are.
Seconds tick(Seconds timeout, int64_t size) {
  return std::min(timeout / 20, std::max(Seconds{0.25}, Seconds{static_cast<double>(size) / 100}));
}

std::string question_key(int64_t number) { return fmt::format("question/{}", number); }

// Returns "step 7, layer 3, all_to_all".
std::string describe_position(const char* operation, const TraceContext& trace) {
  return (trace.step >= 0 ? fmt::format("step {}, ", trace.step) : "") +
         (trace.layer >= 0 ? fmt::format("layer {}, ", trace.layer) : "") + operation;
}

}  // namespace

Monitor::Monitor(Store store, int64_t rank, std::vector<Member> members, Seconds timeout,
                 int64_t store_rank, std::function<void(const RankFailed&)> on_deadline)
    : store_(std::move(store)),
      rank_(rank),
      size_(static_cast<int64_t>(members.size())),
      store_rank_(store_rank),
      members_(std::move(members)),
      tick_(tick(timeout, size_)),
      answer_time_(std::min(timeout / 5, Seconds{3})),
      limit_(timeout - answer_time_ - 2 * tick_),  // so that the rank is named within `timeout`
      on_deadline_(std::move(on_deadline)) {
  idle_clock_.set(Seconds{kNever});
  thread_ = std::thread([this] { run(); });
}

Monitor::~Monitor() {
  {
    const std::lock_guard lock(mutex_);
    is_stopped_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

int64_t Monitor::begin(const char* operation, const TraceContext& trace,
                       std::function<bool()> is_done) {
  const std::lock_guard lock(mutex_);
  last_ = {last_.number + 1, operation, trace, nullptr};
  pending_.push_back({last_.number, operation, trace, std::move(is_done)});
  return last_.number;
}

void Monitor::end(int64_t number) {
  const std::lock_guard lock(mutex_);
  pending_.remove_if([&](const Pending& pending) { return pending.number == number; });
}

void Monitor::wait_for_all() {
  for (;;) {
    std::unique_lock lock(mutex_);
    update();
    changed_.wait(lock, [this] { return !broken_ || failure_; });  // the thread finds the reason
    if (failure_) {
      throw RankFailed(*failure_);
    }
    if (pending_.empty()) {
      return;
    }
    lock.unlock();
    std::this_thread::sleep_for(kPoll);
  }
}

void Monitor::check() const {
  const std::lock_guard lock(mutex_);
  if (failure_) {
    throw RankFailed(*failure_);
  }
}

void Monitor::report_broken(const std::string& text) {
  {
    const std::lock_guard lock(mutex_);
    broken_ = broken_.value_or(text);
  }
  changed_.notify_all();
}

void Monitor::fail(const std::string& text) {
  report_broken(text);
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return failure_.has_value(); });
  throw RankFailed(*failure_);
}

void Monitor::begin_long_operation() {
  const std::lock_guard lock(mutex_);
  ++num_long_operations_;
}

void Monitor::end_long_operation() {
  const std::lock_guard lock(mutex_);
  --num_long_operations_;
  idle_clock_ = {};
}

void Monitor::run() {
  std::optional<Ending> verdict;
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
    } catch (const std::exception& error) {  // thrown by the store
      verdict = {store_rank_, 1,
                 (store_rank_ < 0 ? "the launcher" : describe(store_rank_, members_[store_rank_])) +
                     (std::string_view(error.what()) == Store::kNoAnswer ? " does not answer"
                                                                         : " is gone")};
    }
  }
  std::string sentence;
  if (verdict->exit_code == 2) {  // an error of the user, wherever this rank is
    sentence = (verdict->rank > 0 ? fmt::format("[rank {}] ", verdict->rank) : "") + verdict->text;
  } else {
    const Position own = position();
    sentence =
        fmt::format("{}: {}{}{}", verdict->text, own.waited == 0 ? "after " : "", own.operation,
                    own.waited < 1 ? "" : fmt::format(", after {:.0f} s", own.waited));
  }
  const RankFailed failure(*verdict, sentence);
  {
    const std::lock_guard lock(mutex_);
    failure_ = failure;
  }
  changed_.notify_all();
  if (on_deadline_) {
    std::thread([on_deadline = on_deadline_, failure] {
      std::this_thread::sleep_for(kHardDeadline);
      on_deadline(failure);
    }).detach();
  }
}

void Monitor::update() {
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

std::optional<Ending> Monitor::look() {
  if (const auto verdict = read_verdict(store_)) {
    return verdict;
  }
  bool is_broken = false, is_late = false;
  {
    const std::lock_guard lock(mutex_);
    update();
    idle_clock_.elapsed();
    is_broken = broken_.has_value();
    is_late = watched_clock_.elapsed() > limit_ && watched_ != 0;
  }
  for (WaitClock clock; is_broken && clock.elapsed() < std::min(kUntilReported, answer_time_);
       std::this_thread::sleep_for(tick_ / 10)) {
    if (const auto verdict = read_verdict(store_)) {
      return verdict;
    }
  }
  if (is_broken || is_late) {
    store_.set(question_key(question_ + 1), "");
  } else if (!store_.read(question_key(question_ + 1))) {
    return std::nullopt;
  }
  ++question_;
  std::map<int64_t, Position> answers;
  const auto verdict = collect_answers(answers);
  return verdict ? verdict : judge(answers);
}

Monitor::Position Monitor::position() const {
  const std::lock_guard lock(mutex_);
  const Pending& current = pending_.empty() ? last_ : pending_.front();
  WaitClock waited = watched_clock_, idle = idle_clock_;
  const double in_collective = current.number == watched_ ? waited.elapsed().count() : 0;
  return {describe_position(current.operation, current.trace), current.number,
          pending_.empty() ? 0 : std::max(0.001, in_collective),
          num_long_operations_ > 0 ? 0 : idle.elapsed().count(), broken_.value_or("")};
}

std::string Monitor::answer_key(int64_t rank) const {
  return fmt::format("answer/{}/{}", question_, rank);
}

// An answer that cannot be parsed is none.
std::optional<Monitor::Position> Monitor::read_answer(int64_t rank) {
  constexpr const char* kSource = "an answer";
  const auto text = store_.read(answer_key(rank));
  if (!text) {
    return std::nullopt;
  }
  try {
    const Json json = parse_json(*text, kSource);
    return Position{printable(get_string(json, "operation", kSource)),
                    get_int(json, "number", kSource), get_double(json, "waited", kSource),
                    get_double(json, "idle", kSource),
                    printable(get_string(json, "broken", kSource), 1000)};
  } catch (const UserError&) {
    return std::nullopt;
  }
}

// Writes this rank's answer and waits for those of the others, until a process is seen to be gone
// or the time is over. Returns a verdict that another rank or the launcher writes meanwhile.
std::optional<Ending> Monitor::collect_answers(std::map<int64_t, Position>& answers) {
  const Position own = position();
  const Json json = {{"operation", own.operation},
                     {"number", own.number},
                     {"waited", own.waited},
                     {"idle", own.idle},
                     {"broken", own.broken}};
  store_.set(answer_key(rank_), json.dump(-1, ' ', false, Json::error_handler_t::replace));
  bool is_gone = false;
  for (WaitClock clock;
       static_cast<int64_t>(answers.size()) < size_ && !is_gone && clock.elapsed() < answer_time_;
       std::this_thread::sleep_for(tick_ / 4)) {
    for (int64_t rank = 0; rank < size_; ++rank) {
      if (answers.contains(rank)) {
        continue;
      }
      if (const auto answer = read_answer(rank)) {
        answers.emplace(rank, *answer);
      } else if (clock.elapsed() > kUntilReported) {
        is_gone = is_gone || process_state(members_[rank]) == ProcessState::kGone;
      }
    }
    if (const auto verdict = read_verdict(store_)) {
      return verdict;
    }
  }
  return std::nullopt;
}

Ending Monitor::verdict_on(int64_t rank, const std::string& text) const {
  return {rank, 1, describe(rank, members_[rank]) + " " + text};
}

// Returns the verdict that follows from the answers, or nothing if the run goes on.
std::optional<Ending> Monitor::judge(const std::map<int64_t, Position>& answers) {
  using Answer = std::map<int64_t, Position>::value_type;
  const auto broken = std::find_if(answers.begin(), answers.end(), [](const Answer& answer) {
    return !answer.second.broken.empty();
  });
  const bool is_broken = broken != answers.end();
  const auto least = [&](auto key) {
    return std::min_element(answers.begin(), answers.end(),
                            [&](const Answer& left, const Answer& right) {
                              return key(left.second) < key(right.second);
                            });
  };
  if (!is_broken &&
      least([](const Position& p) { return -p.waited; })->second.waited < limit_.count()) {
    return std::nullopt;  // what the questioner waited for has come
  }
  for (const ProcessState state : {ProcessState::kGone, ProcessState::kStopped,
                                   ProcessState::kUnknown, ProcessState::kAlive}) {
    for (int64_t rank = 0; rank < size_; ++rank) {
      if (!answers.contains(rank) && process_state(members_[rank]) == state) {
        const bool is_gone =
            state == ProcessState::kGone || (state == ProcessState::kUnknown && is_broken);
        return set_verdict(store_,
                           verdict_on(rank, is_gone                           ? "is gone"
                                            : state == ProcessState::kStopped ? "is stopped"
                                                                              : "does not answer"));
      }
    }
  }
  if (is_broken) {
    return set_verdict(store_, {-1, 1, broken->second.broken});
  }
  const Seconds idle{least([](const Position& p) { return p.idle; })->second.idle};
  if (idle < limit_) {  // waits count from the end of the long operation
    const std::lock_guard lock(mutex_);
    watched_clock_.set(std::min(idle, watched_clock_.elapsed()));
    return std::nullopt;
  }
  const auto& [late_rank, late] = *least([](const Position& p) { return p.waited; });
  if (late.waited < limit_.count() / 2) {
    return set_verdict(
        store_, verdict_on(late_rank,
                           fmt::format("did not come (its last operation: {})", late.operation)));
  }
  return set_verdict(store_, {-1, 1, "every rank waits and nothing arrives"});
}

}  // namespace moe::distributed
