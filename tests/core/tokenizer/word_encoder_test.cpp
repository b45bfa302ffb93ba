#include <random>
#include <thread>

#include "core/tokenizer/tokenizer.h"
#include "tests/support/catch.h"
#include "tests/support/data.h"
#include "tests/support/matchers.h"
#include "tests/support/user_error.h"

using namespace moe::io;
using namespace moe::test;

namespace {

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

}  // namespace

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
}

TEST_CASE("The word rule follows from the bytes of a sentencepiece model", "[io]") {
  const auto all = tokenizers();
  CHECK(all[0]->word_rule() == WordRule::kKeeps);
  if (all.size() == 3) {
    CHECK(all[1]->word_rule() == WordRule::kKeeps);
    CHECK(all[2]->word_rule() == WordRule::kCollapses);
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
