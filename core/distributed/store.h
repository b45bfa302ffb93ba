#pragma once
// Key-value store shared by the ranks of a run: c10d's FileStore or TCPStore, with a time limit on
// every answer. c10d's headers stay in the sources, because they take 20 s to compile.

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "core/base/read_file.h"

namespace c10d {
class Store;
}

namespace moe::distributed {

using Seconds = std::chrono::duration<double>;

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

// Every method throws std::runtime_error if the process that serves the store has exited or does
// not answer within the time limit. Copies share one connection.
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

}  // namespace moe::distributed
