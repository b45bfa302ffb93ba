#pragma once
// Watches operations of GPUs, which the host does not wait for: NCCL queues them on a stream of the
// GPU, what comes after one waits for it there by an event, and the host goes on. So no call of the
// host sees that one failed, or that it hangs because another rank is gone. A thread does:
// - this rank's heartbeats (health_monitor.h) say that it waits in the first operation that is not
//   over, once that has been seen to last;
// - an operation that ended with an exception, or of which the health monitor says that it will not
//   end, is the failure of the run: its communicators are aborted, so that the GPU, and a host that
//   waits for it, go on, and whatever this rank does next with a Comm throws it.
// What a GPU computed from an aborted operation means nothing. It reaches neither files nor other
// ranks: what those get is read behind Comm::synchronize(), which throws the failure, and the
// failure is known before anything is aborted.
//
// Included by sources that use c10d.

#include <condition_variable>
#include <list>
#include <mutex>
#include <optional>
#include <thread>

#include "core/distributed/backends.h"
#include "core/distributed/failure_search.h"

namespace moe::distributed {

// Whose operations: a communicator of the health monitor, and how its failures are found.
struct WatchedGroup {
  Communicator* communicator;
  BackendPointer backend;
  FailureSearch search;
};

class Watchdog {
 public:
  explicit Watchdog(HealthMonitor& monitor);  // which outlives it
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // From now on until it is over.
  void watch(const WatchedGroup& group, const Operation& operation);
  // Until all operations of `communicator` that are watched are over. Throws the failure.
  void synchronize(const Communicator& communicator);
  // Operations of a communicator that is going are watched no more.
  void forget(const Communicator& communicator);

  // The failure of the run, an operation of any communicator.
  std::optional<RankFailed> failure() const;
  void check() const;  // throws it

 private:
  struct Watched {
    WatchedGroup group;
    Operation operation;
    WaitClock clock;  // since it is the first
    Seconds asked{0};
  };

  void run();
  void drop_finished();
  std::optional<RankFailed> look_at_first(std::unique_lock<std::mutex>& lock);
  void fail(std::unique_lock<std::mutex>& lock, const RankFailed& failure);

  HealthMonitor& monitor_;
  mutable std::mutex mutex_;  // of the following
  std::condition_variable changed_;
  std::list<Watched> under_way_;  // in the order in which this rank's streams come to them
  std::optional<RankFailed> failure_;
  bool is_over_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace moe::distributed
