#pragma once
// Finds the rank that keeps a run from making progress. c10d cannot: its timeout cannot be extended
// while a rank waits, for example for another rank that writes a checkpoint.
//
// Each rank keeps its position (step, layer, collective) in process memory. A thread of each rank
// looks for two keys of the store, and nothing is written while all is well:
//   question/N  Written by a rank that has waited too long in a collective or lost a connection.
//               Every rank answers with its position (answer/N/R).
//   verdict     Why the run ends (rendezvous.h). Concluded from the answers, or written by a rank
//               that fails or by the launcher. The first one is valid for all ranks.
// A rank that does not answer, or is not in the collective, is named. A rank in a long operation
// (comm.h) is not, as long as it answers.
//
// The verdict is thrown by the next collective of this rank. If this rank does not end within
// kHardDeadline, for example because it waits for a stuck GPU kernel, on_deadline is called.

#include <condition_variable>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <thread>

#include "core/distributed/comm.h"
#include "core/distributed/rendezvous.h"

namespace moe::distributed {

// The run ends because of another rank. what(): the verdict with this rank's position.
class RankFailed : public std::runtime_error {
 public:
  RankFailed(Ending its_verdict, const std::string& sentence)
      : std::runtime_error(sentence), verdict(std::move(its_verdict)) {}
  Ending verdict;
};

class Monitor {
 public:
  static constexpr Seconds kHardDeadline{10};

  // `store_rank`: the rank that serves the store, -1: the launcher. on_deadline may be null; it is
  // called in a thread that may outlive the Monitor.
  Monitor(Store store, int64_t rank, std::vector<Member> members, Seconds timeout,
          int64_t store_rank, std::function<void(const RankFailed&)> on_deadline);
  ~Monitor();
  Monitor(const Monitor&) = delete;
  Monitor& operator=(const Monitor&) = delete;

  // Records that this rank waits in a collective, until end(). On a GPU the wait is over when
  // `is_done` returns true; it may throw. `operation` is a string literal.
  int64_t begin(const char* operation, const TraceContext& trace,
                std::function<bool()> is_done = nullptr);
  void end(int64_t number);
  // Blocks until no collective is under way. Throws RankFailed.
  void wait_for_all();

  // Throws RankFailed if there is a verdict.
  void check() const;
  // Reports that a collective threw, blocks until there is a verdict and throws it. The verdict is
  // `text` if no rank is found to be the reason.
  [[noreturn]] void fail(const std::string& text);
  // fail() without waiting, for a thread other than the main one.
  void report_broken(const std::string& text);

  void begin_long_operation();
  void end_long_operation();

 private:
  struct Pending {
    int64_t number;
    const char* operation;
    TraceContext trace;
    std::function<bool()> is_done;
  };
  // The answer of a rank. Times in seconds.
  struct Position {
    std::string operation;  // the current or last collective
    int64_t number = 0;     // of that collective, counted over all communicators
    double waited = 0;      // in that collective; 0: it is not in a collective
    double idle = 0;        // since its last long operation; 0: it is in one
    std::string broken;     // what a collective threw
  };

  void run();
  std::optional<Ending> look();
  std::optional<Ending> collect_answers(std::map<int64_t, Position>& answers);
  std::optional<Ending> judge(const std::map<int64_t, Position>& answers);
  Ending verdict_on(int64_t rank, const std::string& text) const;
  void update();  // requires mutex_
  Position position() const;
  std::string answer_key(int64_t rank) const;
  std::optional<Position> read_answer(int64_t rank);

  Store store_;
  const int64_t rank_, size_, store_rank_;
  const std::vector<Member> members_;
  const Seconds tick_;         // between two looks
  const Seconds answer_time_;  // for the answers of other ranks
  const Seconds limit_;        // of a wait
  const std::function<void(const RankFailed&)> on_deadline_;
  int64_t question_ = 0;  // number of the last one; used by the thread only

  mutable std::mutex mutex_;  // guards the following
  std::condition_variable changed_;
  std::list<Pending> pending_;
  Pending last_{0, "the start", {}, nullptr};
  int64_t watched_ = 0;  // number of the oldest pending collective
  WaitClock watched_clock_;
  int num_long_operations_ = 0;  // nested
  WaitClock idle_clock_;         // since the last one
  std::optional<std::string> broken_;
  std::optional<RankFailed> failure_;
  bool is_stopped_ = false;

  std::thread thread_;  // last, because it uses the members above
};

}  // namespace moe::distributed
