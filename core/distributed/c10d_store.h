#pragma once
// The c10d store behind a Store. For the few files that use c10d.

#include <atomic>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "core/distributed/store.h"

namespace moe::distributed {

class C10dStore : public Store {
 public:
  // `limit`: of the time that an answer takes; 0 where it cannot fail to come, being of this
  // process.
  C10dStore(c10::intrusive_ptr<c10d::Store> store, bool is_private, Seconds limit)
      : store_(std::move(store)), is_private_(is_private), limit_(limit) {}

  void set(const std::string& key, const std::string& text) override;
  void append(const std::string& key, const std::string& text) override;
  std::optional<std::string> read(const std::string& key) override;
  bool is_private() const override { return is_private_; }

  const c10::intrusive_ptr<c10d::Store>& c10d() const { return store_; }

 private:
  c10::intrusive_ptr<c10d::Store> store_;
  bool is_private_;
  Seconds limit_;
  std::atomic<bool> is_silent_ = false;  // the thread of health_monitor.h asks too

  template <typename Work>
  auto ask(Work work);
};

}  // namespace moe::distributed
