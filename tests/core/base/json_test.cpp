#include "core/base/json.h"

#include <fmt/ranges.h>

#include <chrono>
#include <cmath>
#include <limits>

#include "tests/support/temp_dir.h"
#include "tests/support/user_error.h"

namespace moe {
namespace {

using namespace moe::test;

std::string parse_error(const std::string& text,
                        moe::DuplicateKeys duplicates = moe::DuplicateKeys::kLastWins) {
  return user_error_of([&] { parse_json(text, "a.json", duplicates); });
}

std::string repeat(const std::string& text, size_t times) {
  return fmt::format("{}", fmt::join(std::vector<std::string>(times, text), ""));
}

std::string toml_error(const std::string& text) {
  return user_error_of([&] { parse_toml(text, "t.toml"); });
}

TEST_CASE("JSON is parsed with a byte-order mark and up to 64 levels") {
  CHECK(parse_json(R"({"a": [1, 2.5, "ü"]})", "a.json") == Json({{"a", {1, 2.5, "ü"}}}));
  CHECK(parse_json("\xEF\xBB\xBF{}", "a.json") == Json::object());
  CHECK(parse_json(std::string(64, '[') + std::string(64, ']'), "a.json").is_array());
  CHECK(parse_json(R"({"a": 1, "a": 2})", "a.json")["a"] == 2);
  CHECK(parse_json(R"(["[[[[{{{{\"[[["])", "a.json").size() == 1);
}

TEST_CASE("Broken JSON is refused with its line and column, or byte") {
  for (const auto& [text, fact] : std::vector<std::pair<std::string, const char*>>{
           {"", "is empty"},
           {"{\"a\": 1,\n \"b\" 2}", "broken JSON: line 2, column 6: syntax error"},
           {"[1e999]", "broken JSON: number overflow parsing '1e999'"},
           {"[NaN]", "broken JSON: line 1, column 2: syntax error"},
           {"{} {}", "broken JSON: line 1, column 4: syntax error"},
           {"{\"a\": \"b", "broken JSON: line 1, column 9: syntax error"},
           {"{\"a\": \"\xFF\"}", "not UTF-8 at byte 7 (0xFF)"},
           {{"{\"a\":\0}", 7}, "broken JSON"},
           {std::string(65, '[') + std::string(65, ']'), "nested deeper than 64 levels"},
           {std::string(50'000'000, '['), "nested deeper than 64 levels"}}) {
    CHECK_THAT(parse_error(text), contains_text("a.json: ") && contains_text(fact));
  }
}

TEST_CASE("Duplicate keys of one object are refused on request and in files") {
  const auto refused = moe::DuplicateKeys::kRefused;
  CHECK(parse_error(R"({"a": 1, "b": {"a": 2}, "c": [{"a": 3}, {"a": 4}]})", refused).empty());
  CHECK_THAT(parse_error(R"({"a": 1, "a": 2})", refused), contains_text("'a' occurs twice"));
  CHECK_THAT(parse_error(R"({"b": [{"c": 1, "\u0063": 2}]})", refused),
             contains_text("'c' occurs twice"));
  const moe::test::TempDir dir;
  moe::test::write_file(dir / "twice.json", R"({"a": 1, "a": 2})");
  CHECK_THAT(user_error_of([&] { moe::read_json(dir / "twice.json"); }),
             contains_text("twice.json: 'a' occurs twice"));
}

TEST_CASE("An object of 100,000 objects is parsed in linear time") {
  std::string text = "{";
  for (int i = 0; i < 100000; ++i) {
    text += fmt::format(R"({}"x{}": {{"dtype": "U8", "shape": [0]}})", i == 0 ? "" : ", ", i);
  }
  text += "}";
  const auto start = std::chrono::steady_clock::now();
  CHECK(parse_json(text, "a.json", moe::DuplicateKeys::kRefused).size() == 100000);
  // Takes 0.2 s. A quadratic search for duplicates takes more than a minute.
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(20));
}

TEST_CASE("Ordered JSON keeps the order of keys; try_parse_json() returns nothing on errors") {
  const auto ordered = moe::parse_ordered_json(R"({"z": [{"y": 1, "b": [2, {}]}], "a": 3})", "a");
  CHECK(ordered.dump() == R"({"z":[{"y":1,"b":[2,{}]}],"a":3})");
  CHECK_THAT(user_error_of([] { moe::parse_ordered_json("{", "a.json"); }),
             contains_text("a.json: broken JSON"));
  CHECK(moe::try_parse_json("[1]") == Json({1}));
  for (const std::string& text : {std::string(), std::string("{"), std::string("\xFF"),
                                  std::string(100000, '[') + std::string(100000, ']')}) {
    CHECK_FALSE(moe::try_parse_json(text).has_value());
  }
}

TEST_CASE("Members are returned by type, with defaults for missing and null members") {
  const Json json = parse_json(R"({"i": -5, "max": 9223372036854775807, "n": null, "d": 1e-5,
                                   "b": true, "s": "text", "l": [1, -2]})",
                               "");
  CHECK(moe::get_int(json, "i", "") == -5);
  CHECK(moe::get_int(json, "max", "") == std::numeric_limits<int64_t>::max());
  CHECK(moe::get_int(json, "none", "", 7) == 7);
  CHECK(moe::get_int(json, "n", "", 7) == 7);
  CHECK(moe::get_int(json, "i", "", 7) == -5);
  CHECK(moe::get_double(json, "i", "") == -5.0);
  CHECK(moe::get_double(json, "d", "", 3.0) == 1e-5);
  CHECK(moe::get_double(json, "none", "", 3.0) == 3.0);
  CHECK(moe::get_bool(json, "b", "", false));
  CHECK(moe::get_bool(json, "none", "", true));
  CHECK(moe::get_string(json, "s", "") == "text");
  CHECK(moe::get_string(json, "none", "", "other") == "other");
  CHECK(moe::get_ints(json, "l", "") == std::vector<int64_t>{1, -2});
}

TEST_CASE("A member of another type or range is refused with its key and value") {
  const auto whole = [](const Json& json) { moe::get_int(json, "x", "a.json"); };
  const auto real = [](const Json& json) { moe::get_double(json, "x", "a.json", 1.0); };
  const auto flag = [](const Json& json) { moe::get_bool(json, "x", "a.json", true); };
  const auto text = [](const Json& json) { moe::get_string(json, "x", "a.json"); };
  const auto list = [](const Json& json) { moe::get_ints(json, "x", "a.json"); };
  struct Case {
    void (*get)(const Json&);
    const char *json, *fact;
  };
  for (const auto& [get, json, fact] : std::vector<Case>{
           {whole, "{}", "'x' is missing"},
           {whole, "[]", "must be an object with a key 'x', is a list of 0"},
           {whole, R"({"x": 4.0})", "'x' must be a whole number, is 4.0"},
           {whole, R"({"x": "4"})", "'x' must be a whole number, is \"4\""},
           {whole, R"({"x": null})", "'x' must be a whole number, is null"},
           {whole, R"({"x": true})", "'x' must be a whole number, is true"},
           {whole, R"({"x": [1, 2]})", "'x' must be a whole number, is a list of 2"},
           {whole, R"({"x": 9223372036854775808})", "'x' is 9223372036854775808, beyond a 64-bit"},
           {whole, R"({"x": 99999999999999999999})", "'x' must be a whole number, is 1e+20"},
           {real, R"({"x": "1"})", "'x' must be a finite number, is \"1\""},
           {flag, R"({"x": "text"})", "'x' must be true or false, is \"text\""},
           {text, R"({"x": [1, 2]})", "'x' must be a string, is a list of 2"},
           {list, R"({"x": true})", "'x' must be a list of whole numbers, is true"},
           {list, R"({"x": [1, 2.5]})", "'x[1]' must be a whole number, is 2.5"}}) {
    CHECK_THAT(user_error_of([&, &get = get, &json = json] { get(Json::parse(json)); }),
               contains_text("a.json: ") && contains_text(fact));
  }
  CHECK_THAT(user_error_of([&] {
               real({{"x", std::numeric_limits<double>::quiet_NaN()}});
             }),
             contains_text("'x' must be a finite number"));
  // A quoted value is shortened and has no control characters.
  CHECK_THAT(user_error_of([&] {
               whole({{"x", std::string(1000, 'y') + "\x1B"}});
             }),
             contains_text("is \"" + std::string(59, 'y') + "..."));
}

TEST_CASE("A JSON file that is missing, a folder, too large or empty is refused") {
  const moe::test::TempDir dir;
  moe::test::write_file(dir / "good.json", "{\"a\": 1}\n");
  moe::test::write_file(dir / "empty.json", "");
  CHECK(moe::read_json(dir / "good.json")["a"] == 1);
  struct Case {
    const char* name;
    uint64_t limit;
    const char* fact;
  };
  for (const auto& [name, limit, fact] : {Case{"none.json", 1000, "none.json: no such file"},
                                          {"", 1000, ": is a folder, not a regular file"},
                                          {"good.json", 5, "good.json: has more than the 5 bytes"},
                                          {"empty.json", 1000, "empty.json: is empty"}}) {
    CHECK_THAT(
        user_error_of([&, &name = name, &limit = limit] { moe::read_json(dir / name, limit); }),
        contains_text(fact));
  }
}

// TOML is parsed to JSON; nesting that would overflow the stack of the parser is refused.

TEST_CASE("Broken TOML, duplicate keys and deep nesting are refused with their line") {
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
    const std::string error = toml_error(text);
    CHECK(error.starts_with("t.toml line " + std::to_string(line) + ": "));
    CHECK_THAT(error, contains_text(fact));
  }
  CHECK_THAT(toml_error(dots + "{" + dots + "{" + dots + "1}}"),
             contains_text("nested deeper than 64 levels"));
}

TEST_CASE("Letters outside ASCII are accepted in strings and comments only") {
  parse_toml(
      "\xEF\xBB\xBF"
      "a = \"\u039E\" # \u039E\n'\u039E' = \"\"\"\n\u039E\"\"\"",
      "t.toml");
  for (const std::string text :
       {"\u039E = 1", "a = \u039E", "a.\u00E9 = 1", "a = 1\u00A0", "\xFF"}) {
    CHECK_THAT(toml_error("\n" + text), contains_text("t.toml line 2: a letter outside ASCII"));
  }
}

TEST_CASE("Dots and brackets in strings, comments and numbers are not nesting") {
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

TEST_CASE("TOML is parsed to a JSON object") {
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
