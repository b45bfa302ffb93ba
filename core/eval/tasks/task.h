#pragma once
// What a benchmark is: where its documents lie, how one becomes a question, what is counted. A task
// is data: a file of known/ or of a user (task_file.h).

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/eval/formats/documents.h"
#include "core/eval/formats/schema.h"
#include "core/eval/metrics/metrics.h"

namespace moe::eval {

// A reader of documents.h, of one kind or the other: of all documents, or of the first `limit`.
class DocumentReader {
 public:
  template <typename Read>
  DocumentReader(Read read) {  // implicit, so that tables name readers as they are
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

// One way in which the documents of a split may lie under --data.
struct SplitFiles {
  std::vector<std::string> files;  // one '*' in a file's name stands for any letters
  DocumentReader read;
};

struct Split {
  std::string name = {};               // the Hub's: "test", "validation", "train", "dev"
  std::vector<SplitFiles> forms = {};  // the authors' files; besides them TASK/SPLIT.jsonl or .csv
};

struct DataSet {
  std::string hub = {};     // the Hub's data set and part; its exported JSONL or CSV is read too
  std::string origin = {};  // where the authors' own files come from
  Schema schema = {};       // the Hub's fields, in its order; empty = no exported form
  Split scored = {};
  Split shots = {};                                // few-shot examples are drawn from it
  std::function<void(OrderedJson&)> process = {};  // the harness's process_docs; may be empty
};

// How few-shot examples are drawn.
struct ShotRule {
  enum class Sampler { kRandom, kFirst };
  Sampler sampler = Sampler::kRandom;
  bool excludes_question = false;  // the question itself may lie in the pool: it is left out
  int64_t count = 0;               // unless --num-fewshot says otherwise
  bool fixed = false;              // --num-fewshot changes nothing
};

// Versions of lm-evaluation-harness between which definitions and defaults changed.
enum class Compat { kCurrent, k041 };
Compat parse_compat(const std::string& text);  // "current" | "0.4.1"
const char* to_string(Compat compat);

enum class OutputType { kMultipleChoice, kLogLikelihood, kGenerateUntil };
const char* to_string(OutputType type);

// What the harness's doc_to_target gives: the index of a choice, or a text.
struct Target {
  std::optional<int64_t> index;
  std::string text;
};

// How a text that the model wrote is taken apart before it is compared.
struct AnswerFilter {
  std::string name = {};  // "strict-match"
  std::function<std::string(const std::string& answer, const OrderedJson& document)> apply = {};
};

struct Task {
  std::string name = {};
  std::string alias = {};              // in tables; empty = the name
  std::optional<double> version = {};  // of the harness's definition; none for one's own
  OutputType output = OutputType::kMultipleChoice;
  DataSet data = {};
  int64_t harness_items = 0;  // documents that the harness scores; 0 = any number
  std::string description = {};
  std::function<std::string(const OrderedJson&)> prompt = {};
  std::function<std::vector<std::string>(const OrderedJson&)> choices = {};
  std::function<Target(const OrderedJson&)> target = {};
  std::vector<Metric> metrics = {};
  std::string delimiter = " ";          // between prompt and choice
  std::string shot_delimiter = "\n\n";  // after an example
  ShotRule shots = {};
  bool choices_are_contexts = false;  // partial evaluation: choices end the context, target follows
  bool is_own = false;                // a user's file, found as it is named
  bool gold_may_be_absent = false;    // a text that is none of the choices: always wrong
  Generation generation = {};
  std::vector<AnswerFilter> filters = {};  // generated answers pass one of them, by Metric::filter
  bool ignores_case_and_marks = false;     // exact_match drops case, a last full stop, , \n \ and "
  std::string not_in_0_4_1 = {};           // why version 0.4.1 of the harness has no such task
};

inline constexpr const char* kHarnessVersion = "0.4.13";  // whose definitions the tables follow

}  // namespace moe::eval
