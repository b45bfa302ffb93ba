// Readers of benchmark files (CSV, JSON lines, the formats of the authors) and text functions with
// the results of Python.

#include <algorithm>
#include <map>
#include <set>

#include "core/base/json.h"
#include "core/base/text.h"
#include "core/eval/formats/documents.h"
#include "core/eval/formats/lines.h"
#include "core/eval/formats/text.h"
#include "core/eval/tasks/task.h"
#include "core/tokenizer/unicode.h"
#include "tests/support/places.h"
#include "tests/support/temp_dir.h"
#include "tests/support/user_error.h"

namespace moe::eval {
namespace {

using namespace moe::test;
using Kind = Field::Kind;

std::string complaint(const std::string& name, const std::string& text, const Schema& schema) {
  const TempDir folder;
  write_file(folder / name, text);
  const std::string message = user_error_of([&] { read_exported(folder / name, schema); });
  const size_t at = message.find(name);
  return at == std::string::npos ? message : message.substr(at);
}

// Returns the error of reading `text` without the folder's name, or "".
std::string complaint(const DocumentReader& read, const std::string& text,
                      const std::string& labels = "") {
  const TempDir folder;
  write_file(folder / "file", text);
  write_file(folder / "labels", labels);
  const std::string message = user_error_of([&] {
    read({folder / "file", folder / "labels"}, kAllDocuments);
  });
  return replace_all(message, folder.path().string() + "/", "");
}

const std::string kProblem = "\na\nSome context.\nWhich?\nA.one\nB.two\nC.three\nD.four\n";

TEST_CASE("quoted fields hold commas, quotes, line feeds and bare carriage returns", "[eval]") {
  const TempDir folder;
  write_file(folder / "f.csv",
             "\xEF\xBB\xBF"
             "a,\"b, \"\"c\"\"\nd\",\"\"\r\n\r\n\"x\ry\",,z\r\nlast,1,2");
  const auto rows = read_csv(folder / "f.csv");
  REQUIRE(rows.size() == 3);
  CHECK((rows[0].fields == std::vector<std::string>{"a", "b, \"c\"\nd", ""}));
  CHECK((rows[1].fields == std::vector<std::string>{"x\ry", "", "z"}));
  CHECK((rows[2].fields == std::vector<std::string>{"last", "1", "2"}));
  CHECK(rows[1].where.ends_with("f.csv line 4"));  // the first row has two lines, one is blank
  CHECK(rows[2].where.ends_with("f.csv line 5"));
  write_file(folder / "f.tsv", "a\t\"b\tc\n");
  CHECK((read_csv(folder / "f.tsv", '\t', false)[0].fields ==
         std::vector<std::string>{"a", "\"b", "c"}));
}

TEST_CASE("an unclosed quote and text after a quote are refused with their line", "[eval]") {
  const TempDir folder;
  for (const char* text : {"a,b\nc,\"d\ne", "a,b\n\"c\"d,e\n"}) {
    write_file(folder / "f.csv", text);
    CHECK_THAT(user_error_of([&] { read_csv(folder / "f.csv"); }), contains_text("f.csv line 2: "));
  }
}

TEST_CASE("lists are parsed as Python and numpy print them", "[eval]") {
  CHECK(parse_literal("['x y' 'z']", "w").dump() == R"(["x y","z"])");
  CHECK(parse_literal("[1 -2]", "w").dump() == "[1,-2]");
  CHECK(parse_literal("{'text': array([\"a'b\", 'c\\nd'], dtype=object), 'n': [True, None]}", "w")
            .dump() == R"({"n":[true,null],"text":["a'b","c\nd"]})");
  CHECK(parse_literal("['\\xe9\\u00e9\\U0001F600']", "w").dump() == "[\"éé😀\"]");
  for (const char* text : {"[", "['a", "{'a' 1}", "f(x)", "[1 ... 2]", "['\\q']", "[1.5]", "[1] x",
                           "['\\ud800']", ""}) {
    CAPTURE(text);
    CHECK(
        user_error_of([&] { parse_literal(text, "f.csv line 3"); }).starts_with("f.csv line 3: '"));
  }
  CHECK(user_error_of([] { parse_literal(std::string(100, '['), "w"); }).starts_with("w: "));
}

const Schema kSchema = {{"q"},
                        {"choices", Kind::kChoices},
                        {"n", Kind::kInt},
                        {"label", Kind::kLabel, {"no", "yes"}},
                        {"idx", Kind::kAny}};

TEST_CASE("CSV and JSON lines of equal records give equal documents", "[eval]") {
  const TempDir folder;
  write_file(folder / "a.jsonl",
             R"({"label": true, "n": 3, "q": "a\nb", "choices": {"text": ["x"], "label": ["A"]}})"
             "\n");
  write_file(folder / "a.csv",
             "extra,q,choices,n,label\n"
             "1,\"a\nb\",\"{'text': array(['x'], dtype=object), 'label': array(['A'])}\",3,1\n");
  const auto lines = read_exported(folder / "a.jsonl", kSchema).documents;
  const auto table = read_exported(folder / "a.csv", kSchema).documents;
  REQUIRE(lines.size() == 1);
  REQUIRE(table.size() == 1);
  CHECK(lines[0].fields.dump() ==
        R"({"q":"a\nb","choices":{"text":["x"],"label":["A"]},"n":3,"label":1,"idx":null})");
  CHECK(table[0].fields == lines[0].fields);
  CHECK(table[0].where.ends_with("a.csv line 2"));
}

TEST_CASE("missing fields, wrong types and wrong labels are refused by file and line", "[eval]") {
  const std::string good = R"({"q": "a", "choices": {"text": ["x"], "label": ["A"]}, "n": 1, )";
  const Schema two = {{"q"}, {"n", Kind::kInt}};
  struct Case {
    const char* file;
    std::string text;
    Schema schema;
    const char* place;
    std::string fact = "";
  };
  for (const auto& [file, text, schema, place, fact] : std::vector<Case>{
           {"f.jsonl", good + "\"label\": 1}\n" + good + "\"label\": 2}", kSchema,
            "f.jsonl line 2: 'label' is 2", "no, yes"},
           {"f.jsonl", good + "\"label\": -1}", kSchema, "f.jsonl line 1: 'label' is -1",
            "a split with answers"},
           {"f.jsonl", good + "\"label\": \"maybe\"}", kSchema,
            "f.jsonl line 1: 'label' is \"maybe\"", "no, yes"},
           {"f.jsonl", good + "\"x\": 1}", kSchema, "f.jsonl line 1: 'label'", "missing"},
           {"f.jsonl", R"({"q": 5})", kSchema, "f.jsonl line 1: 'q' "},
           {"f.jsonl", R"({"q": "a", "choices": {"text": ["x"], "label": []}})", kSchema,
            "f.jsonl line 1: 'choices'"},
           {"f.csv", "q,n\na\n", two, "f.csv line 2: 1 fields"},
           {"f.csv", "q,n\na,x\n", two, "f.csv line 2: 'n' "},
           {"f.csv", "n\n1\n", {{"q"}}, "f.csv line 2: 'q' "}}) {
    const std::string message = complaint(file, text, schema);
    CAPTURE(message);
    CHECK(message.starts_with(place));
    CHECK_THAT(message, contains_text(fact));
  }
}

// Invalid benchmark files are refused with file and line.

TEST_CASE("LogiQA reads Windows newlines, a BOM and a last line without newline", "[eval]") {
  const TempDir folder;
  write_file(folder / "t", "\xEF\xBB\xBF\r\nb\r\n3.5 m.\r\nWhy?\r\nA. one\r\nB.two\r\nC.x\r\nD.y.");
  const auto documents = read_logiqa({folder / "t"});
  REQUIRE(documents.size() == 1);
  CHECK(documents[0].fields.dump() ==
        R"({"label":"b","context":"3. 5 m.","question":"Why?","options":["one","two","x","y."]})");
  // The first two characters of an option are removed.
  write_file(folder / "t", "a\nctx\nq\nA No.\nB? x\n\u00C9\u6709C\nD.");
  CHECK(read_logiqa({folder / "t"}).at(0).fields["options"].dump() == R"(["No.","x","C",""])");
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
           {read_arc, arc(R"({"stem":"q","choices":["x"]})", "A"), "file line 1", "'text'"},
           {read_arc, arc(R"({"stem":"q","choices":[{"text":"x"}]})", "A"), "file line 1", "label"},
           {read_arc, arc(R"({"stem":"q","choices":[{"text":"x","label":"A"}]})", "E"),
            "file line 1", R"('E' is not one of the labels ["A"])"},
           {read_piqa, good_piqa + good_piqa, "file has 2 questions", "1 labels", "0\n"},
           {read_piqa, good_piqa, "labels line 1", "'2'", "2\n"},
           {read_piqa, good_piqa, "labels", "empty"},
           {read_piqa, "{\"goal\": \"g\", \"sol1\": \"a\"}", "file line 1", "sol2", "0"},
           {read_piqa, good_piqa + "{\"goal\": \"g\", \"so", "file line 2", "", "0\n1\n"},
           {read_hellaswag, scene(R"("endings":["1","2","3"],"label":3)"), "file line 1",
            "'endings' must have 4 entries"},
           {read_hellaswag, scene(R"("endings":["1","2","3",4],"label":3)"), "file line 1",
            "'endings'"},
           {read_hellaswag, scene(R"("endings":["1","2","3","4"],"label":"")"), "file line 1",
            "a split with answers"},
           {read_hellaswag, scene(R"("endings":["1","2","3","4"],"label":4)"), "file line 1",
            "'label' is 4"},
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
               contains_text("is not one of the 2 choices"));
  }
  CHECK(complaint(read_logiqa, kProblem + kProblem).empty());
  CHECK(complaint(read_arc, good_arc).empty());
  CHECK(complaint(read_piqa, good_piqa + good_piqa, "0\r\n1\r\n").empty());
  CHECK(complaint(read_hellaswag, scene(R"("endings":["1","2","3","4"],"label":"3")")).empty());
}

TEST_CASE("strip() removes exactly Python's white space and keeps invalid bytes", "[eval]") {
  CHECK(strip("\xFF x \xE2\x82") == "\xFF x \xE2\x82");
  CHECK(split_words("\xC3 \xA9") == std::vector<std::string>{"\xC3", "\xA9"});
  CHECK(strip("  a b \t\r\n") == "a b");
  CHECK(strip("\u00A0\u2003\u3000x\u2028\u0085") == "x");
  CHECK(strip("\x1C\x1F x") == "x");
  CHECK(strip("\u200Bx\u200B") == "\u200Bx\u200B");  // a zero-width space is not white space
  CHECK(strip(" \n ").empty());
  CHECK(strip("").empty());
  CHECK(right_strip("  a \n\u00A0") == "  a");
  CHECK(right_strip("\u3000").empty());
}

TEST_CASE("capitalize lower-cases everything after the first letter", "[eval]") {
  CHECK(capitalize("").empty());
  CHECK(capitalize("a few WOMEN of the USA") == "A few women of the usa");
  CHECK(capitalize("[title] Hello") == "[title] hello");
  CHECK(capitalize(" Leading Space") == " leading space");
  CHECK(capitalize("ÉCOLE ÀÖØÞ×") == "École àöøþ×");
  CHECK(capitalize("aİ") == "Ai\u0307");
}

// Properties of every character in Python (tests/golden/make_unicode.py).
class PythonsUnicode {
 public:
  std::vector<std::string> characters() const {
    std::vector<std::string> all;
    for (const int64_t code : codes("assigned")) {
      all.push_back(utf8(code));
    }
    return all;
  }

  std::set<std::string> that_are(const char* kind) const {
    std::set<std::string> all;
    for (const int64_t code : codes(kind)) {
      all.insert(utf8(code));
    }
    return all;
  }

  // Character -> result of `function`, for the characters that it changes.
  std::map<std::string, std::string> changed_by(const char* function) const {
    std::map<std::string, std::string> all;
    for (const std::string text : golden_.at(function)) {
      all[slice(text, 0, 1)] = slice(text, 1);
    }
    return all;
  }

 private:
  std::vector<int64_t> codes(const char* kind) const {
    const auto ranges = golden_.at(kind).get<std::vector<int64_t>>();
    std::vector<int64_t> all;
    for (size_t i = 0; i < ranges.size(); i += 2) {
      for (int64_t code = ranges[i]; code <= ranges[i + 1]; ++code) {
        all.push_back(code);
      }
    }
    return all;
  }

  static std::string utf8(int64_t code) {
    std::string text;
    io::append_code_point(text, static_cast<char32_t>(code));
    return text;
  }

  Json golden_ = read_json(test::source_folder() / "tests/golden/unicode.json");
};

TEST_CASE("every character has the class that Python gives it", "[eval]") {
  const PythonsUnicode python;
  const auto characters = python.characters();
  REQUIRE(characters.size() > 280000);
  const auto space = python.that_are("space"), word = python.that_are("word"),
             punctuation = python.that_are("punctuation");
  std::vector<std::string> wrong;
  for (const auto& c : characters) {
    if (strip(c).empty() != space.contains(c) || is_word_boundary(c, 0) != word.contains(c) ||
        without_punctuation(c).empty() != punctuation.contains(c)) {
      wrong.push_back(c);
    }
  }
  CHECK(wrong == std::vector<std::string>());
}

TEST_CASE("every letter has the case that Python gives it", "[eval]") {
  const PythonsUnicode python;
  auto lowered = python.changed_by("lower"), capitalized = python.changed_by("capitalize");
  std::vector<std::string> wrong, of_several;
  for (const auto& c : python.characters()) {
    if (lower(c) != lowered.try_emplace(c, c).first->second) {
      wrong.push_back(c);
    }
    const std::string& wanted = capitalized.try_emplace(c, c).first->second;
    if (count_code_points(wanted) > 1 && c != "\u00DF") {  // is kept
      of_several.push_back(c);
      CHECK(capitalize(c) == c);
    } else if (capitalize(c) != wanted) {
      wrong.push_back(c);
    }
  }
  CHECK(wrong == std::vector<std::string>());
  CHECK(of_several.size() == 47);
  CHECK(std::find(of_several.begin(), of_several.end(), "\uFB01") != of_several.end());  // fi
}

TEST_CASE("begins_with_letter() accepts letters and their marks", "[eval]") {
  for (const char* text : {"a", "Z", "\u00E9", "\u0434", "\u65E5", "\u093E", "\u0301"}) {
    CHECK(begins_with_letter(text));
  }
  for (const char* text :
       {"", "1", "\u0661", "_", ".", "\u2581", "\u20AC", "\U0001F600", "<0x0A>"}) {
    CHECK_FALSE(begins_with_letter(text));
  }
}

TEST_CASE("replace_all() replaces once, from left to right", "[eval]") {
  CHECK(moe::replace_all("a    b", "  ", " ") == "a  b");  // four spaces become two, as str.replace
  CHECK(moe::replace_all("aaa", "aa", "b") == "ba");
  CHECK(moe::replace_all("", "x", "y").empty());
  CHECK(moe::replace_all("3.5.", ".", ". ") == "3. 5. ");
}

}  // namespace
}  // namespace moe::eval
