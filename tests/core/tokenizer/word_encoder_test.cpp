#include <random>
#include <thread>

#include "core/tokenizer/tokenizer.h"
#include "tests/support/catch.h"
#include "tests/support/data.h"
#include "tests/support/places.h"
#include "tests/support/temp_dir.h"
#include "tests/support/user_error.h"

using namespace moe::io;
namespace fs = std::filesystem;

namespace {

std::shared_ptr<const Tokenizer> load(const fs::path& folder) {
  return std::make_shared<Tokenizer>(Tokenizer::load(folder, 0));
}

// recipes/tiny/model, and where there are real ones, those of LLaMA and of stories260K.
std::vector<std::shared_ptr<const Tokenizer>> tokenizers() {
  std::vector<std::shared_ptr<const Tokenizer>> all = {
      load(moe::test::source_folder() / "recipes/tiny/model")};
  for (const char* name : {"llama-tokenizer", "stories260K-hf"}) {
    if (fs::exists(moe::test::shared_data() / name)) {
      all.push_back(load(moe::test::shared_data() / name));
    }
  }
  return all;
}

// A serialised ModelProto with one more message, trainer (2) or normaliser (3), whose varint
// `number` is set.
std::string with_field(const std::string& model, char message, int number, char value) {
  std::string field = {static_cast<char>((number << 3 & 0x7F) | (number > 15 ? 0x80 : 0))};
  if (number > 15) {
    field += static_cast<char>(number << 3 >> 7);
  }
  field += value;
  return model + static_cast<char>(message << 3 | 2) + static_cast<char>(field.size()) + field;
}

}  // namespace

TEST_CASE("the models at hand are encoded word by word", "[io]") {
  const auto all = tokenizers();
  CHECK(all[0]->word_rule() == WordRule::kKeeps);
  if (all.size() == 3) {
    CHECK(all[1]->word_rule() == WordRule::kKeeps);
    CHECK(all[2]->word_rule() == WordRule::kCollapses);
  }
}

TEST_CASE("words give the ids of the whole text, whatever stands between and in them", "[io]") {
  const std::vector<std::string> parts = {" ",
                                          " ",
                                          " ",
                                          "  ",
                                          "a",
                                          "b",
                                          "the",
                                          "Once",
                                          "\n",
                                          "\t",
                                          "\r",
                                          "é",
                                          "日本",
                                          "😀",
                                          "\xE2\x96\x81",
                                          "<s>",
                                          "</s>",
                                          "1234",
                                          ".",
                                          "'s",
                                          "<0x0A>",
                                          "\xCC\x88",
                                          "\xC2\xA0",
                                          "\xE3\x80\x80",
                                          std::string(1, '\0'),
                                          "\xFF",
                                          "\xE3\x81"};
  std::mt19937 random(7);
  for (const auto& tokenizer : tokenizers()) {
    WordEncoder words(tokenizer);
    for (int round = 0; round < 20000; ++round) {
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

TEST_CASE("words give the ids of real texts, from several threads too", "[io]") {
  MOE_NEED_SHARED_DATA();
  const auto data = moe::test::shared_data();
  std::vector<std::string> texts;
  for (const char* name : {"text/tinyshakespeare.txt", "text/tinystories_sample_cs336.txt",
                           "instruct/alpaca_2000.jsonl", "instruct/t0_sample"}) {
    std::vector<fs::path> files = {data / name};
    if (fs::is_directory(files[0])) {
      const auto entries = fs::directory_iterator(files[0]);
      files = {fs::begin(entries)->path()};
    }
    const std::string text = moe::test::read_file(files[0]).substr(0, 150000);
    for (size_t at = 0; at < text.size(); at += 5000) {
      texts.push_back(text.substr(at, 5000));
    }
  }
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

TEST_CASE("what would take gigabytes is refused, however long a text with spaces may be", "[io]") {
  const auto tokenizer = tokenizers()[0];
  WordEncoder words(tokenizer);
  CHECK(
      moe::test::user_error_of([&] { words.encode(std::string(5'000'000, 'x')); }) ==
      "5.0 MB of text without a place to cut it at (a space) are too much for the tokenizer, which "
      "takes at most 4.2 MB at once; split the record");
  std::string text;
  for (int word = 0; word < 1'000'000; ++word) {
    text += "word" + std::to_string(word % 10) + " ";
  }
  CHECK(words.encode(text).size() > 2'000'000);
}

TEST_CASE("a model that words may touch in is told by its bytes", "[io]") {
  const std::string model =
      moe::test::read_file(moe::test::source_folder() / "recipes/tiny/model/tokenizer.model");
  CHECK(word_rule_of(model) == WordRule::kKeeps);
  const std::string table = model + std::string("\x1a\x05\x12\x03xyz", 7);
  CHECK(word_rule_of(table) == WordRule::kNone);                       // changes letters
  CHECK(word_rule_of(with_field(model, 3, 3, 0)) == WordRule::kNone);  // no space first
  CHECK(word_rule_of(with_field(model, 3, 5, 0)) == WordRule::kNone);  // spaces as they are
  CHECK(word_rule_of(with_field(model, 3, 4, 1)) == WordRule::kCollapses);
  CHECK(word_rule_of(with_field(model, 2, 3, 1)) == WordRule::kNone);  // unigram
  // Of messages that come twice the later one counts: BPE alone, and with the space behind.
  CHECK(word_rule_of(model + "\x12\x02\x18\x02") == WordRule::kKeeps);
  CHECK(word_rule_of(model + "\x12\x05\x18\x02\xC0\x01\x01") == WordRule::kNone);
  CHECK(word_rule_of(model + "\x0a\x05\x0a\x03x\xE2\x96") == WordRule::kKeeps);  // no whole mark
  const auto piece = [](const std::string& text, char type) {
    const std::string body =
        std::string("\x0a") + static_cast<char>(text.size()) + text + "\x18" + type;
    return std::string("\x0a") + static_cast<char>(body.size()) + body;
  };
  CHECK(word_rule_of(model + piece("\xE2\x96\x81\xE2\x96\x81x", 1)) == WordRule::kKeeps);
  CHECK(word_rule_of(model + piece("a\xE2\x96\x81"
                                   "b",
                                   1)) == WordRule::kNone);
  CHECK(word_rule_of(model + piece("x", 4)) == WordRule::kNone);  // user-defined
  CHECK(word_rule_of(model + piece("x", 5)) == WordRule::kNone);  // unused
  CHECK(word_rule_of("") == WordRule::kNone);
  for (size_t cut = 1; cut < 200; ++cut) {
    word_rule_of(model.substr(model.size() - cut));  // hostile: only must not read beyond
    CHECK(word_rule_of(model.substr(0, cut)) == WordRule::kNone);
  }
}
