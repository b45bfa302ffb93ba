#pragma once
// Data files -> token examples. The form of a file is told from its first record and holds for the
// whole file: the table in core/io/formats.md lists them. JSON records stand in lines or in one
// array; unknown keys are ignored; gzip and zstd are unpacked on the way.
//
// With the objective `instruct` an example is BOS prompt response EOS, turn after turn, as a
// template (core/data/templates.h) makes them; the loss falls on every response and its EOS, or on
// the last alone (core/train/README.md). With `lm` it is BOS text EOS and the loss falls on all but
// BOS. Rows ({"input_ids", "labels"}, -100 = no loss) are taken as they are and go with both.
//
// Prompt and response are encoded separately and joined as ids, so the boundary between them is
// exact whatever the tokenizer would merge across it. sentencepiece puts its dummy space before
// each of the two: what the model sees is the text prompt + " " + response, so the continuation
// to score after the context `prompt` is " " + response. A template that has a space there
// (`[/INST] A`) means this one: it is left to the tokenizer, and stands once.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/data/compressed.h"
#include "core/data/example_set.h"
#include "core/data/formats.h"
#include "core/data/sources.h"
#include "core/data/templates.h"
#include "core/data/text_codec.h"

namespace moe::data {

enum class LossOn { kAll, kLast };  // responses of a conversation

struct ReadSettings {
  Objective objective = Objective::kInstruct;
  std::optional<Format> format;  // open: told from each file's first record
  Template text_template;        // papers'
  LossOn loss_on = LossOn::kAll;
  int64_t most_per_file = 0;  // stop reading a file there; 0 = never
  int threads = 1;            // that make examples; changes neither them nor their order
};

// What a file was found to be.
struct FileForm {
  Format format = Format::kText;
  Packing packing = Packing::kNone;
  std::string words() const;  // "Alpaca records, gzip"
};

// Reads all files and gives their examples to `sink` in file order, one after the other; of a data
// set only a few records a thread are in memory at a time. `codec` is called once, when the first
// text is met, so rows need no tokenizer; what it gives is used by all threads.
// UserError naming file and line: broken JSON, a missing field or one of the wrong type, mixed
// forms, an unknown form, an unknown role, turns that do not alternate, no response, nothing to
// learn from, ids outside [0, vocab_size), labels of another length, invalid UTF-8, an empty file,
// packed data that are cut short, a form that does not fit the objective.
std::vector<FileForm> stream_examples(const std::vector<Source>& sources,
                                      const ReadSettings& settings, int64_t vocab_size,
                                      const std::function<TextCodec()>& codec,
                                      const std::function<void(Example&&)>& sink);

// Names, forms and weights of what stream_examples read of `sources`; the store is the caller's.
void describe_sources(const std::vector<Source>& sources, const std::vector<FileForm>& forms,
                      Examples& examples);

// All of it in memory.
Examples read_examples(const std::vector<Source>& sources, const ReadSettings& settings,
                       int64_t vocab_size, const std::function<TextCodec()>& codec);

// The same with no weights and all else at its default.
Examples read_examples(const std::vector<std::filesystem::path>& files, Objective objective,
                       int64_t vocab_size, const std::function<TextCodec()>& codec);

}  // namespace moe::data
