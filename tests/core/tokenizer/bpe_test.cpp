#include "core/tokenizer/bpe.h"

#include <algorithm>
#include <map>
#include <random>
#include <thread>

#include "core/tokenizer/tokenizer.h"
#include "core/tokenizer/tokenizer_model.h"
#include "tests/support/data.h"
#include "tests/support/user_error.h"

using namespace moe::io;
using namespace moe::test;
using Ids = std::vector<int64_t>;
using Tokens = std::vector<std::pair<std::string, int64_t>>;

namespace {

Ids encode(const Bpe& bpe, std::string_view word) {
  Ids ids;
  bpe.encode(word, ids);
  return ids;
}

// Merges by the definition of BPE: repeatedly merges the leftmost pair of lowest rank.
Ids merge_slowly(Ids ids, const std::vector<BpeMerge>& merges) {
  std::map<std::pair<int64_t, int64_t>, BpeMerge> table;
  for (const auto& merge : merges) {
    table[{merge.left, merge.right}] = merge;
  }
  while (true) {
    const BpeMerge* best = nullptr;
    size_t place = 0;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      const auto found = table.find({ids[i], ids[i + 1]});
      if (found != table.end() && (best == nullptr || found->second.rank < best->rank)) {
        best = &found->second;
        place = i;
      }
    }
    if (best == nullptr) {
      return ids;
    }
    ids[place] = best->merged;
    ids.erase(ids.begin() + static_cast<ptrdiff_t>(place) + 1);
  }
}

// A BPE model of single letters and random merges of the tokens before them.
struct RandomModel {
  Tokens tokens;
  std::vector<BpeMerge> merges;
  size_t letters;

  RandomModel(size_t letter_count, size_t count, std::mt19937& random) : letters(letter_count) {
    for (size_t i = 0; i < letters; ++i) {
      tokens.emplace_back(std::string(1, static_cast<char>('a' + i)), i);
    }
    while (merges.size() < count) {
      const auto& left = tokens[random() % tokens.size()];
      const auto& right = tokens[random() % tokens.size()];
      const std::string text = left.first + right.first;
      const auto same = std::find_if(tokens.begin(), tokens.end(),
                                     [&](const auto& token) { return token.first == text; });
      const auto id = same != tokens.end() ? same->second : static_cast<int64_t>(tokens.size());
      merges.push_back({left.second, right.second, id, static_cast<int64_t>(merges.size())});
      if (same == tokens.end()) {
        tokens.emplace_back(text, id);
      }
    }
    std::shuffle(merges.begin(), merges.end(), random);
    for (size_t i = 0; i < merges.size(); ++i) {
      merges[i].rank = static_cast<int64_t>(i);
    }
  }

  Bpe bpe() const { return {Vocabulary(tokens, "test"), merges, {}}; }
  std::string word(size_t length, std::mt19937& random) const {
    std::string text;
    for (size_t i = 0; i < length; ++i) {
      text += static_cast<char>('a' + random() % letters);
    }
    return text;
  }
  Ids letters_of(const std::string& word) const {
    Ids ids;
    for (const char c : word) {
      ids.push_back(c - 'a');
    }
    return ids;
  }
};

Bpe small(const BpeOptions& options, const Tokens& more = {}) {
  Tokens tokens = {{"<unk>", 0}, {"a", 1}, {"b", 2}, {"ab", 3}, {"abb", 4}};
  tokens.insert(tokens.end(), more.begin(), more.end());
  return {Vocabulary(tokens, "test"), {{1, 2, 3, 0}}, options};
}

std::vector<std::shared_ptr<const Tokenizer>> tokenizers() {
  std::vector<std::shared_ptr<const Tokenizer>> all;
  for (const auto& folder : sentencepiece_folders()) {
    all.push_back(std::make_shared<Tokenizer>(Tokenizer::load(folder, 0)));
  }
  return all;
}

// Appends a trainer (2) or normalizer (3) message to a serialized ModelProto. The message sets the
// varint field `number`.
std::string with_field(const std::string& model, char message, int number, char value) {
  std::string field = {static_cast<char>((number << 3 & 0x7F) | (number > 15 ? 0x80 : 0))};
  if (number > 15) {
    field += static_cast<char>(number << 3 >> 7);
  }
  field += value;
  return model + static_cast<char>(message << 3 | 2) + static_cast<char>(field.size()) + field;
}

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

TEST_CASE("BPE merges words of any length as its definition does", "[io]") {
  std::mt19937 random(7);
  for (const size_t letters : {1, 2, 5}) {
    for (const size_t merges : {0, 1, 10, 60}) {
      const RandomModel model(letters, merges, random);
      const Bpe bpe = model.bpe();
      for (const size_t length : {0, 1, 2, 3, 7, 47, 48, 49, 50, 63, 64, 65, 300}) {
        for (int round = 0; round < 8; ++round) {
          const std::string word = model.word(length, random);
          const Ids expected = merge_slowly(model.letters_of(word), model.merges);
          REQUIRE(encode(bpe, word) == expected);
          REQUIRE(encode(bpe, word) == expected);  // a short word is cached now
        }
      }
    }
  }
}

TEST_CASE("BPE merges a word of one megabyte in linear time", "[io]") {
  std::mt19937 random(3);
  const RandomModel model(2, 40, random);
  const std::string word = model.word(size_t{1} << 20, random);
  const Ids ids = encode(model.bpe(), word);
  size_t size = 0;
  for (const int64_t id : ids) {
    size += model.tokens[static_cast<size_t>(id)].first.size();
  }
  CHECK(size == word.size());
}

TEST_CASE("A character without a token becomes bytes, the unknown token or nothing", "[io]") {
  const BpeOptions none, unknown{.unknown = 0}, fused{.fuse_unknown = true, .unknown = 0};
  CHECK(encode(small(none), "axyb") == Ids{3});  // dropped: a and b merge
  CHECK(encode(small(unknown), "axyb") == Ids{1, 0, 0, 2});
  CHECK(encode(small(fused), "axybx") == Ids{1, 0, 2, 0});
  const BpeOptions bytes{.byte_fallback = true, .fuse_unknown = true, .unknown = 0};
  const Tokens some = {{"<0xC3>", 5}, {"<0xA9>", 6}};
  CHECK(encode(small(bytes, some), "a\u00E9b") == Ids{1, 5, 6, 2});
  CHECK(encode(small(bytes, some), "a\u00EAb") == Ids{1, 0, 2});  // <0xAA> is not a token
  // As in the tokenizers library, bytes do not end a run of unknown characters.
  CHECK(encode(small(bytes, some), "a\u00EA\u00E9\u00EAb") == Ids{1, 5, 6, 0, 2});
}

TEST_CASE("With ignore_merges a word that is a token is not split", "[io]") {
  CHECK(encode(small({}), "abb") == Ids{3, 2});
  CHECK(encode(small({.ignore_merges = true}), "abb") == Ids{4});
  CHECK(encode(small({.ignore_merges = true}), "abba") == Ids{3, 2, 1});
}

TEST_CASE("The last of two merges of one pair is used", "[io]") {
  const Bpe bpe(Vocabulary({{"a", 0}, {"b", 1}, {"ab", 2}, {"c", 3}, {"bc", 4}}, "test"),
                {{0, 1, 2, 0}, {1, 3, 4, 1}, {0, 1, 2, 2}}, {});
  CHECK(encode(bpe, "abc") == Ids{0, 4});
}

TEST_CASE("Concurrent threads get the same ids as one thread", "[io]") {
  std::mt19937 random(11);
  const RandomModel model(3, 40, random);
  const Bpe bpe = model.bpe();
  std::vector<std::string> words;
  std::vector<Ids> expected;
  for (int i = 0; i < 3000; ++i) {
    words.push_back(model.word(1 + random() % 70, random));
    expected.push_back(merge_slowly(model.letters_of(words.back()), model.merges));
  }
  std::vector<int> wrong(4);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = 0; i < words.size(); ++i) {
        wrong[t] += encode(bpe, words[i]) == expected[i] ? 0 : 1;
      }
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  CHECK(wrong == std::vector<int>(4));
}

TEST_CASE("A word encoder gives the ids of the whole text for every mix of characters", "[io]") {
  const std::vector<std::string> parts = {
      " ",    " ",    " ",       "  ", "a",      "b",        "the",      "Once",
      "\n",   "\t",   "\r",      "é",  "日本",   "😀",        "\u2581",   "<s>",
      "</s>", "1234", ".",       "'s", "<0x0A>", "\xCC\x88", "\xC2\xA0", "\xE3\x80\x80",
      {'\0'}, "\xFF", "\xE3\x81"};
  std::mt19937 random(7);
  for (const auto& tokenizer : tokenizers()) {
    WordEncoder words(tokenizer);
    for (int round = 0; round < 5000; ++round) {
      std::string text;
      const size_t count = random() % 12;
      for (size_t part = 0; part < count; ++part) {
        text += parts[random() % parts.size()];
      }
      INFO(text);
      REQUIRE((words.encode(text) == tokenizer->encode(text)));
      const std::vector<TextRange> data = {{0, text.size() / 2}};
      REQUIRE((words.encode_parsing_special(text, data) ==
               tokenizer->encode_parsing_special(text, data)));
    }
  }
}

TEST_CASE("Threads that share a word encoder get the ids of whole English texts", "[io]") {
  const std::vector<std::string> texts = english_texts();
  for (const auto& tokenizer : tokenizers()) {
    WordEncoder words(tokenizer);
    std::vector<int> wrong(2, 0);
    std::vector<std::thread> threads;
    for (int& mine : wrong) {
      threads.emplace_back([&] {
        for (const auto& text : texts) {
          mine += words.encode(text) == tokenizer->encode(text) ? 0 : 1;
        }
      });
    }
    for (auto& thread : threads) {
      thread.join();
    }
    CHECK(wrong == std::vector<int>{0, 0});
  }
}

TEST_CASE("A text of any length is encoded if it has spaces and refused if it has none", "[io]") {
  WordEncoder words(tokenizers()[0]);
  CHECK_THAT(user_error_of([&] { words.encode(std::string(5'000'000, 'x')); }),
             contains_text("5.0 MB of text") && contains_text("at most 4.2 MB"));
  std::string text;
  for (int word = 0; word < 800'000; ++word) {
    text += "word" + std::to_string(word % 10) + " ";
  }
  CHECK(words.encode(text).size() > 1'600'000);

  const TempDir dir;  // an added token, which the long text does not have
  fs::copy_file(tiny_model_folder() / "tokenizer.model", dir / "tokenizer.model");
  write_file(dir / "special_tokens_map.json", R"({"additional_special_tokens": ["<tool>"]})");
  const auto tokenizer = std::make_shared<Tokenizer>(Tokenizer::load(dir.path(), 0));
  WordEncoder with_token(tokenizer);
  CHECK(with_token.encode_parsing_special(text, {}) == words.encode(text));
  const std::string marked = "</s> a <tool>";
  CHECK(with_token.encode_parsing_special(marked, {}).front() == tokenizer->eos_id());
  CHECK(with_token.encode_parsing_special(marked, {}).back() == tokenizer->special_id("<tool>"));
  CHECK(with_token.encode_parsing_special(marked, {{0, marked.size()}}) ==
        tokenizers()[0]->encode(marked));
}

TEST_CASE("The word rule follows from the bytes of a sentencepiece model", "[io]") {
  const auto all = tokenizers();
  CHECK(all[0]->word_rule("") == WordRule::kKeeps);
  if (all.size() == 3) {
    CHECK(all[1]->word_rule("") == WordRule::kKeeps);
    CHECK(all[2]->word_rule("") == WordRule::kCollapses);
  }
  const std::string model = read_file(tiny_model_folder() / "tokenizer.model");
  const auto piece = [&](const std::string& text, char type) {
    const std::string body =
        std::string("\x0a") + static_cast<char>(text.size()) + text + "\x18" + type;
    return model + "\x0a" + static_cast<char>(body.size()) + body;
  };
  const auto expect = [](const std::string& bytes, WordRule rule) {
    CHECK(find_word_rule(bytes) == rule);
  };
  expect(model, WordRule::kKeeps);
  expect(model + std::string("\x1a\x05\x12\x03xyz", 7), WordRule::kNone);  // maps characters
  expect(with_field(model, 3, 3, 0), WordRule::kNone);                     // no space first
  expect(with_field(model, 3, 5, 0), WordRule::kNone);                     // spaces unescaped
  expect(with_field(model, 3, 4, 1), WordRule::kCollapses);
  expect(with_field(model, 2, 3, 1), WordRule::kNone);  // unigram
  // The last of repeated messages counts: BPE, then BPE with the space as a suffix.
  expect(model + "\x12\x02\x18\x02", WordRule::kKeeps);
  expect(model + "\x12\x05\x18\x02\xC0\x01\x01", WordRule::kNone);
  expect(model + "\x0a\x05\x0a\x03x\xE2\x96", WordRule::kKeeps);  // an incomplete U+2581
  expect(piece("\u2581\u2581x", 1), WordRule::kKeeps);
  expect(piece("a\u2581z", 1), WordRule::kNone);
  expect(piece("x", 4), WordRule::kNone);  // user-defined
  expect(piece("x", 5), WordRule::kNone);  // unused
  expect("", WordRule::kNone);
  for (size_t cut = 1; cut < 200; ++cut) {
    find_word_rule(model.substr(model.size() - cut));  // reads no byte beyond the end
    expect(model.substr(0, cut), WordRule::kNone);
  }
}

TEST_CASE("In a tiktoken file ranks are ids, and pairs of lowest rank merge first", "[io]") {
  const auto model = read_tiktoken(llama3_sized(), "t", {.is_llama31 = false});
  const auto llama31 = read_tiktoken(llama3_sized(), "t");
  CHECK(llama31->encode("<|python_tag|><|eom_id|><|eot_id|><|finetune_right_pad_id|>") ==
        Ids{128010, 128008, 128009, 128004});
  CHECK(llama31->piece(128255) == "<|reserved_special_token_245|>");
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
  CHECK(is_tiktoken("IQ== 0\n"));
  CHECK(is_tiktoken("IQ== 0\r\n"));
  for (const char* bytes : {"", "IQ==\n", "IQ= 0\n", "\x0a\x0e\x0a\x05<unk>\x15",
                            "version https://git-lfs.github.com/spec/v1\n"}) {
    CHECK_FALSE(is_tiktoken(bytes));
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
    CHECK_THAT(user_error_of([&bytes = file] { read_tiktoken(bytes, "t"); }), contains_text(fact));
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
