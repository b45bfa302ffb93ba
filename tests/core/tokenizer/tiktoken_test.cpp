#include "core/tokenizer/tokenizer.h"
#include "core/tokenizer/tokenizer_model.h"
#include "tests/support/catch.h"
#include "tests/support/data.h"
#include "tests/support/temp_dir.h"
#include "tests/support/user_error.h"

using moe::io::Tokenizer;
using moe::io::TokenizerKind;
using moe::test::TempDir;
using moe::test::user_error_of;
using moe::test::write_file;
using Ids = std::vector<int64_t>;

namespace {

std::string base64(const std::string& bytes) {
  static const std::string digits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t bits = 0;
    for (size_t k = 0; k < 3; ++k) {
      bits = bits << 8 | (i + k < bytes.size() ? static_cast<uint8_t>(bytes[i + k]) : 0);
    }
    for (size_t k = 0; k < 4; ++k) {
      text += i + k > bytes.size() ? '=' : digits[bits >> (18 - 6 * k) & 63];
    }
  }
  return text;
}

// 128,000 tokens: the bytes, "ab", "bc", "abc", then pairs and triples of high bytes.
std::string made_up(const std::string& last_line = "") {
  std::string file;
  int64_t rank = 0;
  const auto add = [&](const std::string& bytes) {
    file += base64(bytes) + " " + std::to_string(rank++) + "\n";
  };
  for (int byte = 0; byte < 256; ++byte) {
    add(std::string(1, static_cast<char>(byte)));
  }
  for (const char* text : {"bc", "ab", "abc", "ab c", " a"}) {
    add(text);
  }
  for (int i = 0; rank < 128000; ++i) {
    add({static_cast<char>(0x80 | (i & 0x7F)), static_cast<char>(0x80 | (i >> 7 & 0x7F)),
         static_cast<char>(0x80 | (i >> 14 & 0x7F))});
  }
  return file + last_line;
}

}  // namespace

TEST_CASE("A tiktoken file: ranks are ids, pairs of lowest rank merge first", "[io]") {
  const auto model = moe::io::read_tiktoken(made_up(), "t");
  CHECK(model->vocab_size() == 128256);
  CHECK(model->encode("abc") == Ids{258});        // a word that is a token
  CHECK(model->encode("abcd") == Ids{258, 'd'});  // bc first, then a + bc, as it is abc too
  CHECK(model->encode("abab") == Ids{257, 257});
  CHECK(model->encode("b a") == Ids{'b', 260});
  CHECK(model->encode("<|begin_of_text|>a<|eot_id|>") == Ids{128000, 'a', 128009});
  CHECK(model->piece(128006) == "<|start_header_id|>");
  CHECK(model->piece(128255) == "<|reserved_special_token_250|>");
  CHECK(model->bos_id() == 128000);
  CHECK(model->eos_id() == 128001);
  CHECK(model->before_text() == Ids{128000});
  CHECK(model->decode({128000, 258, 0xC3, 0xA9, 128009}) == "abc\u00E9");
  CHECK(model->bytes(10) == "\n");
}

TEST_CASE("A tokenizer.model is told by its first line", "[io]") {
  CHECK(moe::io::is_tiktoken("IQ== 0\n"));
  CHECK(moe::io::is_tiktoken("IQ== 0\r\n"));
  CHECK_FALSE(moe::io::is_tiktoken(""));
  CHECK_FALSE(moe::io::is_tiktoken("IQ==\n"));
  CHECK_FALSE(moe::io::is_tiktoken("IQ= 0\n"));
  CHECK_FALSE(moe::io::is_tiktoken("\x0a\x0e\x0a\x05<unk>\x15"));
  CHECK_FALSE(moe::io::is_tiktoken("version https://git-lfs.github.com/spec/v1\n"));
  const TempDir dir;
  write_file(dir / "tokenizer.model", made_up());
  CHECK(Tokenizer::load(dir.path(), 128256).kind() == TokenizerKind::kTiktoken);
  write_file(dir / "tokenizer.json", R"({"model": {"type": "BPE", "vocab": {}, "merges": []}})");
  CHECK(Tokenizer::load(dir.path(), 0).kind() == TokenizerKind::kTokenizerJson);
}

TEST_CASE("A tiktoken file that is broken or not Llama 3's is refused", "[io]") {
  const auto refused = [](const std::string& file) {
    return user_error_of([&] { moe::io::read_tiktoken(file, "t"); });
  };
  CHECK(refused("IQ== 0\nIg==\n") ==
        "t line 2: is no token in base64 and its rank; fetch the file again");
  CHECK(refused("IQ== 0\nIg== 1x\n") ==
        "t line 2: is no token in base64 and its rank; fetch the file again");
  CHECK(refused("IQ== 0\n\n! 1\n") ==
        "t line 3: is no token in base64 and its rank; fetch the file again");
  CHECK(refused("IQ== 0\n") ==
        "t: holds 1 tokens up to rank 0, Llama 3's holds 128000; other tiktoken files do not say "
        "how they cut words: use the model's tokenizer.json");
  CHECK(refused(made_up("AAAA 128000\n")).find("holds 128001 tokens") != std::string::npos);
  CHECK(refused("IQ== 0\nIg== 0\n") == "t: the id 0 has two tokens, '!' and '\"'");
  std::string without_zero = made_up();
  without_zero.replace(0, 4, base64("zz").substr(0, 4));
  CHECK(refused(without_zero) == "t: no token is the byte 0x00 alone; fetch the file again");
}

TEST_CASE("Llama 3's own tokenizer gives Llama 3's ids", "[io]") {
  const auto folder = moe::test::shared_data() / "llama3-tokenizer";
  if (moe::test::shared_data().empty() || !std::filesystem::exists(folder)) {
    MOE_SKIP("no Llama 3 tokenizer in the shared data");
  }
  const Tokenizer tokenizer = Tokenizer::load(folder, 128256);
  CHECK(tokenizer.encode("Hello world") == Ids{9906, 1917});
  CHECK(tokenizer.with_special(tokenizer.encode("Hello world")) == Ids{128000, 9906, 1917});
  CHECK(tokenizer.adds_bos());
  for (const std::string text : {"", "a  b \n\n c", "\u65E5\u672C\u8A9E \U0001F600\u0301",
                                 "DON'T can't 12345", "\t\r\n x"}) {
    CHECK(tokenizer.decode(tokenizer.encode(text)) == text);
  }
}
