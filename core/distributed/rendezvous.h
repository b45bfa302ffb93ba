#pragma once
// How the ranks of a run find each other: the environment variables of a launcher, the key-value
// store that the ranks share, and the records that they leave in it (a member when a rank joins, an
// ending when it fails, and one verdict of all ranks). Contents of the store are not trusted
// (threat_model.md): ranges, lengths and UTF-8 are checked. c10d's headers stay in the sources,
// because they take 20 s to compile.

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/read_file.h"

namespace c10d {
class Store;
}

namespace moe::distributed {

using Seconds = std::chrono::duration<double>;
using Variables = std::map<std::string, std::string>;

inline constexpr int64_t kMaxRanks = 1 << 20;

// Rank, size and store of this process, as set by the launcher.
struct Environment {
  std::string launcher;  // "moe", "torchrun", "mpirun" or "srun"; "": none, a single process
  int64_t rank = 0, size = 1;
  int64_t local_rank = 0;  // among the processes of this host
  std::string store_host = "127.0.0.1";
  uint16_t store_port = 0;
  bool store_is_served = false;  // by the launcher; else by rank 0
  std::string run_name;          // prefix of the keys, in a store that others may use
  int inherited_store = -1;      // descriptor from the launcher of --ranks; -1: a TCP store
  std::string interface;         // GLOO_SOCKET_IFNAME; "": the one that routes to store_host

  bool is_alone() const { return size == 1; }
};

// Reads the variables of moe itself and torchrun (RANK, WORLD_SIZE, MASTER_ADDR, ...), mpirun
// (OMPI_COMM_WORLD_RANK, PMI_RANK, ...) and srun (SLURM_PROCID, ...). Throws UserError if variables
// are missing, are not numbers or contradict each other, or if several hosts have no MASTER_ADDR.
Environment read_environment(const Variables& variables);
Variables process_variables();  // of this process
// Returns the variables that `moe --ranks` sets for rank `rank` of `size` local processes.
Variables launched_variables(int64_t rank, int64_t size, int inherited_store);

// Measures waiting time. Time during which the process was stopped (Ctrl-Z) does not count: a gap
// of more than 0.7 s between two calls of elapsed() counts as 0.25 s.
class WaitClock {
 public:
  Seconds elapsed();
  void set(Seconds waited) { waited_ = waited; }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
  Seconds waited_{0};
};

// Key-value store shared by the ranks of a run: c10d's FileStore or TCPStore, with a time limit on
// every answer. Every method throws std::runtime_error if the process that serves the store has
// exited or does not answer within the limit. Copies share one connection.
class Store {
 public:
  static constexpr size_t kMaxValueBytes = size_t{1} << 16;
  // Message of the exception if the time limit passes.
  static constexpr const char* kNoAnswer = "the store of the run does not answer";

  // `answer_limit` 0: no limit.
  Store(std::shared_ptr<c10d::Store> store, Seconds answer_limit)
      : store_(std::move(store)), answer_limit_(answer_limit) {}

  void set(const std::string& key, const std::string& value);
  // Sets `key` unless it has a value. Returns its value.
  std::string set_once(const std::string& key, const std::string& value);
  // Adds `count` to a counter that starts at 0 and returns its new value.
  int64_t add(const std::string& key, int64_t count);
  // Returns the first kMaxValueBytes of a value, or nothing if the key is not set.
  std::optional<std::string> read(const std::string& key);

  Store connect_again() const;  // a Store with a connection of its own
  const std::shared_ptr<c10d::Store>& c10d() const { return store_; }

 private:
  template <typename Work>
  auto within_limit(Work work) const;

  std::shared_ptr<c10d::Store> store_;
  Seconds answer_limit_;
};

// Opens the store of processes that inherited `file`, a memory file. No port is involved.
// Throws UserError if `file` is not a memory file of this user.
Store open_inherited_store(const Descriptor& file, Seconds timeout);
// Serves a TCP store at the address of this host that `host` names, and at no other address. If
// `host` is an address of a gateway, listens at the local address that routes to it. `prefix` is
// put before every key. Throws UserError if the port is taken.
Store serve_store(const std::string& host, uint16_t port, const std::string& prefix,
                  Seconds timeout);
// Connects to a TCP store. Throws UserError if there is no answer within `timeout`.
Store connect_store(const std::string& host, uint16_t port, const std::string& prefix,
                    Seconds timeout);
Store make_local_store();  // for the threads of one process

// Returns the numeric local address from which packets to `host` leave. Throws UserError if `host`
// (MASTER_ADDR) is unknown, stands for every interface (0.0.0.0), or cannot be reached.
std::string address_towards(const std::string& host, uint16_t port);

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
