#include "core/io/tokenizer/sections.h"

#include <algorithm>
#include <array>
#include <utility>

#include "core/base/error.h"
#include "core/base/utf8.h"
#include "core/io/tokenizer/unicode.h"

namespace moe::io {

namespace {

// A match joins the section that came before it on the way, unless that was a match too: a second
// match in a row begins a section of its own. Walked backwards, "before" is the next one.
template <typename Iterator, typename Join>
Sections merge_matches(Iterator first, Iterator last, const Join& join) {
  Sections merged;
  bool previous_is_match = false;
  for (; first != last; ++first) {
    if (first->is_match && !previous_is_match && !merged.empty()) {
      join(merged.back(), *first);
    } else {
      merged.push_back(*first);
    }
    previous_is_match = first->is_match;
  }
  return merged;
}

Sections join_runs(const Sections& sections) {
  Sections runs;
  bool previous_is_match = false;
  for (const auto& section : sections) {
    if (section.is_match == previous_is_match && !runs.empty()) {
      runs.back().end = section.end;
    } else {
      runs.push_back(section);
    }
    previous_is_match = section.is_match;
  }
  return runs;
}

}  // namespace

Sections match_characters(std::string_view text, const std::function<bool(char32_t)>& is_match) {
  Sections sections;
  size_t between = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    if (!is_match(next_code_point(text, at))) {
      continue;
    }
    if (between < begin) {
      sections.push_back({between, begin, false});
    }
    sections.push_back({begin, at, true});
    between = at;
  }
  if (between < text.size()) {
    sections.push_back({between, text.size(), false});
  }
  return sections;
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
  switch (behavior) {
    case Behavior::kRemoved: {
      Sections rest;
      std::copy_if(sections.begin(), sections.end(), std::back_inserter(rest),
                   [](const Section& section) { return !section.is_match; });
      return rest;
    }
    case Behavior::kIsolated:
      return sections;
    case Behavior::kMergedWithPrevious:
      return merge_matches(sections.begin(), sections.end(),
                           [](Section& to, const Section& from) { to.end = from.end; });
    case Behavior::kMergedWithNext: {
      Sections merged =
          merge_matches(sections.rbegin(), sections.rend(),
                        [](Section& to, const Section& from) { to.begin = from.begin; });
      std::reverse(merged.begin(), merged.end());
      return merged;
    }
    case Behavior::kContiguous:
      break;
  }
  return join_runs(sections);
}

}  // namespace moe::io
