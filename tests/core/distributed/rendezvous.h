#pragma once
// Ranks that are played by a test, checked in at one store.

#include <fmt/format.h>

#include <thread>

#include "core/distributed/rendezvous.h"

namespace moe::test {

// A rank of another machine.
inline distributed::Member elsewhere(int64_t rank) {
  return {fmt::format("h{}", rank), fmt::format("10.0.0.{}", rank), "another machine", 100 + rank};
}

// One rank for each of `members`, all of which have come.
inline std::vector<distributed::Rendezvous> check_in_all(
    const std::vector<distributed::Member>& members,
    const std::shared_ptr<distributed::Store>& store = distributed::local_store()) {
  std::vector<distributed::Rendezvous> ranks;
  const auto size = static_cast<int64_t>(members.size());
  for (int64_t rank = 0; rank < size; ++rank) {
    ranks.emplace_back(store, rank, size);
  }
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < size; ++rank) {
    threads.emplace_back(
        [&, rank] { ranks[rank].check_in(members[rank], "moe", distributed::Seconds{5}); });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  return ranks;
}

// A store that others reach too, as one behind a port.
class PublicStore : public distributed::Store {
 public:
  void set(const std::string& key, const std::string& text) override { store_->set(key, text); }
  void append(const std::string& key, const std::string& text) override {
    store_->append(key, text);
  }
  std::optional<std::string> read(const std::string& key) override { return store_->read(key); }
  bool is_private() const override { return false; }

 private:
  std::shared_ptr<distributed::Store> store_ = distributed::local_store();
};

}  // namespace moe::test
