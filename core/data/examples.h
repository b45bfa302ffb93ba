#pragma once
// Data files -> token examples (core/io/formats.md, "Training data"). The first record decides the
// format of a file. Prompt and response are encoded separately, so no token spans the two
// (Template::encode()).

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

enum class LossOn { kAll, kLast };  // the responses of a conversation that carry loss

enum class BadRecords { kError, kSkip };
enum class Overlong { kError, kDrop, kTruncate };  // examples of more than max_tokens

// A record that cannot be used.
struct BadRecord {
  std::string message;
  Record record;
};

struct ReadSettings {
  Objective objective = Objective::kInstruct;
  std::optional<Format> format;  // none: that of each file's first record
  Template text_template;        // paper
  LossOn loss_on = LossOn::kAll;
  int64_t max_per_file = 0;  // records to read of each file; 0: all
  int threads = 1;           // the result does not depend on it
  Pipes pipes = Pipes::kRefused;
  Columns columns = {};
  BadRecords bad_records = BadRecords::kError;
  Overlong overlong = Overlong::kError;
  int64_t max_tokens = 0;  // for kDrop and kTruncate
  std::function<void(const BadRecord&)> on_bad = [](const BadRecord&) {};  // may throw
};

// Format and packing of a file, and statistics of its records.
struct FileForm {
  Format format = Format::kText;
  Packing packing = Packing::kNone;
  std::map<std::string, int64_t> unused_keys = {};  // key -> number of records with it
  std::map<std::string, int64_t> remarks = {};      // remark -> number of occurrences
  bool has_notes() const { return !unused_keys.empty() || !remarks.empty(); }
  std::string summary() const;  // "Alpaca records, gzip; not used: 'rank' of 12 records"
};

// Reads all files and calls `sink` with their examples in file order. Only a few records per thread
// are in memory at a time. Calls `codec` once, before the first text is encoded (rows need no
// tokenizer); all threads use the result. Passes invalid records, those of another format and those
// without targets to `on_bad`; with BadRecords::kError throws UserError at the end with their
// number and the first five messages. Throws UserError for a format that does not fit the
// objective.
std::vector<FileForm> stream_examples(const std::vector<Source>& sources,
                                      const ReadSettings& settings, int64_t vocab_size,
                                      const std::function<TextCodec()>& codec,
                                      const std::function<void(Example&&)>& sink);

// Sets files, forms, weights and all_rows of `examples` from the result of stream_examples(). The
// caller sets the store.
void describe_sources(const std::vector<Source>& sources, const std::vector<FileForm>& forms,
                      Examples& examples);

}  // namespace moe::data
