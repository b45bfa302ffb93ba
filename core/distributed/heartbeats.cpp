#include "core/distributed/heartbeats.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>

#include "core/base/error.h"

namespace moe::distributed {
namespace {

class InStore : public Heartbeats {
 public:
  InStore(std::shared_ptr<Store> store, const std::string& run)
      : store_(std::move(store)), before_(run + "/heartbeat/") {}

  void write(int64_t rank, const std::string& text) override {
    MOE_CHECK(text.size() <= kMostBytes, "a heartbeat of {} bytes", text.size());
    store_->set(before_ + std::to_string(rank), text);
  }
  std::optional<std::string> read(int64_t rank) override {
    return store_->read(before_ + std::to_string(rank));
  }

 private:
  std::shared_ptr<Store> store_;
  std::string before_;
};

// A sequence lock: `version` is odd while its one writer is at it, and differs before and after a
// read that met a write. Each word is released after the odd version and acquired before the second
// look at it, so a reader that saw a new word sees that the version has moved.
struct alignas(64) Slot {
  static constexpr size_t kWords = Heartbeats::kMostBytes / sizeof(uint64_t);

  std::atomic<uint64_t> version;  // 0: nothing was written yet
  std::atomic<uint64_t> bytes;
  std::array<std::atomic<uint64_t>, kWords> words;
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);
static_assert(sizeof(Slot) == 4096);

class InMemory : public Heartbeats {
 public:
  InMemory(Mapping memory, int64_t ranks) : memory_(std::move(memory)), ranks_(ranks) {}

  void write(int64_t rank, const std::string& text) override {
    MOE_CHECK(text.size() <= kMostBytes, "a heartbeat of {} bytes", text.size());
    Slot& slot = slot_of(rank);
    const uint64_t version = slot.version.load(std::memory_order_relaxed) & ~uint64_t{1};
    slot.version.store(version + 1, std::memory_order_relaxed);
    slot.bytes.store(text.size(), std::memory_order_release);
    for (size_t begin = 0; begin < text.size(); begin += sizeof(uint64_t)) {
      uint64_t word = 0;
      std::memcpy(&word, text.data() + begin, std::min(sizeof(word), text.size() - begin));
      slot.words[begin / sizeof(word)].store(word, std::memory_order_release);
    }
    slot.version.store(version + 2, std::memory_order_release);
  }

  std::optional<std::string> read(int64_t rank) override {
    constexpr int kTries = 3;  // a write takes less than a microsecond
    const Slot& slot = slot_of(rank);
    for (int attempt = 0; attempt < kTries; ++attempt) {
      const uint64_t version = slot.version.load(std::memory_order_acquire);
      std::string text(std::min<uint64_t>(slot.bytes.load(std::memory_order_acquire), kMostBytes),
                       '\0');
      for (size_t begin = 0; begin < text.size(); begin += sizeof(uint64_t)) {
        const uint64_t word = slot.words[begin / sizeof(word)].load(std::memory_order_acquire);
        std::memcpy(text.data() + begin, &word, std::min(sizeof(word), text.size() - begin));
      }
      const bool is_whole = version % 2 == 0 && version > 0;
      if (is_whole && slot.version.load(std::memory_order_relaxed) == version) {
        return text;
      }
    }
    return std::nullopt;
  }

 private:
  Slot& slot_of(int64_t rank) {
    MOE_CHECK(rank >= 0 && rank < ranks_, "rank {} of {}", rank, ranks_);
    return static_cast<Slot*>(memory_.data())[rank];
  }

  Mapping memory_;
  int64_t ranks_;
};

}  // namespace

std::unique_ptr<Heartbeats> heartbeats_in_store(std::shared_ptr<Store> store,
                                                const std::string& run) {
  return std::make_unique<InStore>(std::move(store), run);
}

std::unique_ptr<Heartbeats> heartbeats_in_memory(Mapping memory, int64_t ranks) {
  return std::make_unique<InMemory>(std::move(memory), ranks);
}

size_t heartbeat_bytes(int64_t ranks) { return static_cast<size_t>(ranks) * sizeof(Slot); }

}  // namespace moe::distributed
