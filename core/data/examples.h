#pragma once
// Data files -> token examples. The form of a file is told from its first record and holds for the
// whole file:
//
//   Alpaca          {"instruction", "input", "output"}     instruct = instruction + ("\n" + input,
//   when there is one) + "\n" prompt pairs    {"prompt", "response"} or {"prompt", "completion"}
//   instruct = prompt, as it stands rows            {"input_ids": [...], "labels": [...]} tokens as
//   given, -100 = no loss text            plain text, one document a file or between lines
//   `<|endoftext|>`; JSON {"text"}
//
// each as JSON lines or as one JSON array; unknown keys are ignored. With the objective `instruct`
// an example is BOS instruct response EOS and the loss falls on response and EOS (SPEC section 11,
// D19); with `lm` it is BOS text EOS and the loss falls on all but BOS. Rows go with both.
//
// Instruct and response are encoded separately and joined as ids, so the boundary between them is
// exact whatever the tokenizer would merge across it. sentencepiece puts its dummy space before
// each of the two: what the model sees is the text instruct + " " + response, so the continuation
// to score after the context `instruct` is " " + response.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace moe::data {

inline constexpr int32_t kNoLoss = -100;  // the label that transformers ignores

enum class Objective { kInstruct, kLm };

struct Example {
  std::vector<int32_t> ids;
  std::vector<int32_t>
      labels;        // as long as ids; labels[t] is what to predict at t (not shifted), or kNoLoss
  int32_t file = 0;  // index into Examples::files
  int64_t line = 0;  // where its record starts
};

struct Examples {
  std::vector<Example> items;  // in file order; never empty after read_examples
  std::vector<std::string> files;
  bool all_rows = true;  // every example came pre-tokenised
  int64_t tokens() const;
  std::string where(const Example& example) const;  // "FILE line N", for messages
};

// How text becomes ids. `encode` adds neither BOS nor EOS.
struct TextCodec {
  std::function<std::vector<int64_t>(std::string_view)> encode;
  int64_t bos = -1, eos = -1;
};

// Reads all files. `codec` is called once, when the first text is met, so rows need no tokenizer.
// UserError naming file and line: broken JSON, a missing field or one of the wrong type, mixed
// forms, an unknown form, no response, nothing to learn from, ids outside [0, vocab_size), labels
// of another length, invalid UTF-8, an empty file, a form that does not fit the objective.
Examples read_examples(const std::vector<std::filesystem::path>& files,
                       Objective objective,
                       int64_t vocab_size,
                       const std::function<TextCodec()>& codec);

}  // namespace moe::data
