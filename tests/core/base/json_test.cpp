#include "core/base/json.h"

#include <fmt/format.h>

#include <chrono>
#include <limits>

#include "core/base/read_file.h"
#include "tests/support/catch.h"
#include "tests/support/temp_dir.h"
#include "tests/support/user_error.h"

using moe::Json;
using moe::parse_json;
using moe::test::user_error_of;

namespace {

std::string parse_error(const std::string& text) {
  return user_error_of([&] { parse_json(text, "a.json"); });
}

std::string int_error(const char* text) {
  return user_error_of([&] { moe::get_int(parse_json(text, "a.json"), "x", "a.json"); });
}

}  // namespace

TEST_CASE("JSON is read as it stands, byte-order mark and nesting to the limit included",
          "[base]") {
  CHECK(parse_json(R"({"a": [1, 2.5, "ü"]})", "a.json") == Json({{"a", {1, 2.5, "ü"}}}));
  CHECK(parse_json("\xEF\xBB\xBF{}", "a.json") == Json::object());
  CHECK(parse_json(std::string(64, '[') + std::string(64, ']'), "a.json").is_array());
  CHECK(parse_json(R"({"a": 1, "a": 2})", "a.json")["a"] == 2);
  CHECK(parse_json(R"(["[[[[{{{{\"[[["])", "a.json").size() == 1);
}

TEST_CASE("broken JSON is refused with its place", "[base]") {
  CHECK(parse_error("") == "a.json: is empty, JSON was expected");
  CHECK(parse_error("{\"a\": 1,\n \"b\" 2}") ==
        "a.json: broken JSON: line 2, column 6: syntax error while parsing object separator - "
        "unexpected number "
        "literal; expected ':'");
  CHECK(parse_error("[1e999]") == "a.json: broken JSON: number overflow parsing '1e999'");
  CHECK(parse_error("[NaN]").starts_with("a.json: broken JSON: line 1, column 2: syntax error"));
  CHECK(parse_error("{} {}").starts_with("a.json: broken JSON: line 1, column 4: syntax error"));
  CHECK(parse_error("{\"a\": \"b")
            .starts_with("a.json: broken JSON: line 1, column 9: syntax error"));
}

TEST_CASE("text that is not UTF-8 is refused with the byte's offset", "[base]") {
  CHECK(parse_error("{\"a\": \"\xFF\"}") == "a.json: not UTF-8 at byte 7 (0xFF): save it as UTF-8");
  CHECK(parse_error(std::string("{\"a\":\0}", 7)).starts_with("a.json: broken JSON"));
}

TEST_CASE("nesting beyond the limit is refused", "[base]") {
  const std::string expected =
      "a.json: nested deeper than 64 levels: this is no file of a model or its data";
  CHECK(parse_error(std::string(65, '[') + std::string(65, ']')) == expected);
  CHECK(parse_error(std::string(50'000'000, '[')) == expected);
}

TEST_CASE("duplicate keys are refused where asked, at their own level only", "[base]") {
  const auto strict = [](const char* text) {
    return user_error_of([&] { parse_json(text, "a.json", moe::DuplicateKeys::kRefused); });
  };
  CHECK(strict(R"({"a": 1, "b": {"a": 2}, "c": [{"a": 3}, {"a": 4}]})").empty());
  CHECK(strict(R"({"a": 1, "a": 2})") == "a.json: 'a' is there twice");
  moe::test::TempDir dir;
  moe::test::write_file(dir / "twice.json", R"({"a": 1, "a": 2})");
  CHECK(user_error_of([&] { moe::read_json(dir / "twice.json"); }) ==
        (dir / "twice.json").string() + ": 'a' is there twice");
  CHECK(strict(R"({"b": [{"c": 1, "\u0063": 2}]})") == "a.json: 'c' is there twice");
}

TEST_CASE("an object of 100,000 objects is parsed in linear time", "[base]") {
  std::string text = "{";
  for (int i = 0; i < 100000; ++i) {
    text += fmt::format(R"({}"x{}": {{"dtype": "U8", "shape": [0]}})", i == 0 ? "" : ", ", i);
  }
  text += "}";
  const auto start = std::chrono::steady_clock::now();
  CHECK(parse_json(text, "a.json", moe::DuplicateKeys::kRefused).size() == 100000);
  // Takes 0.2 s; more than a minute where each object is compared with all before it.
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(20));
}

TEST_CASE("keys keep their order where asked, and damage is no error where none is wanted",
          "[base]") {
  const auto ordered = moe::parse_ordered_json(R"({"z": [{"y": 1, "b": [2, {}]}], "a": 3})", "a");
  CHECK(ordered.dump() == R"({"z":[{"y":1,"b":[2,{}]}],"a":3})");
  CHECK(user_error_of([] {
          moe::parse_ordered_json("{", "a.json");
        }).starts_with("a.json: broken JSON"));
  CHECK(moe::try_parse_json("[1]") == Json({1}));
  for (const std::string& text : {std::string(), std::string("{"), std::string("\xFF"),
                                  std::string(100000, '[') + std::string(100000, ']')}) {
    CHECK_FALSE(moe::try_parse_json(text).has_value());
  }
}

TEST_CASE("integers are whole, of 64 bits, and there", "[base]") {
  CHECK(moe::get_int(parse_json(R"({"x": -5})", ""), "x", "") == -5);
  CHECK(moe::get_int(parse_json(R"({"x": 9223372036854775807})", ""), "x", "") ==
        std::numeric_limits<int64_t>::max());
  CHECK(int_error("{}") == "a.json: 'x' is missing");
  CHECK(int_error(R"({"x": 4.0})") == "a.json: 'x' must be a whole number, is 4.0");
  CHECK(int_error(R"({"x": "4"})") == "a.json: 'x' must be a whole number, is \"4\"");
  CHECK(int_error(R"({"x": null})") == "a.json: 'x' must be a whole number, is null");
  CHECK(int_error(R"({"x": true})") == "a.json: 'x' must be a whole number, is true");
  CHECK(int_error(R"({"x": [1, 2]})") == "a.json: 'x' must be a whole number, is a list of 2");
  CHECK(int_error(R"({"x": 9223372036854775808})") ==
        "a.json: 'x' is 9223372036854775808, beyond a 64-bit integer");
  CHECK(int_error(R"({"x": 99999999999999999999})") ==
        "a.json: 'x' must be a whole number, is 1e+20");
  CHECK(int_error("[]") == "a.json: must be an object with a key 'x', is a list of 0");
  CHECK(moe::get_int(parse_json("{}", ""), "x", "", 7) == 7);
  CHECK(moe::get_int(parse_json(R"({"x": null})", ""), "x", "", 7) == 7);
  CHECK(moe::get_int(parse_json(R"({"x": 8})", ""), "x", "", 7) == 8);
}

TEST_CASE("doubles may be written as integers and are finite", "[base]") {
  const Json json = parse_json(R"({"x": 10000, "y": 1e-5, "z": "1"})", "");
  CHECK(moe::get_double(json, "x", "") == 10000.0);
  CHECK(moe::get_double(json, "y", "", 3.0) == 1e-5);
  CHECK(moe::get_double(json, "none", "", 3.0) == 3.0);
  CHECK(user_error_of([&] { moe::get_double(json, "z", "a.json"); }) ==
        "a.json: 'z' must be a finite number, is \"1\"");
  CHECK(user_error_of([&] { moe::get_double(json, "none", "a.json"); }) ==
        "a.json: 'none' is missing");
  const Json nan = {{"x", std::numeric_limits<double>::quiet_NaN()}};
  CHECK(user_error_of([&] { moe::get_double(nan, "x", "a.json", 1.0); }) ==
        "a.json: 'x' must be a finite number, is null");  // JSON prints NaN as null
}

TEST_CASE("booleans, strings and lists are of their type", "[base]") {
  const Json json = parse_json(R"({"b": true, "s": "text", "l": [1, -2], "bad": [1, 2.5]})", "");
  CHECK(moe::get_bool(json, "b", "", false));
  CHECK(moe::get_bool(json, "none", "", true));
  CHECK(moe::get_string(json, "s", "") == "text");
  CHECK(moe::get_string(json, "none", "", "other") == "other");
  CHECK(moe::get_ints(json, "l", "") == std::vector<int64_t>{1, -2});
  CHECK(user_error_of([&] { moe::get_bool(json, "s", "a.json", true); }) ==
        "a.json: 's' must be true or false, is \"text\"");
  CHECK(user_error_of([&] { moe::get_string(json, "l", "a.json"); }) ==
        "a.json: 'l' must be a string, is a list of 2");
  CHECK(user_error_of([&] { moe::get_ints(json, "b", "a.json"); }) ==
        "a.json: 'b' must be a list of whole numbers, is true");
  CHECK(user_error_of([&] { moe::get_ints(json, "bad", "a.json"); }) ==
        "a.json: 'bad[1]' must be a whole number, is 2.5");
}

TEST_CASE("a value quoted in an error is short and harmless", "[base]") {
  const Json json = {{"x", std::string(1000, 'y') + "\x1B"}};
  const std::string error = user_error_of([&] { moe::get_int(json, "x", "a.json"); });
  CHECK(error == "a.json: 'x' must be a whole number, is \"" + std::string(59, 'y') + "...");
}

TEST_CASE("a JSON file that is missing, a folder, too large or empty is refused", "[base]") {
  const moe::test::TempDir dir;
  const auto read_error = [&](const std::string& name, uint64_t limit = 1000) {
    return user_error_of([&] { moe::read_json(dir / name, limit); });
  };
  moe::test::write_file(dir / "good.json", "{\"a\": 1}\n");
  moe::test::write_file(dir / "empty.json", "");
  CHECK(moe::read_json(dir / "good.json")["a"] == 1);
  CHECK(read_error("none.json") == (dir / "none.json").string() + ": no such file");
  CHECK(read_error("") == (dir / "").string() + ": is a folder, not a regular file");
  CHECK(read_error("good.json", 5) ==
        (dir / "good.json").string() + ": has more than the 5 bytes that such a file may have");
  CHECK(read_error("empty.json") ==
        (dir / "empty.json").string() + ": is empty, JSON was expected");
}
