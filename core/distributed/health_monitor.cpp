#include "core/distributed/health_monitor.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <tuple>

#include "core/base/utf8.h"
#include "core/distributed/store_lines.h"

namespace moe::distributed {
namespace {

// A process that is gone may have written why, or its launcher may know: they get this long.
constexpr Seconds kLastRecord{0.5};
constexpr int64_t kMostNumber = int64_t{1} << 53;
constexpr size_t kMostCommunicators = 32, kMostName = 64;  // of a heartbeat; bytes of a name
// Intervals without a heartbeat: more than any live rank shows; so many that a rank is dead where
// there are other signs of it; and how many are awaited after a connection broke.
constexpr int kLateBeats = 2, kMissedBeats = 4, kAwaitedBeats = 7;

// Each rank reads the heartbeats of all: the more they are, the less often.
Seconds interval_of(Seconds timeout, int64_t size) {
  return std::min(timeout / 10, std::max(Seconds{1}, Seconds{static_cast<double>(size) / 100}));
}

std::string cut(const std::string& text) { return text.substr(0, kMostName); }

std::string to_text(int64_t beat, const Activity& activity) {
  Json finished = Json::object();
  for (const auto& [name, number] : activity.finished) {
    finished[name] = number;
  }
  return line_of({{"beat", beat},
                  {"step", activity.step},
                  {"layer", activity.layer},
                  {"operation", activity.operation},
                  {"is_long_operation", activity.is_long_operation},
                  {"waits_in", activity.waits_in},
                  {"waits_for", activity.waits_for},
                  {"finished", finished}});
}

std::string name_of(const Json& line, const std::string& key) {
  return printable(get_string(line, key, kStoreOfRun), kMostName);
}

struct Heartbeat {
  int64_t beat = 0;
  Activity activity;
};

Heartbeat heartbeat_of(const Json& line) {
  Heartbeat heartbeat{number_of(line, "beat", 0, kMostNumber),
                      {number_of(line, "step", -1, kMostNumber),
                       number_of(line, "layer", -1, kMostNumber),
                       name_of(line, "operation"),
                       get_bool(line, "is_long_operation", kStoreOfRun, false),
                       name_of(line, "waits_in"),
                       number_of(line, "waits_for", 0, kMostNumber),
                       {}}};
  const auto finished = line.find("finished");
  if (finished == line.end() || !finished->is_object() || finished->size() > kMostCommunicators) {
    throw UserError("{}: finished is not as a heartbeat has it", kStoreOfRun);
  }
  for (const auto& [name, number] : finished->items()) {
    heartbeat.activity.finished[cut(name)] = number_of(*finished, name, 0, kMostNumber);
  }
  return heartbeat;
}

bool is_waiting(const Activity& activity) { return !activity.waits_in.empty(); }

int64_t all_finished(const Activity& activity) {
  return std::accumulate(activity.finished.begin(), activity.finished.end(), int64_t{0},
                         [](int64_t sum, const auto& entry) { return sum + entry.second; });
}

// Whether the wait of `waiting` ends only once `other` has done its part. A member that is not in
// the communicator yet has not; of ranks that are no members nothing is known there.
bool waits_for(const Activity& waiting, const Activity& other, bool is_member) {
  const auto finished = other.finished.find(waiting.waits_in);
  return finished == other.finished.end() ? is_member : finished->second < waiting.waits_for;
}

}  // namespace

std::vector<int64_t> awaited_ranks(const std::vector<Activity>& activities, int64_t rank,
                                   const std::vector<int64_t>& members) {
  std::vector<int64_t> found = {rank};
  std::vector<bool> is_found(activities.size());
  is_found[rank] = true;
  for (size_t next = 0; next < found.size(); ++next) {
    const Activity& waiting = activities[found[next]];
    for (size_t other = 0; other < activities.size() && is_waiting(waiting); ++other) {
      const auto number = static_cast<int64_t>(other);
      const bool is_member =
          next == 0 && std::find(members.begin(), members.end(), number) != members.end();
      if (!is_found[other] && waits_for(waiting, activities[other], is_member)) {
        is_found[other] = true;
        found.push_back(number);
      }
    }
  }
  found.erase(found.begin());
  return found;
}

HealthMonitor::HealthMonitor(Rendezvous& rendezvous, std::unique_ptr<Heartbeats> heartbeats,
                             int64_t rank, Seconds timeout, int64_t store_rank)
    : rendezvous_(rendezvous),
      heartbeats_(std::move(heartbeats)),
      rank_(rank),
      size_(static_cast<int64_t>(rendezvous.members().size())),
      store_rank_(store_rank),
      interval_(interval_of(timeout, size_)),
      limit_(timeout - 2 * interval_),  // so that the answer comes within `timeout`
      views_(size_) {}

HealthMonitor::~HealthMonitor() {
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  over_.notify_all();
  if (thread_.joinable()) {
    thread_.join();
  }
}

void HealthMonitor::start() {
  thread_ = std::thread([this] {
    try {
      write_heartbeat();
      for (std::unique_lock lock(mutex_);
           !over_.wait_for(lock, interval_, [this] { return is_over_; });) {
        lock.unlock();
        write_heartbeat();
        lock.lock();
      }
    } catch (const std::exception&) {  // the store is gone: the next operation finds whose it was
    }
  });
}

void HealthMonitor::write_heartbeat() {
  heartbeats_->write(rank_, to_text(++beat_, own_activity()));
}

Activity HealthMonitor::own_activity() const {
  const std::lock_guard lock(mutex_);
  Activity activity{step_, layer_, operation_.load(), !long_operations_.empty(), "", 0, {}};
  if (activity.is_long_operation) {
    activity.operation = long_operations_.back();
  }
  const Communicator* waits_in = waits_in_;
  for (const Communicator& communicator : communicators_) {
    activity.finished[communicator.name] = communicator.finished;
    if (&communicator == waits_in) {
      activity.waits_in = communicator.name;
      activity.waits_for = waits_for_;
    }
  }
  return activity;
}

Communicator& HealthMonitor::join(const std::string& name) {
  const std::lock_guard lock(mutex_);
  MOE_CHECK(communicators_.size() < kMostCommunicators && name.size() <= kMostName,
            "{} communicators, and {}", communicators_.size(), name);
  Communicator& communicator = communicators_.emplace_back();
  communicator.name = name;
  return communicator;
}

void HealthMonitor::leave(Communicator& communicator) {
  const std::lock_guard lock(mutex_);
  if (waits_in_ == &communicator) {
    waits_in_ = nullptr;
  }
  communicators_.remove_if([&](const Communicator& other) { return &other == &communicator; });
}

void HealthMonitor::begin_wait(const Communicator& communicator, int64_t number, int64_t step,
                               int64_t layer, const char* operation) {
  step_.store(step, std::memory_order_relaxed);
  layer_.store(layer, std::memory_order_relaxed);
  operation_.store(operation, std::memory_order_relaxed);
  waits_for_.store(number, std::memory_order_relaxed);
  waits_in_.store(&communicator, std::memory_order_relaxed);
}

// Exchanges may be waited for in another order than they were started in; they end in order.
void HealthMonitor::end_wait(Communicator& communicator, int64_t number) {
  const int64_t finished = communicator.finished.load(std::memory_order_relaxed);
  communicator.finished.store(std::max(finished, number), std::memory_order_relaxed);
  waits_in_.store(nullptr, std::memory_order_relaxed);
}

void HealthMonitor::begin_long_operation(const std::string& name) {
  const std::lock_guard lock(mutex_);
  long_operations_.push_back(cut(name));
}

void HealthMonitor::end_long_operation() {
  const std::lock_guard lock(mutex_);
  long_operations_.pop_back();
}

// Processes each time, heartbeats once an interval.
void HealthMonitor::update_views() {
  now_ = clock_.look();
  const bool is_time_to_read = now_ - read_ >= interval_;
  if (is_time_to_read) {
    read_ = now_;
  }
  for (int64_t rank = 0; rank < size_; ++rank) {
    View& view = views_[rank];
    view.life = life_of(rendezvous_.members()[rank]);
    if (view.life != Life::kGone) {
      view.gone.reset();
    } else if (!view.gone) {
      view.gone = now_;
    }
    const auto text = is_time_to_read && rank != rank_ ? heartbeats_->read(rank) : std::nullopt;
    for (const Heartbeat& heartbeat : parse_lines(text, heartbeat_of)) {
      if (heartbeat.beat != view.beat) {
        view.beat = heartbeat.beat;
        view.beaten = now_;
      }
      if (heartbeat.activity != view.activity) {
        view.activity = heartbeat.activity;
        view.changed = now_;
      }
    }
  }
  views_[rank_].activity = own_activity();
}

// By what ranks wrote in the end; by processes of this machine that are gone. The records are read
// first, and again before a process is found gone for long: one that blames another and ends
// meanwhile is not to blame.
std::optional<FailureReport> HealthMonitor::find_ended() {
  if (auto reported = rendezvous_.reported_failure()) {
    return reported;
  }
  update_views();
  for (int64_t rank = 0; rank < size_; ++rank) {
    if (views_[rank].gone && now_ - *views_[rank].gone >= kLastRecord) {
      return FailureReport{rank, rendezvous_.describe(rank) + " is gone"};
    }
  }
  return std::nullopt;
}

// It beats, and is at an announced long operation or was seen to go on.
bool HealthMonitor::is_excused(int64_t rank) const {
  const View& view = views_[rank];
  return !is_silent(rank, limit_) &&
         (view.activity.is_long_operation || now_ - view.changed <= limit_);
}

// Of `suspects`: the dead before the stuck, then who is furthest behind.
FailureReport HealthMonitor::blame_first(const std::vector<int64_t>& suspects) const {
  const auto key = [this](int64_t rank) {
    return std::tuple(!is_silent(rank, limit_), all_finished(views_[rank].activity), rank);
  };
  const int64_t culprit =
      *std::min_element(suspects.begin(), suspects.end(),
                        [&](int64_t left, int64_t right) { return key(left) < key(right); });
  const bool is_stopped = views_[culprit].life == Life::kStopped;
  return {culprit, rendezvous_.describe(culprit) + (is_stopped ? " is stopped" : " did not come")};
}

std::optional<FailureReport> HealthMonitor::find_late(const std::vector<int64_t>& members) const {
  std::vector<Activity> activities;
  for (const View& view : views_) {
    activities.push_back(view.activity);
  }
  const std::vector<int64_t> awaited = awaited_ranks(activities, rank_, members);
  std::vector<int64_t> others(size_);
  std::iota(others.begin(), others.end(), 0);
  others.erase(others.begin() + rank_);
  for (const auto& ranks : {awaited, others}) {
    bool is_any_excused = false;
    std::vector<int64_t> suspects;
    for (const int64_t rank : ranks) {
      if (is_waiting(activities[rank]) && !is_silent(rank, limit_)) {
        continue;
      }
      if (is_excused(rank)) {
        is_any_excused = true;
      } else {
        suspects.push_back(rank);
      }
    }
    if (!suspects.empty()) {
      return blame_first(suspects);
    }
    if (is_any_excused) {
      return std::nullopt;
    }
  }
  return find_deadlock(awaited, others);
}

// All of `others` wait, and each has beaten within the limit.
std::optional<FailureReport> HealthMonitor::find_deadlock(
    const std::vector<int64_t>& awaited, const std::vector<int64_t>& others) const {
  const auto is_any = [&](const auto& statement) {
    return std::any_of(others.begin(), others.end(), statement);
  };
  if (is_any([this](int64_t rank) { return now_ - views_[rank].changed <= limit_; })) {
    return std::nullopt;
  }
  // One of them may have died since.
  for (const int64_t rank : others) {
    if (is_silent(rank, kMissedBeats * interval_)) {
      return blame_first({rank});
    }
  }
  if (is_any([this](int64_t rank) { return is_silent(rank, kLateBeats * interval_); })) {
    return std::nullopt;
  }
  const Activity& own = views_[rank_].activity;
  for (const int64_t rank : awaited) {
    const Activity& other = views_[rank].activity;
    if (other.waits_in != own.waits_in || other.waits_for != own.waits_for) {
      return FailureReport{rank, fmt::format("{} waits elsewhere ({})", rendezvous_.describe(rank),
                                             other.operation)};
    }
  }
  return FailureReport{-1, "every rank waits and nothing arrives"};
}

// The store goes with the process that serves it.
template <typename Find>
std::optional<FailureReport> HealthMonitor::ask_store(const Find& find) const {
  const auto of_server = [this](const char* how) {
    return FailureReport{
        store_rank_, (store_rank_ < 0 ? "the launcher" : rendezvous_.describe(store_rank_)) + how};
  };
  try {
    return find();
  } catch (const StoreIsSilent&) {
    return of_server(" does not answer");
  } catch (const std::exception&) {
    return of_server(" is gone");
  }
}

std::optional<FailureReport> HealthMonitor::find_failure(Seconds waited,
                                                         const std::vector<int64_t>& members) {
  const std::lock_guard lock(asking_);
  return ask_store([&] {
    auto failure = find_ended();
    return failure || waited <= limit_ ? failure : find_late(members);
  });
}

std::optional<FailureReport> HealthMonitor::find_broken(Seconds waited,
                                                        const std::vector<int64_t>& members) {
  const std::lock_guard lock(asking_);
  return ask_store([&] {
    auto failure = find_ended();
    for (const int64_t rank : members) {
      if (!failure && rank != rank_ && is_silent(rank, kMissedBeats * interval_)) {
        failure = {rank, rendezvous_.describe(rank) + " is gone"};
      }
    }
    if (!failure && waited > kAwaitedBeats * interval_) {
      failure = {-1, "a connection broke"};
    }
    return failure;
  });
}

}  // namespace moe::distributed
