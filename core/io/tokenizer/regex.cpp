#include "core/io/tokenizer/regex.h"

#include <oniguruma.h>

#include <array>
#include <ctime>
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

struct FreeMatchParam {
  void operator()(OnigMatchParam* param) const { onig_free_match_param(param); }
};

// Limits on the backtracking of one search in `text`, linear in its size: an expression such as
// (a*b)?c takes time that grows with the square, others with a power, of a text that lacks b.
std::unique_ptr<OnigMatchParam, FreeMatchParam> search_limits(std::string_view text) {
  std::unique_ptr<OnigMatchParam, FreeMatchParam> param(onig_new_match_param());
  onig_initialize_match_param(param.get());
  const auto limit = static_cast<unsigned long>(100'000 + 64 * text.size());
  onig_set_retry_limit_in_match_of_match_param(param.get(), limit);
  onig_set_retry_limit_in_search_of_match_param(param.get(), limit);
  return param;
}

double thread_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

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
  constexpr size_t kSearchesPerCheck = 64;
  const std::unique_ptr<OnigRegion, FreeRegion> region(onig_region_new());
  const auto limits = search_limits(text);
  // Published tokenizers take 0.1 us a byte. Processor time: a busy machine must not decide.
  const double max_seconds = 5 + 1e-5 * static_cast<double>(text.size());
  double start_seconds = 0;
  size_t searches = 0;
  const OnigUChar* begin = bytes_of(text);
  const OnigUChar* end = begin + text.size();
  size_t at = 0, between = 0;
  bool follows_match = false;  // whether a match ends at `at`
  while (!text.empty() && at <= text.size()) {
    if (++searches % kSearchesPerCheck == 0) {
      start_seconds = searches == kSearchesPerCheck ? thread_seconds() : start_seconds;
      if (thread_seconds() - start_seconds > max_seconds) {
        throw UserError("{}: a regular expression takes more than {:.0f} s for a text of {} bytes",
                        where_, max_seconds, text.size());
      }
    }
    const int found = onig_search_with_param(compiled_.get(), begin, end, begin + at, end,
                                             region.get(), ONIG_OPTION_NONE, limits.get());
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
