// Broken benchmark files: each is one sentence with file and line.
#include "core/eval/formats/documents.h"

#include "core/eval/formats/lines.h"
#include "core/eval/tasks/task.h"
#include "tests/support/catch.h"
#include "tests/support/temp_dir.h"
#include "tests/support/user_error.h"

namespace moe::eval {
namespace {

using test::TempDir;

// What reading `text` complains about, without the folder's name; "" = nothing.
std::string complaint(const DocumentReader& read, const std::string& text,
                      const std::string& labels = "") {
  const TempDir folder;
  test::write_file(folder / "file", text);
  test::write_file(folder / "labels", labels);
  std::string message = test::user_error_of([&] {
    read({folder / "file", folder / "labels"}, kAllDocuments);
  });
  const std::string place = folder.path().string() + "/";
  for (size_t at = message.find(place); at != std::string::npos; at = message.find(place)) {
    message.erase(at, place.size());
  }
  return message;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

const std::string kProblem = "\na\nSome context.\nWhich?\nA.one\nB.two\nC.three\nD.four\n";

TEST_CASE("LogiQA reads Windows newlines, a byte-order mark, and a last line without newline",
          "[eval]") {
  const TempDir folder;
  test::write_file(folder / "t",
                   "\xEF\xBB\xBF\r\nb\r\n3.5 m.\r\nWhy?\r\nA. one\r\nB.two\r\nC.x\r\nD.y.");
  const auto documents = read_logiqa({folder / "t"});
  REQUIRE(documents.size() == 1);
  CHECK(documents[0].fields.dump() ==
        R"({"label":"b","context":"3. 5 m.","question":"Why?","options":["one","two","x","y."]})");
}

TEST_CASE("LogiQA's options lose two characters, whatever they are", "[eval]") {
  const TempDir folder;
  test::write_file(folder / "t", "a\nctx\nq\nA No.\nB? x\n\u00C9\u6709C\nD.");
  const auto documents = read_logiqa({folder / "t"});
  CHECK(documents.at(0).fields["options"].dump() == R"(["No.","x","C",""])");
}

TEST_CASE("a cut or shifted LogiQA file is named with its line", "[eval]") {
  CHECK(complaint(read_logiqa, kProblem + kProblem).empty());
  CHECK(complaint(read_logiqa, kProblem + "\nb\nctx\nq\nA.one\nB.two\n") ==
        "file line 10: this problem ends before option C; the file is cut, fetch it again");
  CHECK(complaint(read_logiqa, "\na\nctx\n") ==
        "file line 2: this problem ends before the question; the file is cut, fetch it again");
  CHECK(complaint(read_logiqa, "\ne\nctx\nq\nA.1\nB.2\nC.3\nD.4\n") ==
        "file line 2: the right answer must be a letter from a to d, not 'e'");
  CHECK(complaint(read_logiqa, "\na\nctx\nq\nA.1\nB.2\nC.3\nD.4\nE.5\n\n") ==
        "file line 9: the right answer must be a letter from a to d, not 'E.5'");
  CHECK(complaint(read_logiqa, " \n\n") == "file: the file is empty");
  CHECK(complaint(read_logiqa, "\na\nctx \xFF\n") ==
        "file line 3: not UTF-8; convert the file to UTF-8");
}

TEST_CASE("a broken ARC line is named", "[eval]") {
  const std::string good =
      R"({"id":"1","question":{"stem":"q","choices":[{"text":"x","label":"1"},{"text":"y","label":"2"}]},"answerKey":"2"})";
  CHECK(complaint(read_arc, good).empty());
  CHECK(contains(complaint(read_arc, good + "\n" + good.substr(0, 60)), "file line 2"));
  CHECK(complaint(read_arc, "[1]") ==
        "file line 1: not a JSON object; each line must be one, in braces");
  CHECK(complaint(read_arc, R"({"id":"1","answerKey":"A"})") ==
        "file line 1: 'question' is missing or not an object");
  CHECK(complaint(read_arc, R"({"question":{"stem":"q"},"answerKey":"A"})") ==
        "file line 1: 'choices' is missing or not an array");
  CHECK(complaint(read_arc, R"({"question":{"stem":"q","choices":["x"]},"answerKey":"A"})") ==
        "file line 1: a choice is not an object with 'text' and 'label'");
  CHECK(complaint(
            read_arc,
            R"({"question":{"stem":"q","choices":[{"text":"x","label":"A"}]},"answerKey":"E"})") ==
        R"(file line 1: answerKey 'E' is none of the labels ["A"])");
  CHECK(contains(
      complaint(read_arc, R"({"question":{"stem":"q","choices":[{"text":"x"}]},"answerKey":"A"})"),
      "label"));
}

TEST_CASE("PIQA's two files must fit each other", "[eval]") {
  const std::string line = "{\"goal\": \"g\", \"sol1\": \"a\", \"sol2\": \"b\"}\n";
  CHECK(complaint(read_piqa, line + line, "0\r\n1\r\n").empty());
  CHECK(complaint(read_piqa, line + line, "0\n") ==
        "file has 2 questions, labels has 1 labels; one of them is cut, fetch both again");
  CHECK(complaint(read_piqa, line, "2\n") == "labels line 1: a label must be 0 or 1, not '2'");
  CHECK(complaint(read_piqa, line, "") == "labels: the file is empty");
  CHECK(contains(complaint(read_piqa, "{\"goal\": \"g\", \"sol1\": \"a\"}", "0"), "sol2"));
  CHECK(contains(complaint(read_piqa, line + "{\"goal\": \"g\", \"so", "0\n1\n"), "file line 2"));
}

TEST_CASE("a HellaSwag line needs four endings and a label", "[eval]") {
  const auto scene = [](const std::string& rest) {
    return R"({"activity_label":"A","ctx_a":"a","ctx_b":"b",)" + rest + "}";
  };
  CHECK(complaint(read_hellaswag, scene(R"("endings":["1","2","3","4"],"label":"3")")).empty());
  CHECK(complaint(read_hellaswag, scene(R"("endings":["1","2","3"],"label":3)")) ==
        "file line 1: 3 endings, HellaSwag has 4 a scene");
  CHECK(complaint(read_hellaswag, scene(R"("endings":["1","2","3",4],"label":3)")) ==
        "file line 1: 'endings' holds 4, it must hold strings only");
  CHECK(complaint(read_hellaswag, scene(R"("endings":["1","2","3","4"],"label":"")")) ==
        "file line 1: 'label' must be 0 to 3, not ''; the test split has no answers, use the "
        "validation split");
  CHECK(contains(complaint(read_hellaswag, scene(R"("endings":["1","2","3","4"],"label":4)")),
                 "not '4'"));
  CHECK(contains(
      complaint(read_hellaswag,
                R"({"activity_label":"A","ctx_a":"a","endings":["1","2","3","4"],"label":1})"),
      "ctx_b"));
}

TEST_CASE("a quiz line says what it lacks", "[eval]") {
  CHECK(complaint(read_quiz, R"({"choices":["a","b"],"answer":0})") ==
        "file line 1: give either 'question' (asked as 'Question: ..') or 'context' (the full "
        "prompt)");
  CHECK(complaint(read_quiz, R"({"question":"q","context":"c","choices":["a","b"],"answer":0})") ==
        "file line 1: give either 'question' (asked as 'Question: ..') or 'context' (the full "
        "prompt), not both");
  CHECK(complaint(read_quiz, R"({"question":"q","choices":[],"answer":0})") ==
        "file line 1: nothing in 'choices', at least 2 are needed");
  CHECK(complaint(read_quiz, R"({"question":"q","choices":["a"],"answer":0})") ==
        "file line 1: one choice in 'choices', at least 2 are needed");
  CHECK(complaint(read_quiz, R"({"question":"q","answer":0})") ==
        "file line 1: 'choices' is missing or not an array of strings");
  CHECK(complaint(read_quiz, R"({"question":"q","choices":["a","b"]})") ==
        "file line 1: 'answer' is missing: the index of a choice from 0, its text, or its letter");
  for (const char* answer :
       {"2", "-1", "18446744073709551615", "true", "0.5", "\"c\"", "\"C\"", "\"\"", "null"}) {
    CHECK(contains(
        complaint(read_quiz,
                  fmt::format(R"({{"question":"q","choices":["a","b"],"answer":{}}})", answer)),
        "is none of the 2 choices: give an index from 0 to 1, a letter, or a choice's text"));
  }
}

TEST_CASE("files that are no files are told apart", "[eval]") {
  const TempDir folder;
  CHECK(test::user_error_of([&] { read_text(folder / "absent"); }) ==
        (folder / "absent").string() + ": no such file");
  CHECK(test::user_error_of([&] { read_text(folder.path()); }) ==
        folder.path().string() + ": is a folder, not a regular file");
}

}  // namespace
}  // namespace moe::eval
