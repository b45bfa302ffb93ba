#include "core/data/example_set.h"

#include <charconv>
#include <cmath>
#include <optional>
#include <string_view>
#include <utility>

#include "core/base/error.h"
#include "core/base/text.h"

namespace moe::data {

namespace {

// Returns `text` as a number; 0 if it is out of range, nothing if it is none.
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

class MemoryStore : public ExampleStore {
 public:
  explicit MemoryStore(std::vector<Example> items) : items_(std::move(items)) {}

  int64_t size() const override { return static_cast<int64_t>(items_.size()); }
  int64_t length(int64_t index) const override {
    return static_cast<int64_t>(item(index).ids.size());
  }
  int64_t line(int64_t index) const override { return item(index).line; }
  void add_ids(int64_t index, int64_t begin, int64_t end,
               std::vector<int64_t>& ids) const override {
    const auto& from = item(index).ids;
    ids.insert(ids.end(), from.begin() + begin, from.begin() + end);
  }
  void add_labels(int64_t index, int64_t begin, int64_t end,
                  std::vector<int32_t>& labels) const override {
    const auto& from = item(index).labels;
    labels.insert(labels.end(), from.begin() + begin, from.begin() + end);
  }

 private:
  const Example& item(int64_t index) const { return items_.at(static_cast<size_t>(index)); }
  std::vector<Example> items_;
};

constexpr size_t kMaxPieceBytes = 200;

struct Marks {
  const char *open, *close;
};
constexpr Marks kColour = {"\033[32m", "\033[0m"};
constexpr Marks kBrackets = {"\u27E6", "\u27E7"};

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

Examples Examples::in_memory(std::vector<Example> items, std::vector<std::string> files) {
  Examples examples;
  examples.ranges.resize(files.size());
  for (size_t index = 0; index < items.size(); ++index) {
    FileRange& range = examples.ranges.at(static_cast<size_t>(items[index].file));
    if (range.count++ == 0) {
      range.begin = static_cast<int64_t>(index);
    }
    range.tokens += static_cast<int64_t>(items[index].ids.size());
  }
  examples.files = std::move(files);
  examples.store = std::make_shared<MemoryStore>(std::move(items));
  return examples;
}

int64_t Examples::tokens() const {
  int64_t total = 0;
  for (const auto& range : ranges) {
    total += range.tokens;
  }
  return total;
}

size_t Examples::file_of(int64_t index) const {
  size_t file = 0;
  while (file + 1 < ranges.size() && index >= ranges[file].begin + ranges[file].count) {
    ++file;
  }
  return file;
}

Example Examples::at(int64_t index) const {
  MOE_CHECK(index >= 0 && index < size(), "{} of {}", index, size());
  const int64_t count = length(index);
  std::vector<int64_t> ids;
  Example example;
  store->add_ids(index, 0, count, ids);
  example.ids.assign(ids.begin(), ids.end());
  store->add_labels(index, 0, count, example.labels);
  example.file = static_cast<int32_t>(file_of(index));
  example.line = store->line(index);
  return example;
}

std::string Examples::where(int64_t index) const {
  return fmt::format("{} line {}", files.at(file_of(index)), store->line(index));
}

std::string show_example(const Example& example, const std::string& where,
                         const std::function<std::string(int64_t)>& piece, bool colour) {
  const Marks& marks = colour ? kColour : kBrackets;
  std::string tokens;
  size_t learned = 0;
  for (size_t t = 0; t < example.ids.size(); ++t) {
    const bool with_loss = carries_loss(example, t);
    learned += with_loss ? 1 : 0;
    tokens += t == 0 ? "" : " ";
    tokens += with_loss && !carries_loss(example, t - 1) ? marks.open : "";
    tokens += printable_line(piece(example.ids[t]), kMaxPieceBytes);
    if (with_loss && example.labels[t] != example.ids[t]) {
      tokens += "\u2192" + printable_line(piece(example.labels[t]), kMaxPieceBytes);
    }
    tokens += with_loss && !carries_loss(example, t + 1) ? marks.close : "";
  }
  return fmt::format("{}: {} tokens, {} with loss\n{}\n", printable_line(where, 4096),
                     example.ids.size(), learned, tokens);
}

}  // namespace moe::data
