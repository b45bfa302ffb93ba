// TOML as JSON, and what would overflow the stack of a parser that recurses.
#include <cmath>

#include "core/base/json.h"
#include "tests/support/catch.h"
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

TEST_CASE("keys of many dots and values inside each other are refused with their line", "[base]") {
  const auto complaint = [](const std::string& text) {
    return test::user_error_of([&] { parse_toml(text, "t.toml"); });
  };
  const std::string refused = ": nested deeper than 64 brackets or 32 dots in a key";
  CHECK(complaint("x = 1\n" + repeat("a.", 50000) + "a = 1") == "t.toml line 2" + refused);
  CHECK(complaint("[" + repeat("a . ", 50000) + "a]") == "t.toml line 1" + refused);
  CHECK(complaint("[[" + repeat("\"x\".", 33) + "a]]") == "t.toml line 1" + refused);
  CHECK(complaint("a = {" + repeat("'b'.", 33) + "b = 1}") == "t.toml line 1" + refused);
  CHECK(complaint("a = \"\"\"\n\n\"\"\"\nb = " + repeat("[", 65)) == "t.toml line 4" + refused);
  CHECK(complaint("a = " + repeat("{a = ", 65)) == "t.toml line 1" + refused);
}

TEST_CASE("letters outside ASCII stand in strings and comments", "[base]") {
  parse_toml(
      "\xEF\xBB\xBF"
      "a = \"\u039E\" # \u039E\n'\u039E' = \"\"\"\n\u039E\"\"\"",
      "t.toml");
  for (const std::string text :
       {"\u039E = 1", "a = \u039E", "a.\u00E9 = 1", "a = 1\u00A0", "\xFF"}) {
    CHECK(test::user_error_of([&] { parse_toml("\n" + text, "t.toml"); }) ==
          "t.toml line 2: a letter outside ASCII; put the text or the key in quotes");
  }
}

TEST_CASE("dots and brackets in strings, comments and lists of numbers are none of a key",
          "[base]") {
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

TEST_CASE("TOML becomes an object", "[base]") {
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

TEST_CASE("broken TOML, a key that is there twice and depth of tables are refused with their line",
          "[base]") {
  const auto complaint = [](const std::string& text) {
    return test::user_error_of([&] { parse_toml(text, "t.toml"); });
  };
  CHECK(complaint("a = 1\nb = = 2\n").starts_with("t.toml line 2: "));
  CHECK(complaint("a = 1\na = 2\n").starts_with("t.toml line 2: "));
  const std::string dots = repeat("a.", 32) + "a = ";
  CHECK(complaint(dots + "{" + dots + "{" + dots + "1}}").find("nested deeper than 64 levels") !=
        std::string::npos);
}

}  // namespace
}  // namespace moe
