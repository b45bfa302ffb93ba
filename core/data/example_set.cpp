#include "core/data/example_set.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>
#include <optional>
#include <string_view>
#include <utility>

#include "core/base/error.h"
#include "core/base/text.h"

namespace moe::data {

namespace {

// Returns `text` as a number, 0 if it is out of range, or nullopt if it is no number.
std::optional<double> parse_weight(std::string_view text) {
  double value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool is_number =
      result.ec != std::errc::invalid_argument && result.ptr == text.data() + text.size();
  return is_number ? std::optional(result.ec == std::errc() ? value : 0) : std::nullopt;
}

Source parse_source(const std::string& word) {
  const size_t colon = word.rfind(':');
  if (colon == std::string::npos || std::filesystem::exists(word)) {
    return {word};
  }
  const std::optional<double> weight = parse_weight(std::string_view(word).substr(colon + 1));
  if (!weight) {
    return {word};  // reading it fails with "no such file"
  }
  USER_ERROR_IF(!std::isfinite(*weight) || *weight <= 0,
                "--data {}: the weight after the colon must be a positive number", word);
  return {word.substr(0, colon), *weight};
}

constexpr size_t kMaxPieceBytes = 200;

std::string printable_line(const std::string& text, size_t max_bytes) {
  return terminal_line(printable(text, max_bytes));
}

}  // namespace

bool carries_loss(const Example& example, size_t position) {
  return position > 0 && position < example.labels.size() && example.labels[position] != kNoLoss;
}

std::vector<Source> parse_sources(const std::vector<std::filesystem::path>& words) {
  std::vector<Source> sources;
  for (const auto& word : words) {
    sources.push_back(parse_source(word.string()));
  }
  for (const auto& source : sources) {
    if ((source.weight > 0) != (sources.front().weight > 0)) {
      const auto& without = source.weight > 0 ? sources.front() : source;
      throw UserError("--data {}: has no weight, others have; give every file one, or none",
                      without.file.string());
    }
  }
  return sources;
}

int64_t Examples::tokens() const {
  const auto add = [](int64_t total, const FileRange& range) { return total + range.tokens; };
  return std::accumulate(ranges.begin(), ranges.end(), int64_t{0}, add);
}

size_t Examples::file_index(int64_t index) const {
  const auto is_behind = [&](const FileRange& range) { return index < range.begin + range.count; };
  return static_cast<size_t>(std::ranges::find_if(ranges, is_behind) - ranges.begin());
}

Example Examples::at(int64_t index) const {
  MOE_CHECK(index >= 0 && index < size(), "{} of {}", index, size());
  std::vector<int64_t> ids;
  Example example;
  store->append(index, 0, length(index), ids, example.labels);
  example.ids.assign(ids.begin(), ids.end());
  example.file = static_cast<int32_t>(file_index(index));
  example.line = store->line(index);
  return example;
}

std::string Examples::where(int64_t index) const {
  return fmt::format("{} line {}", files.at(file_index(index)), store->line(index));
}

void FirstMessages::add(const std::string& message) {
  if (++count <= 5) {
    messages.push_back(message);
  }
}

std::string FirstMessages::text() const {
  return fmt::format("{}{}", fmt::join(messages, "; "), count > 5 ? "; ..." : "");
}

std::string show_example(const Example& example, const std::string& where,
                         const std::function<std::string(int64_t)>& piece, bool use_color) {
  const auto [open, close] = use_color ? std::pair("\033[32m", "\033[0m")  // green
                                       : std::pair("\u27E6", "\u27E7");
  std::string tokens;
  size_t learned = 0;
  for (size_t t = 0; t < example.ids.size(); ++t) {
    const bool with_loss = carries_loss(example, t);
    learned += with_loss ? 1 : 0;
    tokens += t == 0 ? "" : " ";
    tokens += with_loss && !carries_loss(example, t - 1) ? open : "";
    tokens += printable_line(piece(example.ids[t]), kMaxPieceBytes);
    if (with_loss && example.labels[t] != example.ids[t]) {
      tokens += "\u2192" + printable_line(piece(example.labels[t]), kMaxPieceBytes);
    }
    tokens += with_loss && !carries_loss(example, t + 1) ? close : "";
  }
  return fmt::format("{}: {} tokens, {} with loss\n{}\n", printable_line(where, 4096),
                     example.ids.size(), learned, tokens);
}

}  // namespace moe::data
