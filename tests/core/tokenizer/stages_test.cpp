// The stages of tokenizer.json, each by itself.

#include "core/tokenizer/stages.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>

#include "core/base/json.h"
#include "tests/support/user_error.h"

using moe::Json;
using namespace moe::test;
using Ids = std::vector<int64_t>;
using Strings = std::vector<std::string>;

namespace {

// Returns the JSON {"type": `text`} with ' for ", and null for "null".
Json stage(std::string text) {
  std::replace(text.begin(), text.end(), '\'', '"');
  return text == "null" ? Json() : Json::parse("{\"type\": " + text + "}");
}

std::string normalized(const std::string& type, const std::string& text) {
  return moe::io::read_normalizer(stage(type), "t")(text);
}

// Returns the words of `text` with | between them.
std::string words(const std::string& type, const std::string& text, bool begins_text = true) {
  moe::io::Words found;
  found.list.push_back({text, begins_text});
  moe::io::read_pre_tokenizer(stage(type), "t")(found);
  Strings texts;
  for (const auto& word : found.list) {
    texts.emplace_back(word.text);
  }
  return fmt::format("{}", fmt::join(texts, "|"));
}

std::string decoded(const std::string& type, const Strings& tokens) {
  return fmt::format("{}", fmt::join(moe::io::read_decoder(stage(type), "t")(tokens), ""));
}

// Returns the ids of a text that is encoded as 7, with the special tokens around it.
Ids around(const std::string& type) {
  const auto special = moe::io::read_post_processor(stage(type), "t");
  Ids all = special.before;
  all.push_back(7);
  all.insert(all.end(), special.after.begin(), special.after.end());
  return all;
}

// Returns the error of replacing a regular expression in a text of `count` letters a and "c x".
std::string replace_error(const char* regex, size_t count) {
  return user_error_of([&] {
    normalized(fmt::format("'Replace', 'pattern': {{'Regex': '{}'}}, 'content': 'x'", regex),
               std::string(count, 'a') + "c x");
  });
}

std::string split(const std::string& behavior, const std::string& pattern = "'String': '-'",
                  bool invert = false) {
  return fmt::format("'Split', 'pattern': {{{}}}, 'behavior': '{}', 'invert': {}", pattern,
                     behavior, invert);
}

}  // namespace

TEST_CASE("A text that grows without bound is refused in every stage", "[io]") {
  const auto repeated = [](const char* key, const std::string& part, int times) {
    return fmt::format("'Sequence', '{}': [{}]", key,
                       fmt::join(Strings(times, "{'type': " + part + "}"), ", "));
  };
  const std::string twice = "'Replace', 'pattern': {'String': 'a'}, 'content': 'aa'";
  const std::string bytes = "'ByteLevel', 'add_prefix_space': false, 'use_regex': false";
  const auto grows = contains_text("the text grows to more than ");
  CHECK(normalized(repeated("normalizers", twice, 6), "a") == std::string(64, 'a'));
  for (const std::string& type :
       {repeated("normalizers", twice, 40),
        repeated("normalizers", repeated("normalizers", twice, 5), 8),
        "'Prepend', 'prepend': '" + std::string(2000, 'x') + "'",
        "'Replace', 'pattern': {'Regex': ''}, 'content': '" + std::string(1000, 'x') + "'"}) {
    CHECK_THAT(user_error_of([&] { normalized(type, "a"); }), grows);
  }
  CHECK_THAT(user_error_of([&] { decoded(repeated("decoders", twice, 40), {"a"}); }), grows);
  CHECK_THAT(user_error_of([&] { words(repeated("pretokenizers", bytes, 40), "\u00E9"); }), grows);
  // The largest growth of one character is accepted: U+FDFA becomes 18, among them 3 spaces.
  CHECK(normalized("'Sequence', 'normalizers': [{'type': 'NFKC'}, {'type': 'Replace', "
                   "'pattern': {'String': ' '}, 'content': '\u2581'}]",
                   std::string(3000, ' ') + "\uFDFA")
            .size() == 3 * 3000 + 33 + 3 * 2);
}

TEST_CASE("Regular expressions of superlinear time stop with an error or finish soon", "[io]") {
  for (const char* regex : {"a*c|b", "(a*c)?a", "(a|b|ab)*c|(a|aa)+$b", "(?=(a+)c)|a"}) {
    const auto start = std::chrono::steady_clock::now();
    const std::string error = replace_error(regex, 5000);
    CAPTURE(regex, error);
    CHECK((error.empty() || error.find("a regular expression ") != std::string::npos));
    CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(60));
  }
  CHECK_THAT(user_error_of([&] {
               words(split("Isolated", "'Regex': '(a|a|aa)+$(?<=b)'"), std::string(60, 'a'));
             }),
             contains_text("gives up on a text of 60 bytes"));
  // The expressions of published tokenizers accept a long run of white space.
  const std::string spaces(200000, ' ');
  CHECK(words(split("Isolated", R"('Regex': '\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+')"), spaces + "a") ==
        spaces.substr(1) + "| |a");
}

TEST_CASE("Searches of quadratic time stop at a limit of CPU time", "[.][slow][io]") {
  for (const char* regex : {"(a*c)?a", "(?=(a+)c)|a"}) {  // 7 s each
    CHECK_THAT(replace_error(regex, 200000), contains_text("a regular expression takes more than"));
  }
}

TEST_CASE("Each type of normalizer maps a text as the tokenizers library does", "[io]") {
  const std::string strip = "'Strip', 'strip_left': true, 'strip_right': ";
  for (const auto& [type, text, expected] : std::vector<std::array<std::string, 3>>{
           {"null", " A\u0301 ", " A\u0301 "},
           {"'NFC'", "A\u0301\uFB01", "\u00C1\uFB01"},
           {"'NFD'", "\u00C1\uFB01", "A\u0301\uFB01"},
           {"'NFKC'", "A\u0301x\uFB01", "\u00C1xfi"},
           {"'NFKD'", "\u00C1x\uFB01", "A\u0301xfi"},
           {"'NFC'", {"\u1100\u1161\0x", 8}, {"\uAC00\0x", 5}},
           {"'Lowercase'", "\u00C4\u03A3\u0130Z", "\u00E4\u03C3i\u0307z"},
           {"'Prepend', 'prepend': '_'", "a", "_a"},
           {"'Prepend', 'prepend': '_'", "", ""},
           {strip + "true", "\u3000 a b\t\u0085", "a b"},
           {strip + "true", " \n", ""},
           {strip + "false", " a ", "a "},
           {"'Replace', 'pattern': {'String': ' '}, 'content': '__'", " a b", "__a__b"},
           {"'Replace', 'pattern': {'Regex': '[ab]+'}, 'content': ''", "xabay", "xy"},
           {"'Sequence', 'normalizers': [{'type': 'Prepend', 'prepend': 'A'}, "
            "{'type': 'Lowercase'}]",
            "B", "ab"}}) {
    CAPTURE(type);
    CHECK(normalized(type, text) == expected);
  }
}

TEST_CASE("Each type of pre-tokenizer splits a text as the tokenizers library does", "[io]") {
  const std::string meta = "'Metaspace', 'replacement': '_'", dashes = "--a-b--c-";
  for (const auto& [type, text, expected] : std::vector<std::array<std::string, 3>>{
           {split("Removed"), dashes, "a|b|c"},
           {split("Isolated"), dashes, "-|-|a|-|b|-|-|c|-"},
           {split("MergedWithPrevious"), dashes, "-|-|a-|b-|-|c-"},
           {split("MergedWithNext"), dashes, "-|-a|-b|-|-c|-"},
           {split("Contiguous"), dashes, "--|a|-|b|--|c|-"},
           {split("Removed", "'String': '-'", true), dashes, "-|-|-|-|-|-"},
           {split("Isolated", R"('Regex': '\\w+(?=-)')"), dashes, "--|a|-|b|--|c|-"},
           {split("Isolated", "'Regex': 'x*'"), "axxb", "a|xx|b"},
           {split("Isolated", "'String': '.'"), "a.b", "a|.|b"},
           {split("Removed"), "", ""},
           {"null", "a b", "a b"},
           {"'ByteLevel', 'add_prefix_space': false", "I'm  \u00E9 12",
            "I|'m|\u0120|\u0120\u00C3\u00A9|\u012012"},
           {"'ByteLevel'", "x y", "\u0120x|\u0120y"},
           {"'ByteLevel', 'use_regex': false", " x\n", "\u0120x\u010A"},
           {"'Digits', 'individual_digits': true", "a12\u0663\u00BD.", "a|1|2|\u0663|\u00BD|."},
           {"'Digits'", "12a34", "12|a|34"},
           {"'Punctuation'", "a+b\u3002\u20AC", "a|+|b|\u3002|\u20AC"},
           {"'Punctuation', 'behavior': 'MergedWithPrevious'", "a.b", "a.|b"},
           {"'Whitespace'", "Hey_1 \u200D!? \u00E9", "Hey_1|\u200D|!?|\u00E9"},
           {"'WhitespaceSplit'", " a!\u3000b\n", "a!|b"},
           {meta, "a  b", "_a|_|_b"},
           {meta + ", 'split': false", "a b", "_a_b"},
           {meta + ", 'prepend_scheme': 'first'", "a", "_a"},
           {meta + ", 'prepend_scheme': 'never'", "a b", "a|_b"},
           {meta + ", 'add_prefix_space': false", "a", "a"},
           {"'Sequence', 'pretokenizers': [{'type': 'WhitespaceSplit'}, {'type': " + meta +
                ", 'prepend_scheme': 'first'}]",
            "a b", "_a|b"}}) {
    CAPTURE(type);
    CHECK(words(type, text) == expected);
  }
  CHECK(words(meta + ", 'prepend_scheme': 'first'", "a", false) == "a");
}

TEST_CASE("Each type of decoder joins tokens as the tokenizers library does", "[io]") {
  const std::string meta = "'Metaspace', 'replacement': '_'";
  CHECK(decoded("null", {"a", "b"}) == "a b");
  CHECK(decoded("'ByteLevel'", {"\u0120\u00C3", "\u00A9", "\u00C3", "\u4E00"}) ==
        " \u00E9\uFFFD\u4E00");
  CHECK(decoded("'ByteFallback'", {"<0xC3>", "<0xa9>", "x", "<0xC3>", "<0x29>"}) ==
        "\u00E9x\uFFFD\uFFFD");
  CHECK(decoded(meta, {"_a_b", "_c"}) == "ab c");
  CHECK(decoded(meta + ", 'prepend_scheme': 'never'", {"_a", "_c"}) == " a c");
  CHECK(decoded("'Replace', 'pattern': {'String': '_'}, 'content': ' '", {"_a_", "b"}) == " a b");
  CHECK(decoded("'Strip', 'content': 'e', 'start': 1, 'stop': 1", {"e", "eae"}) == "a");
  CHECK(decoded("'Sequence', 'decoders': [{'type': 'Fuse'}, {'type': 'Strip', 'content': ' ', "
                "'start': 1, 'stop': 2}]",
                {"  a", "  ", " "}) == " a ");
}

TEST_CASE("A post-processor gives the special tokens around a text", "[io]") {
  CHECK(around("null") == Ids{7});
  CHECK(around("'ByteLevel', 'trim_offsets': true") == Ids{7});
  const std::string both = R"('TemplateProcessing', 'single': [
      {'SpecialToken': {'id': '<s>', 'type_id': 0}}, {'Sequence': {'id': 'A', 'type_id': 0}},
      {'SpecialToken': {'id': '</s>', 'type_id': 0}}], 'special_tokens': {
      '<s>': {'id': '<s>', 'ids': [1, 3], 'tokens': ['<s>', 'x']},
      '</s>': {'id': '</s>', 'ids': [2], 'tokens': ['</s>']}})";
  CHECK(around(both) == Ids{1, 3, 7, 2});
  CHECK(around("'Sequence', 'processors': [{'type': 'ByteLevel'}, {'type': " + both + "}]") ==
        Ids{1, 3, 7, 2});
}

TEST_CASE("An unsupported or invalid stage is refused with its type and key", "[io]") {
  using Read = void (*)(const std::string&);
  const Read normalizer = [](const std::string& type) { normalized(type, ""); };
  const Read splitter = [](const std::string& type) { words(type, ""); };
  const Read post = [](const std::string& type) { around(type); };
  const Read decoder = [](const std::string& type) { decoded(type, {}); };
  struct Case {
    Read read;
    std::string type, fact;
  };
  const std::string meta = "'Metaspace', 'replacement': '_', 'prepend_scheme': ";
  const std::string single = "'TemplateProcessing', 'single': ";
  for (const auto& [read, type, fact] : std::vector<Case>{
           {normalizer, "'Precompiled'", "t: the type 'Precompiled' is not supported"},
           {normalizer, "'Precompiled'", "supported: NFC, NFD, NFKC, NFKD, Prepend, Replace, "},
           {splitter, "'UnicodeScripts'", "supported: ByteLevel, Split, Digits, Metaspace, "},
           {post, "'BertProcessing'", "supported: TemplateProcessing, ByteLevel, Sequence"},
           {decoder, "'Sequence', 'decoders': [{'type': 'CTC'}]", "t Sequence: the type 'CTC'"},
           {normalizer, "'Replace', 'content': ''", "t Replace: 'pattern' must be"},
           {splitter, split("Removed", "'Regex': '(a'"), "the regular expression '(a' is broken"},
           {splitter, split("Kept"), "t Split: the behavior 'Kept' is unknown; known: Removed,"},
           {splitter, "'Metaspace', 'replacement': 'ab'", "must be one character, is 'ab'"},
           {splitter, meta + "'last'", "'last'; known: always, first, never"},
           {splitter, meta + "'first', 'add_prefix_space': false", "'add_prefix_space' is false"},
           {splitter, "'Sequence'", "t Sequence: 'pretokenizers' must be a list"},
           {post, single + "[]", "must have the sequence A once"},
           {post, single + "[{'Sequence': {'id': 'B'}}]", "must have the sequence A once"},
           {post, single + "[{'SpecialToken': {'id': '<s>'}}]", "'special_tokens' has no '<s>'"}}) {
    CHECK_THAT(user_error_of([&, &read = read, &type = type] { read(type); }), contains_text(fact));
  }
  CHECK_THAT(user_error_of([] { moe::io::read_normalizer(Json::array(), "t"); }),
             contains_text("t: must be an object with a key 'type'"));
}
