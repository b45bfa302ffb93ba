#include "core/tokenizer/added_tokens.h"

#include <algorithm>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/tokenizer/patterns.h"
#include "core/tokenizer/unicode.h"

namespace moe::io {

namespace {

constexpr size_t kMaxAddedTokenBytes = 1024;

// Returns true for a letter, mark, digit, connector such as _, or joiner.
bool is_word_character(std::string_view character) {
  static const Regex expression(R"([\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200C}\x{200D}])",
                                "characters of words");
  const Sections sections = expression.find(character);
  return !sections.empty() && sections.front().is_match;
}

bool begins_with_word(std::string_view text) {
  size_t at = 0;
  next_code_point(text, at);
  return is_word_character(text.substr(0, at));
}

bool ends_with_word(std::string_view text) {
  size_t at = text.size() - 1;
  while (at > 0 && is_continuation_byte(text[at])) {
    --at;
  }
  return is_word_character(text.substr(at));
}

bool is_whole_word(std::string_view text, size_t begin, size_t end) {
  return (begin == 0 || !ends_with_word(text.substr(0, begin))) &&
         (end == text.size() || !begins_with_word(text.substr(end)));
}

}  // namespace

AddedTokens::AddedTokens(std::vector<AddedToken> tokens, const Normalizer& normalizer,
                         const Vocabulary& model, const std::string& where) {
  for (auto& token : tokens) {
    const std::string name = printable(token.content);
    const int64_t known = model.find(token.content);
    USER_ERROR_IF(token.id < 0 || token.id >= Vocabulary::kMaxIds ||
                      (known != Vocabulary::kNone && known != token.id) ||
                      (known == Vocabulary::kNone && model.has(token.id)),
                  "{}: the added token '{}' has the id {}, which {}; fetch the file again", where,
                  name, token.id,
                  known != Vocabulary::kNone ? fmt::format("is {} in the vocabulary", known)
                  : model.has(token.id)      ? "is another token in the vocabulary"
                                             : "is beyond what ids may be");
    if (token.content.size() > kMaxAddedTokenBytes) {  // matched from each byte of a text
      throw UserError("{}: the added token {} has {} bytes, more than the {} that one may have",
                      where, token.id, token.content.size(), kMaxAddedTokenBytes);
    }
    token.normal_form = token.normalized ? normalizer(token.content) : token.content;
    USER_ERROR_IF(token.normal_form.empty(),
                  "{}: the added token {} ('{}') is empty, or becomes so by normalization", where,
                  token.id, name);
    Tree& tree = token.normalized ? normalized_ : raw_;
    USER_ERROR_IF(!tree.add(token.normal_form, token.id) ||
                      !ids_.emplace(token.content, token.id).second ||
                      !tokens_.emplace(token.id, token).second,
                  "{}: the added token {} ('{}') is there twice, by its id or its text", where,
                  token.id, name);
    if (!token.special) {
      (token.normalized ? plain_normalized_ : plain_raw_).add(token.normal_form, token.id);
    }
  }
}

bool AddedTokens::Tree::add(std::string_view text, int64_t id) {
  begins[static_cast<uint8_t>(text.front())] = true;
  size_t node = 0;
  for (const char byte : text) {
    const auto [next, is_new] =
        nodes[node].next.try_emplace(static_cast<uint8_t>(byte), nodes.size());
    const size_t child = next->second;
    if (is_new) {
      nodes.emplace_back();
    }
    node = child;
  }
  const bool is_free = nodes[node].id == Vocabulary::kNone;
  nodes[node].id = is_free ? id : nodes[node].id;
  return is_free;
}

TokenOrText AddedTokens::Tree::longest(std::string_view text, size_t at) const {
  TokenOrText found{Vocabulary::kNone, at, at};
  size_t node = 0;
  for (size_t end = at; end < text.size();) {
    const auto next = nodes[node].next.find(static_cast<uint8_t>(text[end]));
    if (next == nodes[node].next.end()) {
      break;
    }
    ++end;
    node = next->second;
    if (nodes[node].id != Vocabulary::kNone) {
      found = {nodes[node].id, at, end};
    }
  }
  return found;
}

// The search continues at the end of the matched text itself, even if the match does not count or
// includes white space, so the next match may begin within that white space.
std::vector<TokenOrText> AddedTokens::split(std::string_view text,
                                            const std::vector<TextRange>& plain, const Tree& all,
                                            const Tree& not_special) const {
  std::vector<TokenOrText> parts;
  size_t between = 0;
  size_t white_end = 0;  // of the last run of white space that `rstrip` included
  for (size_t at = 0; at < text.size();) {
    TokenOrText found{Vocabulary::kNone, at, at};
    if (all.begins[static_cast<uint8_t>(text[at])]) {
      found = all.longest(text.substr(0, next_in_ranges(plain, at)), at);
      const TokenOrText other = plain.empty() ? found : not_special.longest(text, at);
      found = other.end > found.end ? other : found;
    }
    if (found.id == Vocabulary::kNone) {
      ++at;
      continue;
    }
    at = found.end;
    const AddedToken& token = tokens_.at(found.id);
    if (token.single_word && !is_whole_word(text, found.begin, found.end)) {
      continue;
    }
    if (token.lstrip) {  // not beyond the end of the previous token, so each byte is visited once
      const size_t length = std::max(found.begin, between) - between;
      found.begin = between + end_without_white_space(text.substr(between, length));
    }
    if (token.rstrip) {
      if (found.end >= white_end) {
        white_end = found.end + skip_white_space(text.substr(found.end));
      }
      found.end = white_end;  // the run may have been measured for an earlier token
    }
    if (between < found.begin) {
      parts.push_back({Vocabulary::kNone, between, found.begin});
    }
    parts.push_back(found);
    between = found.end;
  }
  if (between != text.size()) {
    parts.push_back({Vocabulary::kNone, between, text.size()});
  }
  return parts;
}

const AddedToken* AddedTokens::find(int64_t id) const {
  const auto found = tokens_.find(id);
  return found == tokens_.end() ? nullptr : &found->second;
}

int64_t AddedTokens::find(std::string_view content) const {
  const auto found = ids_.find(content);
  return found == ids_.end() ? Vocabulary::kNone : found->second;
}

bool AddedTokens::is_special(std::string_view text) const {
  const int64_t id = find(text);
  return id != Vocabulary::kNone && tokens_.at(id).special;
}

int64_t AddedTokens::ids_end() const { return tokens_.empty() ? 0 : tokens_.rbegin()->first + 1; }

std::vector<AddedToken> read_added_tokens(const Json& json, const std::string& where) {
  std::vector<AddedToken> tokens;
  if (json.is_null()) {
    return tokens;
  }
  USER_ERROR_IF(!json.is_array(), "{}: must be a list", where);
  for (const auto& entry : json) {
    AddedToken token;
    token.id = get_int(entry, "id", where);
    token.content = get_string(entry, "content", where);
    token.special = get_bool(entry, "special", where, false);
    token.single_word = get_bool(entry, "single_word", where, false);
    token.lstrip = get_bool(entry, "lstrip", where, false);
    token.rstrip = get_bool(entry, "rstrip", where, false);
    token.normalized = get_bool(entry, "normalized", where, !token.special);
    tokens.push_back(std::move(token));
  }
  return tokens;
}

}  // namespace moe::io
