#pragma once
// Readers of the benchmarks' own files, one per format. A reader checks a file and returns its
// documents, with the fields (and changes to the text) of the Hub data set that
// lm-evaluation-harness loads. Readers throw UserError with file and line for a broken record.

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

// The first documents of a file. The documents after them are counted, not parsed.
struct FirstDocuments {
  std::vector<Document> documents;
  int64_t total = 0;  // in the file
};
inline constexpr int64_t kAllDocuments = std::numeric_limits<int64_t>::max();

// Reads `limit` records of `records`, which has next() and count_rest() as JsonLinesReader and
// CsvReader, and makes a document of each by `make`. Only counts the records after them.
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

// Any of the readers below: one that takes a limit, or one that reads all documents of the files.
class DocumentReader {
 public:
  template <typename Read>
  DocumentReader(Read read) {  // implicit: tables list plain functions
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

// {"label": "a".."d", "context", "question", "options": [4]}. File: Test.txt, eight lines per
// problem: blank, letter, context, question, four options that begin with "A." to "D.". The first
// two characters of an option are cut off unchecked, and a space is inserted after every full stop,
// as in the harness.
std::vector<Document> read_logiqa(const Files& files);

// {"id", "question", "choices": {"text": [..], "label": [..]}, "answerKey"}; answerKey is one of
// the labels. CommonsenseQA has "question_concept" after "question".
std::vector<Document> read_arc(const Files& files);
std::vector<Document> read_commonsense_qa(const Files& files);

// {"id", "question_stem", "choices": {..}, "answerKey"}. File: tab-separated with a header: id,
// stem, choices as "(A) .. (B) ..", stem and choices in one text, key.
std::vector<Document> read_openbookqa(const Files& files);

// {"goal", "sol1", "sol2", "label": 0|1}. Files: valid.jsonl, and valid-labels.lst with one label
// per line.
std::vector<Document> read_piqa(const Files& files);

// The authors' fields in the Hub's order. process_hellaswag() adds "query", "choices" and "gold" as
// the harness's process_docs does.
std::vector<Document> read_hellaswag(const Files& files);
void process_hellaswag(OrderedJson& fields);
std::string preprocess_hellaswag(std::string_view text);  // the harness's preprocess()

// {"question", "subject", "choices": [4], "answer": 0..3}. File: CSV without a header: question,
// four choices, letter. The subject is the file's name up to its last underscore.
std::vector<Document> read_mmlu(const Files& files);

// {"question", "mc1_targets": {"choices", "labels"}, "mc2_targets": {..}}. File: mc_task.json, an
// array.
std::vector<Document> read_truthfulqa(const Files& files);

// {"input", "target"}. File: {"examples": [..]}.
std::vector<Document> read_bbh(const Files& files);
// {"input", "target"} of BIG-Bench-Hard's cot-prompts/TASK.txt: the question, and the text after
// "So the answer is".
std::vector<Document> read_bbh_prompts(const Files& files);

// SuperGLUE's nested files, flattened: one document per answer (MultiRC: "paragraph", "question",
// "answer", "idx", "label") or per query (ReCoRD: "passage", "query", "entities", "answers", "idx",
// both lists sorted without duplicates). WSC has the spans of the Hub's "wsc.fixed".
std::vector<Document> read_multirc(const Files& files);
std::vector<Document> read_record(const Files& files);
std::vector<Document> read_wsc(const Files& files);

// {"sentence" with "_" for the blank, "option1", "option2", "answer": "1"|"2"}. File: the authors'
// JSON lines, or llm-foundry's {"context_options", "continuation", "gold"}, split at the last space
// of the options' common prefix.
std::vector<Document> read_winogrande(const Files& files);

// {"text"}. Files: OpenAI's {"text"} lines or llm-foundry's {"context", "continuation"} lines; for
// read_lambada_text() the authors' plain text, one passage per line.
std::vector<Document> read_lambada(const Files& files);
std::vector<Document> read_lambada_text(const Files& files);

// A user's quiz: {"question" | "context", "choices": [2 or more], "answer", "gold"}. "answer" is
// the index of a choice from 0, its text, or its letter (A is the first); a text takes precedence
// over a letter. A string "source" is kept.
FirstDocuments read_quiz(const Files& files, int64_t limit = kAllDocuments);

}  // namespace moe::eval
