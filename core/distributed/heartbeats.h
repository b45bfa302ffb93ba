#pragma once
// Where each rank leaves its newest heartbeat for the others: one short text a rank, which the next
// one replaces.
//
// Ranks of `moe --ranks` have a table in the memory that they inherit, and not their store: c10d's
// FileStore appends whatever is set, and a heartbeat a second for months would fill the memory
// behind it. The other stores (TCPStore, HashStore) overwrite a key.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "core/distributed/shared_memory.h"
#include "core/distributed/store.h"

namespace moe::distributed {

class Heartbeats {
 public:
  static constexpr size_t kMostBytes = 4032;  // of a text

  virtual ~Heartbeats() = default;
  Heartbeats(const Heartbeats&) = delete;
  Heartbeats& operator=(const Heartbeats&) = delete;

  // One thread of one process writes for a rank.
  virtual void write(int64_t rank, const std::string& text) = 0;
  // Nothing: there is none yet, or its writer was stopped in the middle of it.
  virtual std::optional<std::string> read(int64_t rank) = 0;

 protected:
  Heartbeats() = default;
};

// Under keys that begin with `run`. What is read is as hostile as all of the store.
std::unique_ptr<Heartbeats> heartbeats_in_store(std::shared_ptr<Store> store,
                                                const std::string& run);

// In memory of heartbeat_bytes(ranks) that begins as zeros and that all ranks have mapped.
std::unique_ptr<Heartbeats> heartbeats_in_memory(Mapping memory, int64_t ranks);
size_t heartbeat_bytes(int64_t ranks);

}  // namespace moe::distributed
