// moe tokenize, and all commands that need a tokenizer with a model that has a tokenizer.json.

#include "core/base/json.h"
#include "core/tokenizer/unicode.h"
#include "tests/cli/commands.h"

namespace moe {
namespace {

using namespace moe::test;
using Ids = std::vector<int64_t>;

// Writes a tokenizer: the id of a byte is its value; "he" is 256, BOS 257, EOS 258.
void write_tokenizer(const fs::path& folder) {
  OrderedJson vocab;
  for (int byte = 0; byte < 256; ++byte) {
    vocab[io::to_byte_level(std::string(1, static_cast<char>(byte)))] = byte;
  }
  vocab["he"] = 256;
  OrderedJson json = OrderedJson::parse(R"({
    "added_tokens": [{"id": 257, "content": "<s>", "special": true, "normalized": false},
                     {"id": 258, "content": "</s>", "special": true, "normalized": false}],
    "normalizer": null, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
    "post_processor": {"type": "TemplateProcessing",
      "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}],
      "special_tokens": {"<s>": {"ids": [257]}}},
    "decoder": {"type": "ByteLevel"}, "model": {"type": "BPE", "merges": ["h e"]}})");
  json["model"]["vocab"] = vocab;
  write_file(folder / "tokenizer.json", json.dump());
  write_file(folder / "tokenizer_config.json", R"({"bos_token": "<s>", "eos_token": "</s>"})");
}

}  // namespace

TEST_CASE("moe tokenize prints ids, pieces and bytes", "[cli]") {
  const TempDir folder;
  write_tokenizer(folder.path());
  const std::string model = folder.path().string();
  const std::string expected =
      "      id  piece                     bytes\n"
      "     257  <s>                       (special)\n"
      "     256  he                        68 65\n"
      "      32  \u0120                         20\n"
      "     195  \u00C3                         C3\n"
      "     169  \u00A9                         A9\n"
      "4 tokens for 5 bytes, plus 1 special tokens\n";
  CHECK(succeed({"tokenize", model, "he \u00E9"}).out == expected);
  write_file(folder / "text", "he \u00E9");
  CHECK(succeed({"tokenize", model, folder / "text"}).out == expected);
}

TEST_CASE("moe tokenize --json reads and prints one object per line", "[cli]") {
  const TempDir folder;
  write_tokenizer(folder.path());
  const std::string model = folder.path().string();
  write_file(folder / "lines", "{\"text\": \"he</s>\\u2028\"}\n\n{\"text\": \"\", \"other\": 1}\n");
  CHECK(succeed({"tokenize", model, folder / "lines", "--json"}).out ==
        "{\"ids\":[256,258,226,128,168],\"ids_special\":[257,256,258,226,128,168],"
        "\"decoded\":\"he\\u2028\"}\n{\"ids\":[],\"ids_special\":[257],\"decoded\":\"\"}\n");
  CHECK(succeed({"tokenize", model, "he h", "--json"}).out ==
        "{\"ids\":[256,32,104],\"ids_special\":[257,256,32,104],\"decoded\":\"he h\"}\n");
  CHECK(
      Json::parse(succeed({"tokenize", model, "{\"text\": \"he\"}\n", "--json"}).out)["decoded"] ==
      "{\"text\": \"he\"}\n");  // TEXT is not parsed as JSON
  write_file(folder / "wrong", "{\"txt\": 1}\n");
  check_refused({"tokenize", model, folder / "wrong", "--json"},
                (folder / "wrong").string() + " line 1: 'text' is missing");
}

TEST_CASE("a model with a tokenizer.json is upcycled, trained, evaluated and generates", "[cli]") {
  const TempDir folder;
  const auto path = [&](const char* name) { return (folder / name).string(); };
  write_tiny_checkpoint(folder / "dense", {.vocab = 264});
  write_tokenizer(folder / "dense");
  write_file(folder / "dense/special_tokens_map.json", "{}");
  const auto made = succeed({"upcycle", path("dense"), "-o", path("moe"), "--experts", "2",
                             "--router", "top1:cf=inf", "--verify", "--json"});
  CHECK(made.out.find("the embedded text") != std::string::npos);
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"}) {
    CHECK(read_file(folder / "moe" / name) == read_file(folder / "dense" / name));
  }
  CHECK_THAT(succeed({"inspect", path("moe")}).out,
             contains_text("tokenizer     tokenizer.json\n"));

  write_file(folder / "pairs.jsonl", R"({"prompt": "he", "response": "\u00e9!"})"
                                     "\n");
  Args train = {"train",   path("moe"),         "-o",         path("run"),
                "--data",  path("pairs.jsonl"), "--steps",    "1",
                "--quiet", "--global-batch",    "1",          "--seq-len",
                "32",      "--cache",           path("cache")};
  const std::string shown = "<s> he \u27E6\u00C3 \u00A9 ! </s>\u27E7\n";
  CHECK_THAT(succeed(joined(train, {"--show-samples", "1"})).out, contains_text(shown));
  const Args records = {"tokenize", path("moe"), "--chat", path("pairs.jsonl")};
  CHECK_THAT(succeed(records).out, contains_text(shown));
  CHECK(
      succeed(joined(records, {"--json", "--template", "{instruction}{response}"})).out ==
      "{\"ids\":[257,256,195,169,33,258],\"loss\":[0,0,1,1,1,1],\"text\":\"<s>he\u00E9!</s>\"}\n");
  check_refused({"tokenize", path("moe"), "--loss-on", "last"}, "--loss-on requires --chat");
  succeed(train);
  CHECK(read_file(folder / "run/final/tokenizer.json") ==
        read_file(folder / "dense/tokenizer.json"));

  write_file(folder / "quiz.jsonl", R"({"question": "he", "choices": ["a", "\u00e9"], "answer": 0})"
                                    "\n");
  succeed({"eval", path("run/final"), "--tasks", path("quiz.jsonl")});
  const auto prompt_ids = [&](const std::string& bos) {
    return Json::parse(succeed({"generate", path("run/final"), "--prompt", "he", "--bos", bos,
                                "--max-tokens", "3", "--json"})
                           .out)["prompt_ids"]
        .get<Ids>();
  };
  CHECK(prompt_ids("auto") == Ids{257, 256});
  CHECK(prompt_ids("off") == Ids{256});

  write_file(folder / "dense/tokenizer_config.json", R"({"eos_token": null})");
  train[1] = path("dense");
  train[3] = path("other");
  check_refused(train, "the tokenizer has no EOS within the model's vocabulary of 264");
}

}  // namespace moe
