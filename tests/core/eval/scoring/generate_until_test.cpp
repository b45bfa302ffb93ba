// Generated answers: stop words and the prompt's share of the window.
#include "core/eval/scoring/generate_until.h"

#include <algorithm>

#include "tests/support/catch.h"
#include "tests/support/data.h"
#include "tests/support/user_error.h"

namespace moe::eval {
namespace {

TextEncoder bytes_encoder(int64_t window) {
  TextEncoder encoder;
  encoder.encode = [](std::string_view text) {
    return std::vector<int64_t>(text.begin(), text.end());
  };
  encoder.prefix_id = 1;
  encoder.prefix_text = "<s>";
  encoder.adds_bos = true;
  encoder.window = window;
  return encoder;
}

TEST_CASE("an answer ends before the first stop word, one word after the other", "[eval]") {
  CHECK(cut_at("a Q: b </s> c", {"</s>", "Q:"}) == "a ");
  CHECK(cut_at("abc", {"x", ""}) == "abc");
  CHECK(cut_at("Q: a", {"Q:"}).empty());
}

TEST_CASE("BOS first, a prompt is cut from the left so that the answer fits", "[eval]") {
  Generation generation;
  generation.max_tokens = 4;
  CHECK((encode_prompt(bytes_encoder(8), generation, "abc") ==
         std::vector<int64_t>{1, 'a', 'b', 'c'}));
  CHECK((encode_prompt(bytes_encoder(8), generation, "abcde") ==
         std::vector<int64_t>{'b', 'c', 'd', 'e'}));
  TextEncoder without = bytes_encoder(8);
  without.adds_bos = false;
  CHECK((encode_prompt(without, generation, "") == std::vector<int64_t>{1}));
  CHECK(test::user_error_of([&] {
          encode_prompt(bytes_encoder(4), generation, "a");
        }).find("4 tokens") != std::string::npos);
}

TEST_CASE("StopWords finds the words that the last token completes, in texts of any length",
          "[eval]") {
  const io::Tokenizer tokenizer = io::Tokenizer::load(test::tiny_model_folder(), 1024);
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"once upon", "", "\n\n", " Q"}, {"p ", "nQ"}}) {
    const StopWords stop(tokenizer, words);
    // Pseudo-random letters, spaces and line feeds.
    std::vector<int64_t> ids;
    uint64_t state = 1;
    int64_t found = 0;
    const std::string letters = "once upn Q\n";
    for (int64_t i = 0; i < 1200; ++i) {
      state = state * 6364136223846793005ULL + 1442695040888963407ULL;
      const char letter = letters[(state >> 33) % letters.size()];
      for (const int64_t id : tokenizer.encode(std::string(1, letter))) {
        ids.push_back(id);
      }
      const std::string text = tokenizer.decode(ids);
      const bool is_in = std::any_of(words.begin(), words.end(), [&](const auto& word) {
        return !word.empty() && text.find(word) != std::string::npos;
      });
      CHECK(stop.end_with_one(ids) == is_in);
      if (is_in) {  // a caller stops here; remove the tokens of the stop word
        ++found;
        ids.resize(ids.size() - std::min<size_t>(ids.size(), 3));
      }
    }
    CHECK(found > 10);
    CHECK(ids.size() > 300);
  }
  CHECK_FALSE(StopWords(tokenizer, {"", ""}).end_with_one({5, 6}));
}

}  // namespace
}  // namespace moe::eval
