#pragma once
// Records that the ranks of a run leave in its store: one when a rank joins, one when it ends by a
// failure, and one verdict of all ranks. Contents of the store are not trusted (threat_model.md):
// ranges, lengths and UTF-8 are checked.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/distributed/store.h"

namespace moe::distributed {

// A rank's process.
struct Member {
  std::string host;
  std::string address;  // that its sockets listen on
  std::string machine;  // this_machine()
  int64_t pid = 0;
};

// Returns a name of this boot and PID namespace: equal on ranks that see each other's processes.
const std::string& this_machine();
Member this_member(const std::string& address);

enum class ProcessState { kGone, kStopped, kUnknown, kAlive };  // kUnknown: on another machine
ProcessState process_state(const Member& member);

// Returns "rank 2 (host h, pid 41)".
std::string describe(int64_t rank, const Member& member);

// Throws UserError if another process has claimed this rank, as in a second run with the same port.
void claim_rank(Store& store, int64_t rank);

// Writes this rank's record and blocks until every rank has written one. Returns them by rank.
// Throws UserError if ranks differ in `version` or `size`, std::runtime_error if a rank fails, or
// if ranks do not join within `timeout`.
std::vector<Member> join(Store& store, int64_t rank, int64_t size, const Member& member,
                         const std::string& version, Seconds timeout);

// Why a rank ends, or (verdict) why the run ends.
struct Ending {
  int64_t rank = -1;  // verdict: the rank that is the reason, -1: unknown
  int exit_code = 1;  // of main(): 1, 2 (UserError), 130 (Interrupted)
  std::string text = {};
};

// Writes the verdict unless there is one. Returns the verdict of the run.
Ending set_verdict(Store& store, const Ending& verdict);
std::optional<Ending> read_verdict(Store& store);
void write_ending(Store& store, const Ending& ending);
std::optional<Ending> read_ending(Store& store, int64_t rank);

}  // namespace moe::distributed
