// Unusual questions from file to request; expected values follow the harness, by hand.
#include "core/eval/tasks/tasks.h"
#include "tests/support/catch.h"
#include "tests/support/temp_dir.h"
#include "tests/support/user_error.h"

namespace moe::eval {
namespace {

using namespace moe::test;

struct Case {
  std::string name, file, line;
  size_t choices;
  int64_t gold;
  std::string context;
  std::string last_continuation;
};

std::string quiz(const std::string& choices, const std::string& answer) {
  return R"({"context": "C:", "choices": )" + choices + R"(, "answer": )" + answer + "}";
}

TEST_CASE("awkward questions give the requests of the harness", "[eval]") {
  const std::string thirteen = R"(["0","1","2","3","4","5","6","7","8","9","10","11","12"])";
  const std::vector<Case> cases = {
      {"an empty choice", "q.jsonl", quiz(R"(["", "b"])", "1"), 2, 1, "C:", " b"},
      {"identical choices", "q.jsonl", quiz(R"(["a", "a", "b"])", "\"a\""), 3, 0, "C:", " b"},
      {"13 choices, the last right", "q.jsonl", quiz(thirteen, "12"), 13, 12, "C:", " 12"},
      {"a letter beyond the choices is one of their texts", "q.jsonl",
       quiz(R"(["Z", "Y"])", "\"Y\""), 2, 1, "C:", " Y"},
      // U+FB01 is one letter, two after NFKC: the text is not normalized.
      {"a ligature", "q.jsonl", quiz("[\"\xEF\xAC\x81\", \"x\"]", "0"), 2, 0, "C:", " x"},
      {"Windows newlines and a byte order mark", "q.jsonl",
       "\xEF\xBB\xBF" + quiz(R"(["a", "b"])", "0") + "\r\n\r\n", 2, 0, "C:", " b"},
      {"a line separator inside a text", "q.jsonl", quiz("[\"a\xE2\x80\xA8z\", \"b\"]", "0"), 2, 0,
       "C:", " b"},
      {"trailing white space of the context stays in the prompt", "q.jsonl",
       R"({"context": "C: \n", "choices": ["a", "b"], "answer": 0})", 2, 0, "C: \n", " b"},
  };
  for (const auto& item : cases) {
    CAPTURE(item.name);
    const TempDir folder;
    write_file(folder / item.file, item.line);
    const auto loaded = load_tasks({(folder / item.file).string()}, "", std::nullopt);
    REQUIRE(loaded.at(0).questions.size() == 1);
    const Question& question = loaded[0].questions[0];
    CHECK(question.choices.size() == item.choices);
    CHECK(question.gold == item.gold);
    CHECK(question.context == item.context);
    CHECK(question.choice_continuation(item.choices - 1) == item.last_continuation);
  }
}

TEST_CASE("MMLU's quoted fields hold line feeds and a carriage return", "[eval]") {
  const TempDir data;
  write_file(data / "mmlu/test/anatomy_test.csv", "\"a \"\"b\"\",\r\nc\",\"x\ry\",2,3,4,D\r\n");
  const auto loaded = load_tasks({"mmlu_anatomy"}, data.path(), std::nullopt);
  CHECK(loaded.at(0).questions.at(0).context.ends_with(
      "a \"b\",\nc\nA. x\ry\nB. 2\nC. 3\nD. 4\nAnswer:"));
  CHECK(loaded[0].questions[0].gold == 3);
}

TEST_CASE("a truncated record, a missing field and a wrong label are refused with their line",
          "[eval]") {
  struct BadFile {
    const char *task, *file, *text, *complaint;
  };
  const BadFile files[] = {
      {"mmlu_anatomy", "mmlu/test/anatomy_test.csv", "q,1,2,3,4,A\nq,1,2", " line 2: 3 fields"},
      {"mmlu_anatomy", "mmlu/test/anatomy_test.csv", "q,1,2,3,4,E\n", " line 1: "},
      {"boolq", "superglue/BoolQ/val.jsonl", R"({"question": "q", "passage": "p"})",
       " line 1: 'label' is missing"},
      {"boolq", "superglue/BoolQ/val.jsonl", R"({"question": "q", "passa)", " line 1"},
      {"cb", "superglue/CB/val.jsonl",
       "\n{\"premise\": \"p\", \"hypothesis\": \"h\", \"label\": \"maybe\"}\n",
       " line 2: 'label' is \"maybe\""},
      {"copa", "superglue/COPA/val.jsonl",
       R"({"premise": "p.", "choice1": "a", "choice2": "b", "question": "why", "label": 0})",
       " line 1: 'question'"},
      {"copa", "copa/validation.csv",  // exported from the Hub
       "premise,choice1,choice2,question,idx,label\np.,a,b,cause,0,2", " line 2: 'label'"},
      {"sglue_rte", "superglue/RTE/val.jsonl", R"({"premise": "p", "label": 0})",
       " line 1: 'hypothesis'"},
      {"wic", "superglue/WiC/val.jsonl",
       R"({"word": "w", "sentence1": "s", "sentence2": "s", "start1": 0})", " line 1: 'start2'"},
      {"wsc", "superglue/WSC/val.jsonl", R"({"text": "t", "label": true})", " line 1: 'target'"},
      {"multirc", "superglue/MultiRC/val.jsonl",
       R"({"passage": {"text": "t", "questions": [{"question": "q", "answers": )"
       R"([{"text": "a", "label": 2}]}]}})",
       " line 1: 'label' is 2"},
      {"record", "superglue/ReCoRD/val.jsonl",
       R"({"passage": {"text": "abc", "entities": [{"start": 1, "end": 3}]}, "qas": []})",
       " line 1: an entity from 1 to 3"},
      {"record", "superglue/ReCoRD/val.jsonl",
       R"({"passage": {"text": "abc", "entities": [{"start": 0, "end": -1}]}, "qas": []})",
       " line 1: "},
      {"record", "superglue/ReCoRD/val.jsonl",
       R"({"passage": {"text": "abc", "entities": [{"start": 1, "end": 2}]}, )"
       R"("qas": [{"query": "q", "answers": []}]})",
       " line 1: a query with 1 entities and 0 answers"},
      {"truthfulqa_mc1", "truthfulqa/mc_task.json",
       R"([{"question": "q", "mc1_targets": {"a": 2}}])", " question 1: 'mc1_targets'"},
      {"truthfulqa_mc1", "truthfulqa/mc_task.json", R"([{"question": "q", "mc1)", ""},
      {"truthfulqa_mc1", "truthfulqa/mc_task.json", R"([{"question": "q"}])",
       " question 1: 'mc1_targets' is missing"},
      {"commonsense_qa", "commonsenseqa/dev_rand_split.jsonl",
       R"({"id": "1", "answerKey": "F", "question": {"question_concept": "c", "stem": "s", )"
       R"("choices": [{"label": "A", "text": "t"}]}})",
       " line 1: answerKey 'F'"},
      {"openbookqa", "openbookqa/test.tsv", "ID\tS\tC\tQ\tK\n1\ts\t(A) a (B) b\tq\tA\n",
       " line 2: the choices lack (C)"},
      {"openbookqa", "openbookqa/test.tsv", "ID\tS\tC\tQ\tK\n1\ts\n", " line 2: 2 fields"},
      {"winogrande", "winogrande/dev.jsonl",
       R"({"sentence": "a _ b", "option1": "x", "option2": "y", "answer": ""})",
       " line 1: 'answer'"},
      {"winogrande", "winogrande/dev.jsonl",
       R"({"sentence": "a b", "option1": "x", "option2": "y", "answer": "1"})",
       " line 1: 'sentence'"},
      {"lambada_openai", "lambada/lambada_openai.jsonl", R"({"context": "c"})",
       " line 1: 'continuation'"},
      {"bbh_zeroshot_snarks", "bbh/snarks.json", R"({"examples": [{"input": "i"}]})",
       " example 1: 'target'"},
      {"bbh_zeroshot_snarks", "bbh/snarks.json", R"({"canary": "c"})", ": 'examples'"},
  };
  for (const auto& [task, file, text, complaint] : files) {
    CAPTURE(task, text);
    const TempDir data;
    write_file(data / file, text);
    const std::string message =
        user_error_of([&, name = task] { load_tasks({name}, data.path(), std::nullopt); });
    CHECK(message.starts_with((data / file).string() + complaint));
  }
}

}  // namespace
}  // namespace moe::eval
