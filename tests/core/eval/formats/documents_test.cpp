// Invalid benchmark files are refused with file and line.
#include "core/eval/formats/documents.h"

#include "core/eval/formats/lines.h"
#include "core/eval/tasks/task.h"
#include "tests/support/catch.h"
#include "tests/support/matchers.h"
#include "tests/support/temp_dir.h"
#include "tests/support/user_error.h"

namespace moe::eval {
namespace {

using namespace moe::test;

// Returns the error of reading `text` without the folder's name, or "".
std::string complaint(const DocumentReader& read, const std::string& text,
                      const std::string& labels = "") {
  const TempDir folder;
  write_file(folder / "file", text);
  write_file(folder / "labels", labels);
  std::string message = user_error_of([&] {
    read({folder / "file", folder / "labels"}, kAllDocuments);
  });
  const std::string place = folder.path().string() + "/";
  for (size_t at = message.find(place); at != std::string::npos; at = message.find(place)) {
    message.erase(at, place.size());
  }
  return message;
}

const std::string kProblem = "\na\nSome context.\nWhich?\nA.one\nB.two\nC.three\nD.four\n";

TEST_CASE("LogiQA reads Windows newlines, a byte-order mark, and a last line without newline",
          "[eval]") {
  const TempDir folder;
  write_file(folder / "t", "\xEF\xBB\xBF\r\nb\r\n3.5 m.\r\nWhy?\r\nA. one\r\nB.two\r\nC.x\r\nD.y.");
  const auto documents = read_logiqa({folder / "t"});
  REQUIRE(documents.size() == 1);
  CHECK(documents[0].fields.dump() ==
        R"({"label":"b","context":"3. 5 m.","question":"Why?","options":["one","two","x","y."]})");
}

TEST_CASE("the first two characters of LogiQA's options are removed", "[eval]") {
  const TempDir folder;
  write_file(folder / "t", "a\nctx\nq\nA No.\nB? x\n\u00C9\u6709C\nD.");
  const auto documents = read_logiqa({folder / "t"});
  CHECK(documents.at(0).fields["options"].dump() == R"(["No.","x","C",""])");
}

TEST_CASE("a broken file is refused with its line and the field", "[eval]") {
  const auto arc = [](const std::string& question, const std::string& key) {
    return R"({"id":"1","question":)" + question + R"(,"answerKey":")" + key + R"("})";
  };
  const std::string good_arc =
      arc(R"({"stem":"q","choices":[{"text":"x","label":"1"},{"text":"y","label":"2"}]})", "2");
  const std::string good_piqa = "{\"goal\": \"g\", \"sol1\": \"a\", \"sol2\": \"b\"}\n";
  const auto scene = [](const std::string& rest) {
    return R"({"activity_label":"A","ctx_a":"a","ctx_b":"b",)" + rest + "}";
  };
  const auto quiz = [](const std::string& rest) { return "{" + rest + "}"; };
  struct Case {
    DocumentReader read;
    std::string text, line, fact, labels = "";
  };
  for (const auto& [read, text, line, fact, labels] : std::vector<Case>{
           {read_logiqa, kProblem + "\nb\nctx\nq\nA.one\nB.two\n", "file line 10", "option C"},
           {read_logiqa, "\na\nctx\n", "file line 2", "the question"},
           {read_logiqa, "\ne\nctx\nq\nA.1\nB.2\nC.3\nD.4\n", "file line 2", "'e'"},
           {read_logiqa, "\na\nctx\nq\nA.1\nB.2\nC.3\nD.4\nE.5\n\n", "file line 9", "'E.5'"},
           {read_logiqa, " \n\n", "file", "empty"},
           {read_logiqa, "\na\nctx \xFF\n", "file line 3", "UTF-8"},
           {read_arc, good_arc + "\n" + good_arc.substr(0, 60), "file line 2", ""},
           {read_arc, "[1]", "file line 1", "not a JSON object"},
           {read_arc, R"({"id":"1","answerKey":"A"})", "file line 1", "'question'"},
           {read_arc, arc(R"({"stem":"q"})", "A"), "file line 1", "'choices'"},
           {read_arc, arc(R"({"stem":"q","choices":["x"]})", "A"), "file line 1", "a choice"},
           {read_arc, arc(R"({"stem":"q","choices":[{"text":"x"}]})", "A"), "file line 1", "label"},
           {read_arc, arc(R"({"stem":"q","choices":[{"text":"x","label":"A"}]})", "E"),
            "file line 1", R"('E' is none of the labels ["A"])"},
           {read_piqa, good_piqa + good_piqa, "file has 2 questions", "1 labels", "0\n"},
           {read_piqa, good_piqa, "labels line 1", "'2'", "2\n"},
           {read_piqa, good_piqa, "labels", "empty"},
           {read_piqa, "{\"goal\": \"g\", \"sol1\": \"a\"}", "file line 1", "sol2", "0"},
           {read_piqa, good_piqa + "{\"goal\": \"g\", \"so", "file line 2", "", "0\n1\n"},
           {read_hellaswag, scene(R"("endings":["1","2","3"],"label":3)"), "file line 1",
            "3 endings"},
           {read_hellaswag, scene(R"("endings":["1","2","3",4],"label":3)"), "file line 1",
            "'endings'"},
           {read_hellaswag, scene(R"("endings":["1","2","3","4"],"label":"")"), "file line 1",
            "no answers"},
           {read_hellaswag, scene(R"("endings":["1","2","3","4"],"label":4)"), "file line 1",
            "'4'"},
           {read_hellaswag,
            R"({"activity_label":"A","ctx_a":"a","endings":["1","2","3","4"],"label":1})",
            "file line 1", "ctx_b"},
           {read_quiz, quiz(R"("choices":["a","b"],"answer":0)"), "file line 1", "'question'"},
           {read_quiz, quiz(R"("question":"q","context":"c","choices":["a","b"],"answer":0)"),
            "file line 1", "not both"},
           {read_quiz, quiz(R"("question":"q","choices":[],"answer":0)"), "file line 1",
            "'choices'"},
           {read_quiz, quiz(R"("question":"q","choices":["a"],"answer":0)"), "file line 1",
            "'choices'"},
           {read_quiz, quiz(R"("question":"q","answer":0)"), "file line 1", "'choices'"},
           {read_quiz, quiz(R"("question":"q","choices":["a","b"])"), "file line 1", "'answer'"}}) {
    CAPTURE(text);
    const std::string message = complaint(read, text, labels);
    CHECK(message.starts_with(line));
    CHECK_THAT(message, contains_text(fact));
  }
  for (const char* answer :
       {"2", "-1", "18446744073709551615", "true", "0.5", "\"c\"", "\"C\"", "\"\"", "null"}) {
    const std::string rest = R"("question":"q","choices":["a","b"],"answer":)";
    CHECK_THAT(complaint(read_quiz, quiz(rest + answer)),
               contains_text("is none of the 2 choices"));
  }
  CHECK(complaint(read_logiqa, kProblem + kProblem).empty());
  CHECK(complaint(read_arc, good_arc).empty());
  CHECK(complaint(read_piqa, good_piqa + good_piqa, "0\r\n1\r\n").empty());
  CHECK(complaint(read_hellaswag, scene(R"("endings":["1","2","3","4"],"label":"3")")).empty());
}

}  // namespace
}  // namespace moe::eval
