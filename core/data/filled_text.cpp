#include "core/data/filled_text.h"

#include <algorithm>

#include "core/data/strip.h"

namespace moe::data {

FilledText& FilledText::own(const std::string& words) {
  text += words;
  return *this;
}

FilledText& FilledText::data(const std::string& words) {
  if (!words.empty()) {
    written.push_back({text.size(), text.size() + words.size()});
  }
  text += words;
  return *this;
}

FilledText& FilledText::append(const FilledText& other) {
  for (const auto& [begin, end] : other.written) {
    written.push_back({text.size() + begin, text.size() + end});
  }
  text += other.text;
  return *this;
}

FilledText FilledText::stripped() const {
  const std::string kept = strip(text);
  const size_t first = kept.empty() ? 0 : text.find(kept.front());
  FilledText result{kept};
  for (const auto& [begin, end] : written) {
    const size_t from = std::max(begin, first) - first;
    const size_t to = std::min(std::max(end, first) - first, kept.size());
    if (from < to) {
      result.written.push_back({from, to});
    }
  }
  return result;
}

}  // namespace moe::data
