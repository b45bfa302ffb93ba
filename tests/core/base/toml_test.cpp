// TOML is parsed to JSON; nesting that would overflow the stack of the parser is refused.
#include <cmath>

#include "core/base/json.h"
#include "tests/support/catch.h"
#include "tests/support/matchers.h"
#include "tests/support/user_error.h"

namespace moe {
namespace {

std::string repeat(const std::string& text, int times) {
  std::string result;
  for (int i = 0; i < times; ++i) {
    result += text;
  }
  return result;
}

std::string parse_error(const std::string& text) {
  return test::user_error_of([&] { parse_toml(text, "t.toml"); });
}

TEST_CASE("Broken TOML, duplicate keys and deep nesting are refused with their line", "[base]") {
  const std::string deep = "nested deeper than 64 brackets or 32 dots in a key";
  const std::string dots = repeat("a.", 32) + "a = ";
  for (const auto& [text, line, fact] : std::vector<std::tuple<std::string, int, std::string>>{
           {"x = 1\n" + repeat("a.", 50000) + "a = 1", 2, deep},
           {"[" + repeat("a . ", 50000) + "a]", 1, deep},
           {"[[" + repeat("\"x\".", 33) + "a]]", 1, deep},
           {"a = {" + repeat("'b'.", 33) + "b = 1}", 1, deep},
           {"a = \"\"\"\n\n\"\"\"\nb = " + repeat("[", 65), 4, deep},
           {"a = " + repeat("{a = ", 65), 1, deep},
           {"a = 1\nb = = 2\n", 2, ""},
           {"a = 1\na = 2\n", 2, ""}}) {
    const std::string error = parse_error(text);
    CHECK(error.starts_with("t.toml line " + std::to_string(line) + ": "));
    CHECK_THAT(error, test::contains_text(fact));
  }
  CHECK_THAT(parse_error(dots + "{" + dots + "{" + dots + "1}}"),
             test::contains_text("nested deeper than 64 levels"));
}

TEST_CASE("Letters outside ASCII are accepted in strings and comments only", "[base]") {
  parse_toml(
      "\xEF\xBB\xBF"
      "a = \"\u039E\" # \u039E\n'\u039E' = \"\"\"\n\u039E\"\"\"",
      "t.toml");
  for (const std::string text :
       {"\u039E = 1", "a = \u039E", "a.\u00E9 = 1", "a = 1\u00A0", "\xFF"}) {
    CHECK_THAT(parse_error("\n" + text),
               test::contains_text("t.toml line 2: a letter outside ASCII"));
  }
}

TEST_CASE("Dots and brackets in strings, comments and numbers are not nesting", "[base]") {
  const std::string dots = repeat(".", 100), brackets = repeat("[{", 100);
  parse_toml("# " + dots + brackets + "\na = \"" + dots + brackets + "\\\"" + dots + "\"",
             "t.toml");
  parse_toml("a = '" + dots + brackets + "' # '\nb = \"\"\"\n\"" + dots + brackets +
                 "\"\"\"\nc = \'\'\'" + dots + "''\\'\'\'\n",
             "t.toml");
  parse_toml("a = [" + repeat("1.5, 2.5,\n", 100) + "]\n[a1.b.c]\n", "t.toml");
  parse_toml(repeat("a.", 30) + "a = " + repeat("[", 30) + repeat("]", 30), "t.toml");
  CHECK(parse_toml("", "t.toml") == Json::object());
}

TEST_CASE("TOML is parsed to a JSON object", "[base]") {
  const Json json = parse_toml(
      "a = [1, 2.5, true, \"x\"]\nday = 1979-05-27\nat = 07:32:00\nwhen = 1979-05-27T07:32:00Z\n"
      "big = inf\n[t.u]\nk = -3\n",
      "t.toml");
  CHECK(json["a"] == Json({1, 2.5, true, "x"}));
  CHECK(json["t"]["u"]["k"] == -3);
  CHECK(json["day"] == "1979-05-27");
  CHECK(json["at"] == "07:32:00");
  CHECK(json["when"] == "1979-05-27T07:32:00Z");
  CHECK(std::isinf(json["big"].get<double>()));
}

}  // namespace
}  // namespace moe
