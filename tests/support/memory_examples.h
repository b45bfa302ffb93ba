#pragma once
// Examples in memory, in place of a file of tokens.

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/data/examples.h"

namespace moe::test {

class MemoryStore : public data::ExampleStore {
 public:
  explicit MemoryStore(std::vector<data::Example> items) : items_(std::move(items)) {}

  int64_t size() const override { return static_cast<int64_t>(items_.size()); }
  int64_t length(int64_t index) const override {
    return static_cast<int64_t>(item(index).ids.size());
  }
  int64_t line(int64_t index) const override { return item(index).line; }
  void append(int64_t index, int64_t begin, int64_t end, std::vector<int64_t>& ids,
              std::vector<int32_t>& labels) const override {
    const data::Example& from = item(index);
    ids.insert(ids.end(), from.ids.begin() + begin, from.ids.begin() + end);
    labels.insert(labels.end(), from.labels.begin() + begin, from.labels.begin() + end);
  }

 private:
  const data::Example& item(int64_t index) const { return items_.at(static_cast<size_t>(index)); }
  std::vector<data::Example> items_;
};

// Example::file indexes `files`.
inline data::Examples in_memory(std::vector<data::Example> items, std::vector<std::string> files) {
  data::Examples examples;
  examples.ranges.resize(files.size());
  for (size_t index = 0; index < items.size(); ++index) {
    data::FileRange& range = examples.ranges.at(static_cast<size_t>(items[index].file));
    if (range.count++ == 0) {
      range.begin = static_cast<int64_t>(index);
    }
    range.tokens += static_cast<int64_t>(items[index].ids.size());
  }
  examples.files = std::move(files);
  examples.store = std::make_shared<MemoryStore>(std::move(items));
  return examples;
}

inline data::Examples read_examples(const std::vector<data::Source>& sources,
                                    const data::ReadSettings& settings, int64_t vocab_size,
                                    const std::function<data::TextCodec()>& codec) {
  std::vector<data::Example> items;
  const auto add = [&](data::Example&& example) { items.push_back(std::move(example)); };
  const auto forms = data::stream_examples(sources, settings, vocab_size, codec, add);
  data::Examples examples = in_memory(std::move(items), std::vector<std::string>(sources.size()));
  data::describe_sources(sources, forms, examples);
  return examples;
}

}  // namespace moe::test
