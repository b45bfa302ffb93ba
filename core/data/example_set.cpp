#include "core/data/example_set.h"

#include "core/base/error.h"

namespace moe::data {

namespace {

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

}  // namespace

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

}  // namespace moe::data
