#pragma once
// The ids of a tokenizer, many times as fast: where words never touch each other
// (core/io/word_rule.h) a text is encoded word by word and what a word gave is remembered, because
// most words of a text were there before. Also a text of any length takes no more memory than its
// ids. Where words may touch, a text goes to the tokenizer whole.

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "core/io/tokenizer.h"

namespace moe::io {

class WordEncoder {
 public:
  explicit WordEncoder(std::shared_ptr<const Tokenizer> tokenizer);

  // What tokenizer->encode(text) gives, id for id. Safe to call from several threads. UserError: a
  // piece that cannot be cut is so long that the tokenizer would need gigabytes for it.
  std::vector<int64_t> encode(std::string_view text);

 private:
  // A word is kept in the one place that its hash names, in place of the one before: the memory is
  // bounded, and what comes often is nearly always there.
  struct Slot {
    std::string word;
    std::vector<int64_t> ids;
  };
  static constexpr size_t kSlots = size_t{1} << 16, kLocks = 64;

  void add_word(std::string_view word, std::vector<int64_t>& ids);

  std::shared_ptr<const Tokenizer> tokenizer_;
  std::vector<Slot> slots_;
  std::array<std::mutex, kLocks> locks_;  // of the slots that have this remainder
};

}  // namespace moe::io
