// CSV files, and records exported from Hugging Face data sets.
#include "core/eval/formats/lines.h"
#include "core/eval/formats/text.h"
#include "tests/support/catch.h"
#include "tests/support/matchers.h"
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

TEST_CASE("a missing field, a wrong type and a wrong label are refused with file and line",
          "[eval]") {
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
            "no answers"},
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

}  // namespace
}  // namespace moe::eval
