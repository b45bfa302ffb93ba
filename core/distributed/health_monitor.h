#pragma once
// Which rank keeps the others from going on. Each rank writes a heartbeat from a thread of its own:
// a counter, and what the rank is doing: step, layer, operation, how many operations of each of its
// communicators it has finished, and in which it waits. A rank that has waited longer than the
// limit finds from the others' heartbeats:
// - dead: its process is gone (on this machine that is seen at once), or no heartbeat came for the
//   limit;
// - stuck: it beats, waits for no other rank, has not finished what the others wait for, and what
//   it is doing has not changed for the limit. A long operation that it has announced (comm.h) is
//   not stuck.
// Ranks that wait are not to blame, but whom they wait for in turn.
//
// Clocks of machines differ: what counts is when, by the reader's clock, a heartbeat last changed.
// That clock leaves out time during which the reader itself was stopped (wait_clock.h).

#include <atomic>
#include <condition_variable>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/distributed/heartbeats.h"
#include "core/distributed/rendezvous.h"
#include "core/distributed/wait_clock.h"

namespace moe::distributed {

// What a rank is doing, as its heartbeat says. Operations of a communicator count from 1.
struct Activity {
  int64_t step = -1, layer = -1;  // -1: outside of any
  std::string operation;          // the last that it began: "all_to_all", "reading the model"
  bool is_long_operation = false;
  std::string waits_in;                     // the communicator; "": it waits for no rank
  int64_t waits_for = 0;                    // the operation of `waits_in`
  std::map<std::string, int64_t> finished;  // the last one, by communicator that it is in

  bool operator==(const Activity&) const = default;
};

// The ranks that `rank` waits for, and those that they wait for in turn, nearest first. `members`:
// of the communicator in which `rank` waits.
std::vector<int64_t> awaited_ranks(const std::vector<Activity>& activities, int64_t rank,
                                   const std::vector<int64_t>& members);

// One of the communicators that a rank is in.
struct Communicator {
  std::string name;
  int64_t started = 0;  // operations, by the thread that starts them
  std::atomic<int64_t> finished = 0;
};

class HealthMonitor {
 public:
  // After check_in. `timeout`: how long ranks wait for each other. `store_rank`: who serves the
  // store, -1 = the launcher. `rendezvous` outlives it.
  HealthMonitor(Rendezvous& rendezvous, std::unique_ptr<Heartbeats> heartbeats, int64_t rank,
                Seconds timeout, int64_t store_rank);
  ~HealthMonitor();
  HealthMonitor(const HealthMonitor&) = delete;
  HealthMonitor& operator=(const HealthMonitor&) = delete;

  // From now on a thread writes a heartbeat each interval().
  void start();
  void write_heartbeat();  // as that thread does; a test may do it instead
  Seconds interval() const { return interval_; }

  // What this rank is doing. Costs no more than a few stores to memory. `operation` is a literal.
  Communicator& join(const std::string& name);
  void leave(Communicator& communicator);
  void begin_wait(const Communicator& communicator, int64_t number, int64_t step, int64_t layer,
                  const char* operation);
  void end_wait(Communicator& communicator, int64_t number);
  void begin_long_operation(const std::string& name);
  void end_long_operation();

  // Why a wait of this rank for `members`, which has lasted for `waited`, will not end; nothing
  // while there is hope. Asked every now and then by whoever waits, of any thread.
  std::optional<FailureReport> find_failure(Seconds waited, const std::vector<int64_t>& members);
  // The same where a connection to one of `members` broke, `waited` ago. That one is dead or has
  // failed by itself: a few intervals bring its final record or show that its heartbeats ended.
  // Then there is an answer.
  std::optional<FailureReport> find_broken(Seconds waited, const std::vector<int64_t>& members);

 private:
  // Another rank, as this one sees it. Times are those of clock_.
  struct View {
    int64_t beat = -1;
    Activity activity;
    Seconds beaten{0}, changed{0};  // when the counter, and when the activity, last changed
    Life life = Life::kUnknown;
    std::optional<Seconds> gone;  // since when its process is
  };

  void update_views();
  std::optional<FailureReport> find_ended();
  std::optional<FailureReport> find_late(const std::vector<int64_t>& members) const;
  std::optional<FailureReport> find_deadlock(const std::vector<int64_t>& awaited,
                                             const std::vector<int64_t>& others) const;
  FailureReport blame_first(const std::vector<int64_t>& suspects) const;
  template <typename Find>
  std::optional<FailureReport> ask_store(const Find& find) const;
  Activity own_activity() const;
  bool is_silent(int64_t rank, Seconds limit) const { return now_ - views_[rank].beaten > limit; }
  bool is_excused(int64_t rank) const;

  Rendezvous& rendezvous_;
  std::unique_ptr<Heartbeats> heartbeats_;
  int64_t rank_, size_, store_rank_;
  Seconds interval_, limit_;

  // What this rank is doing; the heartbeat may mix two moments of it.
  std::atomic<int64_t> step_ = -1, layer_ = -1, waits_for_ = 0;
  std::atomic<const char*> operation_ = "starting";
  std::atomic<const Communicator*> waits_in_ = nullptr;
  mutable std::mutex mutex_;  // of the following
  std::list<Communicator> communicators_;
  std::vector<std::string> long_operations_;  // nested
  bool is_over_ = false;
  std::condition_variable over_;

  std::mutex asking_;  // of the following: what a thread that asks knows of the others
  std::vector<View> views_;
  WaitClock clock_;
  Seconds now_{0}, read_{-1e9};  // read_: when heartbeats were last read

  int64_t beat_ = 0;    // of the thread that beats
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace moe::distributed
