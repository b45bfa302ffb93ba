#pragma once
// Data files -> token examples (core/io/formats.md, "Training data"). The form of a file is told
// from its first record and holds for the whole file. Prompt and response are encoded separately
// and their ids joined, so no token spans the two (Template::encode()).

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/data/example_set.h"
#include "core/data/formats.h"
#include "core/data/records.h"
#include "core/data/templates.h"
#include "core/data/text_codec.h"

namespace moe::data {

enum class LossOn { kAll, kLast };  // responses of a conversation

struct ReadSettings {
  Objective objective = Objective::kInstruct;
  std::optional<Format> format;  // none: told from each file's first record
  Template text_template;        // paper
  LossOn loss_on = LossOn::kAll;
  int64_t max_per_file = 0;  // stop reading a file after that many records; 0 = never
  int threads = 1;           // that make examples; the result does not depend on it
  Pipes pipes = Pipes::kRefused;
};

// The form and packing that a file was found to have.
struct FileForm {
  Format format = Format::kText;
  Packing packing = Packing::kNone;
  std::map<std::string, int64_t> unused_keys = {};  // and the number of records that have each
  std::map<std::string, int64_t> remarks = {};      // and how often each was made
  bool has_notes() const { return !unused_keys.empty() || !remarks.empty(); }
  std::string words() const;  // "Alpaca records, gzip; not used: 'rank' of 12 records"
};

// Reads all files and calls `sink` with their examples in file order. A few records per thread are
// in memory at a time. `codec` is called once, for the first text, so rows need no tokenizer; its
// result is used by all threads. Throws UserError naming file and line for an invalid record, mixed
// forms, nothing to learn from, and a form that does not fit the objective.
std::vector<FileForm> stream_examples(const std::vector<Source>& sources,
                                      const ReadSettings& settings, int64_t vocab_size,
                                      const std::function<TextCodec()>& codec,
                                      const std::function<void(Example&&)>& sink);

// Sets files, forms, weights and all_rows of `examples` from what stream_examples() returned; the
// caller sets the store.
void describe_sources(const std::vector<Source>& sources, const std::vector<FileForm>& forms,
                      Examples& examples);

// Returns all examples in memory.
Examples read_examples(const std::vector<Source>& sources, const ReadSettings& settings,
                       int64_t vocab_size, const std::function<TextCodec()>& codec);

}  // namespace moe::data
