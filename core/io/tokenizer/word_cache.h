#pragma once
// What words became, remembered: most words of a text were there before. A word is kept in the one
// place that its hash names, in place of the one before: the memory is bounded, and what comes
// often is nearly always there.

#include <array>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace moe::io {

class WordCache {
 public:
  static constexpr size_t kLongest_bytes = 64;  // longer words are not kept

  WordCache() : slots_(kSlots) {}

  // Appends the ids of `word` to `ids`: those that were kept, else those that `encode` appends to
  // an empty list. A word that has no ids is asked for each time. Safe to call from several
  // threads.
  template <typename Encode>
  void append(std::string_view word, std::vector<int64_t>& ids, const Encode& encode) {
    if (word.size() > kLongest_bytes) {
      encode(word, ids);
      return;
    }
    const size_t index = std::hash<std::string_view>{}(word) % kSlots;
    Slot& slot = slots_[index];
    const std::lock_guard lock(locks_[index % kLocks]);
    if (slot.ids.empty() || slot.word != word) {
      slot.ids.clear();
      encode(word, slot.ids);
      slot.word = word;
    }
    ids.insert(ids.end(), slot.ids.begin(), slot.ids.end());
  }

 private:
  struct Slot {
    std::string word;
    std::vector<int64_t> ids;
  };
  static constexpr size_t kSlots = size_t{1} << 16, kLocks = 64;

  std::vector<Slot> slots_;
  std::array<std::mutex, kLocks> locks_;  // of the slots that have this remainder
};

}  // namespace moe::io
