#include <algorithm>
#include <chrono>
#include <map>

#include "core/base/json.h"
#include "core/tokenizer/tokenizer.h"
#include "core/tokenizer/tokenizer_model.h"
#include "tests/support/catch.h"
#include "tests/support/data.h"
#include "tests/support/temp_dir.h"
#include "tests/support/user_error.h"

using moe::Json;
using moe::io::Tokenizer;
using moe::io::TokenizerKind;
using moe::test::TempDir;
using moe::test::user_error_of;
using moe::test::write_file;
using Ids = std::vector<int64_t>;

namespace {

// Byte-level: the letters a and b, a space, the three bytes of U+20AC, "ab", and special tokens.
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

Ids encode(const Json& json, const std::string& text) {
  return moe::io::read_tokenizer_json(json, "t")->encode(text);
}

// Byte-level, with the added token "\t" that takes white space along as `lstrip` and `rstrip` say.
Json tabs_json(bool lstrip, bool rstrip) {
  Json json = byte_level_json();
  json["added_tokens"].push_back({{"id", 13},
                                  {"content", "\t"},
                                  {"lstrip", lstrip},
                                  {"rstrip", rstrip},
                                  {"normalized", false}});
  return json;
}

std::string refused(const Json& json) {
  return user_error_of([&] { moe::io::read_tokenizer_json(json, "t"); });
}

Tokenizer load(const TempDir& dir, const Json& json, const char* config = nullptr) {
  write_file(dir / "tokenizer.json", json.dump());
  if (config != nullptr) {
    write_file(dir / "tokenizer_config.json", config);
  }
  return Tokenizer::load(dir.path(), 0);
}

// LLaMA-2's tokenizer.json as the Hub has it, made of its tokenizer.model: a piece's merges are all
// pairs of pieces that are it together; pieces of lower id merge first, runs of spaces last.
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

TEST_CASE("A tokenizer.json: added tokens, words, merges, and back", "[io]") {
  const Json json = byte_level_json();
  const auto model = moe::io::read_tokenizer_json(json, "t");
  CHECK(model->encode("ab ab") == Ids{6, 2, 6});
  CHECK(model->encode("").empty());
  CHECK(model->encode("\u20AC") == Ids{3, 4, 5});
  CHECK(model->encode("a<s>b</s>") == Ids{0, 7, 1, 8});
  CHECK(model->encode("<s>x<s>") == Ids{12, 7});         // the longest
  CHECK(model->encode("a  [L] a") == Ids{0, 9, 2, 0});   // takes the spaces before it
  CHECK(model->encode("a [R]  a") == Ids{0, 2, 10, 0});  // and those behind it
  CHECK(model->encode("[R]  [L]") == Ids{10, 9});
  CHECK(model->encode("bb abb bb.bb") == Ids{11, 2, 6, 1, 2, 11, 11});
  CHECK(model->encode("a\xE2\x82") == Ids{0});  // U+FFFD, whose bytes are no tokens
  CHECK(model->decode({7, 6, 2, 6, 8, 3, 4, 5, 99, -1, 9}) == "ab ab\u20AC[L]");
  CHECK(model->decode({3, 4}) == "\uFFFD");
  CHECK(model->piece(2) == "\u0120");
  CHECK(model->bytes(2) == " ");
  CHECK(model->bytes(3) == "\xE2");
  CHECK(model->bytes(9) == "[L]");
  CHECK(model->vocab_size() == 13);
  CHECK(model->before_text() == Ids{7});
}

TEST_CASE("Of a template special tokens count where no part of them was put into it", "[io]") {
  Json json = byte_level_json();
  for (const auto& [letter, id] : {std::pair("<", 13), {"s", 14}, {">", 15}, {"/", 16}}) {
    json["model"]["vocab"][letter] = id;
  }
  const auto model = moe::io::read_tokenizer_json(json, "t");
  const std::string text = "<s>a<s>[R] </s>";
  CHECK(model->encode_template(text, {}) == model->encode(text));
  CHECK(model->encode_template(text, {{0, text.size()}}) == model->encode_plain(text, true));
  CHECK(model->encode_template(text, {{3, 11}}) == Ids{7, 0, 13, 14, 15, 10, 8});
  CHECK(model->encode_template("a<s>a", {{2, 3}}) == Ids{0, 13, 14, 15, 0});  // across a boundary
  CHECK(model->encode_template("<s>x", {{3, 4}}) == Ids{12});  // added, and no special token
  for (auto& token : json["added_tokens"]) {
    token["special"] = true;
  }
  const auto special = moe::io::read_tokenizer_json(json, "t");
  CHECK(special->encode_template("<s>x", {}) == Ids{12});
  CHECK(special->encode_template("<s>x", {{3, 4}}) ==
        Ids{7});  // the longest that is the template's
  // Bytes that are mended move what stands behind them: all of it is text then.
  CHECK(model->encode_template("\xE2<s>a", {{4, 5}}) == model->encode_plain("\xE2<s>a", true));
}

TEST_CASE("In what people wrote special tokens are text, other added tokens are not", "[io]") {
  Json json = byte_level_json();
  json["pre_tokenizer"]["add_prefix_space"] = true;
  for (const auto& [letter, id] : {std::pair("<", 13), {"s", 14}, {">", 15}}) {
    json["model"]["vocab"][letter] = id;
  }
  const auto model = moe::io::read_tokenizer_json(json, "t");
  CHECK(model->encode("a<s>bb") == Ids{2, 0, 7, 11});
  CHECK(model->encode_plain("a<s>bb", true) == Ids{2, 0, 13, 14, 15, 11});
  CHECK(model->encode_plain("a [R]  a", true) == Ids{2, 0, 2, 10, 2, 0});
  CHECK(model->special_id("</s>") == 8);
  CHECK(model->special_id("[L]") == 9);
  CHECK(model->special_id("ab") == -1);  // a word like any other
  Json first = byte_level_json();
  first["pre_tokenizer"] = {
      {"type", "Metaspace"}, {"replacement", "\u2581"}, {"prepend_scheme", "first"}};
  first["model"]["vocab"]["\u2581"] = 13;
  const auto metaspace = moe::io::read_tokenizer_json(first, "t");
  CHECK(metaspace->encode_plain("a", true) == Ids{13, 0});
  CHECK(metaspace->encode_plain("a", false) == Ids{0});  // a special token stands before it
}

TEST_CASE("Added tokens are looked for before or after normalization", "[io]") {
  Json json = byte_level_json();
  json["normalizer"] = {{"type", "Lowercase"}};
  json["added_tokens"] = Json::parse(R"([
      {"id": 7, "content": "<s>", "special": true, "normalized": false},
      {"id": 8, "content": "Aa", "normalized": true, "special": false},
      {"id": 9, "content": "BA", "normalized": false, "special": false}])");
  CHECK(encode(json, "AA") == Ids{8});
  CHECK(encode(json, "aa<S>") == Ids{8});  // < s > are no tokens of this vocabulary
  CHECK(encode(json, "BAba") == Ids{9, 1, 0});
  CHECK(moe::io::read_tokenizer_json(json, "t")->decode({8, 9}) == "aaBA");
}

TEST_CASE("Merges are pairs or one text, and a version line is none", "[io]") {
  Json json = byte_level_json();
  json["model"]["merges"] = Json::parse(R"([["a", "b"]])");
  CHECK(encode(json, "ab") == Ids{6});
  json["model"]["merges"] = Json::parse(R"(["#version: 0.2", "a b"])");
  CHECK(encode(json, "ab") == Ids{6});
}

TEST_CASE("What a tokenizer.json cannot be is refused by name", "[io]") {
  const auto changed = [](const std::function<void(Json&)>& change) {
    Json json = byte_level_json();
    change(json);
    return refused(json);
  };
  const auto of_model = [&](const char* key, const Json& value) {
    return changed([&](Json& json) { json["model"][key] = value; });
  };
  CHECK(refused(Json::object()) == "t: holds no 'model', so it is no tokenizer; fetch it again");
  CHECK(of_model("type", "Unigram") ==
        "t: model: the model 'Unigram' is not supported; supported: BPE");
  CHECK(of_model("dropout", 0.1) ==
        "t: model: 'dropout' makes ids random and is not supported; set it to null");
  CHECK(of_model("continuing_subword_prefix", "##") ==
        "t: model: 'continuing_subword_prefix' is not supported");
  CHECK(of_model("end_of_word_suffix", "</w>") ==
        "t: model: 'end_of_word_suffix' is not supported");
  CHECK(of_model("end_of_word_suffix", "").empty());
  CHECK(of_model("unk_token", "<unk>") == "t: model: 'unk_token' is '<unk>', which 'vocab' lacks");
  CHECK(of_model("merges", Json::parse(R"(["a b", "a  b"])")) ==
        "t: model: merge 2 is not a pair of tokens");
  CHECK(of_model("merges", Json::parse(R"([["a", "c"]])")) ==
        "t: model: merge 1 needs the token 'c', which 'vocab' lacks");
  CHECK(of_model("merges", Json::parse(R"([["b", "a"]])")) ==
        "t: model: merge 1 needs the token 'ba', which 'vocab' lacks");
  CHECK(of_model("merges", nullptr) == "t: model: 'merges' must be a list");
  CHECK(of_model("vocab", Json::array()) ==
        "t: model: 'vocab' must be an object of tokens and their ids");
  CHECK(changed([](Json& json) { json["model"]["vocab"]["a"] = -1; }) ==
        "t: model: the token 'a' must have an id of 0 to 4194303");
  CHECK(changed([](Json& json) { json["model"]["vocab"]["a"] = 4194304; }) ==
        "t: model: the token 'a' must have an id of 0 to 4194303");
  CHECK(changed([](Json& json) { json["model"]["vocab"]["a"] = 1; }) ==
        "t: model: the id 1 has two tokens, 'a' and 'b'");
  CHECK(changed([](Json& json) { json["added_tokens"][0]["content"] = "a"; }) ==
        "t: the added token 'a' has the id 7, which is 0 in the vocabulary; fetch the file again");
  CHECK(changed([](Json& json) { json["added_tokens"][0]["id"] = 0; }) ==
        "t: the added token '<s>' has the id 0, which is another token in the vocabulary; fetch "
        "the file again");
  CHECK(changed([](Json& json) { json["added_tokens"][1]["content"] = "<s>"; }) ==
        "t: the added token 8 ('<s>') is there twice, by its id or its text");
  CHECK(changed([](Json& json) { json["added_tokens"][1]["id"] = 7; }) ==
        "t: the added token 7 ('</s>') is there twice, by its id or its text");
  CHECK(changed([](Json& json) { json["added_tokens"][1]["content"] = ""; }) ==
        "t: the added token 8 ('') is empty, or becomes so by normalization");
  CHECK(changed([](Json& json) { json["added_tokens"] = 1; }) == "t: added_tokens: must be a list");
  CHECK(changed([](Json& json) {
          json["post_processor"]["special_tokens"]["<s>"]["ids"] = Ids{77};
        }) == "t: the template puts the id 77 around a text, which no token has");
}

TEST_CASE("BOS and EOS are named by tokenizer_config.json, other files or the template", "[io]") {
  const TempDir dir;
  const Tokenizer alone = load(dir, byte_level_json());
  CHECK(alone.kind() == TokenizerKind::kTokenizerJson);
  CHECK(alone.bos_id() == 7);  // of the template
  CHECK(alone.eos_id() == -1);
  CHECK(alone.adds_bos());
  CHECK_FALSE(alone.adds_space());
  CHECK(alone.with_special({0}) == Ids{7, 0});
  const std::string words = moe::io::special_token_words(dir.path());
  write_file(dir / "config.json", R"({"bos_token_id": 0, "eos_token_id": [8, 9]})");
  CHECK(Tokenizer::load(dir.path(), 13).bos_id() == 0);
  CHECK(Tokenizer::load(dir.path(), 13).eos_id() == 8);
  CHECK_FALSE(Tokenizer::load(dir.path(), 13).adds_bos());  // the template puts another there
  CHECK(moe::io::special_token_words(dir.path()) != words);
  write_file(dir / "special_tokens_map.json", R"({"eos_token": "[R]"})");
  CHECK(Tokenizer::load(dir.path(), 0).eos_id() == 10);
  const Tokenizer named = load(dir, byte_level_json(), R"({"bos_token": {"content": "<s>"},
                                                           "eos_token": "</s>"})");
  CHECK(named.bos_id() == 7);
  CHECK(named.eos_id() == 8);
  CHECK(named.adds_bos());
  CHECK_FALSE(load(dir, byte_level_json(), R"({"add_bos_token": false})").adds_bos());
  const Tokenizer none = load(dir, byte_level_json(), R"({"bos_token": null, "eos_token": "no"})");
  CHECK(none.bos_id() == -1);
  CHECK(none.eos_id() == -1);
  CHECK_FALSE(none.adds_bos());
  CHECK(user_error_of([&] { load(dir, byte_level_json(), R"({"bos_token": 1})"); }) ==
        (dir / "tokenizer_config.json").string() + ": 'bos_token' must be a string, is 1");
}

TEST_CASE("What ends a generation is EOS and every eos_token_id of the config", "[io]") {
  const TempDir dir;
  const char* names = R"({"eos_token": "</s>"})";
  CHECK(load(dir, byte_level_json(), names).stop_ids() == Ids{8});
  write_file(dir / "config.json", R"({"eos_token_id": [9, 8]})");
  CHECK(load(dir, byte_level_json(), names).stop_ids() == Ids{9, 8});
  write_file(dir / "config.json", R"({"eos_token_id": 9})");
  CHECK(load(dir, byte_level_json(), names).stop_ids() == Ids{8, 9});
  // What generation is told wins over the model's own config, as in transformers.
  write_file(dir / "generation_config.json", R"({"eos_token_id": [10, 11, -1]})");
  CHECK(load(dir, byte_level_json(), names).stop_ids() == Ids{8, 10, 11});
  CHECK(load(dir, byte_level_json(), names).eos_id() == 8);
  write_file(dir / "generation_config.json", R"({"eos_token_id": null})");
  CHECK(load(dir, byte_level_json(), names).stop_ids() == Ids{8, 9});
  write_file(dir / "generation_config.json", R"({"eos_token_id": "</s>"})");
  CHECK(user_error_of([&] {
          load(dir, byte_level_json(), names);
        }).starts_with((dir / "generation_config.json").string() + ": 'eos_token_id' must be"));
}

TEST_CASE("A tokenizer.json that is too large for the model is refused", "[io]") {
  const TempDir dir;
  write_file(dir / "tokenizer.json", byte_level_json().dump());
  CHECK(user_error_of([&] { Tokenizer::load(dir.path(), 12); }) ==
        (dir / "tokenizer.json").string() +
            ": has 13 tokens, config.json says vocab_size 12: tokenizer and model do not belong "
            "together");
  CHECK(user_error_of([&] { Tokenizer::load(dir.path(), 14); }).empty());
}

TEST_CASE("A folder that has sentencepiece and tokenizer.json keeps sentencepiece", "[io]") {
  MOE_NEED_SHARED_DATA();
  const TempDir dir;
  std::filesystem::copy_file(moe::test::shared_data() / "stories260K-hf" / "tokenizer.model",
                             dir / "tokenizer.model");
  const Tokenizer both = load(dir, byte_level_json());
  CHECK(both.kind() == TokenizerKind::kSentencepiece);
  CHECK(both.vocab_size() == 512);
  CHECK(moe::io::tokenizer_file(dir.path()) == dir / "tokenizer.model");
  CHECK(moe::io::special_token_words(dir.path()).empty());
  CHECK(both.adds_space());
  CHECK(both.with_special({5}) == Ids{5});
  write_file(dir / "tokenizer_config.json", R"({"add_bos_token": true})");
  CHECK(Tokenizer::load(dir.path(), 0).with_special({5}) == Ids{1, 5});
}

TEST_CASE("A word encoder gives the ids of a tokenizer.json", "[io]") {
  const TempDir dir;
  const auto tokenizer = std::make_shared<Tokenizer>(load(dir, byte_level_json()));
  moe::io::WordEncoder words(tokenizer);
  for (const std::string text : {"", "ab  ab", "\u2581 <s>", "a\xFFz", "  "}) {
    CHECK(words.encode(text) == tokenizer->encode(text));
  }
}

TEST_CASE("A character that stands on several tokens is given out when it is whole", "[io]") {
  const TempDir dir;
  const Tokenizer tokenizer = load(dir, byte_level_json());
  moe::io::TextStream stream(tokenizer);
  CHECK(stream.push({6, 3}) == "ab");
  CHECK(stream.push({4}).empty());
  CHECK(stream.push({5}) == "\u20AC");
  CHECK(stream.push({7}).empty());  // special
  CHECK(stream.push({3}).empty());
  CHECK(stream.push({0}) ==
        "\uFFFD"
        "a");  // it did not go on
  CHECK(stream.push({3}).empty());
  CHECK(stream.finish() == "\uFFFD");
  CHECK(stream.finish().empty());
}

TEST_CASE("What was given out once stays, also where later bytes break it", "[io]") {
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
  CHECK(stream.push({2}).empty());  // the run is a U+FFFD for each byte now
  CHECK(stream.push({0}) ==
        "\uFFFD\uFFFD\uFFFD"
        "a");
}

TEST_CASE("The text behind another begins with a whole character", "[io]") {
  CHECK(moe::io::text_behind("ab", "abc") == "c");
  CHECK(moe::io::text_behind("ab", "ab").empty());
  CHECK(moe::io::text_behind("abc", "ab").empty());
  CHECK(moe::io::text_behind("a\uFFFD", "a\U0001F600x") == "\U0001F600x");
  CHECK(moe::io::text_behind("a\u00E9", "a\u00E8x") == "\u00E8x");  // the first byte is the same
}

TEST_CASE("LLaMA's sentencepiece model and its tokenizer.json give the same ids and texts",
          "[io]") {
  MOE_NEED_SHARED_DATA();
  const Tokenizer pieces = Tokenizer::load(moe::test::shared_data() / "llama-tokenizer", 32000);
  const TempDir dir;
  const Tokenizer fast = load(dir, json_of_llama(pieces));
  CHECK(fast.adds_space());
  std::vector<std::string> texts = {"",
                                    " ",
                                    "a",
                                    "  a  b ",
                                    "\n\n x\t",
                                    "\u65E5\u672C\u8A9E",
                                    "\U0001F600\u0301 \u00E9",
                                    "DON'T 12345 can't",
                                    "a\xFFz"};
  for (const char* name : {"tinyshakespeare.txt", "tinystories_sample_cs336.txt"}) {
    const std::string text = moe::test::read_file(moe::test::shared_data() / "text" / name);
    for (size_t at = 0, end = 0; at < 200'000 && end < text.size(); at = end) {
      end = std::min(text.size(), text.find(' ', at + 1000));  // between characters
      texts.push_back(text.substr(at, end - at));
    }
  }
  for (const auto& text : texts) {
    const Ids ids = pieces.encode(text);
    REQUIRE(fast.encode(text) == ids);
    REQUIRE(fast.decode(ids) == pieces.decode(ids));
  }
}

TEST_CASE("White space that an added token takes along is visited once", "[io]") {
  CHECK(encode(tabs_json(true, false), "a \t  \t\ta") == Ids{0, 13, 13, 13, 0});
  CHECK(encode(tabs_json(false, true), "a\t \t  [R] \t b") == Ids{0, 13, 13, 10, 13, 1});
  CHECK(encode(tabs_json(true, true), " \t \t [L] \t") == Ids{13, 13, 9, 13});
  constexpr size_t kTabs = 300000;
  const auto start = std::chrono::steady_clock::now();
  for (const auto& [lstrip, rstrip] : {std::pair(true, false), {false, true}, {true, true}}) {
    CHECK(encode(tabs_json(lstrip, rstrip), std::string(kTabs, '\t')) == Ids(kTabs, 13));
  }
  // Takes 0.2 s; minutes where the white space before each token is visited again.
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(30));
}

TEST_CASE("A file of too many stages, special tokens or of too long an added token is refused",
          "[io]") {
  Json json = byte_level_json();
  Json inner = {{"type", "Sequence"}, {"normalizers", Json::array()}};
  for (int i = 0; i < 20; ++i) {
    inner["normalizers"].push_back({{"type", "NFC"}});
  }
  json["normalizer"] = {{"type", "Sequence"}, {"normalizers", Json::array()}};
  for (int i = 0; i < 13; ++i) {
    json["normalizer"]["normalizers"].push_back(inner);
  }
  CHECK(refused(json) ==
        "t: normalizer: 274 stages, more than the 256 that one may have; fetch the "
        "file again");
  json = byte_level_json();
  json["post_processor"]["special_tokens"]["<s>"]["ids"] = Ids(5000, 7);
  CHECK(refused(json).starts_with("t: the template puts 5000 tokens around a text"));
  json = byte_level_json();
  json["added_tokens"][4]["content"] = std::string(1025, 'a');
  CHECK(refused(json) ==
        "t: the added token 11 has 1025 bytes, more than the 1024 that one may have");
}
