#include "core/io/tokenizer/word_encoder.h"

#include <algorithm>

#include "core/base/error.h"
#include "core/base/utf8.h"
#include "core/io/file.h"

namespace moe::io {

namespace {

constexpr size_t kLargestWhole_bytes = size_t{4} << 20;

// sentencepiece holds some 170 bytes for each byte of a text.
std::vector<int64_t> encode_whole(const Tokenizer& tokenizer, std::string_view text) {
  if (text.size() > kLargestWhole_bytes) {
    throw UserError(
        "{} of text without a place to cut it at (a space) are too much for the tokenizer, which "
        "takes at most {} at once; split the record",
        size_text(text.size()), size_text(kLargestWhole_bytes));
  }
  return tokenizer.encode(text);
}

}  // namespace

WordEncoder::WordEncoder(std::shared_ptr<const Tokenizer> tokenizer)
    : tokenizer_(std::move(tokenizer)) {}

std::vector<int64_t> WordEncoder::encode(std::string_view text) {
  if (tokenizer_->kind() != TokenizerKind::kSentencepiece) {
    return tokenizer_->encode(text);
  }
  const WordRule rule = tokenizer_->word_rule();
  // A mark that stands in the text itself is a space without being one; broken bytes may become
  // other ones where they are cut.
  if (rule == WordRule::kNone || text.find(kSpaceMark) != std::string_view::npos ||
      find_invalid_utf8(text) != kValidUtf8) {
    return encode_whole(*tokenizer_, text);
  }
  std::vector<int64_t> ids;
  const bool collapses = rule == WordRule::kCollapses;
  // The tokenizer puts a space before every text. So of the spaces before a word one is left to it,
  // but before the first word, where they stand beside that one.
  for (size_t at = 0; at < text.size();) {
    const size_t letter = std::min(text.find_first_not_of(' ', at), text.size());
    size_t end = std::min(text.find(' ', letter), text.size());
    if (collapses) {
      if (letter < end) {
        add_word(text.substr(letter, end - letter), ids);
      }
    } else {
      if (text.find_first_not_of(' ', end) == std::string_view::npos) {
        end = text.size();  // spaces at the end stay with their word
      }
      const size_t begin = at == 0 ? 0 : at + 1;
      add_word(text.substr(begin, end - begin), ids);
    }
    at = end;
  }
  return ids;
}

void WordEncoder::add_word(std::string_view word, std::vector<int64_t>& ids) {
  cache_.append(word, ids, [this](std::string_view text, std::vector<int64_t>& found) {
    const auto word_ids = encode_whole(*tokenizer_, text);
    found.insert(found.end(), word_ids.begin(), word_ids.end());
  });
}

}  // namespace moe::io
