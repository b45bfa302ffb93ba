// Each stage of tokenizer.json by itself: what a type does, what is refused.

#include "core/tokenizer/stages.h"

#include <fmt/format.h>

#include <chrono>

#include "core/base/json.h"
#include "tests/support/catch.h"
#include "tests/support/matchers.h"
#include "tests/support/user_error.h"

using moe::Json;
using moe::test::user_error_of;
using Ids = std::vector<int64_t>;
using Strings = std::vector<std::string>;

namespace {

std::string normalized(const std::string& json, const std::string& text) {
  return moe::io::read_normalizer(Json::parse(json), "t: normalizer")(text);
}

Strings words(const std::string& json, const std::string& text, bool begins_text = true) {
  moe::io::Words found;
  found.list.push_back({text, begins_text});
  moe::io::read_pre_tokenizer(Json::parse(json), "t: pre_tokenizer")(found);
  Strings texts;
  for (const auto& word : found.list) {
    texts.emplace_back(word.text);
  }
  return texts;
}

std::string decoded(const std::string& json, const Strings& texts) {
  std::string all;
  for (const auto& text : moe::io::read_decoder(Json::parse(json), "t: decoder")(texts)) {
    all += text;
  }
  return all;
}

Ids around(const std::string& json) {
  const auto special = moe::io::read_post_processor(Json::parse(json), "t: post_processor");
  Ids all = special.before;
  all.push_back(7);
  all.insert(all.end(), special.after.begin(), special.after.end());
  return all;
}

std::string split(const std::string& behavior, const std::string& pattern = R"({"String": "-"})",
                  bool invert = false) {
  return R"({"type": "Split", "pattern": )" + pattern + R"(, "behavior": ")" + behavior +
         R"(", "invert": )" + (invert ? "true" : "false") + "}";
}

}  // namespace

TEST_CASE("A text that grows without bound is refused in every stage", "[io]") {
  const auto repeated = [](const char* key, const std::string& part, int times) {
    std::string json = fmt::format(R"({{"type": "Sequence", "{}": [)", key);
    for (int i = 0; i < times; ++i) {
      json += (i == 0 ? "" : ", ") + part;
    }
    return json + "]}";
  };
  const std::string twice = R"({"type": "Replace", "pattern": {"String": "a"}, "content": "aa"})";
  const std::string bytes =
      R"({"type": "ByteLevel", "add_prefix_space": false, "use_regex": false})";
  const std::string grows = ": the text grows to more than ";
  CHECK(normalized(repeated("normalizers", twice, 6), "a") == std::string(64, 'a'));
  for (const std::string& json :
       {repeated("normalizers", twice, 40),
        repeated("normalizers", repeated("normalizers", twice, 5), 8),
        std::string(R"({"type": "Prepend", "prepend": ")") + std::string(2000, 'x') + "\"}",
        std::string(R"({"type": "Replace", "pattern": {"Regex": ""}, "content": ")") +
            std::string(1000, 'x') + "\"}"}) {
    CHECK_THAT(user_error_of([&] { normalized(json, "a"); }), moe::test::contains_text(grows));
  }
  CHECK_THAT(user_error_of([&] { decoded(repeated("decoders", twice, 40), {"a"}); }),
             moe::test::contains_text(grows));
  CHECK_THAT(user_error_of([&] { words(repeated("pretokenizers", bytes, 40), "\u00E9"); }),
             moe::test::contains_text(grows));
  // The greatest growth of a character: U+FDFA becomes 18, each space of them a mark.
  CHECK(normalized(R"({"type": "Sequence", "normalizers": [{"type": "NFKC"},
                      {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]})",
                   std::string(3000, ' ') + "\uFDFA")
            .size() == 3 * 3000 + 33 + 3 * 2);
}

TEST_CASE("A regular expression that takes more than linear time gives up by a sentence", "[io]") {
  const std::string letters(200000, 'a');
  for (const char* expression : {"a*c|b", "(a*c)?a", "(a|b|ab)*c|(a|aa)+$b", "(?=(a+)c)|a"}) {
    const std::string json = fmt::format(
        R"({{"type": "Replace", "pattern": {{"Regex": "{}"}}, "content": "x"}})", expression);
    const auto start = std::chrono::steady_clock::now();
    const std::string error = user_error_of([&] { normalized(json, letters + "c x"); });
    CAPTURE(expression, error);
    CHECK((error.empty() || error.find("a regular expression ") != std::string::npos));
    CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(60));
  }
  // What published tokenizers ask of a long run of white space is no such thing.
  CHECK(words(split("Isolated", R"({"Regex": "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"})"),
              std::string(1000000, ' ') + "a")
            .size() == 3);
}

TEST_CASE("A normalizer of each type", "[io]") {
  CHECK(normalized("null", " A\u0301 ") == " A\u0301 ");
  CHECK(normalized(R"({"type": "NFC"})", "A\u0301\uFB01") == "\u00C1\uFB01");
  CHECK(normalized(R"({"type": "NFD"})", "\u00C1\uFB01") == "A\u0301\uFB01");
  CHECK(normalized(R"({"type": "NFKC"})", "A\u0301\uFB01") ==
        "\u00C1"
        "fi");
  CHECK(normalized(R"({"type": "NFKD"})", "\u00C1\uFB01") ==
        "A\u0301"
        "fi");
  CHECK(normalized(R"({"type": "NFC"})", std::string("\u1100\u1161\0x", 8)) ==
        std::string("\uAC00\0x", 5));
  CHECK(normalized(R"({"type": "Lowercase"})", "\u00C4\u03A3\u0130Z") == "\u00E4\u03C3i\u0307z");
  CHECK(normalized(R"({"type": "Prepend", "prepend": "_"})", "a") == "_a");
  CHECK(normalized(R"({"type": "Prepend", "prepend": "_"})", "").empty());
  CHECK(normalized(R"({"type": "Strip", "strip_left": true, "strip_right": true})",
                   "\u3000 a b\t\u0085") == "a b");
  CHECK(normalized(R"({"type": "Strip", "strip_left": true, "strip_right": false})", " a ") ==
        "a ");
  CHECK(normalized(R"({"type": "Strip", "strip_left": true, "strip_right": true})", " \n").empty());
  CHECK(normalized(R"({"type": "Replace", "pattern": {"String": " "}, "content": "__"})", " a b") ==
        "__a__b");
  CHECK(normalized(R"({"type": "Replace", "pattern": {"Regex": "[ab]+"}, "content": ""})",
                   "xabay") == "xy");
  CHECK(normalized(R"({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "A"},
                                                          {"type": "Lowercase"}]})",
                   "B") == "ab");
}

TEST_CASE("A split with each behavior", "[io]") {
  const std::string text = "--a-b--c-";
  CHECK(words(split("Removed"), text) == Strings{"a", "b", "c"});
  CHECK(words(split("Isolated"), text) == Strings{"-", "-", "a", "-", "b", "-", "-", "c", "-"});
  CHECK(words(split("MergedWithPrevious"), text) == Strings{"-", "-", "a-", "b-", "-", "c-"});
  CHECK(words(split("MergedWithNext"), text) == Strings{"-", "-a", "-b", "-", "-c", "-"});
  CHECK(words(split("Contiguous"), text) == Strings{"--", "a", "-", "b", "--", "c", "-"});
  CHECK(words(split("Removed", R"({"String": "-"})", true), text) ==
        Strings{"-", "-", "-", "-", "-", "-"});
  CHECK(words(split("Isolated", R"re({"Regex": "\\w+(?=-)"})re"), text) ==
        Strings{"--", "a", "-", "b", "--", "c", "-"});
  CHECK(words(split("Isolated", R"({"Regex": "x*"})"), "axxb") == Strings{"a", "xx", "b"});
  CHECK(words(split("Isolated", R"({"String": "."})"), "a.b") == Strings{"a", ".", "b"});
  CHECK(words(split("Removed"), "").empty());
}

TEST_CASE("A pre-tokenizer of each other type", "[io]") {
  CHECK(words("null", "a b") == Strings{"a b"});
  CHECK(words(R"({"type": "ByteLevel", "add_prefix_space": false})", "I'm  \u00E9 12") ==
        Strings{"I", "'m", "\u0120", "\u0120\u00C3\u00A9", "\u012012"});
  CHECK(words(R"({"type": "ByteLevel"})", "a b") == Strings{"\u0120"
                                                            "a",
                                                            "\u0120"
                                                            "b"});
  CHECK(words(R"({"type": "ByteLevel", "use_regex": false})", " a\n") == Strings{"\u0120"
                                                                                 "a\u010A"});
  CHECK(words(R"({"type": "Digits", "individual_digits": true})", "a12\u0663\u00BD.") ==
        Strings{"a", "1", "2", "\u0663", "\u00BD", "."});
  CHECK(words(R"({"type": "Digits"})", "12a34") == Strings{"12", "a", "34"});
  CHECK(words(R"({"type": "Punctuation"})", "a+b\u3002\u20AC") ==
        Strings{"a", "+", "b", "\u3002", "\u20AC"});
  CHECK(words(R"({"type": "Punctuation", "behavior": "MergedWithPrevious"})", "a.b") ==
        Strings{"a.", "b"});
  CHECK(words(R"({"type": "Whitespace"})", "Hey_1 \u200D!? \u00E9") ==
        Strings{"Hey_1", "\u200D", "!?", "\u00E9"});
  CHECK(words(R"({"type": "WhitespaceSplit"})", " a!\u3000b\n") == Strings{"a!", "b"});
  const std::string meta = R"({"type": "Metaspace", "replacement": "_")";
  CHECK(words(meta + "}", "a  b") == Strings{"_a", "_", "_b"});
  CHECK(words(meta + R"(, "split": false})", "a b") == Strings{"_a_b"});
  CHECK(words(meta + R"(, "prepend_scheme": "first"})", "a", false) == Strings{"a"});
  CHECK(words(meta + R"(, "prepend_scheme": "first"})", "a", true) == Strings{"_a"});
  CHECK(words(meta + R"(, "prepend_scheme": "never"})", "a b") == Strings{"a", "_b"});
  CHECK(words(meta + R"(, "add_prefix_space": false})", "a") == Strings{"a"});
  CHECK(words(R"({"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, )" + meta +
                  R"(, "prepend_scheme": "first"}]})",
              "a b") == Strings{"_a", "b"});
}

TEST_CASE("A decoder of each type", "[io]") {
  CHECK(decoded("null", {"a", "b"}) == "a b");
  CHECK(decoded(R"({"type": "ByteLevel"})", {"\u0120\u00C3", "\u00A9", "\u00C3", "\u4E00"}) ==
        " \u00E9\uFFFD\u4E00");
  CHECK(decoded(R"({"type": "ByteFallback"})", {"<0xC3>", "<0xa9>", "x", "<0xC3>", "<0x29>"}) ==
        "\u00E9x\uFFFD\uFFFD");
  CHECK(decoded(R"({"type": "Metaspace", "replacement": "_"})", {"_a_b", "_c"}) == "ab c");
  CHECK(decoded(R"({"type": "Metaspace", "replacement": "_", "prepend_scheme": "never"})",
                {"_a", "_c"}) == " a c");
  CHECK(decoded(R"({"type": "Replace", "pattern": {"String": "_"}, "content": " "})",
                {"_a_", "b"}) == " a b");
  CHECK(decoded(R"({"type": "Sequence", "decoders": [{"type": "Fuse"},
                   {"type": "Strip", "content": " ", "start": 1, "stop": 2}]})",
                {"  a", "  ", " "}) == " a ");
  CHECK(decoded(R"({"type": "Strip", "content": "e", "start": 1, "stop": 1})", {"e", "eae"}) ==
        "a");
}

TEST_CASE("Special tokens around a text", "[io]") {
  CHECK(around("null") == Ids{7});
  CHECK(around(R"({"type": "ByteLevel", "trim_offsets": true})") == Ids{7});
  const std::string both = R"({"type": "TemplateProcessing", "single": [
      {"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
      {"SpecialToken": {"id": "</s>", "type_id": 0}}], "special_tokens": {
      "<s>": {"id": "<s>", "ids": [1, 3], "tokens": ["<s>", "x"]},
      "</s>": {"id": "</s>", "ids": [2], "tokens": ["</s>"]}}})";
  CHECK(around(both) == Ids{1, 3, 7, 2});
  CHECK(around(R"({"type": "Sequence", "processors": [{"type": "ByteLevel"}, )" + both + "]}") ==
        Ids{1, 3, 7, 2});
}

TEST_CASE("A stage that is not supported or broken is refused by name", "[io]") {
  const auto refused = [](auto read, const char* json) {
    return user_error_of([&] { read(Json::parse(json)); });
  };
  const auto normalizer = [](const Json& json) { moe::io::read_normalizer(json, "t"); };
  const auto cut = [](const Json& json) { moe::io::read_pre_tokenizer(json, "t"); };
  const auto post = [](const Json& json) { moe::io::read_post_processor(json, "t"); };
  const auto decoder = [](const Json& json) { moe::io::read_decoder(json, "t"); };
  CHECK(refused(normalizer, R"({"type": "Precompiled"})") ==
        "t: the type 'Precompiled' is not supported; supported: NFC, NFD, NFKC, NFKD, Prepend, "
        "Replace, Strip, Lowercase, Sequence");
  CHECK(refused(cut, R"({"type": "UnicodeScripts"})") ==
        "t: the type 'UnicodeScripts' is not supported; supported: ByteLevel, Split, Digits, "
        "Metaspace, Punctuation, Whitespace, WhitespaceSplit, Sequence");
  CHECK(refused(post, R"({"type": "BertProcessing"})") ==
        "t: the type 'BertProcessing' is not supported; supported: TemplateProcessing, ByteLevel, "
        "Sequence");
  CHECK(refused(decoder, R"({"type": "Sequence", "decoders": [{"type": "CTC"}]})") ==
        "t Sequence: the type 'CTC' is not supported; supported: ByteLevel, ByteFallback, Fuse, "
        "Metaspace, Replace, Strip, Sequence");
  CHECK(refused(normalizer, "[]") == "t: must be an object with a key 'type', is a list of 0");
  CHECK(refused(normalizer, R"({"type": "Replace", "content": ""})") ==
        "t Replace: 'pattern' must be {\"String\": text} or {\"Regex\": expression}");
  CHECK(refused(cut, R"({"type": "Split", "pattern": {"Regex": "(a"}, "behavior": "Removed"})") ==
        "t Split: the regular expression '(a' is broken: end pattern with unmatched parenthesis");
  CHECK(refused(cut, R"({"type": "Split", "pattern": {"String": "a"}, "behavior": "Kept"})") ==
        "t Split: the behavior 'Kept' is unknown; known: Removed, Isolated, MergedWithPrevious, "
        "MergedWithNext, Contiguous");
  CHECK(refused(cut, R"({"type": "Metaspace", "replacement": "ab"})") ==
        "t Metaspace: 'replacement' must be one character, is 'ab'");
  CHECK(refused(cut, R"({"type": "Metaspace", "replacement": "_", "prepend_scheme": "last"})") ==
        "t Metaspace: 'prepend_scheme' is 'last'; known: always, first, never");
  CHECK(refused(cut, R"({"type": "Metaspace", "replacement": "_", "prepend_scheme": "first",
                         "add_prefix_space": false})") ==
        "t Metaspace: 'add_prefix_space' is false but 'prepend_scheme' is 'first'; keep one");
  CHECK(refused(cut, R"({"type": "Sequence"})") == "t Sequence: 'pretokenizers' must be a list");
  CHECK(refused(post, R"({"type": "TemplateProcessing", "single": []})") ==
        "t TemplateProcessing: 'single' lacks the sequence A");
  CHECK(refused(post, R"({"type": "TemplateProcessing", "single": [{"Sequence": {"id": "B"}}]})") ==
        "t TemplateProcessing: 'single' must hold the sequence A once, beside special tokens");
  CHECK(refused(post,
                R"({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>"}}]})") ==
        "t TemplateProcessing: 'special_tokens' says nothing of '<s>'");
}

TEST_CASE("An expression that tries too many ways is told, not waited for", "[io]") {
  const std::string text(60, 'a');
  CHECK(user_error_of([&] {
          words(split("Isolated", R"re({"Regex": "(a|a|aa)+$(?<=b)"})re"), text);
        }).find("gives up on a text of 60 bytes") != std::string::npos);
}
