// Joint tokenisation, with made-up tokenizers whose ids one can count on one's fingers.
#include "core/eval/scoring/requests.h"

#include <ATen/Parallel.h>

#include "tests/support/catch.h"
#include "tests/support/data.h"
#include "tests/support/temp_dir.h"
#include "tests/support/user_error.h"

namespace moe::eval {
namespace {

using Tokens = std::vector<int64_t>;

// A token a byte, its own value; but "ab" is one token 1000, across any border.
Tokens bytes_with_merge(std::string_view text) {
  Tokens tokens;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool merged = text.substr(i, 2) == "ab";
    tokens.push_back(merged ? 1000 : static_cast<unsigned char>(text[i]));
    i += merged ? 1 : 0;
  }
  return tokens;
}

TextEncoder encoder(bool adds_bos = false, int64_t window = 100) {
  return {bytes_with_merge, 1, "<s>", adds_bos, window};
}

Tokens scored_tokens(const Request& request) {
  return {request.tokens.end() - request.scored, request.tokens.end()};
}

TEST_CASE("context and continuation are encoded as one text", "[eval]") {
  const Request request = encode_requests(encoder(), {{"xy", " cd", ""}}).front();
  CHECK(request.tokens == Tokens{'x', 'y', ' ', 'c', 'd'});
  CHECK(request.scored == 3);
  CHECK(request.inputs() == 4);
}

TEST_CASE("a token across the border is replaced by the context's own", "[eval]") {
  // encode("xa") has 2 tokens, encode("xab!") has x, ab, !: what is left after two tokens is "!"
  // alone, and it stands after x and a.
  const Request request = encode_requests(encoder(), {{"xa", "b!", ""}}).front();
  CHECK(request.tokens == Tokens{'x', 'a', '!'});
  CHECK(scored_tokens(request) == Tokens{'!'});
}

TEST_CASE("white space that ends the context moves to the continuation", "[eval]") {
  const Request request = encode_requests(encoder(), {{"x \n\u00A0", "y", ""}}).front();
  CHECK(scored_tokens(request) == Tokens{' ', '\n', 0xC2, 0xA0, 'y'});
}

TEST_CASE("a BOS stands before the text once", "[eval]") {
  CHECK(encode_requests(encoder(true), {{"x", "y", ""}}).front().tokens == Tokens{1, 'x', 'y'});
  CHECK(encode_requests(encoder(true), {{"<s>x", "y", ""}}).front().tokens ==
        Tokens{'<', 's', '>', 'x', 'y'});
  CHECK(encode_requests(encoder(false), {{"x", "y", ""}}).front().tokens == Tokens{'x', 'y'});
}

TEST_CASE("an empty context becomes the prefix token, with and without BOS", "[eval]") {
  for (const bool adds_bos : {false, true}) {
    CHECK(encode_requests(encoder(adds_bos), {{"", "yz", ""}}).front().tokens ==
          Tokens{1, 'y', 'z'});
    CHECK(encode_requests(encoder(adds_bos), {{"", "yz", ""}}).front().scored == 2);
    CHECK(encode_requests(encoder(adds_bos), {{" \n", "y", ""}}).front().tokens ==
          Tokens{1, ' ', '\n', 'y'});
    // A continuation that begins with the prefix token brings its own.
    CHECK(encode_requests(encoder(adds_bos), {{"", "\x01y", ""}}).front().tokens == Tokens{1, 'y'});
  }
}

TEST_CASE("what exceeds the window is cut from the left, BOS first", "[eval]") {
  const Request request = encode_requests(encoder(true, 4), {{"vwx", "yz", ""}}).front();
  CHECK(request.tokens == Tokens{'v', 'w', 'x', 'y', 'z'});  // window + 1
  CHECK(request.inputs() == 4);
  CHECK(request.scored == 2);
  CHECK_FALSE(request.is_truncated);
}

TEST_CASE("a continuation longer than the window is scored by its end, and says so", "[eval]") {
  const Request whole = encode_requests(encoder(false, 3), {{"x", "123", ""}}).front();
  CHECK(whole.tokens == Tokens{'x', '1', '2', '3'});
  CHECK(whole.scored == 3);
  CHECK_FALSE(whole.is_truncated);
  const Request cut = encode_requests(encoder(false, 3), {{"x", "12345", ""}}).front();
  CHECK(cut.tokens == Tokens{'2', '3', '4', '5'});
  CHECK(cut.scored == 3);  // '2' has nothing before it
  CHECK(cut.is_truncated);
}

TEST_CASE("a context that choices share is encoded once, and their requests are as if it were not",
          "[eval]") {
  int64_t contexts = 0;
  TextEncoder counting = encoder(true);
  counting.encode = [&contexts](std::string_view text) {
    contexts += text == "xa" || text == "y" ? 1 : 0;
    return bytes_with_merge(text);
  };
  const std::vector<TextPair> pairs = {
      {"xa", "b!", ""}, {"xa", "c", ""}, {"xa ", "d", ""}, {"y", "e", ""}, {"xa", "f", ""}};
  const auto requests = encode_requests(counting, pairs);
  CHECK(contexts == 3);
  for (size_t i = 0; i < pairs.size(); ++i) {
    const Request alone = encode_requests(encoder(true), {pairs[i]}).front();
    CHECK(requests[i].tokens == alone.tokens);
    CHECK(requests[i].scored == alone.scored);
  }
}

TEST_CASE("a continuation without tokens of its own is refused", "[eval]") {
  CHECK(test::user_error_of([] {
          encode_requests(encoder(), {{"x", "", "file line 3"}});
        }) ==
        "file line 3: this tokenizer gives the continuation '' no token of its own after its "
        "context; nothing can be "
        "scored, change the text");
  // Normalisation may make the whole shorter than the context: here "ab" is one token, "a" and "b"
  // would be two.
  CHECK(test::user_error_of([] {
          encode_requests(encoder(), {{"a", "b", "file line 4"}});
        }).starts_with("file line 4: this tokenizer gives the continuation 'b' no token"));
}

TEST_CASE("many threads encode the requests that one does, and tell the first fault", "[eval]") {
  std::vector<TextPair> pairs;
  for (int i = 0; i < 700; ++i) {
    pairs.push_back(
        {"x" + std::to_string(i / 3), std::string(1 + i % 5, 'a'), "line " + std::to_string(i)});
  }
  std::vector<TextPair> faulty = pairs;
  faulty[130].continuation = faulty[131].continuation = faulty[600].continuation = "";
  const int before = at::get_num_threads();
  for (const int threads : {1, 2, 4, 8}) {
    CAPTURE(threads);
    at::set_num_threads(threads);
    const auto requests = encode_requests(encoder(true), pairs);
    REQUIRE(requests.size() == pairs.size());
    for (size_t i = 0; i < pairs.size(); ++i) {
      const Request alone = encode_requests(encoder(true), {pairs[i]}).front();
      CHECK((requests[i].tokens == alone.tokens && requests[i].scored == alone.scored));
    }
    CHECK(
        test::user_error_of([&] { encode_requests(encoder(), faulty); }).starts_with("line 130:"));
  }
  at::set_num_threads(before);
}

TEST_CASE("a context that the tokenizer drops whole becomes the prefix token", "[eval]") {
  const TextEncoder no_hash{[](std::string_view text) {
                              Tokens tokens;
                              for (const char c : text) {
                                if (c != '#') {
                                  tokens.push_back(static_cast<unsigned char>(c));
                                }
                              }
                              return tokens;
                            },
                            2, "</s>", false, 100};
  const Request request = encode_requests(no_hash, {{"##", "yz", ""}}).front();
  CHECK(request.tokens == Tokens{2, 'y', 'z'});
  CHECK(request.scored == 2);
}

TEST_CASE("an empty choice after a space still has a token in LLaMA's tokenizer", "[eval]") {
  MOE_NEED_SHARED_DATA();
  const auto tokenizer = io::Tokenizer::load(test::shared_data() / "llama-tokenizer", 0);
  const TextEncoder llama = make_encoder(tokenizer, false, 2048);
  const Request request = encode_requests(llama, {{"Answer:", " ", ""}}).front();
  CHECK(request.scored == 1);
  CHECK(tokenizer.piece(request.tokens.back()) == "\u2581");
  CHECK(llama.prefix_id == 1);
  CHECK(llama.prefix_text == "<s>");
}

TEST_CASE("normalisation changes lengths and still splits behind the context", "[eval]") {
  MOE_NEED_SHARED_DATA();
  const auto tokenizer = io::Tokenizer::load(test::shared_data() / "llama-tokenizer", 0);
  const TextEncoder llama = make_encoder(tokenizer, true, 2048);
  const std::string context = "Ｆｕｌｌ ﬁ ① e\u0301";  // full-width, ligature, circled, combining
  const Request request = encode_requests(llama, {{context, " ok", ""}}).front();
  const Tokens whole = tokenizer.encode(context + " ok");
  CHECK(request.tokens.size() == whole.size() + 1);
  CHECK(request.scored == static_cast<int64_t>(whole.size() - tokenizer.encode(context).size()));
}

TEST_CASE("BOS auto follows the tokenizer's configuration", "[eval]") {
  MOE_NEED_SHARED_DATA();
  const auto bare = io::Tokenizer::load(test::shared_data() / "stories260K-hf", 512);
  CHECK_FALSE(resolve_bos(Bos::kAuto, bare));
  CHECK(resolve_bos(Bos::kOn, bare));
  const test::TempDir folder;
  std::filesystem::copy(test::shared_data() / "stories260K-hf/tokenizer.model",
                        folder / "tokenizer.model");
  test::write_file(folder / "tokenizer_config.json", "{\"add_bos_token\": true}");
  const auto configured = io::Tokenizer::load(folder.path(), 512);
  CHECK(resolve_bos(Bos::kAuto, configured));
  CHECK_FALSE(resolve_bos(Bos::kOff, configured));
  CHECK(test::user_error_of([] { parse_bos("maybe"); }) ==
        "--bos 'maybe' is unknown; known: auto, on, off");
}

TEST_CASE("request files name the line that is wrong", "[eval]") {
  const test::TempDir folder;
  const auto file = folder / "r.jsonl";
  test::write_file(file,
                   "{\"context\": \"a\", \"continuation\": \" b\"}\n\n{\"context\": \"a\"}\n");
  const std::string message = test::user_error_of([&] { read_text_pairs(file); });
  CHECK(message.find("r.jsonl line 3") != std::string::npos);
  CHECK(message.find("continuation") != std::string::npos);
  test::write_file(file,
                   "{\"context\": \"a\", \"continuation\": \" b\"}\n{\"context\": \"a\", \"cont");
  CHECK(test::user_error_of([&] { read_text_pairs(file); }).find("r.jsonl line 2") !=
        std::string::npos);
}

}  // namespace
}  // namespace moe::eval
