#pragma once
// Text as tokens come one by one. A character may be the bytes of several tokens: it is given out
// when it is whole, and what is given out once does not change.

#include <cstdint>
#include <string>
#include <vector>

#include "core/io/tokenizer/tokenizer.h"

namespace moe::io {

class TextStream {
 public:
  // `tokenizer` must outlive the stream.
  explicit TextStream(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  // The text that `ids` add to what was given out.
  std::string push(const std::vector<int64_t>& ids);
  // What was held back, because a character might have gone on.
  std::string finish();

 private:
  std::string take(const std::string& text);

  const Tokenizer& tokenizer_;
  std::vector<int64_t> ids_;
  std::string given_;
};

// What stands in `whole` behind all that it has in common with `before`, from the beginning of a
// character on. Both are decoded texts, and well-formed UTF-8.
std::string text_behind(const std::string& before, const std::string& whole);

}  // namespace moe::io
