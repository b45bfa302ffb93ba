#pragma once
// A part of a text, by its bytes.

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <vector>

namespace moe::io {

struct TextRange {
  size_t begin = 0, end = 0;
  bool operator==(const TextRange&) const = default;
};

// The first byte from `at` on that lies in one of `ranges`, which are in order and apart from one
// another; npos where there is none.
inline size_t next_in_ranges(const std::vector<TextRange>& ranges, size_t at) {
  const auto next = std::partition_point(ranges.begin(), ranges.end(),
                                         [&](const TextRange& range) { return range.end <= at; });
  return next == ranges.end() ? std::string_view::npos : std::max(at, next->begin);
}

}  // namespace moe::io
