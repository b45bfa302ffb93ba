// What would overflow the stack of a parser that recurses is refused before.
#include "core/base/toml_depth.h"

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
    return test::user_error_of([&] { check_toml_depth(text, "t.toml"); });
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
  check_toml_depth(
      "\xEF\xBB\xBF"
      "a = \"\u039E\" # \u039E\n'\u039E' = \"\"\"\n\u039E\"\"\"",
      "t.toml");
  for (const std::string text :
       {"\u039E = 1", "a = \u039E", "a.\u00E9 = 1", "a = 1\u00A0", "\xFF"}) {
    CHECK(test::user_error_of([&] { check_toml_depth("\n" + text, "t.toml"); }) ==
          "t.toml line 2: a letter outside ASCII; put the text or the key in quotes");
  }
}

TEST_CASE("dots and brackets in strings, comments and lists of numbers are none of a key",
          "[base]") {
  const std::string dots = repeat(".", 100), brackets = repeat("[{", 100);
  check_toml_depth("# " + dots + brackets + "\na = \"" + dots + brackets + "\\\"" + dots + "\"",
                   "t.toml");
  check_toml_depth("a = '" + dots + brackets + "' # '\nb = \"\"\"\n\"" + dots + brackets +
                       "\"\"\"\nc = '''" + dots + "''\\'''\n",
                   "t.toml");
  check_toml_depth("a = [" + repeat("1.5, 2.5,\n", 100) + "]\n" + repeat("[a.b.c]\n", 100),
                   "t.toml");
  check_toml_depth(repeat("a.", 32) + "a = " + repeat("[", 64) + repeat("]", 64), "t.toml");
  check_toml_depth("", "t.toml");
  check_toml_depth("\"\\", "t.toml");
}

}  // namespace
}  // namespace moe
