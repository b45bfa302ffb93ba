// Every format three times wrong: cut short, a field missing, a label that is none. Each time the
// second record is the bad one, and the message names file and line (a JSON document: the record).
#include "core/eval/tasks/tasks.h"
#include "tests/support/catch.h"
#include "tests/support/temp_dir.h"
#include "tests/support/user_error.h"

namespace moe::eval {
namespace {

using test::TempDir;

struct Change {
  std::string from, to;
};

struct Format {
  std::string task, file;
  std::string head;     // before the records
  std::string record;   // a good one
  Change field, label;  // what breaks it; an empty `from`: the format has no such thing
  std::string between = "\n", tail = "\n";
  std::string second = " line 2";  // how the second record is named
};

std::vector<Format> formats() {
  const std::string glue = "superglue/";
  return {
      {"boolq",
       glue + "BoolQ/val.jsonl",
       "",
       R"({"question": "q", "passage": "p", "label": true})",
       {R"("passage")", R"("passages")"},
       {"true", "3"}},
      {"cb",
       glue + "CB/val.jsonl",
       "",
       R"({"premise": "p", "hypothesis": "h", "label": "neutral"})",
       {R"("premise")", R"("p")"},
       {"neutral", "maybe"}},
      {"copa",
       glue + "COPA/val.jsonl",
       "",
       R"({"premise": "p.", "choice1": "a", "choice2": "b", "question": "cause", "label": 1})",
       {R"("choice2")", R"("choice3")"},
       {"1}", "2}"}},
      {"sglue_rte",
       glue + "RTE/val.jsonl",
       "",
       R"({"premise": "p", "hypothesis": "h", "label": "entailment"})",
       {R"("label")", R"("lable")"},
       {"entailment", "neutral"}},
      {"wic",
       glue + "WiC/val.jsonl",
       "",
       R"({"word": "w", "sentence1": "s", "sentence2": "s", "start1": 0, "end1": 1, "start2": 0, )"
       R"("end2": 1, "label": true})",
       {R"("word")", R"("words")"},
       {"true", "\"yes\""}},
      {"wsc",
       glue + "WSC/val.jsonl",
       "",
       R"({"text": "Tom saw him", "target": {"span1_index": 0, "span1_text": "Tom", )"
       R"("span2_index": 2, "span2_text": "him"}, "label": true})",
       {R"("span2_text")", R"("span3_text")"},
       {"true", "2"}},
      {"multirc",
       glue + "MultiRC/val.jsonl",
       "",
       R"({"passage": {"text": "t", "questions": [{"question": "q", "answers": [{"text": "a", )"
       R"("label": 1}]}]}})",
       {R"("answers")", R"("answer")"},
       {": 1}", ": -1}"}},
      {"record",
       glue + "ReCoRD/val.jsonl",
       "",
       R"({"passage": {"text": "abc", "entities": [{"start": 0, "end": 1}]}, "qas": [{"query": )"
       R"("@placeholder", "answers": [{"text": "ab"}]}]})",
       {R"("query")", R"("queries")"},
       {"\"end\": 1", "\"end\": -1"}},
      {"commonsense_qa",
       "commonsenseqa/dev_rand_split.jsonl",
       "",
       R"({"id": "1", "answerKey": "A", "question": {"question_concept": "c", "stem": "s", )"
       R"("choices": [{"label": "A", "text": "t"}, {"label": "B", "text": "u"}, )"
       R"({"label": "C", "text": "v"}, {"label": "D", "text": "w"}, {"label": "E", "text": "x"}]}})",
       {R"("stem")", R"("step")"},
       {R"("answerKey": "A")", R"("answerKey": "F")"}},
      {"arc_easy",
       "arc/ARC-Easy-Test.jsonl",
       "",
       R"({"id": "1", "answerKey": "1", "question": {"stem": "s", "choices": [{"label": "1", )"
       R"("text": "t"}, {"label": "2", "text": "u"}]}})",
       {R"("answerKey")", R"("answer")"},
       {R"("answerKey": "1")", R"("answerKey": "A")"}},
      {"hellaswag",
       "hellaswag/hellaswag_val.jsonl",
       "",
       R"({"activity_label": "A", "ctx_a": "a", "ctx_b": "b", "endings": ["1", "2", "3", "4"], )"
       R"("label": 3})",
       {R"("endings")", R"("ends")"},
       {": 3}", ": 4}"}},
      {"winogrande",
       "winogrande/winogrande.jsonl",
       "",
       R"({"context_options": ["Tom saw a", "Tom saw b"], "continuation": "run.", "gold": 1})",
       {R"("continuation")", R"("rest")"},
       {": 1}", ": 2}"}},
      {"winogrande",
       "winogrande/dev.jsonl",
       "",
       R"({"sentence": "a _ b", "option1": "x", "option2": "y", "answer": "2"})",
       {R"("option2")", R"("option3")"},
       {R"("2")", R"("3")"}},
      {"lambada_openai",
       "lambada/lambada_openai.jsonl",
       "",
       R"({"context": "c", "continuation": "d"})",
       {R"("context")", R"("contexts")"},
       {}},
      {"openbookqa",
       "openbookqa/test.tsv",
       "ID\tStem\tChoices\tQuestion\tKey\n",
       "1\ts\t(A) a (B) b (C) c (D) d\tq\tA",
       {"(D)", "(E)"},
       {"\tA", "\tE"},
       "\n",
       "\n",
       " line 3"},
      {"mmlu_anatomy", "mmlu/test/anatomy_test.csv", "", "q,1,2,3,4,A", {",4", ""}, {",A", ",E"}},
      {"logiqa",
       "logiqa/Test.txt",
       "\n",
       "a\nSome context.\nWhich?\nA.one\nB.two\nC.three\nD.four\n",
       {"D.four\n", ""},
       {"a\n", "e\n"},
       "\n",
       "",
       " line 10"},
      {"truthfulqa_mc2",
       "truthfulqa/mc_task.json",
       "[",
       R"({"question": "q", "mc1_targets": {"a": 1, "b": 0}, "mc2_targets": {"a": 1, "b": 0}})",
       {R"("mc2_targets")", R"("mc3_targets")"},
       {R"("mc2_targets": {"a": 1)", R"("mc2_targets": {"a": 3)"},
       ",\n",
       "]\n",
       " question 2"},
      {"bbh_zeroshot_snarks",
       "bbh/snarks.json",
       "{\"examples\": [",
       R"x({"input": "i", "target": "(A)"})x",
       {R"("input")", R"("output")"},
       {R"x("target": "(A)")x", R"("target": 1)"},
       ",\n",
       "]}\n",
       " example 2"},
      {"logiqa",
       "logiqa/test.jsonl",  // exported from the Hub
       "",
       R"({"label": "a", "context": "c", "question": "q", "options": ["1", "2", "3", "4"]})",
       {R"("options")", R"("option")"},
       {R"("a")", R"("e")"}},
      {"copa",
       "copa/validation.csv",
       "premise,choice1,choice2,question,idx,label\n",
       "p.,a,b,cause,0,1",
       {",a", ""},
       {",1", ",2"},
       "\n",
       "\n",
       " line 3"},
  };
}

std::string replaced(std::string text, const Change& change) {
  const size_t at = text.find(change.from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, change.from.size(), change.to);
}

// What loading says of a file with a good record and `second`, without the folder.
std::string complaint(const Format& format, const std::string& second, const std::string& tail) {
  const TempDir data;
  test::write_file(data / format.file,
                   format.head + format.record + format.between + second + tail);
  std::string message =
      test::user_error_of([&] { load_tasks({format.task}, data.path(), std::nullopt); });
  const std::string place = data.path().string() + "/";
  return message.starts_with(place) ? message.substr(place.size()) : message;
}

TEST_CASE("every format, cut short, without a field, with a wrong label", "[eval]") {
  for (const auto& format : formats()) {
    CAPTURE(format.task, format.file);
    CHECK(complaint(format, format.record, format.tail).empty());
    const std::string named = format.file + format.second;
    const std::string missing =
        complaint(format, replaced(format.record, format.field), format.tail);
    CAPTURE(missing);
    CHECK(missing.starts_with(named));
    if (!format.label.from.empty()) {
      const std::string label =
          complaint(format, replaced(format.record, format.label), format.tail);
      CAPTURE(label);
      CHECK(label.starts_with(named));
    }
    const std::string cut =
        complaint(format, format.record.substr(0, format.record.size() * 2 / 3), "");
    CAPTURE(cut);
    // A JSON document that is cut is no JSON: its parser knows the line, not the record.
    const bool is_document = format.file.ends_with(".json");
    CHECK(cut.starts_with(is_document ? format.file : named));
  }
}

}  // namespace
}  // namespace moe::eval
