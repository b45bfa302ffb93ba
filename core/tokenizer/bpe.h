#pragma once
// Byte pair encoding (Sennrich et al., 2016) by the rules of tokenizer.json: a word starts as its
// characters; then the adjacent pair of lowest rank (the leftmost of equal ones) merges, until no
// adjacent pair has a merge. A word of n characters takes O(n log n) steps.

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace moe::io {

// Map between token ids and texts, in both directions.
class Vocabulary {
 public:
  static constexpr int64_t kNone = -1;
  static constexpr int64_t kMaxIds = int64_t{1} << 22;

  Vocabulary() = default;
  // No two tokens may have the same text. Throws UserError naming `where` if an id is not in
  // [0, kMaxIds) or has two texts.
  Vocabulary(const std::vector<std::pair<std::string, int64_t>>& tokens, const std::string& where);

  int64_t find(std::string_view text) const;  // the id, or kNone
  bool has(int64_t id) const {
    return id >= 0 && id < std::ssize(texts_) && is_token_[static_cast<size_t>(id)];
  }
  const std::string& text(int64_t id) const { return texts_[static_cast<size_t>(id)]; }
  int64_t tokens() const { return tokens_; }
  int64_t ids_end() const { return std::ssize(texts_); }  // one more than the greatest id

 private:
  struct Slot {
    int32_t id = -1;   // -1: free
    uint32_t tag = 0;  // upper bits of the text's hash, to skip most string comparisons
  };

  static uint32_t hash_tag(size_t hash) { return static_cast<uint32_t>(hash >> 32); }

  std::vector<std::string> texts_;  // by id; empty if no token has it
  std::vector<bool> is_token_;
  int64_t tokens_ = 0;
  std::vector<Slot> slots_;  // open addressing: a power of two, at most half in use
};

// A bounded cache of the ids of words. A word is stored in the one slot of its hash and replaces
// the word there. Thread-safe.
class WordCache {
 public:
  static constexpr size_t kMaxWordBytes = 64;  // longer words are not cached

  WordCache() : slots_(kSlots) {}

  // Appends the ids of `word` to `ids`: the cached ones, else those that encode(word, ids) appends.
  // A word without ids is encoded each time.
  template <typename Encode>
  void append(std::string_view word, std::vector<int64_t>& ids, const Encode& encode) {
    if (word.size() > kMaxWordBytes) {
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
  std::array<std::mutex, kLocks> locks_;  // slot i is guarded by lock i % kLocks
};

struct BpeMerge {
  int64_t left = 0, right = 0, merged = 0;  // ids
  int64_t rank = 0;                         // lower ranks merge first
};

// Options of tokenizer.json. With `byte_fallback`, a character that is no token becomes the tokens
// <0x00>..<0xFF> of its bytes if the vocabulary has all of them. Otherwise the character becomes
// `unknown` (with `fuse_unknown`, one for a run of such characters) or, without an unknown token,
// is dropped.
struct BpeOptions {
  bool byte_fallback = false;
  bool fuse_unknown = false;
  bool ignore_merges = false;  // a word that is a token becomes that token
  int64_t unknown = Vocabulary::kNone;
};

class Bpe {
 public:
  // If a pair occurs in several merges, the last one counts.
  Bpe(Vocabulary vocabulary, const std::vector<BpeMerge>& merges, const BpeOptions& options);

  // Appends the ids of `word`, well-formed UTF-8. Thread-safe.
  void encode(std::string_view word, std::vector<int64_t>& ids) const;

  const Vocabulary& vocabulary() const { return vocabulary_; }

 private:
  // Open addressing: a power of two of slots, at most half in use.
  class MergeTable {
   public:
    explicit MergeTable(const std::vector<BpeMerge>& merges);
    struct Merge {
      uint32_t rank, merged;
    };
    const Merge* find(uint32_t left, uint32_t right) const;  // null: no merge

   private:
    static constexpr uint64_t kFree = ~uint64_t{0};  // no pair: ids are below 2^22
    size_t find_slot(uint64_t pair) const;
    std::vector<uint64_t> pairs_;
    std::vector<Merge> merges_;
    int shift_ = 0;
  };

  std::vector<uint32_t> split_symbols(std::string_view word) const;
  bool append_bytes(std::string_view character, std::vector<uint32_t>& symbols) const;
  void merge_short(std::vector<uint32_t>& symbols) const;
  void merge_long(std::vector<uint32_t>& symbols) const;

  Vocabulary vocabulary_;
  MergeTable merges_;
  BpeOptions options_;
  std::vector<int64_t> byte_ids_;       // of <0x00>..<0xFF>
  std::vector<int64_t> character_ids_;  // of the code points below U+0800
  std::unique_ptr<WordCache> cache_;
};

}  // namespace moe::io
