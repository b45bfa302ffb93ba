#include "core/base/json.h"
#include "core/tokenizer/tokenizer.h"
#include "tests/support/data.h"
#include "tests/support/user_error.h"

using moe::io::Tokenizer;
using namespace moe::test;
using Ids = std::vector<int64_t>;

namespace {

Tokenizer tiny() { return Tokenizer::load(tiny_model_folder(), 1024); }

std::string tiny_bytes() { return read_file(tiny_model_folder() / "tokenizer.model"); }

}  // namespace

TEST_CASE("A sentencepiece model gives the ids of the sentencepiece library", "[io]") {
  const Tokenizer tokenizer = tiny();
  CHECK(tokenizer.encode("Hello world") == Ids{483, 956, 294, 958, 306, 708});
  CHECK(tokenizer.encode("the red cat") == Ids{268, 339, 443});
  CHECK(tokenizer.encode("").empty());
  CHECK(tokenizer.encode("</s>") == Ids{955, 63, 50, 959, 65});  // text, not EOS
  CHECK(tokenizer.encode_part("</s>", {{0, 4}}, true) == tokenizer.encode("</s>"));
  CHECK(tokenizer.vocab_size() == 1024);
  CHECK(tokenizer.bos_id() == 1);
  CHECK(tokenizer.eos_id() == 2);
  CHECK(tokenizer.piece(268) == "\u2581the");
  CHECK(tokenizer.piece(1) == "<s>");
  CHECK(tokenizer.special_id("</s>") == 2);
  CHECK(tokenizer.special_id("\u2581the") == -1);
}

TEST_CASE("Published sentencepiece models give the published ids", "[io]") {
  MOE_NEED_SHARED_DATA();
  const Tokenizer llama = Tokenizer::load(shared_data() / "llama-tokenizer", 32000);
  CHECK(llama.encode("Hello world") == Ids{15043, 3186});
  CHECK_FALSE(llama.adds_bos());
  const auto folder = shared_data() / "stories260K-hf";
  const Tokenizer stories = Tokenizer::load(folder, 512);
  const moe::Json reference = moe::read_json(folder / "reference.json");
  Ids ids = stories.encode(reference["prompt"].get<std::string>());
  ids.insert(ids.begin(), stories.bos_id());
  CHECK(ids == reference["prompt_ids_with_bos"].get<Ids>());
  CHECK(stories.decode(reference["greedy_256_from_bos_ids"].get<Ids>()) ==
        reference["greedy_256_text"].get<std::string>());
}

TEST_CASE("Decoding the ids of a text returns it; invalid UTF-8 becomes U+FFFD", "[io]") {
  const Tokenizer tokenizer = tiny();
  for (const std::string text : {"a  b   c", "line\n\nfeed\t", "\u65E5\u672C \U0001F600",
                                 "<s> </s>", " leading", "x", "a\uFFFDb"}) {
    CHECK(tokenizer.decode(tokenizer.encode(text)) == text);
  }
  CHECK(tokenizer.encode("a\xFFz") == tokenizer.encode("a\uFFFDz"));
  CHECK(tokenizer.encode("\xC3\x28\xED\xA0\x80").size() > 1);
  CHECK(tokenizer.encode(std::string_view("a\0b", 3)).size() >= 2);
  CHECK(tokenizer.encode(std::string(100'000, 'a')).size() > 1000);
}

TEST_CASE("Ids without text decode to nothing, invalid byte sequences to U+FFFD", "[io]") {
  const Tokenizer tokenizer = tiny();
  CHECK(tokenizer.piece(1024) == "<1024>");
  CHECK(tokenizer.piece(-1) == "<-1>");
  constexpr int64_t kThe = 268, kCat = 443;
  const auto byte = [](int64_t value) { return value + 3; };  // <0x00> is piece 3
  CHECK(tokenizer.decode({kThe, 1024, -7, int64_t{1} << 40, 0, kCat}) == "the cat");
  CHECK(tokenizer.decode({1, kThe, 2}) == "the");
  CHECK(tokenizer.decode({byte(0xC3), byte(0xA9), kThe}) == "\u00E9 the");
  CHECK(tokenizer.decode({byte(0xC3), byte(')'), kThe, byte(')')}) == "\uFFFD\uFFFD the)");
  CHECK(tokenizer.decode({byte(0xC3), 2, 0, byte(0xA9)}) == "\u00E9");
  CHECK(tokenizer.decode({kThe, byte(0xE2), byte(0x82)}) == "the\uFFFD\uFFFD");
  // With trainer_spec.unk_piece = "a", an ordinary piece, the model has no unknown piece.
  const TempDir dir;
  write_file(dir / "tokenizer.model", tiny_bytes() + "\x12\x04\xEA\x02\x01" + "a");
  CHECK(Tokenizer::load(dir.path(), 1024).decode({kThe, -1, 0, 1024, int64_t{1} << 40, kCat}) ==
        "the cat");
}

TEST_CASE("add_bos_token of tokenizer_config.json decides whether BOS precedes a text", "[io]") {
  const TempDir dir;
  write_file(dir / "tokenizer.model", tiny_bytes());
  const auto adds_bos = [&](const char* config) {
    write_file(dir / "tokenizer_config.json", config);
    return Tokenizer::load(dir.path(), 0).adds_bos();
  };
  CHECK(adds_bos(R"({"add_bos_token": true})"));
  for (const char* config : {R"({"add_bos_token": false})", R"({"add_bos_token": null})", "{}"}) {
    CHECK_FALSE(adds_bos(config));
  }
  CHECK_THAT(user_error_of([&] { adds_bos(R"({"add_bos_token": "yes"})"); }),
             contains_text("tokenizer_config.json: 'add_bos_token'") && contains_text("\"yes\""));
}

TEST_CASE("A tokenizer that is missing, broken or larger than the model is refused", "[io]") {
  const TempDir dir;
  const auto load_error = [&](const std::string& bytes, int64_t vocab_size) {
    write_file(dir / "tokenizer.model", bytes);
    return user_error_of([&] { Tokenizer::load(dir.path(), vocab_size); });
  };
  CHECK_THAT(user_error_of([&] { Tokenizer::load(dir.path(), 512); }),
             contains_text("neither tokenizer.model nor tokenizer.json"));
  const std::string whole = tiny_bytes(), file = (dir / "tokenizer.model").string();
  for (const std::string& bytes :
       {std::string(), std::string("version https://git-lfs.github.com/spec/v1\noid sha256:1\n"),
        whole + std::string("\x0a\x05\x0a\x03\0ab", 7)}) {  // a piece that contains a byte 0
    CHECK(load_error(bytes, 1100).starts_with(file + ": is no sentencepiece model"));
  }
  CHECK(load_error(whole, 1024).empty());
  CHECK(load_error(whole, 1100).empty());  // the model pads its embedding
  CHECK(load_error(whole, 1023)
            .starts_with(file + ": has 1024 tokens, config.json has vocab_size 1023"));
}

TEST_CASE("A tokenizer.model that is truncated or has a flipped bit loads or is refused", "[io]") {
  const std::string whole = tiny_bytes();
  const TempDir dir;
  int refused = 0;
  for (size_t at = 0; at < whole.size(); at += 97) {
    std::string flipped = whole;
    flipped[at] = static_cast<char>(flipped[at] ^ 0x10);
    for (const auto& bytes : {whole.substr(0, at), flipped}) {
      write_file(dir / "tokenizer.model", bytes);
      const std::string error =
          user_error_of([&] { Tokenizer::load(dir.path(), 1024).encode("Once upon a time"); });
      refused += error.empty() ? 0 : 1;
    }
  }
  CHECK(refused > 0);
}

TEST_CASE("A tokenizer.model as tokenizer.json has equal ids and texts", "[io]") {
  for (const char* more : {"", R"(, "legacy": true)"}) {
    const TempDir dir;
    write_file(dir / "tokenizer.model", tiny_bytes());
    write_file(dir / "tokenizer_config.json", R"({"pad_token": "<|a|>")" + std::string(more) + "}");
    const Tokenizer own = Tokenizer::load(dir.path(), 0);
    for (const auto& [name, text] : moe::io::stock_tokenizer_files(dir.path())) {
      write_file(dir / name, text);
    }
    const Tokenizer json = Tokenizer::load(dir.path(), 0);
    CHECK(json.kind() == moe::io::TokenizerKind::kTokenizerJson);
    CHECK(json.special_id("<|a|>") == 1024);
    CHECK(json.encode("</s>") == Ids{json.eos_id()});  // text to sentencepiece
    for (const std::string spaces : {"", " ", "   ", "\u2581", " \n  "}) {
      for (const char* word : {"", "the", "</s", "\u65E5 \U0001F600", "a<|a|>  the", "\xFF"}) {
        const std::string text = spaces + word + spaces + "red " + word + spaces;
        CAPTURE(more, text);
        CHECK(json.encode(text) == own.encode(text));
        const std::string marked = "</s>" + text + "</s>" + text;
        CHECK(json.encode(marked) == own.encode_parsing_special(marked));
        CHECK(json.decode(json.encode(text)) == own.decode(own.encode(text)));
      }
    }
  }
}

TEST_CASE("Tokens that other files name are added to a sentencepiece model", "[io]") {
  const TempDir dir;
  std::filesystem::copy_file(tiny_model_folder() / "tokenizer.model", dir / "tokenizer.model");
  const auto load = [&](const std::string& more) {
    write_file(dir / "tokenizer_config.json",
               R"({"added_tokens_decoder": {"1024": {"content": "<|a|>", "special": true},
                                            "1025": {"content": "<|b|>", "special": false}})" +
                   more + "}");
    return Tokenizer::load(dir.path(), 0);
  };
  const Tokenizer first = load(R"(, "eos_token": "<|a|>")");
  const Ids the = first.encode("the"), bare = first.encode_part("the", {}, false);
  CHECK(first.eos_id() == 1024);
  CHECK(first.vocab_size() == 1026);
  CHECK(bare != the);  // no space first
  const auto joined = [](std::initializer_list<Ids> parts) {
    Ids all;
    for (const Ids& part : parts) {
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  };
  CHECK(first.encode("the<|a|>the<|b|> the") == joined({the, {1024}, bare, {1025}, the}));
  CHECK(first.decode(first.encode("the<|a|>the<|b|> the")) == "thethe<|b|> the");
  CHECK(Tokenizer::load(dir.path(), 1024).eos_id() == -1);  // beyond the model's vocabulary
  load(R"(, "bos_token": "<|b|>")");
  CHECK_THAT(user_error_of([&] { Tokenizer::load(dir.path(), 1024); }),
             contains_text("the token '<|b|>' has the id 1025, beyond the model's vocabulary"));
  CHECK(load(R"(, "legacy": true)").encode("the<|a|>the") == joined({the, {1024}, the}));
  CHECK(load(R"(, "add_prefix_space": false)").encode("the<|a|>the") ==
        joined({bare, {1024}, bare}));
  // The marks of a template are tokens, the same text in data is not.
  const auto parts = first.split("<s>the<|a|></s>", {{3, 6}, {11, 15}});
  REQUIRE(parts.size() == 4);
  CHECK(parts[0].id == first.bos_id());
  CHECK(parts[2].id == 1024);
  CHECK(parts[3].id == -1);
}
