// A table of awkward questions, from file to request: what the harness does with each, by hand.
#include "core/eval/scoring/requests.h"
#include "core/eval/tasks/tasks.h"
#include "tests/support/catch.h"
#include "tests/support/data.h"
#include "tests/support/temp_dir.h"
#include "tests/support/user_error.h"

namespace moe::eval {
namespace {

using test::TempDir;

// A byte a token, so that counts can be read off; 1 stands before an empty context.
TextEncoder bytes_encoder(int64_t window) {
  return {[](std::string_view text) {
            std::vector<int64_t> ids;
            for (const char c : text) {
              ids.push_back(static_cast<unsigned char>(c));
            }
            return ids;
          },
          1, "", false, window};
}

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

TEST_CASE("awkward questions are read as they stand", "[eval]") {
  const std::string thirteen = R"(["0","1","2","3","4","5","6","7","8","9","10","11","12"])";
  const std::vector<Case> cases = {
      {"an empty choice", "q.jsonl", quiz(R"(["", "b"])", "1"), 2, 1, "C:", " b"},
      {"identical choices", "q.jsonl", quiz(R"(["a", "a", "b"])", "\"a\""), 3, 0, "C:", " b"},
      {"13 choices, the last right", "q.jsonl", quiz(thirteen, "12"), 13, 12, "C:", " 12"},
      {"a letter beyond the choices is one of their texts", "q.jsonl",
       quiz(R"(["Z", "Y"])", "\"Y\""), 2, 1, "C:", " Y"},
      // U+FB01 is one letter, NFKC makes it two: the text is not normalised here.
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
    test::write_file(folder / item.file, item.line);
    const auto loaded = load_tasks({(folder / item.file).string()}, "", std::nullopt);
    REQUIRE(loaded.at(0).questions.size() == 1);
    const Question& question = loaded[0].questions[0];
    CHECK(question.choices.size() == item.choices);
    CHECK(question.gold == item.gold);
    CHECK(question.context == item.context);
    CHECK(question.continuation_of(item.choices - 1) == item.last_continuation);
  }
}

TEST_CASE("contexts and choices longer than the window keep their end", "[eval]") {
  const std::string text(40, 'x');
  const Request context = encode_requests(bytes_encoder(16), {{text, " ab", "w"}}).front();
  CHECK(context.tokens.size() == 17);  // the last token is no input
  CHECK(context.scored == 3);
  CHECK_FALSE(context.is_truncated);
  const Request choice = encode_requests(bytes_encoder(16), {{"c", " " + text, "w"}}).front();
  CHECK(choice.tokens.size() == 17);
  CHECK(choice.scored == 16);
  CHECK(choice.is_truncated);
  const Request moved = encode_requests(bytes_encoder(16), {{"c \n", " a", "w"}}).front();
  CHECK(moved.scored == 4);  // " \n" and " a"
  const Request empty = encode_requests(bytes_encoder(16), {{"", " a", "w"}}).front();
  CHECK((empty.tokens == std::vector<int64_t>{1, ' ', 'a'}));
}

TEST_CASE("MMLU's quoted fields hold line feeds and a carriage return", "[eval]") {
  const TempDir data;
  test::write_file(data / "mmlu/test/anatomy_test.csv",
                   "\"a \"\"b\"\",\r\nc\",\"x\ry\",2,3,4,D\r\n");
  const auto loaded = load_tasks({"mmlu_anatomy"}, data.path(), std::nullopt);
  CHECK(loaded.at(0).questions.at(0).context.ends_with(
      "a \"b\",\nc\nA. x\ry\nB. 2\nC. 3\nD. 4\nAnswer:"));
  CHECK(loaded[0].questions[0].gold == 3);
}

struct BadFile {
  std::string task, file, text, complaint;
};

TEST_CASE("each format cut short, with a missing field, with a wrong label", "[eval]") {
  const std::string superglue = "superglue/";
  const std::vector<BadFile> files = {
      {"mmlu_anatomy", "mmlu/test/anatomy_test.csv", "q,1,2,3,4,A\nq,1,2",
       " line 2: 3 fields, MMLU has 6 (question, four choices, letter); is the line cut?"},
      {"mmlu_anatomy", "mmlu/test/anatomy_test.csv", "q,1,2,3,4,E\n",
       " line 1: the right answer must be a letter from A to D, not 'E'"},
      {"boolq", superglue + "BoolQ/val.jsonl", "{\"question\": \"q\", \"passage\": \"p\"}\n",
       " line 1: 'label' is missing; a split without answers cannot be scored"},
      {"boolq", superglue + "BoolQ/val.jsonl", "{\"question\": \"q\", \"passa", " line 1"},
      {"cb", superglue + "CB/val.jsonl",
       "\n{\"premise\": \"p\", \"hypothesis\": \"h\", \"label\": \"maybe\"}\n",
       " line 2: 'label' is \"maybe\", it must be 0 to 2 or one of entailment, contradiction, "
       "neutral"},
      {"copa", superglue + "COPA/val.jsonl",
       "{\"premise\": \"p.\", \"choice1\": \"a\", \"choice2\": \"b\", \"question\": \"why\", "
       "\"label\": 0}\n",
       " line 1: 'question' must be cause or effect, not 'why'"},
      {"sglue_rte", superglue + "RTE/val.jsonl", "{\"premise\": \"p\", \"label\": 0}\n",
       " line 1: 'hypothesis'"},
      {"wic", superglue + "WiC/val.jsonl",
       "{\"word\": \"w\", \"sentence1\": \"s\", \"sentence2\": \"s\", \"start1\": 0}\n",
       " line 1: 'start2'"},
      {"wsc", superglue + "WSC/val.jsonl", "{\"text\": \"t\", \"label\": true}\n",
       " line 1: 'target' is missing or not an object"},
      {"multirc", superglue + "MultiRC/val.jsonl",
       "{\"passage\": {\"text\": \"t\", \"questions\": [{\"question\": \"q\", \"answers\": "
       "[{\"text\": \"a\", \"label\": 2}]}]}}\n",
       " line 1: 'label' is 2, it must be 0 to 1 or one of False, True"},
      {"record", superglue + "ReCoRD/val.jsonl",
       "{\"passage\": {\"text\": \"abc\", \"entities\": [{\"start\": 1, \"end\": 3}]}, \"qas\": "
       "[]}\n",
       " line 1: an entity from 1 to 3, the passage has 3 characters"},
      {"record", superglue + "ReCoRD/val.jsonl",
       "{\"passage\": {\"text\": \"abc\", \"entities\": [{\"start\": 1, \"end\": 2}]}, \"qas\": "
       "[{\"query\": \"q\", \"answers\": []}]}\n",
       " line 1: a query with 1 entities and 0 answers; a split without answers cannot be scored"},
      {"truthfulqa_mc1", "truthfulqa/mc_task.json",
       "[{\"question\": \"q\", \"mc1_targets\": {\"a\": 2}}]",
       " question 1: 'mc1_targets' gives 'a' the label 2, it must be 0 or 1"},
      {"truthfulqa_mc1", "truthfulqa/mc_task.json", "[{\"question\": \"q\", \"mc1", ""},
      {"truthfulqa_mc1", "truthfulqa/mc_task.json", "[{\"question\": \"q\"}]",
       " question 1: 'mc1_targets' is missing or no object of answers with 1 or 0"},
      {"commonsense_qa", "commonsenseqa/dev_rand_split.jsonl",
       "{\"id\": \"1\", \"answerKey\": \"F\", \"question\": {\"question_concept\": \"c\", "
       "\"stem\": \"s\", \"choices\": [{\"label\": \"A\", \"text\": \"t\"}]}}\n",
       " line 1: answerKey 'F' is none of the labels [\"A\"]"},
      {"openbookqa", "openbookqa/test.tsv", "ID\tS\tC\tQ\tK\n1\ts\t(A) a (B) b\tq\tA\n",
       " line 2: the choices lack (C): '(A) a (B) b'"},
      {"openbookqa", "openbookqa/test.tsv", "ID\tS\tC\tQ\tK\n1\ts\n",
       " line 2: 2 fields, 5 are needed (ID, stem, choices, complete question, key); is the line "
       "cut?"},
      {"winogrande", "winogrande/dev.jsonl",
       "{\"sentence\": \"a _ b\", \"option1\": \"x\", \"option2\": \"y\", \"answer\": \"\"}\n",
       " line 1: 'answer' must be 1 or 2, not \"\"; a split without answers cannot be scored"},
      {"winogrande", "winogrande/dev.jsonl",
       "{\"sentence\": \"a b\", \"option1\": \"x\", \"option2\": \"y\", \"answer\": \"1\"}\n",
       " line 1: 'sentence' has no blank, an underscore"},
      {"lambada_openai", "lambada/lambada_openai.jsonl", "{\"context\": \"c\"}\n",
       " line 1: 'continuation'"},
      {"bbh_zeroshot_snarks", "bbh/snarks.json", "{\"examples\": [{\"input\": \"i\"}]}",
       " example 1: 'target'"},
      {"bbh_zeroshot_snarks", "bbh/snarks.json", "{\"canary\": \"c\"}",
       ": 'examples' is missing or not an array"},
  };
  for (const auto& [task, file, text, complaint] : files) {
    CAPTURE(task, text);
    const TempDir data;
    test::write_file(data / file, text);
    const std::string message =
        test::user_error_of([&, name = task] { load_tasks({name}, data.path(), std::nullopt); });
    CHECK(message.starts_with((data / file).string() + complaint));
  }
}

}  // namespace
}  // namespace moe::eval
