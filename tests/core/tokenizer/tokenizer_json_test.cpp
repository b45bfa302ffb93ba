#include <chrono>
#include <map>

#include "core/base/json.h"
#include "core/tokenizer/tokenizer.h"
#include "core/tokenizer/tokenizer_model.h"
#include "tests/support/data.h"
#include "tests/support/user_error.h"

using moe::Json;
using moe::io::Tokenizer;
using moe::io::TokenizerKind;
using namespace moe::test;
using Ids = std::vector<int64_t>;
using Strings = std::vector<std::string>;

namespace {

// A byte-level model: the letters a and b, a space, the three bytes of U+20AC, "ab", and added
// tokens with ids 7 to 12.
Json byte_level_json() {
  return Json::parse(R"({
    "version": "1.0", "truncation": {"max_length": 1}, "padding": null,
    "added_tokens": [
      {"id": 7, "content": "<s>", "special": true, "normalized": false},
      {"id": 8, "content": "</s>", "special": true, "normalized": false},
      {"id": 9, "content": "[L]", "lstrip": true, "normalized": false, "special": false},
      {"id": 10, "content": "[R]", "rstrip": true, "normalized": false, "special": false},
      {"id": 11, "content": "bb", "single_word": true, "normalized": false, "special": false},
      {"id": 12, "content": "<s>x", "normalized": false, "special": false}],
    "normalizer": null,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
    "post_processor": {"type": "TemplateProcessing",
      "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
                 {"Sequence": {"id": "A", "type_id": 0}}],
      "special_tokens": {"<s>": {"id": "<s>", "ids": [7], "tokens": ["<s>"]}}},
    "decoder": {"type": "ByteLevel"},
    "model": {"type": "BPE", "dropout": null, "unk_token": null, "fuse_unk": false,
      "vocab": {"a": 0, "b": 1, "\u0120": 2, "\u00e2": 3, "\u0124": 4, "\u00ac": 5, "ab": 6},
      "merges": ["a b"]}})");
}

// byte_level_json() with tokens 7, 8, ... for each of `letters`, followed by the added ones.
Json with_letters(const std::string& letters) {
  Json json = byte_level_json();
  for (size_t i = 0; i < letters.size(); ++i) {
    json["model"]["vocab"][letters.substr(i, 1)] = 7 + i;
  }
  json["post_processor"]["special_tokens"]["<s>"]["ids"] = {7 + letters.size()};
  return json;
}

// byte_level_json() with the added token "\t", which strips white space on the given sides.
Json tabs_json(bool lstrip, bool rstrip) {
  Json json = byte_level_json();
  json["added_tokens"].push_back({{"id", 13},
                                  {"content", "\t"},
                                  {"lstrip", lstrip},
                                  {"rstrip", rstrip},
                                  {"normalized", false}});
  return json;
}

std::unique_ptr<moe::io::TokenizerModel> read(const Json& json) {
  return moe::io::read_tokenizer_json(json, "t");
}

Ids encode(const Json& json, const std::string& text) { return read(json)->encode(text); }

std::string refused(const Json& json) {
  return user_error_of([&] { read(json); });
}

Tokenizer load(const TempDir& dir, const Json& json, const char* config = nullptr) {
  write_file(dir / "tokenizer.json", json.dump());
  if (config != nullptr) {
    write_file(dir / "tokenizer_config.json", config);
  }
  return Tokenizer::load(dir.path(), 0);
}

// Returns the tokenizer.json that the Hub has for a sentencepiece model with LLaMA's settings. The
// merges of a piece are all pairs of pieces that spell it. Pieces of lower id merge first, runs of
// spaces last.
Json json_of_llama(const Tokenizer& pieces) {
  Json json = Json::parse(R"({
    "added_tokens": [{"id": 0, "content": "<unk>", "special": true, "normalized": false},
                     {"id": 1, "content": "<s>", "special": true, "normalized": false},
                     {"id": 2, "content": "</s>", "special": true, "normalized": false}],
    "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u2581"},
      {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]},
    "pre_tokenizer": null, "post_processor": null,
    "decoder": {"type": "Sequence", "decoders": [
      {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
      {"type": "ByteFallback"}, {"type": "Fuse"},
      {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
    "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true}})");
  std::map<std::string, int64_t> ids;
  for (int64_t id = 0; id < pieces.vocab_size(); ++id) {
    ids[pieces.piece(id)] = id;
  }
  Json merges = Json::array(), of_spaces = Json::array();
  for (int64_t id = 259; id < pieces.vocab_size(); ++id) {
    const std::string piece = pieces.piece(id);
    const bool is_spaces = pieces.bytes(id).find_first_not_of(' ') == std::string::npos;
    std::map<std::pair<int64_t, int64_t>, Json> halves;
    for (size_t cut = 1; cut < piece.size(); ++cut) {
      const std::string left = piece.substr(0, cut), right = piece.substr(cut);
      if (ids.count(left) != 0 && ids.count(right) != 0) {
        halves[{ids[left], ids[right]}] = {left, right};
      }
    }
    for (const auto& half : halves) {
      (is_spaces ? of_spaces : merges).push_back(half.second);
    }
  }
  merges.insert(merges.end(), of_spaces.begin(), of_spaces.end());
  json["model"]["vocab"] = ids;
  json["model"]["merges"] = merges;
  return json;
}

}  // namespace

TEST_CASE("A tokenizer.json encodes added tokens and merged words, and decodes them", "[io]") {
  const auto model = read(byte_level_json());
  CHECK(model->encode("ab ab") == Ids{6, 2, 6});
  CHECK(model->encode("").empty());
  CHECK(model->encode("\u20AC") == Ids{3, 4, 5});
  CHECK(model->encode("a<s>b</s>") == Ids{0, 7, 1, 8});
  CHECK(model->encode("<s>x<s>") == Ids{12, 7});         // the longest
  CHECK(model->encode("a  [L] a") == Ids{0, 9, 2, 0});   // strips the spaces before it
  CHECK(model->encode("a [R]  a") == Ids{0, 2, 10, 0});  // strips the spaces after it
  CHECK(model->encode("[R]  [L]") == Ids{10, 9});
  CHECK(model->encode("bb abb bb.bb") == Ids{11, 2, 6, 1, 2, 11, 11});
  CHECK(model->encode("a\xE2\x82") == Ids{0});  // the bytes of U+FFFD are not tokens
  CHECK(model->decode({7, 6, 2, 6, 8, 3, 4, 5, 99, -1, 9}) == "ab ab\u20AC[L]");
  CHECK(model->decode({3, 4}) == "\uFFFD");
  CHECK(model->piece(2) == "\u0120");
  CHECK(model->bytes(2) == " ");
  CHECK(model->bytes(3) == "\xE2");
  CHECK(model->bytes(9) == "[L]");
  CHECK(model->vocab_size() == 13);
  CHECK(model->before_text() == Ids{7});
}

TEST_CASE("Text that overlaps a filled range of a template becomes no special token", "[io]") {
  Json json = with_letters("<s>/");
  const auto model = read(json);
  const std::string text = "<s>a<s>[R] </s>";
  CHECK(model->encode(text, {{3, 11}}) == Ids{11, 0, 7, 8, 9, 14, 12});
  CHECK(model->encode("a<s>a", {{2, 3}}) == Ids{0, 7, 8, 9, 0});  // partial overlap
  CHECK(model->encode("<s>x", {{3, 4}}) == Ids{16});              // added, but not special
  // Replaced bytes shift the ranges, so all of the text is treated as filled.
  CHECK(model->encode("\xE2<s>a", {{4, 5}}) == model->encode("\xE2<s>a", {{0, 5}}));
  for (auto& token : json["added_tokens"]) {
    token["special"] = true;
  }
  const auto special = read(json);
  CHECK(special->encode("<s>x", {}) == Ids{16});
  CHECK(special->encode("<s>x", {{3, 4}}) == Ids{11});  // the longest outside the range
}

TEST_CASE("Text of a filled range makes no special tokens but keeps other added tokens", "[io]") {
  Json json = with_letters("<s>");
  json["pre_tokenizer"]["add_prefix_space"] = true;
  const auto model = read(json);
  CHECK(model->encode("a<s>bb") == Ids{2, 0, 10, 14});
  CHECK(model->encode("a<s>bb", {{0, 6}}) == Ids{2, 0, 7, 8, 9, 14});
  CHECK(model->encode("a [R]  a", {{0, 8}}) == Ids{2, 0, 2, 13, 2, 0});
  CHECK(model->special_id("</s>") == 11);
  CHECK(model->special_id("[L]") == 12);
  CHECK(model->special_id("ab") == -1);  // an ordinary token
  Json first = byte_level_json();
  first["pre_tokenizer"] = {
      {"type", "Metaspace"}, {"replacement", "\u2581"}, {"prepend_scheme", "first"}};
  first["model"]["vocab"]["\u2581"] = 7;
  first["post_processor"]["special_tokens"]["<s>"]["ids"] = {8};
  const auto metaspace = read(first);
  CHECK(metaspace->encode("a", {{0, 1}}) == Ids{7, 0});
  CHECK(metaspace->encode("a", {{0, 1}}, false) == Ids{0});  // after a special token
}

TEST_CASE("Added tokens are matched before or after normalization", "[io]") {
  Json json = byte_level_json();
  json["normalizer"] = {{"type", "Lowercase"}};
  json["added_tokens"] = Json::parse(R"([
      {"id": 7, "content": "<s>", "special": true, "normalized": false},
      {"id": 8, "content": "Aa", "normalized": true, "special": false},
      {"id": 9, "content": "BA", "normalized": false, "special": false}])");
  CHECK(encode(json, "AA") == Ids{8});
  CHECK(encode(json, "aa<S>") == Ids{8});  // < s > are not in the vocabulary
  CHECK(encode(json, "BAba") == Ids{9, 1, 0});
  CHECK(read(json)->decode({8, 9}) == "aaBA");
}

TEST_CASE("Merges are pairs or strings, and a version line is skipped", "[io]") {
  for (const char* merges : {R"([["a", "b"]])", R"(["#version: 0.2", "a b"])"}) {
    Json json = byte_level_json();
    json["model"]["merges"] = Json::parse(merges);
    CHECK(encode(json, "ab") == Ids{6});
  }
}

TEST_CASE("An invalid tokenizer.json is refused with the key and the token", "[io]") {
  struct Case {
    const char *pointer, *value, *fact;
  };
  for (const auto& [pointer, value, fact] : {
           Case{"/model", "null", "no 'model'"},
           Case{"/model/type", R"("Unigram")", "'Unigram' is not supported; supported: BPE"},
           Case{"/model/dropout", "0.1", "'dropout'"},
           Case{"/model/continuing_subword_prefix", R"("##")", "'continuing_subword_prefix'"},
           Case{"/model/end_of_word_suffix", R"("</w>")", "'end_of_word_suffix'"},
           Case{"/model/unk_token", R"("<unk>")", "'unk_token' is '<unk>'"},
           Case{"/model/merges", R"(["a b", "a  b"])", "merge 2 is not a pair"},
           Case{"/model/merges", R"([["a", "c"]])", "merge 1 needs the token 'c'"},
           Case{"/model/merges", R"([["b", "a"]])", "merge 1 needs the token 'ba'"},
           Case{"/model/merges", "null", "'merges' must be a list"},
           Case{"/model/vocab", "[]", "'vocab' must be an object"},
           Case{"/model/vocab/a", "-1", "'a' must have an id of 0 to 4194303"},
           Case{"/model/vocab/a", "4194304", "'a' must have an id of 0 to 4194303"},
           Case{"/model/vocab/a", "1", "the id 1 has two tokens, 'a' and 'b'"},
           Case{"/added_tokens/1/content", R"("")", "8 ('') is empty"},
           Case{"/added_tokens", "1", "added_tokens: must be a list"},
           Case{"/post_processor/special_tokens/<s>/ids", "[77]", "the id 77"},
       }) {
    Json json = byte_level_json();
    json[Json::json_pointer(pointer)] = Json::parse(value);
    CAPTURE(pointer, value);
    CHECK_THAT(refused(json), contains_text("t: ") && contains_text(fact));
  }
  CHECK(refused(Json::object()).starts_with("t: "));
  Json json = byte_level_json();
  json["model"]["end_of_word_suffix"] = "";
  CHECK(refused(json).empty());
}

TEST_CASE("BOS and EOS come from tokenizer_config.json, other configs or the template", "[io]") {
  const TempDir dir;
  const Tokenizer alone = load(dir, byte_level_json());
  CHECK(alone.kind() == TokenizerKind::kTokenizerJson);
  CHECK(alone.bos_id() == 7);  // of the template
  CHECK(alone.eos_id() == -1);
  CHECK(alone.adds_bos());
  CHECK_FALSE(alone.adds_space());
  CHECK(alone.with_special({0}) == Ids{7, 0});
  const std::string words = moe::io::special_token_key(dir.path());
  write_file(dir / "config.json", R"({"bos_token_id": 0, "eos_token_id": [8, 9]})");
  CHECK(Tokenizer::load(dir.path(), 13).bos_id() == 0);
  CHECK(Tokenizer::load(dir.path(), 13).eos_id() == 8);
  CHECK_FALSE(Tokenizer::load(dir.path(), 13).adds_bos());  // the template begins with another
  CHECK(moe::io::special_token_key(dir.path()) != words);
  write_file(dir / "special_tokens_map.json", R"({"eos_token": "[R]"})");
  CHECK(Tokenizer::load(dir.path(), 0).eos_id() == 10);
  const Tokenizer named =
      load(dir, byte_level_json(),
           R"({"bos_token": {"content": "<s>"}, "eos_token": "</s>", "add_bos_token": false})");
  CHECK(named.bos_id() == 7);
  CHECK(named.eos_id() == 8);
  CHECK(named.adds_bos());  // tokenizer.json decides
  const Tokenizer none = load(dir, byte_level_json(), R"({"bos_token": null, "eos_token": "no"})");
  CHECK(none.bos_id() == -1);
  CHECK(none.eos_id() == 13);  // added after the others, as by transformers
  CHECK_FALSE(none.adds_bos());
  CHECK_THAT(user_error_of([&] { load(dir, byte_level_json(), R"({"bos_token": 1})"); }),
             contains_text("tokenizer_config.json: 'bos_token' must be a string"));
}

TEST_CASE("Generation stops at EOS and at every eos_token_id of the config", "[io]") {
  const TempDir dir;
  const auto stop_ids = [&](const char* file, const char* config) {
    write_file(dir / file, config);
    return load(dir, byte_level_json(), R"({"eos_token": "</s>"})").stop_ids();
  };
  CHECK(stop_ids("unrelated", "") == Ids{8});
  CHECK(stop_ids("config.json", R"({"eos_token_id": [9, 8]})") == Ids{9, 8});
  CHECK(stop_ids("config.json", R"({"eos_token_id": 9})") == Ids{8, 9});
  // generation_config.json overrides config.json, as in transformers.
  const char* generation = "generation_config.json";
  CHECK(stop_ids(generation, R"({"eos_token_id": [10, 11, -1]})") == Ids{8, 10, 11});
  CHECK(Tokenizer::load(dir.path(), 0).eos_id() == 8);
  CHECK(stop_ids(generation, R"({"eos_token_id": null})") == Ids{8, 9});
  CHECK_THAT(user_error_of([&] { stop_ids(generation, R"({"eos_token_id": "</s>"})"); }),
             contains_text("generation_config.json: 'eos_token_id' must be"));
}

TEST_CASE("A vocabulary beyond the model's is refused, an added token when it is encoded", "[io]") {
  const TempDir dir;
  write_file(dir / "tokenizer.json", byte_level_json().dump());
  CHECK_THAT(user_error_of([&] { Tokenizer::load(dir.path(), 5); }),
             contains_text("tokenizer.json: has 13 tokens") && contains_text("vocab_size 5"));
  const Tokenizer tokenizer = Tokenizer::load(dir.path(), 12);
  CHECK(tokenizer.encode("<s>a") == Ids{7, 0});
  CHECK_THAT(user_error_of([&] { tokenizer.encode("<s>x"); }),
             contains_text("'<s>x' has the id 12") && contains_text("vocabulary of 12"));
}

TEST_CASE("New special tokens follow those that other files name", "[io]") {
  const TempDir dir;
  load(dir, byte_level_json(), R"({"pad_token": "[P]", "added_tokens_decoder": {}})");
  const auto files =
      moe::io::with_special_tokens(dir.path(), moe::io::split_tokens("<x\\,>,</s>,ab"));
  CHECK(Tokenizer::load(dir.path(), 0, files).encode("a<x,>ab[P]") == Ids{0, 14, 6, 13});
  CHECK(moe::io::with_special_tokens(dir.path(), {"</s>"}).empty());
  for (const Strings& tokens : {Strings{"a", ""}, {"<x>", "<x>"}, {"<x>", " <y>"}, {"auto"}}) {
    CHECK_THAT(user_error_of([&] { moe::io::with_special_tokens(dir.path(), tokens); }),
               contains_text("--add-tokens: the token '"));
  }
}

TEST_CASE("A tokenizer.json is preferred to a sentencepiece model", "[io]") {
  const TempDir dir;
  std::filesystem::copy_file(tiny_model_folder() / "tokenizer.model", dir / "tokenizer.model");
  CHECK(Tokenizer::load(dir.path(), 0).kind() == TokenizerKind::kSentencepiece);
  CHECK(load(dir, byte_level_json()).kind() == TokenizerKind::kTokenizerJson);
  CHECK(moe::io::tokenizer_file(dir.path()) == dir / "tokenizer.json");
}

TEST_CASE("Added tokens are numbered in order; their stored ids are ignored", "[io]") {
  Json json = byte_level_json();
  json["added_tokens"][5]["id"] = 99;
  CHECK(encode(json, "<s>x") == Ids{12});
  std::swap(json["added_tokens"][0], json["added_tokens"][1]);
  json["post_processor"] = nullptr;
  CHECK(encode(json, "<s></s>") == Ids{8, 7});
}

TEST_CASE("Tokens that other files of the folder name are added", "[io]") {
  const TempDir dir;
  const Tokenizer decoder = load(dir, byte_level_json(), R"({
      "added_tokens_decoder": {"14": {"content": "<y>", "special": true},
                               "13": {"content": "<x>", "special": false, "rstrip": true},
                               "7": {"content": "<s>", "special": true}},
      "pad_token": "<pad>", "extra_special_tokens": ["<e>"]})");
  CHECK(decoder.encode("<s><x> <y><pad><e>") == Ids{7, 13, 14, 15, 16});
  CHECK(decoder.decode({7, 13, 14, 0}) == "<x>a");
  write_file(dir / "special_tokens_map.json", R"({"additional_special_tokens": ["<z>"]})");
  write_file(dir / "added_tokens.json", R"({"<w>": 14, "<z>": 13})");
  const std::string words = moe::io::special_token_key(dir.path());
  const Tokenizer map = load(dir, byte_level_json(), "{}");
  CHECK(map.encode("<z><w>") == Ids{13, 14});
  CHECK(map.decode({13, 14}) == "<w>");
  CHECK(moe::io::special_token_key(dir.path()) != words);
}

TEST_CASE("A word encoder gives the ids of a tokenizer.json", "[io]") {
  const TempDir dir;
  const auto tokenizer = std::make_shared<Tokenizer>(load(dir, byte_level_json()));
  moe::io::WordEncoder words(tokenizer);
  for (const std::string text : {"", "ab  ab", "\u2581 <s>", "a\xFFz", "  "}) {
    CHECK(words.encode(text) == tokenizer->encode(text));
  }
}

TEST_CASE("A character of several tokens is returned when it is complete", "[io]") {
  const TempDir dir;
  const Tokenizer tokenizer = load(dir, byte_level_json());
  moe::io::TextStream stream(tokenizer);
  CHECK(stream.push({6, 3}) == "ab");
  CHECK(stream.push({4}).empty());
  CHECK(stream.push({5}) == "\u20AC");
  CHECK(stream.push({7}).empty());  // special
  CHECK(stream.push({3}).empty());
  CHECK(stream.push({0}) == std::string("\uFFFD") + "a");  // the character stays incomplete
  CHECK(stream.push({3}).empty());
  CHECK(stream.finish() == "\uFFFD");
  CHECK(stream.finish().empty());
}

TEST_CASE("Returned text is kept even if later bytes make its characters invalid", "[io]") {
  Json json = byte_level_json();
  json["pre_tokenizer"] = nullptr;
  json["decoder"] = {{"type", "ByteFallback"}};
  json["model"]["vocab"] = {{"a", 0}, {"<0xC3>", 1}, {"<0xA9>", 2}};
  json["model"]["merges"] = Json::array();
  const TempDir dir;
  const Tokenizer tokenizer = load(dir, json);
  moe::io::TextStream stream(tokenizer);
  CHECK(stream.push({0, 1}) == "a");
  CHECK(stream.push({2}) == "\u00E9");
  CHECK(stream.push({2}).empty());  // decode() now gives one U+FFFD for each byte
  CHECK(stream.push({0}) == std::string("\uFFFD\uFFFD\uFFFD") + "a");
}

TEST_CASE("The text after a common prefix begins with a whole character", "[io]") {
  CHECK(moe::io::text_after("ab", "abc") == "c");
  CHECK(moe::io::text_after("ab", "ab").empty());
  CHECK(moe::io::text_after("abc", "ab").empty());
  CHECK(moe::io::text_after("a\uFFFD", "a\U0001F600x") == "\U0001F600x");
  CHECK(moe::io::text_after("a\u00E9", "a\u00E8x") == "\u00E8x");  // equal first bytes
}

TEST_CASE("A sentencepiece model and its tokenizer.json give the same ids and texts", "[io]") {
  std::vector<std::string> texts = english_texts();
  texts.insert(texts.end(), {"", " ", "a", "  a  b ", "\n\n x\t", "\u65E5\u672C\u8A9E", "a\xFFz",
                             "\U0001F600\u0301 \u00E9", "DON'T 12345 can't"});
  for (const auto& folder : sentencepiece_folders()) {
    const Tokenizer pieces = Tokenizer::load(folder, 0);
    if (pieces.word_rule("") != moe::io::WordRule::kKeeps) {
      continue;  // normalizes spaces, LLaMA's settings do not
    }
    const TempDir dir;
    const Tokenizer fast = load(dir, json_of_llama(pieces));
    CHECK(fast.adds_space());
    for (const auto& text : texts) {
      const Ids ids = pieces.encode(text);
      REQUIRE(fast.encode_part(text, {{0, text.size()}}, true) == ids);
      if (text.find("s>") == std::string::npos) {  // no special token
        REQUIRE(fast.encode(text) == ids);
      }
      REQUIRE(fast.decode(ids) == pieces.decode(ids));
    }
  }
}

TEST_CASE("White space next to an added token is stripped in linear time", "[io]") {
  CHECK(encode(tabs_json(true, false), "a \t  \t\ta") == Ids{0, 13, 13, 13, 0});
  CHECK(encode(tabs_json(false, true), "a\t \t  [R] \t b") == Ids{0, 13, 13, 10, 13, 1});
  CHECK(encode(tabs_json(true, true), " \t \t [L] \t") == Ids{13, 13, 9, 13});
  constexpr size_t kTabs = 300000;
  const auto start = std::chrono::steady_clock::now();
  for (const auto& [lstrip, rstrip] : {std::pair(true, false), {false, true}, {true, true}}) {
    CHECK(encode(tabs_json(lstrip, rstrip), std::string(kTabs, '\t')) == Ids(kTabs, 13));
  }
  // Takes 0.2 s. A quadratic algorithm takes minutes.
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(30));
}

TEST_CASE("Only stages that are read make a tokenizer byte-level", "[io]") {
  Json json = byte_level_json();
  json["decoder"] = {{"type", "Fuse"}, {"decoders", {{{"type", "ByteLevel"}}}}};
  json["pre_tokenizer"] = {{"type", "Sequence"},
                           {"pretokenizers", {{{"type", "WhitespaceSplit"}}}},
                           {"decoders", {{{"type", "ByteLevel"}}}}};
  CHECK(read(json)->bytes(3) == "\u00E2");
  json["pre_tokenizer"]["pretokenizers"][0]["type"] = "ByteLevel";
  CHECK(read(json)->bytes(3) == "\xE2");
}

TEST_CASE("Too many stages or special tokens and too long added tokens are refused", "[io]") {
  Json inner = {{"type", "Sequence"}, {"normalizers", Json::array()}};
  inner["normalizers"].insert(inner["normalizers"].end(), 20, {{"type", "NFC"}});
  Json stages = {{"type", "Sequence"}, {"normalizers", Json::array()}};
  stages["normalizers"].insert(stages["normalizers"].end(), 13, inner);
  Json json = byte_level_json();
  json["normalizer"] = stages;
  CHECK_THAT(refused(json), contains_text("t: normalizer: 274 stages, more than the 256"));
  json = byte_level_json();
  json["post_processor"]["special_tokens"]["<s>"]["ids"] = Ids(5000, 7);
  CHECK_THAT(refused(json), contains_text("5000 tokens"));
  json = byte_level_json();
  json["added_tokens"][4]["content"] = std::string(1025, 'a');
  CHECK_THAT(refused(json), contains_text("11 has 1025 bytes, more than the 1024"));
}
