#include "core/eval/formats/text.h"

#include <algorithm>
#include <map>
#include <set>

#include "core/base/json.h"
#include "core/base/text.h"
#include "tests/support/catch.h"
#include "tests/support/places.h"

namespace moe::eval {
namespace {

TEST_CASE("strip() removes exactly Python's white space", "[eval]") {
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
    const auto byte = [&](int64_t bits, int shift) {
      return static_cast<char>(bits | (code >> shift & 0x3F));
    };
    if (code < 0x80) {
      return {static_cast<char>(code)};
    }
    if (code < 0x800) {
      return {static_cast<char>(0xC0 | code >> 6), byte(0x80, 0)};
    }
    if (code < 0x10000) {
      return {static_cast<char>(0xE0 | code >> 12), byte(0x80, 6), byte(0x80, 0)};
    }
    return {static_cast<char>(0xF0 | code >> 18), byte(0x80, 12), byte(0x80, 6), byte(0x80, 0)};
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

TEST_CASE("a byte that begins no character is kept", "[eval]") {
  CHECK(strip("\xFF x \xE2\x82") == "\xFF x \xE2\x82");
  CHECK(split_words("\xC3 \xA9") == std::vector<std::string>{"\xC3", "\xA9"});
}

TEST_CASE("replace_all() replaces once, from left to right", "[eval]") {
  CHECK(moe::replace_all("a    b", "  ", " ") == "a  b");  // four spaces become two, as str.replace
  CHECK(moe::replace_all("aaa", "aa", "b") == "ba");
  CHECK(moe::replace_all("", "x", "y").empty());
  CHECK(moe::replace_all("3.5.", ".", ". ") == "3. 5. ");
}

}  // namespace
}  // namespace moe::eval
