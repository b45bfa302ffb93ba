#include "core/tokenizer/patterns.h"

#include <oniguruma.h>

#include <array>
#include <ctime>
#include <memory>
#include <mutex>
#include <utility>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/tokenizer/unicode.h"

namespace moe::io {

namespace {

const OnigUChar* onig_text(std::string_view text) {
  return reinterpret_cast<const OnigUChar*>(text.data());
}

std::string onig_message(int code, OnigErrorInfo* info = nullptr) {
  std::array<OnigUChar, ONIG_MAX_ERROR_MESSAGE_LEN> text{};
  const int size = onig_error_code_to_str(text.data(), code, info);
  return printable({reinterpret_cast<const char*>(text.data()), static_cast<size_t>(size)});
}

// Returns limits on the backtracking of one search, linear in the size of `text`. Without them
// (a*b)?c takes quadratic time, and other expressions exponential time, in a text that lacks b.
std::shared_ptr<OnigMatchParam> search_limits(std::string_view text) {
  std::shared_ptr<OnigMatchParam> param(onig_new_match_param(), onig_free_match_param);
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

// A collector of matches in ascending order and of the non-empty texts between them.
class SectionBuilder {
 public:
  void add_match(size_t begin, size_t end) {
    add_text(begin);
    sections_.push_back({begin, end, true});
    end_ = end;
  }
  Sections finish(size_t text_size) {
    add_text(text_size);
    return std::move(sections_);
  }
  size_t end() const { return end_; }  // of the last match

 private:
  void add_text(size_t end) {
    if (end_ < end) {
      sections_.push_back({end_, end, false});
    }
  }

  Sections sections_;
  size_t end_ = 0;
};

size_t next_character(std::string_view text, size_t at) {
  do {
    ++at;
  } while (at < text.size() && is_continuation_byte(text[at]));
  return at;
}

// Returns the sections of `text` as described at regex_pattern().
Sections find_matches(regex_t* regex, std::string_view text, const std::string& where) {
  SectionBuilder sections;
  constexpr size_t kSearchesPerCheck = 64;
  const std::shared_ptr<OnigRegion> region(onig_region_new(), [](OnigRegion* allocated) {
    onig_region_free(allocated, /*free_self=*/1);
  });
  const auto limits = search_limits(text);
  // CPU time, independent of other processes. Published tokenizers take 0.1 us per byte.
  const double max_seconds = 5 + 1e-5 * static_cast<double>(text.size());
  double start_seconds = 0;
  size_t searches = 0;
  const OnigUChar* begin = onig_text(text);
  const OnigUChar* end = begin + text.size();
  size_t at = 0;
  bool follows_match = false;  // a match ends at sections.end()
  while (!text.empty() && at <= text.size()) {
    if (++searches % kSearchesPerCheck == 0) {
      start_seconds = searches == kSearchesPerCheck ? thread_seconds() : start_seconds;
      USER_ERROR_IF(thread_seconds() - start_seconds > max_seconds,
                    "{}: a regular expression takes more than {:.0f} s for a text of {} bytes",
                    where, max_seconds, text.size());
    }
    const int result = onig_search_with_param(regex, begin, end, begin + at, end, region.get(),
                                              ONIG_OPTION_NONE, limits.get());
    if (result == ONIG_MISMATCH) {
      break;
    }
    USER_ERROR_IF(result < 0, "{}: a regular expression gives up on a text of {} bytes: {}", where,
                  text.size(), onig_message(result));
    const auto first = static_cast<size_t>(region->beg[0]);
    const auto last = static_cast<size_t>(region->end[0]);
    if (first == last && follows_match && last == sections.end()) {
      at = next_character(text, at);
      continue;
    }
    sections.add_match(first, last);
    at = last;
    follows_match = true;
  }
  return sections.finish(text.size());
}

// Returns true if `behavior` joins two adjacent sections.
bool joins(Behavior behavior, const Section& left, const Section& right) {
  switch (behavior) {
    case Behavior::kMergedWithPrevious:
      return !left.is_match && right.is_match;
    case Behavior::kMergedWithNext:
      return left.is_match && !right.is_match;
    case Behavior::kContiguous:
      return left.is_match == right.is_match;
    case Behavior::kRemoved:
    case Behavior::kIsolated:
      break;
  }
  return false;
}

}  // namespace

Pattern regex_pattern(const std::string& expression, const std::string& where) {
  static std::once_flag once;
  std::call_once(once, [] {
    std::array<OnigEncoding, 1> encodings = {ONIG_ENCODING_UTF8};
    onig_initialize(encodings.data(), 1);
  });
  constexpr size_t kMaxPatternBytes = size_t{64} << 10;
  USER_ERROR_IF(expression.size() > kMaxPatternBytes,
                "{}: a regular expression of {} bytes, more than the {} that one may have", where,
                expression.size(), kMaxPatternBytes);
  regex_t* compiled = nullptr;
  OnigErrorInfo info{};
  const OnigUChar* begin = onig_text(expression);
  const int code = onig_new(&compiled, begin, begin + expression.size(), ONIG_OPTION_NONE,
                            ONIG_ENCODING_UTF8, ONIG_SYNTAX_DEFAULT, &info);
  USER_ERROR_IF(code != ONIG_NORMAL, "{}: the regular expression '{}' is broken: {}", where,
                printable(expression), onig_message(code, &info));
  return [regex = std::shared_ptr<regex_t>(compiled, onig_free), where](std::string_view text) {
    return find_matches(regex.get(), text, where);
  };
}

Pattern literal_pattern(const std::string& text, const std::string& where) {
  if (text.empty()) {
    return regex_pattern("", where);
  }
  return [text](std::string_view subject) {
    SectionBuilder sections;
    for (size_t at = subject.find(text); at != std::string_view::npos;
         at = subject.find(text, sections.end())) {
      sections.add_match(at, at + text.size());
    }
    return sections.finish(subject.size());
  };
}

Pattern class_pattern(bool (*is_match)(char32_t)) {
  return [is_match](std::string_view text) {
    SectionBuilder sections;
    for (size_t at = 0; at < text.size();) {
      const size_t begin = at;
      if (is_match(next_code_point(text, at))) {
        sections.add_match(begin, at);
      }
    }
    return sections.finish(text.size());
  };
}

Behavior parse_behavior(const std::string& name, const std::string& where) {
  static constexpr std::array<std::pair<const char*, Behavior>, 5> kNames = {{
      {"Removed", Behavior::kRemoved},
      {"Isolated", Behavior::kIsolated},
      {"MergedWithPrevious", Behavior::kMergedWithPrevious},
      {"MergedWithNext", Behavior::kMergedWithNext},
      {"Contiguous", Behavior::kContiguous},
  }};
  for (const auto& [known, behavior] : kNames) {
    if (name == known) {
      return behavior;
    }
  }
  throw UserError(
      "{}: the behavior '{}' is unknown; known: Removed, Isolated, MergedWithPrevious, "
      "MergedWithNext, Contiguous",
      where, printable(name));
}

Sections apply_behavior(const Sections& sections, Behavior behavior) {
  Sections parts;
  const Section* previous = nullptr;
  for (const Section& section : sections) {
    if (behavior == Behavior::kRemoved && section.is_match) {
      continue;
    }
    if (previous != nullptr && joins(behavior, *previous, section)) {
      parts.back().end = section.end;
    } else {
      parts.push_back(section);
    }
    previous = &section;
  }
  return parts;
}

}  // namespace moe::io
