// Generated answers: where they are cut, what room they need.
#include "core/eval/scoring/generate_until.h"

#include "tests/support/catch.h"
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

TEST_CASE("a prompt is cut from the left so that the answer fits, BOS first", "[eval]") {
  Generation generation;
  generation.max_tokens = 4;
  CHECK((encode_prompt(bytes_encoder(8), generation, "abc") ==
         std::vector<int64_t>{1, 'a', 'b', 'c'}));
  CHECK((encode_prompt(bytes_encoder(8), generation, "abcde") ==
         std::vector<int64_t>{'b', 'c', 'd', 'e'}));
  TextEncoder without = bytes_encoder(8);
  without.adds_bos = false;
  CHECK((encode_prompt(without, generation, "") == std::vector<int64_t>{1}));
  CHECK(test::user_error_of([&] { encode_prompt(bytes_encoder(4), generation, "a"); }) ==
        "the model's window of 4 tokens leaves no room for a question beside an answer of 4; "
        "choose a task whose answers are not generated");
}

}  // namespace
}  // namespace moe::eval
