#pragma once
// Byte pair encoding (Sennrich et al., 2016) as tokenizer.json describes it: a word begins as its
// characters, and of the neighbouring pairs that may merge the one of lowest rank does, leftmost
// first, until none is left. A word of n characters takes O(n log n) steps.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/io/tokenizer/vocabulary.h"
#include "core/io/tokenizer/word_cache.h"

namespace moe::io {

struct BpeMerge {
  int64_t left = 0, right = 0, merged = 0;  // ids
  int64_t rank = 0;                         // lower ones go first
};

// What a model does with a character that is no token: with `byte_fallback` its bytes become the
// tokens <0x00>..<0xFF>, if the vocabulary has all that are needed; else it becomes `unknown`, and
// a run of such characters one with `fuse_unknown`; without an unknown token it is left out.
struct BpeOptions {
  bool byte_fallback = false;
  bool fuse_unknown = false;
  bool ignore_merges = false;  // a word that is a token as a whole becomes that token
  int64_t unknown = Vocabulary::kNone;
};

class Bpe {
 public:
  // Of merges of one pair the last counts.
  Bpe(Vocabulary vocabulary, const std::vector<BpeMerge>& merges, const BpeOptions& options);

  // Appends the ids of `word`, well-formed UTF-8. Safe to call from several threads.
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
    const Merge* find(uint32_t left, uint32_t right) const;  // null: the pair does not merge

   private:
    static constexpr uint64_t kFree = ~uint64_t{0};  // no pair: ids are below 2^22
    size_t slot_of(uint64_t pair) const;
    std::vector<uint64_t> pairs_;
    std::vector<Merge> merges_;
    int shift_ = 0;
  };

  void merge_word(std::string_view word, std::vector<int64_t>& ids) const;
  std::vector<uint32_t> symbols_of(std::string_view word) const;
  bool append_bytes(std::string_view character, std::vector<uint32_t>& symbols) const;
  void merge_short(std::vector<uint32_t>& symbols) const;
  void merge_long(std::vector<uint32_t>& symbols) const;

  Vocabulary vocabulary_;
  MergeTable merges_;
  BpeOptions options_;
  std::vector<int64_t> byte_ids_;       // of <0x00>..<0xFF>
  std::vector<int64_t> character_ids_;  // of the code points below U+0800, which most texts are of
  std::unique_ptr<WordCache> cache_;
};

}  // namespace moe::io
