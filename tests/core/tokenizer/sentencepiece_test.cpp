#include <cmath>

#include "core/base/json.h"
#include "core/tokenizer/tokenizer.h"
#include "tests/support/catch.h"
#include "tests/support/data.h"
#include "tests/support/temp_dir.h"
#include "tests/support/user_error.h"

using moe::io::Tokenizer;
using moe::test::TempDir;
using moe::test::user_error_of;
using Ids = std::vector<int64_t>;

namespace {

Tokenizer llama() { return Tokenizer::load(moe::test::shared_data() / "llama-tokenizer", 32000); }

}  // namespace

TEST_CASE("LLaMA's tokenizer gives LLaMA's ids", "[io]") {
  MOE_NEED_SHARED_DATA();
  const Tokenizer tokenizer = llama();
  CHECK(tokenizer.encode("Hello world") == Ids{15043, 3186});
  CHECK(tokenizer.encode("").empty());
  CHECK(tokenizer.vocab_size() == 32000);
  CHECK(tokenizer.bos_id() == 1);
  CHECK(tokenizer.eos_id() == 2);
  CHECK(tokenizer.piece(15043) == "\xE2\x96\x81Hello");
  CHECK(tokenizer.piece(1) == "<s>");
  CHECK(tokenizer.special_id("</s>") == 2);
  CHECK(tokenizer.special_id("\xE2\x96\x81Hello") == -1);
  CHECK(tokenizer.encode_plain("</s>", false) == tokenizer.encode("</s>"));
  CHECK_FALSE(tokenizer.adds_bos());
}

TEST_CASE("the real model's tokenizer gives the ids of its reference", "[io]") {
  MOE_NEED_SHARED_DATA();
  const auto folder = moe::test::shared_data() / "stories260K-hf";
  const Tokenizer tokenizer = Tokenizer::load(folder, 512);
  const moe::Json reference = moe::read_json(folder / "reference.json");
  Ids ids = tokenizer.encode(reference["prompt"].get<std::string>());
  ids.insert(ids.begin(), tokenizer.bos_id());
  CHECK(ids == reference["prompt_ids_with_bos"].get<Ids>());
  CHECK(tokenizer.decode(reference["greedy_256_from_bos_ids"].get<Ids>()) ==
        reference["greedy_256_text"].get<std::string>());
}

TEST_CASE("text comes back from its ids, spaces, line feeds and rare letters included", "[io]") {
  MOE_NEED_SHARED_DATA();
  const Tokenizer tokenizer = llama();
  for (const std::string text :
       {"a  b   c", "line\n\nfeed\t", "\xE6\x97\xA5\xE6\x9C\xAC \xF0\x9F\x98\x80", "<s> </s>",
        " leading", "x"}) {
    CHECK(tokenizer.decode(tokenizer.encode(text)) == text);
  }
}

TEST_CASE("bytes that are not text do no harm", "[io]") {
  MOE_NEED_SHARED_DATA();
  const Tokenizer tokenizer = llama();
  CHECK(tokenizer.decode(tokenizer.encode("a\xFF"
                                          "b")) ==
        "a\xEF\xBF\xBD"
        "b");
  CHECK(tokenizer.encode("\xC3\x28\xED\xA0\x80").size() > 1);
  CHECK(tokenizer.encode(std::string_view("a\0b", 3)).size() >= 2);
  CHECK(tokenizer.encode(std::string(100'000, 'a')).size() > 1000);
}

TEST_CASE("what is no text prints as nothing, what is no UTF-8 as such", "[io]") {
  MOE_NEED_SHARED_DATA();
  const Tokenizer tokenizer = llama();
  CHECK(tokenizer.piece(32000) == "<32000>");
  CHECK(tokenizer.piece(-1) == "<-1>");
  CHECK(tokenizer.decode({15043, 32000, -7, int64_t{1} << 40, 0, 3186}) == "Hello world");
  CHECK(tokenizer.decode({1, 15043, 2}) == "Hello");
  const auto byte = [](int64_t value) { return value + 3; };  // <0x00> is piece 3
  CHECK(tokenizer.decode({byte(0xC3), byte(0xA9), 15043}) == "\u00E9 Hello");
  CHECK(tokenizer.decode({byte(0xC3), byte(')'), 15043, byte(')')}) == "\uFFFD\uFFFD Hello)");
  CHECK(tokenizer.decode({byte(0xC3), 2, 0, byte(0xA9)}) == "\u00E9");
  CHECK(tokenizer.decode({15043, byte(0xE2), byte(0x82)}) == "Hello\uFFFD\uFFFD");
}

TEST_CASE("an id beyond the vocabulary is no text where the unknown piece has another name",
          "[io]") {
  MOE_NEED_SHARED_DATA();
  const TempDir dir;
  const std::string whole =
      moe::test::read_file(moe::test::shared_data() / "stories260K-hf" / "tokenizer.model");
  // trainer_spec.unk_piece = "a", an ordinary piece: the model's unk_id is -1.
  moe::test::write_file(dir / "tokenizer.model", whole + "\x12\x04\xEA\x02\x01" + "a");
  const Tokenizer tokenizer = Tokenizer::load(dir.path(), 512);
  auto ids = tokenizer.encode("a day");
  const std::string text = tokenizer.decode(ids);
  ids.insert(ids.end(), {-1, 0, 512, int64_t{1} << 40});
  CHECK(tokenizer.decode(ids) == text);
}

TEST_CASE("tokenizer_config.json says whether a BOS comes first", "[io]") {
  MOE_NEED_SHARED_DATA();
  const TempDir dir;
  std::filesystem::copy_file(moe::test::shared_data() / "stories260K-hf" / "tokenizer.model",
                             dir / "tokenizer.model");
  const auto adds_bos = [&](const char* config) {
    moe::test::write_file(dir / "tokenizer_config.json", config);
    return Tokenizer::load(dir.path(), 0).adds_bos();
  };
  CHECK(adds_bos(R"({"add_bos_token": true})"));
  CHECK_FALSE(adds_bos(R"({"add_bos_token": false})"));
  CHECK_FALSE(adds_bos(R"({"add_bos_token": null})"));
  CHECK_FALSE(adds_bos("{}"));
  CHECK(user_error_of([&] { adds_bos(R"({"add_bos_token": "yes"})"); }) ==
        (dir / "tokenizer_config.json").string() +
            ": 'add_bos_token' must be true or false, is \"yes\"");
}

TEST_CASE("a tokenizer that is missing, broken or of another model is refused", "[io]") {
  const TempDir dir;
  const auto load_error = [&](int64_t vocab_size) {
    return user_error_of([&] { Tokenizer::load(dir.path(), vocab_size); });
  };
  CHECK(load_error(512) ==
        dir.path().string() +
            ": has neither tokenizer.model nor tokenizer.json: text needs one of them; without "
            "them upcycling, inspecting and training on pre-tokenised rows work");
  const std::string broken = (dir / "tokenizer.model").string() +
                             ": is no sentencepiece model, or a broken one; fetch it again";
  moe::test::write_file(dir / "tokenizer.model", "");
  CHECK(load_error(512) == broken);
  moe::test::write_file(dir / "tokenizer.model",
                        "version https://git-lfs.github.com/spec/v1\noid sha256:1\n");
  CHECK(load_error(512) == broken);
  MOE_NEED_SHARED_DATA();
  const std::string whole =
      moe::test::read_file(moe::test::shared_data() / "stories260K-hf" / "tokenizer.model");
  moe::test::write_file(dir / "tokenizer.model", whole);
  CHECK(load_error(512).empty());
  moe::test::write_file(dir / "tokenizer.model",
                        whole + std::string("\x0a\x05\x0a\x03\0ab", 7));  // a piece with a byte 0
  CHECK(load_error(600) == broken);
  moe::test::write_file(dir / "tokenizer.model", whole);
  CHECK(load_error(600).empty());  // a padded embedding
  CHECK(load_error(511) ==
        (dir / "tokenizer.model").string() +
            ": has 512 tokens, config.json says vocab_size 511: tokenizer and model do not belong "
            "together");
}

TEST_CASE("a tokenizer cut short or with a flipped byte is refused or works, and never crashes",
          "[io]") {
  MOE_NEED_SHARED_DATA();
  const std::string whole =
      moe::test::read_file(moe::test::shared_data() / "stories260K-hf" / "tokenizer.model");
  const TempDir dir;
  int refused = 0;
  for (size_t at = 0; at < whole.size(); at += 61) {
    std::string flipped = whole;
    flipped[at] = static_cast<char>(flipped[at] ^ 0x10);
    for (const auto& bytes : {whole.substr(0, at), flipped}) {
      moe::test::write_file(dir / "tokenizer.model", bytes);
      refused += user_error_of([&] {
                   Tokenizer::load(dir.path(), 512).encode("Once upon a time");
                 }).empty()
                     ? 0
                     : 1;
    }
  }
  CHECK(refused > 0);
}
