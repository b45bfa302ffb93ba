#pragma once
// Communication between rank processes by LibTorch's c10d (Gloo on CPUs, NCCL on GPUs), and
// detection of the rank that blocks a run. c10d's own timeout is not used, because it cannot be
// extended while a rank waits, for example for a checkpoint.
//
// A thread of each rank polls two keys of the store. Neither is written while the run makes
// progress.
//   question/N  Written by a rank that has waited too long in a collective or lost a connection.
//               Every rank answers with its position: step, layer, collective (answer/N/R).
//   verdict     Reason for the end of the run (rendezvous.h), written by a failing rank, by the
//               launcher, or from the answers (a rank that does not answer, or is neither in the
//               collective nor in a long operation). The next collective of every rank throws it.

#include <condition_variable>
#include <list>
#include <mutex>

#include "core/distributed/comm.h"
#include "core/distributed/rendezvous.h"

namespace moe::distributed {

// This process as a rank of a run; constructed from the result of join().
class ProcessGroup {
 public:
  static constexpr Seconds kHardDeadline{10};

  // `store_rank`: the rank that serves the store; -1: the launcher does. Calls on_deadline if the
  // object still exists kHardDeadline after a verdict, for example if a GPU kernel is stuck.
  ProcessGroup(Store its_store, int64_t its_rank, std::vector<Member> its_members,
               Seconds its_timeout, int64_t store_rank = -1,
               std::function<void(ExitReason)> on_deadline = nullptr);

  Store store;
  const int64_t rank, size;
  const std::vector<Member> members;  // by rank
  const Seconds timeout;
  std::string interface;  // for Gloo; "": the one with the member's address

  // Records that this rank waits in a collective and returns its number. The wait ends with
  // end(number), or on a GPU when `is_done` returns true or throws. `operation` is a string
  // literal.
  int64_t begin(const char* operation, const TraceContext& trace,
                std::function<bool()> is_done = nullptr);
  void end(int64_t number);
  void wait_for_all();  // blocks until no collective is under way; throws RankFailed
  void check() const;   // throws RankFailed if there is a verdict
  // Reports that a collective threw. The verdict is `text` if no rank is found to be the reason.
  void report_broken(const std::string& text);
  // Calls report_broken(), blocks until there is a verdict and throws RankFailed.
  [[noreturn]] void fail(const std::string& text);

  std::shared_ptr<void> long_operation();  // see Comm

 private:
  struct Pending {
    int64_t number;
    const char* operation;
    TraceContext trace;
    std::function<bool()> is_done;
  };
  // The answer of a rank. Times in seconds.
  struct Position {
    std::string operation;  // step, layer and name of the current or last collective
    double waited = 0;      // in that collective; 0: it is not in a collective
    double idle = 0;        // since its last long operation; 0: it is in one
    std::string broken;     // message of a collective that threw
  };
  using Answers = std::vector<std::optional<Position>>;  // by rank

  void run(const std::stop_token& stop);
  std::optional<ExitReason> poll_store();
  Answers collect_answers(const Position& own);
  std::optional<ExitReason> find_failed_rank(const Answers& answers);
  void update();  // requires mutex_
  Position position();

  const int64_t store_rank_;
  const Seconds tick_;         // between two polls of the store
  const Seconds answer_time_;  // maximum wait for the answers of other ranks
  const Seconds limit_;        // maximum wait in a collective before a question is written
  const std::function<void(ExitReason)> on_deadline_;
  Store connection_;      // used by the thread only
  int64_t question_ = 0;  // number of the last question; used by the thread only

  mutable std::mutex mutex_;  // guards the following
  std::condition_variable_any changed_;
  std::list<Pending> pending_;
  Pending last_{0, "the start", {}, nullptr};
  int64_t watched_ = 0;  // number of the oldest pending collective
  WaitClock watched_clock_;
  int num_long_operations_ = 0;  // nested
  WaitClock idle_clock_;         // since the end of the last one
  std::optional<std::string> broken_;
  std::optional<RankFailed> failure_;

  std::jthread thread_;  // last, because it uses the members above
};

// Returns a Comm of all ranks. Collective. `group` must outlive it.
std::unique_ptr<Comm> make_process_comm(ProcessGroup& group, at::Device device);

}  // namespace moe::distributed
