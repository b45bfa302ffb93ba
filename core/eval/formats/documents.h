#pragma once
// Readers of the benchmarks' original files, one per format. A reader checks a file and returns its
// documents, with the fields and texts of the Hub data set that lm-evaluation-harness loads. Throws
// UserError with file and line if a record is invalid.

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/base/json.h"

namespace moe::eval {

struct Document {
  OrderedJson fields;
  std::string where;  // file and line (or entry), for messages
};
using Files = std::vector<std::filesystem::path>;

// The first documents of a file.
struct FirstDocuments {
  std::vector<Document> documents;
  int64_t total = 0;  // number of documents in the whole file
};
inline constexpr int64_t kAllDocuments = std::numeric_limits<int64_t>::max();

// Returns make(record) of the first `limit` records. Counts the other records without parsing them.
// `Records` is JsonLinesReader or CsvReader.
template <typename Records, typename Make>
FirstDocuments first_documents(Records records, int64_t limit, const Make& make) {
  FirstDocuments first;
  for (; first.total < limit; ++first.total) {
    const auto record = records.next();
    if (!record) {
      return first;
    }
    first.documents.push_back(make(*record));
  }
  first.total += records.count_rest();
  return first;
}

// Type-erased reader with a limit, made from any of the readers below. If the reader takes no
// limit, all documents are read and those after the limit removed.
class DocumentReader {
 public:
  template <typename Read>
  DocumentReader(Read read) {  // not explicit: converts any reader function
    if constexpr (std::is_invocable_v<const Read&, const Files&, int64_t>) {
      read_ = std::move(read);
    } else {
      read_ = [read = std::move(read)](const Files& files, int64_t limit) {
        std::vector<Document> documents = read(files);
        const auto total = static_cast<int64_t>(documents.size());
        documents.resize(static_cast<size_t>(std::min(total, limit)));
        return FirstDocuments{std::move(documents), total};
      };
    }
  }

  FirstDocuments operator()(const Files& files, int64_t limit) const { return read_(files, limit); }

 private:
  std::function<FirstDocuments(const Files&, int64_t)> read_;
};

// The following comments give the fields of a document, then the format of the files.

// {"label": "a".."d", "context", "question", "options": [4]}. File: Test.txt, eight lines per
// problem: blank, letter, context, question, four options that begin with "A." to "D.". As in the
// harness, removes the first two characters of an option without a check and inserts a space after
// every full stop.
std::vector<Document> read_logiqa(const Files& files);

// {"id", "question", "choices": {"text": [..], "label": [..]}, "answerKey"}; "answerKey" is one of
// the labels. CommonsenseQA also has "question_concept" after "question". File: JSON lines.
std::vector<Document> read_arc(const Files& files);
std::vector<Document> read_commonsense_qa(const Files& files);

// {"id", "question_stem", "choices": {..}, "answerKey"}. File: tab-separated with a header; columns
// are id, stem, choices as "(A) .. (B) ..", stem and choices as one text, key.
std::vector<Document> read_openbookqa(const Files& files);

// {"goal", "sol1", "sol2", "label": 0|1}. Files: valid.jsonl, and valid-labels.lst with one label
// per line.
std::vector<Document> read_piqa(const Files& files);

// The fields of the authors' files, in the order of the Hub data set. File: JSON lines.
std::vector<Document> read_hellaswag(const Files& files);
// The harness's process_docs(): adds "query", "choices" and "gold".
void process_hellaswag(OrderedJson& fields);
// The harness's preprocess(): removes WikiHow's markup.
std::string preprocess_hellaswag(std::string_view text);

// {"question", "subject", "choices": [4], "answer": 0..3}. File: CSV without a header; columns are
// question, four choices, letter. The subject is the file name up to its last underscore.
std::vector<Document> read_mmlu(const Files& files);

// {"question", "mc1_targets": {"choices", "labels"}, "mc2_targets": {..}}. File: mc_task.json, an
// array.
std::vector<Document> read_truthfulqa(const Files& files);

// {"input", "target"}. File: {"examples": [..]}.
std::vector<Document> read_bbh(const Files& files);
// {"input", "target"}: the question, and the text after "So the answer is". File:
// cot-prompts/TASK.txt of BIG-Bench-Hard.
std::vector<Document> read_bbh_prompts(const Files& files);

// SuperGLUE's nested files, flattened. MultiRC: {"paragraph", "question", "answer", "idx", "label"}
// per answer. ReCoRD: {"passage", "query", "entities", "answers", "idx"} per query; entities and
// answers are sorted without duplicates. WSC: the fields of the Hub's "wsc.fixed".
std::vector<Document> read_multirc(const Files& files);
std::vector<Document> read_record(const Files& files);
std::vector<Document> read_wsc(const Files& files);

// {"sentence", "option1", "option2", "answer": "1"|"2"}; "_" in the sentence is the blank. File:
// the authors' JSON lines, or llm-foundry's {"context_options", "continuation", "gold"}, whose
// context options are split at the last space of their common prefix.
std::vector<Document> read_winogrande(const Files& files);

// {"text"}. read_lambada(): OpenAI's {"text"} lines or llm-foundry's {"context", "continuation"}
// lines. read_lambada_text(): the authors' plain text, one passage per line.
std::vector<Document> read_lambada(const Files& files);
std::vector<Document> read_lambada_text(const Files& files);

// {"question" | "context", "choices", "answer", "gold", "source"}; "source" only if the record has
// it. File: a user's JSON lines with "question" or "context", two or more "choices", "answer", and
// optionally "source". "answer" is the index of a choice from 0, its text, or its letter (A is the
// first); a text takes precedence over a letter. "gold" is the index.
FirstDocuments read_quiz(const Files& files, int64_t limit = kAllDocuments);

}  // namespace moe::eval
