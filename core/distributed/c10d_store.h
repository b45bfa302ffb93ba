#pragma once
// The c10d store behind a Store. For the few files that speak c10d.

#include <atomic>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "core/distributed/store.h"

namespace moe::distributed {

class C10dStore : public Store {
 public:
  // patience 0: it cannot fail to answer, being of this process.
  C10dStore(c10::intrusive_ptr<c10d::Store> store, bool is_private, Seconds patience)
      : store_(std::move(store)), is_private_(is_private), patience_(patience) {}

  void set(const std::string& key, const std::string& text) override;
  void append(const std::string& key, const std::string& text) override;
  std::optional<std::string> read(const std::string& key) override;
  bool is_private() const override { return is_private_; }

  const c10::intrusive_ptr<c10d::Store>& c10d() const { return store_; }

 private:
  c10::intrusive_ptr<c10d::Store> store_;
  bool is_private_;
  Seconds patience_;
  std::atomic<bool> is_silent_ = false;  // also asked by the thread of own_work.h

  template <typename Work>
  auto ask(Work work);
};

}  // namespace moe::distributed
