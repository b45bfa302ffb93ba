#pragma once
// The examples of a run, and the one interface behind which their tokens are kept: a plain vector
// (here, the obvious one) or a mapped file (core/data/token_file.h), which holds a data set that is
// larger than memory. Tokens are copied out piece by piece, so that a store may pack them as it
// likes.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace moe::data {

inline constexpr int32_t kNoLoss = -100;  // the label that transformers ignores

struct Example {
  std::vector<int32_t> ids;
  std::vector<int32_t>
      labels;        // as long as ids; labels[t] is what to predict at t (not shifted), or kNoLoss
  int32_t file = 0;  // index into Examples::files
  int64_t line = 0;  // where its record starts
};

// Examples 0..size()-1 in file order. A store does not change once it is read from, and may then be
// read by several threads.
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

// Where a file's examples stand: begin..begin+count-1.
struct FileRange {
  int64_t begin = 0, count = 0, tokens = 0;
};

struct Examples {
  std::shared_ptr<const ExampleStore> store;  // null: none
  std::vector<std::string> files;
  // What was found, one a file: "Alpaca records, gzip".
  std::vector<std::string> forms;
  std::vector<FileRange> ranges;  // one a file
  std::vector<double>
      weights;           // one a file, > 0; empty = the files are joined (core/data/mixture.h)
  bool all_rows = true;  // every example came pre-tokenised

  // Of examples that are in memory; `files` are what Example::file counts.
  static Examples in_memory(std::vector<Example> items, std::vector<std::string> files);

  int64_t size() const { return store == nullptr ? 0 : store->size(); }
  int64_t length(int64_t index) const { return store->length(index); }
  int64_t tokens() const;
  size_t file_of(int64_t index) const;
  Example at(int64_t index) const;         // a copy
  std::string where(int64_t index) const;  // "FILE line N", for messages
};

}  // namespace moe::data
