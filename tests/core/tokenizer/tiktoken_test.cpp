#include "core/tokenizer/tokenizer.h"
#include "core/tokenizer/tokenizer_model.h"
#include "tests/support/catch.h"
#include "tests/support/data.h"
#include "tests/support/matchers.h"
#include "tests/support/user_error.h"

using moe::io::Tokenizer;
using moe::io::TokenizerKind;
using namespace moe::test;
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

// Returns a file of 128,000 tokens: the bytes, "bc", "ab", "abc", "ab c", " a" and triples of
// high bytes.
std::string llama3_sized() {
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
  return file;
}

}  // namespace

TEST_CASE("In a tiktoken file ranks are ids, and pairs of lowest rank merge first", "[io]") {
  const auto model = moe::io::read_tiktoken(llama3_sized(), "t");
  CHECK(model->vocab_size() == 128256);
  CHECK(model->encode("abc") == Ids{258});        // a word that is a token
  CHECK(model->encode("abcd") == Ids{258, 'd'});  // b + c first, then a + bc
  CHECK(model->encode("abab") == Ids{257, 257});
  CHECK(model->encode("b a") == Ids{'b', 260});
  CHECK(model->encode("<|begin_of_text|>a<|eot_id|>") == Ids{128000, 'a', 128009});
  CHECK(model->piece(128006) == "<|start_header_id|>");
  CHECK(model->piece(128255) == "<|reserved_special_token_250|>");
  CHECK(model->bos_id() == 128000);
  CHECK(model->eos_id() == 128001);
  CHECK(model->before_text() == Ids{128000});
  CHECK(model->bytes(10) == "\n");
  CHECK(model->decode({128000, 258, 0xC3, 0xA9, 128009}) == "abc\u00E9");
  for (const std::string text : {"", "a  b \n\n c", "\u65E5\u672C\u8A9E \U0001F600\u0301",
                                 "DON'T can't 12345", "\t\r\n x"}) {
    CHECK(model->decode(model->encode(text)) == text);
  }
}

TEST_CASE("The first line of a tokenizer.model tells whether it is a tiktoken file", "[io]") {
  CHECK(moe::io::is_tiktoken("IQ== 0\n"));
  CHECK(moe::io::is_tiktoken("IQ== 0\r\n"));
  for (const char* bytes : {"", "IQ==\n", "IQ= 0\n", "\x0a\x0e\x0a\x05<unk>\x15",
                            "version https://git-lfs.github.com/spec/v1\n"}) {
    CHECK_FALSE(moe::io::is_tiktoken(bytes));
  }
  const TempDir dir;
  write_file(dir / "tokenizer.model", llama3_sized());
  CHECK(Tokenizer::load(dir.path(), 128256).kind() == TokenizerKind::kTiktoken);
  write_file(dir / "tokenizer.json", R"({"model": {"type": "BPE", "vocab": {}, "merges": []}})");
  CHECK(Tokenizer::load(dir.path(), 0).kind() == TokenizerKind::kTokenizerJson);
}

TEST_CASE("A tiktoken file that is broken or not Llama 3's is refused", "[io]") {
  const std::string whole = llama3_sized();
  std::string without_zero = whole;
  without_zero.replace(0, 4, base64("zz").substr(0, 4));
  for (const auto& [file, fact] :
       {std::pair<std::string, std::string>{"IQ== 0\nIg==\n", "t line 2: "},
        {"IQ== 0\nIg== 1x\n", "t line 2: "},
        {"IQ== 0\n\n! 1\n", "t line 3: "},
        {"IQ== 0\n", "holds 1 tokens up to rank 0, Llama 3's holds 128000"},
        {whole + "AAAA 128000\n", "holds 128001 tokens"},
        {"IQ== 0\nIg== 0\n", "the id 0 has two tokens, '!' and '\"'"},
        {without_zero, "no token is the byte 0x00"}}) {
    CHECK_THAT(user_error_of([&bytes = file] { moe::io::read_tiktoken(bytes, "t"); }),
               contains_text(fact));
  }
}

TEST_CASE("Llama 3's published tokenizer gives Llama 3's ids", "[io]") {
  const auto folder = shared_data() / "llama3-tokenizer";
  if (shared_data().empty() || !std::filesystem::exists(folder)) {
    MOE_SKIP("no Llama 3 tokenizer in the shared data");
  }
  const Tokenizer tokenizer = Tokenizer::load(folder, 128256);
  CHECK(tokenizer.encode("Hello world") == Ids{9906, 1917});
  CHECK(tokenizer.with_special(tokenizer.encode("Hello world")) == Ids{128000, 9906, 1917});
  CHECK(tokenizer.adds_bos());
}
