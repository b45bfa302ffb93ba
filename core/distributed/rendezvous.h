#pragma once
// Rendezvous of the ranks of a run: environment variables of launchers, the key-value store that
// the ranks share, and its records: a Member and an exit per rank, and one verdict of the run.
// Records are not trusted (threat_model.md). Does not include the headers of c10d, which compile
// slowly.

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "core/base/error.h"
#include "core/base/read_file.h"

namespace c10d {
class Store;
}

namespace moe::distributed {

using Seconds = std::chrono::duration<double>;
using Variables = std::map<std::string, std::string>;
// Returns the value of an environment variable, or null, as std::getenv() does.
using GetVariable = std::function<const char*(const char*)>;

inline constexpr int64_t kMaxRanks = 1 << 20;

// Rank, size and store of this process, as set by the launcher.
struct Environment {
  std::string launcher;  // "moe", "torchrun", "mpirun" or "srun"; "": none, a single process
  int64_t rank = 0, size = 1;
  int64_t local_rank = 0;  // among the processes of this host
  std::string store_host = "127.0.0.1";
  uint16_t store_port = 0;
  bool has_agent_store = false;  // served by torchrun's agent; else by rank 0
  std::string run_name;          // prefix of the keys, in a store that other runs may use
  int inherited_store = -1;      // descriptor from the launcher of --ranks; -1: a TCP store
  std::string interface;         // GLOO_SOCKET_IFNAME; "": the one that routes to store_host

  bool is_alone() const { return size == 1; }
  int64_t store_rank() const { return inherited_store < 0 && !has_agent_store ? 0 : -1; }
  bool serves_store() const { return rank == store_rank(); }
};

// Reads the variables of moe itself, torchrun, mpirun and srun. Throws UserError if variables are
// missing, are not numbers or contradict each other, or if several hosts have no MASTER_ADDR.
Environment read_environment(const GetVariable& get);
// Returns the variables that `moe --ranks` sets for rank `rank` of `size` local processes.
Variables launched_variables(int64_t rank, int64_t size, int inherited_store);

// Clock of waiting time, excluding time in which the process was stopped (Ctrl-Z): a gap of more
// than 0.7 s between two calls of elapsed() counts as 0.25 s.
class WaitClock {
 public:
  Seconds elapsed();
  void set(Seconds waited) { waited_ = waited; }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
  Seconds waited_{0};
};

// Runs `work` in a thread and returns its result. Calls `poll` every 20 ms meanwhile; an exception
// of `poll` ends the wait. The thread and its children block SIGPIPE: other processes may exit.
template <typename Work, typename Poll>
auto run_in_thread(Work work, Poll poll) {
  const auto task = std::make_shared<std::packaged_task<decltype(work())()>>(std::move(work));
  auto result = task->get_future();
  std::thread([task] {
    sigset_t pipe{};
    sigaddset(&pipe, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe, nullptr);
    (*task)();
  }).detach();
  while (result.wait_for(std::chrono::milliseconds(20)) != std::future_status::ready) {
    poll();
  }
  return result.get();
}

// Key-value store shared by the ranks of a run: c10d's FileStore or TCPStore. Methods throw
// std::runtime_error if there is no answer within a limit. Copies share one connection.
class Store {
 public:
  Store(c10::intrusive_ptr<c10d::Store> store, Seconds answer_limit);

  void set(const std::string& key, const std::string& value);
  // Sets `key` unless it has a value. Returns its value.
  std::string set_once(const std::string& key, const std::string& value);
  std::optional<std::string> read(const std::string& key);  // nothing if the key is not set
  Store connect_again() const;  // returns a copy with its own connection
  // Returns the store for a c10d backend, whose keys get `prefix`.
  c10::intrusive_ptr<c10d::Store> with_prefix(const std::string& prefix) const;

 private:
  template <typename Work>
  auto within_limit(Work work) const;

  std::shared_ptr<c10d::Store> store_;
  Seconds answer_limit_;
};

// Throws UserError if the inherited `file` is not a memory file of this user.
Store open_inherited_store(const Descriptor& file, Seconds timeout);
// Serves a TCP store at the address `host` only, or behind NAT at the local address that routes to
// `host`. Keys begin with `prefix`. Throws UserError if neither works or the port is taken.
Store serve_store(const std::string& host, uint16_t port, const std::string& prefix,
                  Seconds timeout);
// Connects to a TCP store. Throws UserError if there is no answer within `timeout`.
Store connect_store(const std::string& host, uint16_t port, const std::string& prefix,
                    Seconds timeout);

// Returns the numeric local address from which packets to `host` (MASTER_ADDR) leave. Throws
// UserError if it is unknown, a wildcard (0.0.0.0 or ::), or has no route.
std::string local_address(const std::string& host, uint16_t port);

// A rank's process.
struct Member {
  std::string host;
  std::string address;  // on which its sockets listen
  std::string machine;  // this_machine()
  int64_t pid = 0;
};

std::string this_machine();  // identifies the boot and PID namespace of a host or container
Member this_member(const std::string& address = "");

std::string describe(int64_t rank, const Member& member);  // "rank 2 (host h, pid 41)"

// Writes this rank's record. Throws UserError if another process has this rank (a reused port).
void claim_rank(Store& store, int64_t rank, const Member& own);
// Blocks until every rank has claimed its rank. Returns their records by rank. Throws RankFailed if
// a rank fails or does not join within `timeout`.
std::vector<Member> join(Store& store, int64_t size, Seconds timeout);

// Reason why a rank ended or, as a verdict, why the run ended.
struct ExitReason {
  int64_t rank = -1;  // as a verdict: the rank that failed; -1: unknown
  int exit_code = kFailed;
  std::string text = {};
};

// Exception of a rank that ends because the run has failed.
class RankFailed : public std::runtime_error {
 public:
  explicit RankFailed(const ExitReason& its_reason)
      : std::runtime_error(its_reason.text), reason(its_reason) {}
  ExitReason reason;
};

// Returns the exception being handled as the reason for the end of `rank`.
ExitReason describe_exception(int64_t rank);
// Throws UserError, Interrupted or RankFailed.
[[noreturn]] void throw_reason(const ExitReason& reason);

// Writes the verdict unless the store has one. Returns the verdict of the run.
ExitReason set_verdict(Store& store, const ExitReason& verdict);
std::optional<ExitReason> read_verdict(Store& store);
// Records the exit of this rank, with the reason if it failed.
void write_exit(Store& store, int64_t rank, const std::optional<ExitReason>& failure);
std::optional<ExitReason> read_failure(Store& store, int64_t rank);
// Blocks until every rank except `except` has recorded its exit, for at most `limit`.
void wait_for_exits(Store& store, int64_t size, int64_t except, Seconds limit);

}  // namespace moe::distributed
