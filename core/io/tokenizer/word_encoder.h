#pragma once
// The ids of a tokenizer, many times as fast with sentencepiece: where words never touch each other
// (core/io/tokenizer/word_rule.h) a text is encoded word by word and what a word gave is
// remembered, because most words of a text were there before. Also a text of any length takes no
// more memory than its ids. Where words may touch, a text goes to the tokenizer whole. The other
// kinds of tokenizers remember their words themselves.

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "core/io/tokenizer/tokenizer.h"
#include "core/io/tokenizer/word_cache.h"

namespace moe::io {

class WordEncoder {
 public:
  explicit WordEncoder(std::shared_ptr<const Tokenizer> tokenizer);

  // What tokenizer->encode(text) gives, id for id. Safe to call from several threads. UserError: a
  // piece that cannot be cut is so long that sentencepiece would need gigabytes for it.
  std::vector<int64_t> encode(std::string_view text);

 private:
  void add_word(std::string_view word, std::vector<int64_t>& ids);

  std::shared_ptr<const Tokenizer> tokenizer_;
  WordCache cache_;
};

}  // namespace moe::io
