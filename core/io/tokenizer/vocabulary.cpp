#include "core/io/tokenizer/vocabulary.h"

#include <algorithm>
#include <bit>
#include <functional>

#include "core/base/error.h"
#include "core/base/utf8.h"

namespace moe::io {

Vocabulary::Vocabulary(const std::vector<std::pair<std::string, int64_t>>& tokens,
                       const std::string& where) {
  int64_t end = 0;
  for (const auto& [text, id] : tokens) {
    if (id < 0 || id >= kMostIds) {
      throw UserError("{}: the token '{}' has the id {}, ids are 0 to {}", where, printable(text),
                      id, kMostIds - 1);
    }
    end = std::max(end, id + 1);
  }
  texts_.resize(static_cast<size_t>(end));
  is_token_.resize(texts_.size());
  slots_.resize(std::bit_ceil(std::max<size_t>(2, tokens.size() * 2)));
  for (const auto& [text, id] : tokens) {
    const auto index = static_cast<size_t>(id);
    if (is_token_[index]) {
      throw UserError("{}: the id {} has two tokens, '{}' and '{}'", where, id,
                      printable(texts_[index]), printable(text));
    }
    texts_[index] = text;
    is_token_[index] = true;
    const size_t hash = std::hash<std::string_view>{}(text);
    size_t slot = hash & (slots_.size() - 1);
    while (slots_[slot].id >= 0) {
      slot = (slot + 1) & (slots_.size() - 1);
    }
    slots_[slot] = {static_cast<int32_t>(id), tag_of(hash)};
  }
  tokens_ = std::ssize(tokens);
}

int64_t Vocabulary::find(std::string_view text) const {
  if (slots_.empty()) {
    return kNone;
  }
  const size_t hash = std::hash<std::string_view>{}(text);
  size_t slot = hash & (slots_.size() - 1);
  while (slots_[slot].id >= 0) {
    if (slots_[slot].tag == tag_of(hash) && texts_[static_cast<size_t>(slots_[slot].id)] == text) {
      return slots_[slot].id;
    }
    slot = (slot + 1) & (slots_.size() - 1);
  }
  return kNone;
}

}  // namespace moe::io
