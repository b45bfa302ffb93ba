#include "core/data/sources.h"

#include <charconv>
#include <cmath>
#include <optional>

#include "core/base/error.h"

namespace moe::data {

namespace {

// The number that is all of `text`, if it is one.
std::optional<double> number_of(std::string_view text) {
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
  const std::optional<double> weight = number_of(std::string_view(word).substr(colon + 1));
  if (!weight) {
    return {word};  // the reader will say that there is no such file
  }
  if (!std::isfinite(*weight) || *weight <= 0) {
    throw UserError("--data {}: the weight after the colon must be a positive number", word);
  }
  return {word.substr(0, colon), *weight};
}

}  // namespace

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

}  // namespace moe::data
