#pragma once
// The benchmarks' own files, one reader a format: file -> documents, checked, in the field names
// (and with the changes to the text) of the data set that lm-evaluation-harness loads.

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/json.h"

namespace moe::eval {

struct Document {
  OrderedJson fields;
  std::string where;  // file and line, for messages
};
using Files = std::vector<std::filesystem::path>;

// {"label": "a".."d", "context", "question", "options": [4]}. Files: Test.txt. Eight lines a
// problem: blank, letter, context, question, four options that begin with "A." to
// "D." (the two characters are cut off unread, as the harness does). The harness's loader puts a
// space after every full stop: so do we.
std::vector<Document> read_logiqa(const Files& files);

// {"id", "question", "choices": {"text": [..], "label": [..]}, "answerKey"}; the answerKey is among
// the labels.
std::vector<Document> read_arc(const Files& files);

// {"goal", "sol1", "sol2", "label": 0|1}. Files: valid.jsonl, valid-labels.lst with one label a
// line.
std::vector<Document> read_piqa(const Files& files);

// The authors' fields in the Hub's order and "query", "choices", "gold" as the harness's
// process_docs adds them.
std::vector<Document> read_hellaswag(const Files& files);
std::string preprocess_hellaswag(std::string_view text);  // the harness's function of that name

// One's own quiz: {"question" | "context", "choices": [2 or more], "answer", "gold"}. `answer` may
// be the index of a choice from 0, its whole text, or its letter (A is the first); text wins over
// letter. A string "source" is kept.
std::vector<Document> read_quiz(const Files& files);

// The strings of the array `key`; UserError when it is missing, no array or holds anything but
// strings.
std::vector<std::string> get_strings(const Json& json,
                                     const std::string& key,
                                     const std::string& where);

}  // namespace moe::eval
