#pragma once
// Texts under keys that all ranks of a run can read and write: c10d's store. Here without c10d's
// headers, which cost 20 s a file; c10d_store.h has the thing itself.

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>

namespace moe::dist {

using Seconds = std::chrono::duration<double>;

// The process that serves it is alive, but nothing comes back: a network that broke.
class StoreIsSilent : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Whatever fails (the process that serves it is gone) is std::runtime_error. A store reached by TCP
// has half the timeout that it was made with to answer, then it is silent for ever.
class Store {
 public:
  virtual ~Store() = default;
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  virtual void set(const std::string& key, const std::string& text) = 0;
  virtual void append(const std::string& key, const std::string& text) = 0;
  virtual std::optional<std::string> read(const std::string& key) = 0;  // does not wait
  virtual uint16_t port() const = 0;

 protected:
  Store() = default;
};

// Of a process that others reach by TCP; port 0 = any that is free. UserError: the port is taken.
std::shared_ptr<Store> serve_store(uint16_t port, const std::string& prefix, Seconds timeout);
// Served elsewhere. UserError: nobody answers within `timeout`.
std::shared_ptr<Store> reach_store(const std::string& host, uint16_t port,
                                   const std::string& prefix, Seconds timeout);
// Of the threads of one process.
std::shared_ptr<Store> local_store();

}  // namespace moe::dist
