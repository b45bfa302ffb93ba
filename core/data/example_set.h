#pragma once
// The examples of a run: the data files that they come from, and an interface to their tokens,
// which are in a mapped file (core/data/token_cache.h) that may be larger than memory.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace moe::data {

// A data file of --data (`a.jsonl:0.7`). Without weights an epoch has every example of all files
// once. Weights are the relative shares of the files in the examples that an epoch draws (class
// Mixture).
struct Source {
  std::filesystem::path file;
  double weight = 0;  // 0: none given
};

// Parses the values of --data. A path that exists is not split into file and weight. Throws
// UserError if only some files have a weight, or if a weight is not a positive number.
std::vector<Source> parse_sources(const std::vector<std::filesystem::path>& words);

inline constexpr int32_t kNoLoss = -100;  // the label that transformers ignores

struct Example {
  std::vector<int32_t> ids;     // [S]
  std::vector<int32_t> labels;  // [S], the target at each position (not shifted), or kNoLoss
  int32_t file = 0;             // index into Examples::files
  int64_t line = 0;             // where its record begins
};

// Returns true if the loss includes the prediction of token `position` from the tokens before it.
bool carries_loss(const Example& example, size_t position);

// Examples 0..size()-1 in file order. Immutable; safe to read from several threads.
class ExampleStore {
 public:
  virtual ~ExampleStore() = default;
  virtual int64_t size() const = 0;
  virtual int64_t length(int64_t index) const = 0;  // tokens, at least one
  virtual int64_t line(int64_t index) const = 0;
  // Appends the ids and labels of tokens begin..end-1 of an example.
  virtual void append(int64_t index, int64_t begin, int64_t end, std::vector<int64_t>& ids,
                      std::vector<int32_t>& labels) const = 0;
};

// The examples begin..begin+count-1 of a file.
struct FileRange {
  int64_t begin = 0, count = 0, tokens = 0;
};

struct Examples {
  std::shared_ptr<const ExampleStore> store;  // null: no examples
  std::vector<std::string> files;
  std::vector<std::string> forms;  // one a file: "Alpaca records, gzip"
  std::vector<FileRange> ranges;   // one a file
  std::vector<double> weights;     // one a file, > 0; empty: the files are joined
  bool all_rows = true;            // all files hold token rows

  int64_t size() const { return store == nullptr ? 0 : store->size(); }
  int64_t length(int64_t index) const { return store->length(index); }
  int64_t tokens() const;
  size_t file_index(int64_t index) const;
  Example at(int64_t index) const;
  std::string where(int64_t index) const;  // "FILE line N", for messages
};

// The number of messages and the first five of them.
struct FirstMessages {
  int64_t count = 0;
  std::vector<std::string> messages = {};
  void add(const std::string& message);
  std::string text() const;  // "A; B; ..."
};

// Returns a line with `where` and counts, then the tokens of an example as `piece` names them
// ("▁Say", "<0x0A>", "</s>"). Runs of tokens that carry loss are green, or within ⟦ and ⟧ without
// `use_color`. A token with another label is written as "a→b". The result is safe to print.
std::string show_example(const Example& example, const std::string& where,
                         const std::function<std::string(int64_t)>& piece, bool use_color);

}  // namespace moe::data
