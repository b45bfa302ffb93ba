#pragma once
// Texts under keys that all ranks of a run can read and write: c10d's store. Here without c10d's
// headers, which cost 20 s a file; c10d_store.h has the thing itself.

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>

#include "core/base/descriptor.h"

namespace moe::distributed {

using Seconds = std::chrono::duration<double>;

// The process that serves it is alive, but nothing comes back: a network that broke.
class StoreIsSilent : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Whatever fails (the process that serves it is gone) is std::runtime_error. A store that other
// processes have a hand in has half the timeout that it was made with to answer, then it is silent
// for ever.
class Store {
 public:
  static constexpr size_t kMostBytes = size_t{1} << 20;  // of a value

  virtual ~Store() = default;
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  virtual void set(const std::string& key, const std::string& text) = 0;
  virtual void append(const std::string& key, const std::string& text) = 0;
  // Does not wait. What lies beyond kMostBytes is left out.
  virtual std::optional<std::string> read(const std::string& key) = 0;
  // Only the processes of this run can read and write it. Else all who reach the port can
  // (threat_model.md): what is read is checked.
  virtual bool is_private() const = 0;

 protected:
  Store() = default;
};

// Of the processes that inherit `file`, which is in memory; it is theirs alone, and no port leads
// there. `file` outlives it. UserError: it is no such file.
std::shared_ptr<Store> inherited_store(const Descriptor& file, Seconds timeout);
// Of a process that others reach by TCP, at the address of this host that `host` names and at no
// other. UserError: the port is taken.
std::shared_ptr<Store> serve_store(const std::string& host, uint16_t port,
                                   const std::string& prefix, Seconds timeout);
// Served elsewhere. UserError: nobody answers within `timeout`.
std::shared_ptr<Store> reach_store(const std::string& host, uint16_t port,
                                   const std::string& prefix, Seconds timeout);
// Of the threads of one process.
std::shared_ptr<Store> local_store();

}  // namespace moe::distributed
