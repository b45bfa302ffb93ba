#pragma once
// The benchmarks' own files, one reader a format: file -> documents, checked, in the fields (and
// with the changes to the text) of the Hub's data set that lm-evaluation-harness loads.

#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/json.h"

namespace moe::eval {

struct Document {
  OrderedJson fields;
  std::string where;  // file and line (or entry), for messages
};
using Files = std::vector<std::filesystem::path>;

// The first documents of a file that may be long. Those behind them are counted and not parsed.
struct FirstDocuments {
  std::vector<Document> documents;
  int64_t total = 0;  // in the file
};
inline constexpr int64_t kAllDocuments = std::numeric_limits<int64_t>::max();

// Of `records`, which has next() and count_rest() as a JsonLinesReader and a CsvTable have: `make`
// gives the document of one of them. Records beyond `limit` are counted alone, so that a file of a
// million lines costs what its first ones cost.
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

// {"label": "a".."d", "context", "question", "options": [4]}. Files: Test.txt. Eight lines a
// problem: blank, letter, context, question, four options that begin with "A." to
// "D." (the two characters are cut off unread, as the harness does). The harness's loader puts a
// space after every full stop: so do we.
std::vector<Document> read_logiqa(const Files& files);

// {"id", "question", "choices": {"text": [..], "label": [..]}, "answerKey"}; the answerKey is among
// the labels. CommonsenseQA has "question_concept" after "question".
std::vector<Document> read_arc(const Files& files);
std::vector<Document> read_commonsense_qa(const Files& files);

// {"id", "question_stem", "choices": {..}, "answerKey"}. Tab-separated, with a header: id, stem,
// choices as "(A) .. (B) ..", both in one text, key.
std::vector<Document> read_openbookqa(const Files& files);

// {"goal", "sol1", "sol2", "label": 0|1}. Files: valid.jsonl, valid-labels.lst with one label a
// line.
std::vector<Document> read_piqa(const Files& files);

// The authors' fields in the Hub's order; process_hellaswag adds "query", "choices" and "gold" as
// the harness's process_docs does.
std::vector<Document> read_hellaswag(const Files& files);
void process_hellaswag(OrderedJson& fields);
std::string preprocess_hellaswag(std::string_view text);  // the harness's function of that name

// {"question", "subject", "choices": [4], "answer": 0..3}. CSV without header: question, four
// choices, letter. The subject is what stands before the last underscore of the file's name.
std::vector<Document> read_mmlu(const Files& files);

// {"question", "mc1_targets": {"choices", "labels"}, "mc2_targets": {..}}: mc_task.json, an array.
std::vector<Document> read_truthfulqa(const Files& files);

// {"input", "target"}: {"examples": [..]}.
std::vector<Document> read_bbh(const Files& files);
// The same from BIG-Bench-Hard's cot-prompts/TASK.txt: the questions, and what stands after "So the
// answer is".
std::vector<Document> read_bbh_prompts(const Files& files);

// SuperGLUE's nested ones, flattened: a document for each answer (MultiRC: "paragraph", "question",
// "answer", "idx", "label") or each query (ReCoRD: "passage", "query", "entities", "answers",
// "idx", both lists sorted and without doubles), and WSC with the Hub's "wsc.fixed" spans.
std::vector<Document> read_multirc(const Files& files);
std::vector<Document> read_record(const Files& files);
std::vector<Document> read_wsc(const Files& files);

// {"sentence" with "_" for the blank, "option1", "option2", "answer": "1"|"2"}: the authors' JSON
// lines, or llm-foundry's {"context_options", "continuation", "gold"}, cut back at the last common
// space.
std::vector<Document> read_winogrande(const Files& files);

// {"text"}: OpenAI's {"text"} a line, or llm-foundry's {"context", "continuation"}; and the
// authors' plain text, a passage a line.
std::vector<Document> read_lambada(const Files& files);
std::vector<Document> read_lambada_text(const Files& files);

// One's own quiz: {"question" | "context", "choices": [2 or more], "answer", "gold"}. `answer` may
// be the index of a choice from 0, its whole text, or its letter (A is the first); text wins over
// letter. A string "source" is kept.
FirstDocuments read_quiz(const Files& files, int64_t limit = kAllDocuments);

}  // namespace moe::eval
