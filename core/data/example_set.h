#pragma once
// The examples of a run: the data files they come from, and their tokens behind one interface, in
// memory or in a mapped file (core/data/token_cache.h) that may be larger than memory.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace moe::data {

// A data file of --data (`a.jsonl:0.7`). Without weights the files are joined: an epoch is every
// example once. With weights they are mixed (class Mixture): weights are relative shares of the
// examples that an epoch draws.
struct Source {
  std::filesystem::path file;
  double weight = 0;  // 0 = none given
};

// Parses the words of --data. A path that exists is not split into file and weight. Throws
// UserError if some files only have a weight, or if a weight is no positive number.
std::vector<Source> parse_sources(const std::vector<std::filesystem::path>& words);

inline constexpr int32_t kNoLoss = -100;  // the label that transformers ignores

struct Example {
  std::vector<int32_t> ids;     // [S]
  std::vector<int32_t> labels;  // [S], the target at each position (not shifted), or kNoLoss
  int32_t file = 0;             // index into Examples::files
  int64_t line = 0;             // of the first byte of its record
};

// Returns true if the prediction of token `position` from those before it is part of the loss.
bool carries_loss(const Example& example, size_t position);

// Examples 0..size()-1 in file order. Tokens are copied out, so a store may pack them. Immutable
// once it is read from; then safe to read from several threads.
class ExampleStore {
 public:
  virtual ~ExampleStore() = default;
  virtual int64_t size() const = 0;
  virtual int64_t length(int64_t index) const = 0;  // tokens, at least one
  virtual int64_t line(int64_t index) const = 0;
  // Append tokens begin..end-1 of an example, and their labels.
  virtual void add_ids(int64_t index, int64_t begin, int64_t end,
                       std::vector<int64_t>& ids) const = 0;
  virtual void add_labels(int64_t index, int64_t begin, int64_t end,
                          std::vector<int32_t>& labels) const = 0;
};

// The examples begin..begin+count-1 of a file.
struct FileRange {
  int64_t begin = 0, count = 0, tokens = 0;
};

struct Examples {
  std::shared_ptr<const ExampleStore> store;  // null: none
  std::vector<std::string> files;
  std::vector<std::string> forms;  // one a file: "Alpaca records, gzip"
  std::vector<FileRange> ranges;   // one a file
  std::vector<double> weights;     // one a file, > 0; empty: the files are joined
  bool all_rows = true;            // every example came pre-tokenised

  // Returns examples in memory; Example::file indexes `files`.
  static Examples in_memory(std::vector<Example> items, std::vector<std::string> files);

  int64_t size() const { return store == nullptr ? 0 : store->size(); }
  int64_t length(int64_t index) const { return store->length(index); }
  int64_t tokens() const;
  size_t file_of(int64_t index) const;
  Example at(int64_t index) const;         // a copy
  std::string where(int64_t index) const;  // "FILE line N", for messages
};

// Returns the tokens of an example as `piece` names them ("▁Say", "<0x0A>", "</s>"), after a line
// with `where` and counts. Tokens that carry loss are green with `colour`, else each run of them is
// in ⟦ and ⟧; a token with another label is shown as "a→b". The result is safe to print.
std::string show_example(const Example& example, const std::string& where,
                         const std::function<std::string(int64_t)>& piece, bool colour);

}  // namespace moe::data
