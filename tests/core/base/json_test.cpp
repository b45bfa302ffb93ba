#include "core/base/json.h"

#include <fmt/format.h>

#include <chrono>
#include <limits>

#include "tests/support/catch.h"
#include "tests/support/matchers.h"
#include "tests/support/temp_dir.h"
#include "tests/support/user_error.h"

using moe::Json;
using moe::parse_json;
using namespace moe::test;

namespace {

std::string parse_error(const std::string& text,
                        moe::DuplicateKeys duplicates = moe::DuplicateKeys::kLastWins) {
  return user_error_of([&] { parse_json(text, "a.json", duplicates); });
}

}  // namespace

TEST_CASE("JSON is parsed with a byte-order mark and up to 64 levels", "[base]") {
  CHECK(parse_json(R"({"a": [1, 2.5, "ü"]})", "a.json") == Json({{"a", {1, 2.5, "ü"}}}));
  CHECK(parse_json("\xEF\xBB\xBF{}", "a.json") == Json::object());
  CHECK(parse_json(std::string(64, '[') + std::string(64, ']'), "a.json").is_array());
  CHECK(parse_json(R"({"a": 1, "a": 2})", "a.json")["a"] == 2);
  CHECK(parse_json(R"(["[[[[{{{{\"[[["])", "a.json").size() == 1);
}

TEST_CASE("Broken JSON is refused with its line and column, or byte", "[base]") {
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

TEST_CASE("Duplicate keys of one object are refused on request and in files", "[base]") {
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

TEST_CASE("An object of 100,000 objects is parsed in linear time", "[base]") {
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

TEST_CASE("Ordered JSON keeps the order of keys; try_parse_json() returns nothing on errors",
          "[base]") {
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

TEST_CASE("Members are returned by type, with defaults for missing and null members", "[base]") {
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

TEST_CASE("A member of another type or range is refused with its key and value", "[base]") {
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

TEST_CASE("A JSON file that is missing, a folder, too large or empty is refused", "[base]") {
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
