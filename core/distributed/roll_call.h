#pragma once
// Who is to blame. Ranks leave notes in the store: who they are, where they wait when it takes
// long, and how they ended. When an operation fails, transports know an address at best; from the
// notes every rank finds the same culprit: one that gave notice of its own failure, one whose
// process is gone, or the one that waits nowhere while all others do.

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <stdexcept>

#include "core/distributed/members.h"
#include "core/distributed/store.h"

namespace moe::distributed {

enum class Ending {
  kDone,
  kInterrupted,
  kUserError,
  kFailed,    // threw something of its own
  kKilled,    // its process ended without a word; its launcher says so
  kAffected,  // ended because of another: `culprit`
};

struct Notice {
  int64_t rank = 0;
  Ending ending = Ending::kDone;
  int64_t culprit = -1;
  std::string text = {};      // what it has to say: "the disk is full"
  std::string sentence = {};  // kAffected: what the operation said, with step and layer
};

struct Verdict {
  int64_t culprit = -1;  // -1: nobody knows
  std::string text;      // "rank 2 (host h, pid 41) is gone"
};

// An operation that failed because of another rank.
class RankFailed : public std::runtime_error {
 public:
  RankFailed(Verdict its_verdict, const std::string& sentence)
      : std::runtime_error(sentence), verdict(std::move(its_verdict)) {}
  Verdict verdict;
};

class RollCall {
 public:
  // rank -1: a launcher, which is none of them.
  RollCall(std::shared_ptr<Store> store, int64_t rank, int64_t size);

  // Says who we are and waits for the others, until rank 0 has said that these are all. UserError:
  // another version of moe or another size of the run, a rank twice, or the store is that of a run
  // that has all its ranks; RankFailed: one did not come within `timeout`.
  void check_in(const Member& me, const std::string& version, Seconds timeout);
  const std::vector<Member>& members() const { return members_; }
  // A name that no other run has, for keys in the store.
  const std::string& run() const { return run_; }

  // Told once of each process that gives notices here and is none of this run. May be null.
  std::function<void(const std::string& sentence)> on_stranger;

  void wait_at(const std::string& operation);  // where this rank waits, once it takes long
  void go_on();                                // it waits no more
  // This process stood still (Ctrl-Z), and so may the others have: their silence counts from now.
  void forgive_silence();
  // Works on its own and may be late (own_work.h); said again and again meanwhile, from one thread.
  void tell_own_work();

  void give_notice(const Notice& notice);
  std::vector<Notice> notices();
  // The first notice of a rank that ended before its time, as a verdict; "" when all are well. The
  // end of the run and an interruption are agreed on: who has them first may be gone before we
  // notice.
  std::string bad_news(Verdict& verdict);

  // A connection broke (its words may hold the peer's address), or nobody came in time. `among`:
  // the ranks of the operation.
  Verdict who_broke_off(const std::string& error, const std::vector<int64_t>& among);
  // Nobody is to blame for it where all that are missing have told of work of their own within
  // `recent`.
  std::optional<Verdict> who_is_late(const std::vector<int64_t>& among, Seconds recent);

  // Until each rank but `culprit` has given notice, at most `timeout`.
  void wait_for_notices(Seconds timeout, int64_t culprit = -1);

 private:
  bool is_admitted();
  bool is_token_of(const std::string& token, int64_t rank);
  void name_stranger(const std::string& token, int64_t rank);
  bool find_ended(bool is_late, Verdict& verdict);
  std::vector<int64_t> who_might_have_gone(const std::string& error,
                                           const std::vector<int64_t>& among);
  bool is_waiting(int64_t rank);
  bool is_at_own_work(int64_t rank, Seconds recent);
  std::string name(int64_t rank) const;

  std::shared_ptr<Store> store_;
  int64_t rank_, size_;
  std::string token_;  // of this process
  // Empty before check_in; by rank.
  std::string run_;
  std::vector<std::string> tokens_;
  std::vector<Member> members_;
  std::set<std::string> strangers_;  // tokens of those that were named
  std::string noted_;                // where others read that we wait
  int64_t told_ = 0;                 // of tell_own_work
  struct Told {
    std::string count;
    std::chrono::steady_clock::time_point heard;  // by our clock, when it last changed
  };
  std::map<int64_t, Told> others_told_;
};

}  // namespace moe::distributed
