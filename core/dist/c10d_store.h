#pragma once
// The c10d store behind a Store. For the few files that speak c10d.

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "core/dist/store.h"

namespace moe::dist {

class C10dStore : public Store {
 public:
  C10dStore(c10::intrusive_ptr<c10d::Store> store, uint16_t port)
      : store_(std::move(store)), port_(port) {}

  void set(const std::string& key, const std::string& text) override;
  void append(const std::string& key, const std::string& text) override;
  std::optional<std::string> read(const std::string& key) override;
  uint16_t port() const override { return port_; }

  const c10::intrusive_ptr<c10d::Store>& c10d() const { return store_; }

 private:
  c10::intrusive_ptr<c10d::Store> store_;
  uint16_t port_;
};

}  // namespace moe::dist
