#include "core/io/tokenizer/text_stream.h"

#include <algorithm>

#include "core/base/utf8.h"

namespace moe::io {

std::string TextStream::push(const std::vector<int64_t>& ids) {
  ids_.insert(ids_.end(), ids.begin(), ids.end());
  constexpr std::string_view kReplacement = "\uFFFD";  // in place of an unfinished character
  std::string text = tokenizer_.decode(ids_);
  while (text.ends_with(kReplacement)) {
    text.resize(text.size() - kReplacement.size());
  }
  return take(text);
}

std::string TextStream::finish() { return take(tokenizer_.decode(ids_)); }

// A run of byte tokens that a later one breaks is no text any more: then `text` may be shorter than
// what was given out.
std::string TextStream::take(const std::string& text) {
  if (given_.starts_with(text)) {
    return "";
  }
  std::string more = text_behind(given_, text);
  given_ = text;
  return more;
}

std::string text_behind(const std::string& before, const std::string& whole) {
  const auto differs =
      std::mismatch(before.begin(), before.end(), whole.begin(), whole.end()).second;
  auto at = static_cast<size_t>(differs - whole.begin());
  while (at > 0 && at < whole.size() && is_continuation_byte(whole[at])) {
    --at;
  }
  return whole.substr(at);
}

}  // namespace moe::io
