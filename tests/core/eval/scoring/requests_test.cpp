// Tokenization of a context with its continuation, by tokenizers with predictable ids.

#include "core/eval/scoring/requests.h"

#include <ATen/Parallel.h>

#include "core/base/text.h"
#include "core/eval/scoring/score.h"
#include "tests/support/data.h"
#include "tests/support/user_error.h"

namespace moe::eval {
namespace {

using namespace moe::test;
using Tokens = std::vector<int64_t>;

// Returns the bytes as ids, but 1000 for "ab", also across the end of the context.
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

constexpr int64_t kEnd = 2;

// Encodes each byte as its value.
TextEncoder byte_encoder(int64_t window, bool adds_bos = false) {
  return {[](std::string_view text) { return Tokens(text.begin(), text.end()); }, 1, "<s>",
          adds_bos, window};
}

TEST_CASE("context and continuation are encoded as one text, then split", "[eval]") {
  struct Case {
    const char *name, *context, *continuation;
    Tokens tokens;
    int64_t scored;
    bool adds_bos = false;
    int64_t window = 100;
    bool is_truncated = false;
  };
  for (const auto& [name, context, continuation, tokens, scored, adds_bos, window, is_truncated] :
       std::vector<Case>{
           {"one text", "xy", " cd", {'x', 'y', ' ', 'c', 'd'}, 3},
           // encode("xab!") has x, ab, !: after the two tokens of "xa" only "!" is left.
           {"a token across the border", "xa", "b!", {'x', 'a', '!'}, 1},
           {"white space that ends the context moves",
            "x \n\u00A0",
            "y",
            {'x', ' ', '\n', 0xC2, 0xA0, 'y'},
            5},
           {"a BOS", "x", "y", {1, 'x', 'y'}, 1, true},
           {"a BOS that the text has", "<s>x", "y", {'<', 's', '>', 'x', 'y'}, 1, true},
           {"an empty context becomes the prefix token", "", "yz", {1, 'y', 'z'}, 2},
           {"an empty context with BOS", "", "yz", {1, 'y', 'z'}, 2, true},
           {"a context of white space", " \n", "y", {1, ' ', '\n', 'y'}, 3, true},
           {"a continuation that begins with the prefix token", "", "\x01y", {1, 'y'}, 1},
           {"cut from the left, BOS first", "vwx", "yz", {'v', 'w', 'x', 'y', 'z'}, 2, true, 4},
           {"a continuation as long as the window", "x", "123", {'x', '1', '2', '3'}, 3, false, 3},
           {"a continuation longer than the window",
            "x",
            "12345",
            {'2', '3', '4', '5'},
            3,
            false,
            3,
            true}}) {
    CAPTURE(name);
    const Request request =
        encode_requests(encoder(adds_bos, window), {{context, continuation, ""}}).front();
    CHECK(request.tokens == tokens);
    CHECK(request.scored == scored);
    CHECK(request.inputs() == std::ssize(tokens) - 1);
    CHECK(request.is_truncated == is_truncated);
  }
}

TEST_CASE("a context of several choices is encoded once, with unchanged requests", "[eval]") {
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
  // Normalisation may make the whole shorter than the context: "ab" is one token here.
  for (const auto& [context, continuation] : {std::pair("x", ""), std::pair("a", "b")}) {
    const TextPair pair = {context, continuation, "file line 3"};
    CHECK_THAT(user_error_of([&] { encode_requests(encoder(), {pair}); }),
               contains_text("file line 3: ") && contains_text("'" + pair.continuation + "'"));
  }
}

TEST_CASE("several threads give the requests of one, and the first error", "[eval]") {
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
    CHECK(user_error_of([&] { encode_requests(encoder(), faulty); }).starts_with("line 130:"));
  }
  at::set_num_threads(before);
}

TEST_CASE("a context without tokens becomes the prefix token", "[eval]") {
  const TextEncoder no_hash{
      [](std::string_view text) { return bytes_with_merge(replace_all(text, "#", "")); }, 2, "</s>",
      false, 100};
  const Request request = encode_requests(no_hash, {{"##", "yz", ""}}).front();
  CHECK(request.tokens == Tokens{2, 'y', 'z'});
  CHECK(request.scored == 2);
}

TEST_CASE("an empty choice after a space has a token in LLaMA's tokenizer", "[eval]") {
  const auto tokenizer = io::Tokenizer::load(tiny_model_folder(), 0);
  const TextEncoder llama = make_encoder(tokenizer, false, 2048);
  const Request request = encode_requests(llama, {{"Answer:", " ", ""}}).front();
  CHECK(request.scored == 1);
  CHECK(tokenizer.piece(request.tokens.back()) == "\u2581");
  CHECK(llama.prefix_id == 1);
  CHECK(llama.prefix_text == "<s>");
}

TEST_CASE("texts that normalization would change are split after the context", "[eval]") {
  const auto tokenizer = io::Tokenizer::load(tiny_model_folder(), 0);
  const TextEncoder llama = make_encoder(tokenizer, true, 2048);
  const std::string context = "Ｆｕｌｌ ﬁ ① e\u0301";  // full-width, ligature, circled, combining
  const Request request = encode_requests(llama, {{context, " ok", ""}}).front();
  const Tokens whole = tokenizer.encode(context + " ok");
  CHECK(request.tokens.size() == whole.size() + 1);
  CHECK(request.scored == static_cast<int64_t>(whole.size() - tokenizer.encode(context).size()));
}

TEST_CASE("BOS auto follows the tokenizer's configuration", "[eval]") {
  const TempDir folder;
  std::filesystem::copy(tiny_model_folder() / "tokenizer.model", folder / "tokenizer.model");
  const auto bare = io::Tokenizer::load(folder.path(), 1024);
  CHECK_FALSE(resolve_bos(Bos::kAuto, bare));
  CHECK(resolve_bos(Bos::kOn, bare));
  write_file(folder / "tokenizer_config.json", "{\"add_bos_token\": true}");
  const auto configured = io::Tokenizer::load(folder.path(), 1024);
  CHECK(resolve_bos(Bos::kAuto, configured));
  CHECK_FALSE(resolve_bos(Bos::kOff, configured));
  write_file(folder / "tokenizer_config.json", R"({"bos_token": null})");
  const auto none = io::Tokenizer::load(folder.path(), 1024);
  CHECK_FALSE(resolve_bos(Bos::kOn, none));  // as the harness; force is refused
  CHECK_FALSE(user_error_of([&] { resolve_bos(Bos::kForce, none); }).empty());
}

TEST_CASE("request files name the line that is wrong", "[eval]") {
  const TempDir folder;
  const auto file = folder / "r.jsonl";
  write_file(file, "{\"context\": \"a\", \"continuation\": \" b\"}\n\n{\"context\": \"a\"}\n");
  CHECK_THAT(user_error_of([&] { read_text_pairs(file); }),
             contains_text("r.jsonl line 3") && contains_text("continuation"));
  write_file(file, "{\"context\": \"a\", \"continuation\": \" b\"}\n{\"context\": \"a\", \"cont");
  CHECK_THAT(user_error_of([&] { read_text_pairs(file); }), contains_text("r.jsonl line 2"));
}

// Raw text cut into windows, each with the next token and the source.

TEST_CASE("a text is cut into windows, each with the first token of the next as target", "[eval]") {
  const TempDir folder;
  write_file(folder / "a.txt", "abcde");
  const std::vector<Request> windows =
      read_text_windows({folder / "a.txt"}, byte_encoder(2), kEnd, std::nullopt);
  REQUIRE(windows.size() == 3);
  CHECK(windows[0].tokens == Tokens{'a', 'b', 'c'});
  CHECK(windows[1].tokens == Tokens{'c', 'd', 'e'});
  CHECK(windows[2].tokens == Tokens{'e', kEnd});
  CHECK(windows[0].scored == 0);
  CHECK(windows[2].source == (folder / "a.txt").string());
  const std::vector<Request> with_bos =
      read_text_windows({folder / "a.txt"}, byte_encoder(8, true), kEnd, std::nullopt);
  CHECK(with_bos.at(0).tokens == Tokens{1, 'a', 'b', 'c', 'd', 'e', kEnd});
  write_file(folder / "a.txt", std::string(5000, 'a'));
  const std::vector<Request> longest =
      read_text_windows({folder / "a.txt"}, byte_encoder(1 << 20), kEnd, std::nullopt);
  REQUIRE(longest.size() == 3);
  CHECK(longest[0].inputs() == 2048);  // the limit of a window
  CHECK(longest[2].inputs() == 5000 - 2 * 2048);
}

TEST_CASE("the source of a text is in its record, else its file; a limit counts texts", "[eval]") {
  const TempDir folder;
  write_file(folder / "a.jsonl",
             "{\"text\": \"ab\", \"source\": \"books\"}\n{\"text\": \"c\"}\n"
             "{\"text\": \"d\", \"source\": 5}\n");
  write_file(folder / "b.txt", "x\n<|endoftext|>\ny\n");
  const auto read = [&](std::optional<int64_t> limit) {
    return read_text_windows({folder / "a.jsonl", folder / "b.txt"}, byte_encoder(8), kEnd, limit);
  };
  const std::vector<Request> all = read(std::nullopt);
  REQUIRE(all.size() == 5);
  CHECK(all[0].source == "books");
  CHECK(all[1].source == (folder / "a.jsonl").string());
  CHECK(all[2].source == (folder / "a.jsonl").string());
  CHECK(all[4].source == (folder / "b.txt").string());
  const std::vector<Request> one = read(1);
  REQUIRE(one.size() == 2);
  CHECK(one[1].tokens == Tokens{'x', kEnd});
}

TEST_CASE("a text that cannot be read is refused with its file and line", "[eval]") {
  const TempDir folder;
  const auto error = [](const std::filesystem::path& file) {
    return user_error_of([&] { read_text_windows({file}, byte_encoder(8), kEnd, std::nullopt); });
  };
  const auto file = folder / "a.jsonl";
  for (const auto& [text, place] :
       {std::pair("{\"text\": \"a\"}\n{\"txt\": \"b\"}\n", " line 2"),
        std::pair("{\"text\": \"a\"}\n[1]\n", " line 2"), std::pair("{\"text\": \"\"}\n", ": ")}) {
    write_file(file, text);
    CHECK(error(file).starts_with(file.string() + place));
  }
  CHECK(error(folder / "none").starts_with("--stats-text " + (folder / "none").string()));
  CHECK(error(folder.path()).starts_with("--stats-text " + folder.path().string()));
}

}  // namespace
}  // namespace moe::eval
