#include "core/distributed/watchdog.h"

#include <algorithm>
#include <set>

namespace moe::distributed {
namespace {

constexpr std::chrono::milliseconds kWatchedPoll{5};  // how often the first operation is looked at
constexpr Seconds kWatchedGlance{0.25};               // how often the health monitor is asked of it
constexpr std::chrono::microseconds kShortNap{20};    // of a host that waits itself

// A work that failed is completed too.
bool has_failed(const Operation& operation) {
  return operation.work->isCompleted() && operation.work->exception() != nullptr;
}

bool is_finished(const Operation& operation) {
  return operation.work->isCompleted() && operation.work->exception() == nullptr;
}

std::string words_of(const std::exception_ptr& exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "unknown exception";
  }
}

}  // namespace

Watchdog::Watchdog(HealthMonitor& monitor) : monitor_(monitor), thread_([this] { run(); }) {}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Watchdog::watch(const WatchedGroup& group, const Operation& operation) {
  const std::lock_guard lock(mutex_);
  const bool is_first = under_way_.empty();
  under_way_.push_back({group, operation, {}});
  if (is_first) {  // else its thread looks by itself
    changed_.notify_all();
  }
}

void Watchdog::synchronize(const Communicator& communicator) {
  const auto is_pending = [&](const Watched& watched) {
    return watched.group.communicator == &communicator && !is_finished(watched.operation);
  };
  for (std::unique_lock lock(mutex_);;) {
    if (failure_) {
      throw RankFailed(*failure_);
    }
    if (std::none_of(under_way_.begin(), under_way_.end(), is_pending)) {
      return;
    }
    lock.unlock();
    std::this_thread::sleep_for(kShortNap);
    lock.lock();
  }
}

void Watchdog::forget(const Communicator& communicator) {
  const std::lock_guard lock(mutex_);
  under_way_.remove_if(
      [&](const Watched& watched) { return watched.group.communicator == &communicator; });
}

std::optional<RankFailed> Watchdog::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void Watchdog::check() const {
  if (const auto found = failure()) {
    throw RankFailed(*found);
  }
}

void Watchdog::run() {
  for (std::unique_lock lock(mutex_);;) {
    changed_.wait(lock, [this] { return is_over_ || (!under_way_.empty() && !failure_); });
    if (is_over_) {
      return;
    }
    drop_finished();
    if (under_way_.empty()) {
      continue;
    }
    if (const auto found = look_at_first(lock)) {
      fail(lock, *found);
    } else {
      changed_.wait_for(lock, kWatchedPoll, [this] { return is_over_; });
    }
  }
}

void Watchdog::drop_finished() {
  while (!under_way_.empty() && is_finished(under_way_.front().operation)) {
    const Watched& first = under_way_.front();
    monitor_.end_wait(*first.group.communicator, first.operation.number);
    under_way_.pop_front();
    if (!under_way_.empty()) {
      under_way_.front().clock = {};
    }
  }
}

// Asks without the lock: the store may be slow, and others go on meanwhile.
std::optional<RankFailed> Watchdog::look_at_first(std::unique_lock<std::mutex>& lock) {
  Watched& first = under_way_.front();
  const auto& [name, position, number, work] = first.operation;
  monitor_.begin_wait(*first.group.communicator, number, position.step, position.layer, name);
  const Seconds waited = first.clock.look();
  const bool is_broken = has_failed(first.operation);
  if (!is_broken && waited - first.asked < kWatchedGlance) {
    return std::nullopt;
  }
  first.asked = waited;
  const Operation operation = first.operation;
  const FailureSearch search = first.group.search;
  lock.unlock();
  auto found = is_broken ? search.find_broken(operation, words_of(operation.work->exception()))
                         : search.find(operation, waited);
  lock.lock();
  return found;
}

// Known before anything is aborted: what an aborted operation leaves is never taken for its result.
void Watchdog::fail(std::unique_lock<std::mutex>& lock, const RankFailed& failure) {
  failure_ = failure;
  std::set<BackendPointer> backends;
  for (const Watched& watched : under_way_) {
    backends.insert(watched.group.backend);
  }
  lock.unlock();
  for (const BackendPointer& backend : backends) {
    try {
      backend->abort();
    } catch (const std::exception&) {  // what is broken may refuse that too
    }
  }
  lock.lock();
}

}  // namespace moe::distributed
