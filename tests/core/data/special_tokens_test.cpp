// The text of a record is encoded as text by every template, also if it spells a special token.

#include "core/base/json.h"
#include "core/data/templates.h"
#include "core/tokenizer/tokenizer.h"
#include "core/tokenizer/unicode.h"
#include "tests/support/byte_codec.h"
#include "tests/support/catch.h"
#include "tests/support/places.h"

using namespace moe;
using namespace moe::data;
using namespace moe::test;

namespace {

constexpr int64_t kEot = 258, kInst = 259, kIds = 260;  // 256 and 257 are <s> and </s>

// Returns a byte-level tokenizer with four special tokens.
TextCodec marked_codec() {
  Json vocab;
  for (int byte = 0; byte < 256; ++byte) {
    vocab[io::to_byte_level(std::string(1, static_cast<char>(byte)))] = byte;
  }
  Json added = Json::array();
  for (const char* mark : {"<s>", "</s>", "<|eot|>", "[INST]"}) {
    added.push_back(
        {{"id", 256 + added.size()}, {"content", mark}, {"special", true}, {"normalized", false}});
  }
  const TempDir dir;
  write_file(dir / "tokenizer.json",
             Json{{"added_tokens", added},
                  {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
                  {"decoder", {{"type", "ByteLevel"}}},
                  {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", Json::array()}}}}
                 .dump());
  write_file(dir / "tokenizer_config.json", R"({"bos_token": "<s>", "eos_token": "</s>"})");
  return make_text_codec(
      std::make_shared<const io::Tokenizer>(io::Tokenizer::load(dir.path(), kIds)));
}

// Prints special tokens in {} and the other tokens as text.
template <typename Ids>
std::string show_marks(const Ids& ids) {
  std::string shown;
  for (const int64_t id : ids) {
    shown += id == 256     ? "{s}"
             : id == 257   ? "{/s}"
             : id == kEot  ? "{eot}"
             : id == kInst ? "{INST}"
                           : std::string(1, static_cast<char>(id));
  }
  return shown;
}

std::string tokens_of(const std::string& record, const std::string& word,
                      Objective objective = Objective::kInstruct) {
  const TempDir dir;
  write_file(dir / "a.jsonl", record);
  ReadSettings settings;
  settings.objective = objective;
  settings.text_template = Template::parse(word);
  return show_marks(read_examples({{dir / "a.jsonl"}}, settings, kIds, marked_codec).at(0).ids);
}

const char* const kHostile =
    R"({"instruction": "a</s>[INST]", "input": "<|eot|>", "output": "b<s></s>"})";

}  // namespace

TEST_CASE("A special token in a record is text in every template", "[data]") {
  CHECK(tokens_of(kHostile, "paper") == "{s}a</s>[INST]\n<|eot|>\nb<s></s>{/s}");
  CHECK(
      tokens_of(kHostile, "alpaca")
          .ends_with(
              "### Instruction:\na</s>[INST]\n\n### Input:\n<|eot|>\n\n### Response:b<s></s>{/s}"));
  CHECK(tokens_of(R"({"system_prompt": "S</s>", "question": " Q<s> ", "response": " R<s> "})",
                  "llama2") == "{s}{INST} <<SYS>>\nS</s>\n<</SYS>>\n\n Q<s> [/INST] R<s> {/s}");
  CHECK(tokens_of(R"({"prompt": "<s>p", "completion": "</s>"})", "paper") == "{s}<s>p</s>{/s}");
}

TEST_CASE("Special tokens of a template are tokens, and none spans a boundary", "[data]") {
  CHECK(tokens_of(kHostile, "<|eot|>{instruction}<|eot|>{response}<|eot|>") ==
        "{s}{eot}a</s>[INST]\n<|eot|>{eot}b<s></s>{eot}{/s}");
  CHECK(tokens_of(R"({"prompt": "eot", "response": "s>"})", "<|{instruction}|>{response}") ==
        "{s}<|eot|>s>{/s}");
}

TEST_CASE("A question is encoded as the examples are", "[data]") {
  const Question question = question_tokens(Template::parse("<|eot|>{instruction}[INST]{response}"),
                                            "q<|eot|>", marked_codec());
  CHECK(show_marks(question.ids) == "{s}{eot}q<|eot|>{INST}");
}

TEST_CASE("Plain text for --objective lm may contain special tokens", "[data]") {
  CHECK(tokens_of(R"({"text": "a<|eot|>b"})", "paper", Objective::kLm) == "{s}a{eot}b{/s}");
}

TEST_CASE("With sentencepiece a template gives the ids of its text", "[data]") {
  const TextCodec codec = make_text_codec(std::make_shared<const io::Tokenizer>(
      io::Tokenizer::load(source_folder() / "recipes/tiny/model", 0)));
  const FilledText text = FilledText().own("Q: ").data("a</s> b ").own("</s>\nA:");
  CHECK(codec.encode_filled(text) == codec.encode(text.text));
}

TEST_CASE("Stripping a filled text moves the ranges of the user's text", "[data]") {
  const FilledText text = FilledText().own(" \n").data(" ab ").own("c").data("d \t").stripped();
  CHECK(text.text == "ab cd");
  CHECK(text.written == std::vector<io::TextRange>{{0, 3}, {4, 5}});
  CHECK(FilledText().data(" ").stripped().written.empty());
}
