#pragma once
// Who the ranks of a run are, from the first word to the last: each writes into the store who it
// is, rank 0 says who belongs to the run, and in the end each writes how it ended. Others may reach
// that store: what is not of an admitted process is ignored, and said once (threat_model.md).

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
  kKilled,    // its process ended before it could write; its launcher writes it
  kAffected,  // ended because of another: `culprit`
};

// How a rank ended: the last that is written of it.
struct FinalRecord {
  int64_t rank = 0;
  Ending ending = Ending::kDone;
  int64_t culprit = -1;
  std::string text = {};      // why: "the disk is full"
  std::string sentence = {};  // kAffected: what the operation said, with step and layer
};

// Which rank keeps the others from going on, and why.
struct FailureReport {
  int64_t culprit = -1;  // -1: not known
  std::string text;      // "rank 2 (host h, pid 41) is gone"
};

// An operation that failed because of another rank.
class RankFailed : public std::runtime_error {
 public:
  RankFailed(FailureReport its_report, const std::string& sentence)
      : std::runtime_error(sentence), report(std::move(its_report)) {}
  FailureReport report;
};

class Rendezvous {
 public:
  // rank -1: a launcher, which is none of them.
  Rendezvous(std::shared_ptr<Store> store, int64_t rank, int64_t size);

  // Writes who this rank is and waits for the others, until rank 0 has said that these are all.
  // UserError: another version of moe or another size of the run, a rank twice, or the store is
  // that of a run that has all its ranks; RankFailed: one did not come within `timeout`.
  void check_in(const Member& member, const std::string& version, Seconds timeout);

  // After check_in, by rank; empty before.
  const std::vector<Member>& members() const { return members_; }
  // A name that no other run has, for keys in the store.
  const std::string& run() const { return run_; }
  // "rank 2 (host h, pid 41)"; "rank 2" before check_in.
  std::string describe(int64_t rank) const;

  // Called once for each process that writes final records here and is none of this run. May be
  // null.
  std::function<void(const std::string& sentence)> on_stranger;

  void write_final_record(const FinalRecord& record);
  std::vector<FinalRecord> final_records();
  // The first final record of another rank that failed. The end of the run and an interruption are
  // no failures: all ranks decide them, and the first may be gone before the last has noticed.
  std::optional<FailureReport> reported_failure();
  // Until each rank but `culprit` has written its final record, at most `timeout`.
  void wait_for_final_records(Seconds timeout, int64_t culprit = -1);

 private:
  bool is_admitted();
  bool is_token_of(const std::string& token, int64_t rank);
  void name_stranger(const std::string& token, int64_t rank);

  std::shared_ptr<Store> store_;
  int64_t rank_, size_;
  std::string token_;  // of this process
  // Empty before check_in; by rank.
  std::string run_;
  std::vector<std::string> tokens_;
  std::vector<Member> members_;
  std::set<std::string> strangers_;  // tokens of those that were named
};

}  // namespace moe::distributed
