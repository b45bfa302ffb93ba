#include "core/io/tokenizer/regex.h"

#include <oniguruma.h>

#include <array>
#include <mutex>

#include "core/base/error.h"
#include "core/base/utf8.h"

namespace moe::io {

namespace {

constexpr size_t kLongestPattern_bytes = size_t{64} << 10;

const OnigUChar* bytes_of(std::string_view text) {
  return reinterpret_cast<const OnigUChar*>(text.data());
}

void start_oniguruma() {
  static std::once_flag once;
  std::call_once(once, [] {
    std::array<OnigEncoding, 1> encodings = {ONIG_ENCODING_UTF8};
    onig_initialize(encodings.data(), 1);
  });
}

std::string words_of(int code, OnigErrorInfo* info = nullptr) {
  std::array<OnigUChar, ONIG_MAX_ERROR_MESSAGE_LEN> text{};
  const int size = onig_error_code_to_str(text.data(), code, info);
  return printable({reinterpret_cast<const char*>(text.data()), static_cast<size_t>(size)});
}

struct FreeRegion {
  void operator()(OnigRegion* region) const { onig_region_free(region, /*free_self=*/1); }
};

size_t behind_character(std::string_view text, size_t at) {
  do {
    ++at;
  } while (at < text.size() && is_continuation_byte(text[at]));
  return at;
}

}  // namespace

Regex::Regex(const std::string& pattern, const std::string& where) : where_(where) {
  start_oniguruma();
  if (pattern.size() > kLongestPattern_bytes) {
    throw UserError("{}: a regular expression of {} bytes, more than the {} that one may have",
                    where, pattern.size(), kLongestPattern_bytes);
  }
  regex_t* compiled = nullptr;
  OnigErrorInfo info{};
  const OnigUChar* begin = bytes_of(pattern);
  const int code = onig_new(&compiled, begin, begin + pattern.size(), ONIG_OPTION_NONE,
                            ONIG_ENCODING_UTF8, ONIG_SYNTAX_DEFAULT, &info);
  if (code != ONIG_NORMAL) {
    throw UserError("{}: the regular expression '{}' is broken: {}", where, printable(pattern),
                    words_of(code, &info));
  }
  compiled_ = std::shared_ptr<re_pattern_buffer>(compiled, onig_free);
}

Sections Regex::find(std::string_view text) const {
  Sections sections;
  const std::unique_ptr<OnigRegion, FreeRegion> region(onig_region_new());
  const OnigUChar* begin = bytes_of(text);
  const OnigUChar* end = begin + text.size();
  size_t at = 0, between = 0;
  bool follows_match = false;  // whether a match ends at `at`
  while (!text.empty() && at <= text.size()) {
    const int found =
        onig_search(compiled_.get(), begin, end, begin + at, end, region.get(), ONIG_OPTION_NONE);
    if (found == ONIG_MISMATCH) {
      break;
    }
    if (found < 0) {
      throw UserError("{}: a regular expression gives up on a text of {} bytes: {}", where_,
                      text.size(), words_of(found));
    }
    const auto first = static_cast<size_t>(region->beg[0]);
    const auto last = static_cast<size_t>(region->end[0]);
    if (first == last && follows_match && last == between) {
      at = behind_character(text, at);
      continue;
    }
    if (between < first) {
      sections.push_back({between, first, false});
    }
    sections.push_back({first, last, true});
    at = between = last;
    follows_match = true;
  }
  if (between < text.size()) {
    sections.push_back({between, text.size(), false});
  }
  return sections;
}

Pattern regex_pattern(const std::string& pattern, const std::string& where) {
  return [regex = Regex(pattern, where)](std::string_view text) { return regex.find(text); };
}

Pattern literal_pattern(const std::string& text, const std::string& where) {
  if (text.empty()) {
    return regex_pattern("", where);
  }
  return [text](std::string_view inside) {
    Sections sections;
    size_t between = 0;
    for (size_t at = inside.find(text); at != std::string_view::npos;
         at = inside.find(text, between)) {
      if (between < at) {
        sections.push_back({between, at, false});
      }
      sections.push_back({at, at + text.size(), true});
      between = at + text.size();
    }
    if (between < inside.size()) {
      sections.push_back({between, inside.size(), false});
    }
    return sections;
  };
}

}  // namespace moe::io
