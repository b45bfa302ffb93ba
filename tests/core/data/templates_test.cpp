#include "core/data/templates.h"

#include <algorithm>

#include "core/base/json.h"
#include "core/tokenizer/tokenizer.h"
#include "core/tokenizer/unicode.h"
#include "tests/support/byte_codec.h"
#include "tests/support/data.h"

using namespace moe;
using namespace moe::data;
using namespace moe::test;

namespace {

ReadSettings with(const std::string& word) {
  ReadSettings settings;
  settings.text_template = Template::parse(word);
  return settings;
}

struct Seen {
  std::string ids, labels;
};

Seen see(const std::string& record, const std::string& word) {
  const Examples examples = read_bytes("a.jsonl", record, with(word));
  return {show_ids(examples.at(0)), show_labels(examples.at(0))};
}

// Checks that only the last tokens of `ids`, `learned`, have loss.
void check_single(const Seen& seen, const std::string& ids, const std::string& learned) {
  CHECK(seen.ids == ids);
  REQUIRE(ids.size() >= learned.size());
  CHECK(seen.labels == std::string(ids.size() - learned.size(), '.') + learned);
}

const char* kPlain = R"({"instruction": "Add", "input": "", "output": "2"})";
const char* kWithInput = R"({"instruction": "Add", "input": "1+1", "output": "2"})";
const char* kWithSystem = R"({"system_prompt": "S", "question": "Q", "response": "R"})";
const char* kTwoTurns =
    R"({"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "Q "}, )"
    R"({"role": "assistant", "content": " R"}, {"role": "user", "content": "q"}, )"
    R"({"role": "assistant", "content": "r"}]})";

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

TEST_CASE("The Alpaca template is Stanford's, with and without an input", "[data]") {
  check_single(
      see(kPlain, "alpaca"),
      "BBelow is an instruction that describes a task. Write a response that appropriately "
      "completes the request.\n\n### Instruction:\nAdd\n\n### Response:2E",
      "2E");
  check_single(see(kWithInput, "alpaca"),
               "BBelow is an instruction that describes a task, paired with an input that provides "
               "further context. Write a response that appropriately completes the "
               "request.\n\n### Instruction:\nAdd\n\n### Input:\n1+1\n\n### Response:2E",
               "2E");
  check_single(see(kWithSystem, "alpaca"), "BS\n\n### Instruction:\nQ\n\n### Response:RE", "RE");
}

TEST_CASE("The llama2 template is Meta's, with BOS before every turn", "[data]") {
  check_single(see(kPlain, "llama2"), "B[INST] Add [/INST] 2 E", "2 E");
  check_single(see(kWithInput, "llama2"), "B[INST] Add\n1+1 [/INST] 2 E", "2 E");
  const Seen seen = see(kTwoTurns, "llama2");
  CHECK(seen.ids == "B[INST] <<SYS>>\nS\n<</SYS>>\n\nQ [/INST] R EB[INST] q [/INST] r E");
  const auto dots = [](std::string_view text) { return std::string(text.size(), '.'); };
  CHECK(seen.labels == dots("B[INST] <<SYS>>\nS\n<</SYS>>\n\nQ [/INST] ") + "R E" +
                           dots("B[INST] q [/INST] ") + "r E");
}

TEST_CASE("A template of the user surrounds instruction and response", "[data]") {
  check_single(see(kPlain, R"(U: {instruction}\nA: {response})"), "BU: Add\nA: 2E", "2E");
  check_single(see(kWithInput, R"(\{{instruction}\}\t\\{response};)"), "B{Add\n1+1}\t\\2;E", "2;E");
  check_single(see(kPlain, "{a b} {instruction}{response}"), "B{a b} Add2E", "2E");
  check_single(see(kPlain, "U {instruction}\n{response}"), "BU Add\n2E", "2E");
  const Seen turns = see(kTwoTurns, "<{instruction}>{response}");
  CHECK(turns.ids == "B<S\nQ > RE<q>rE");
  CHECK(turns.labels == "....... RE...rE");
}

TEST_CASE("An invalid template is refused with the placeholder or escape", "[data]") {
  for (const auto& [word, fact] : std::vector<std::pair<const char*, const char*>>{
           {"U: {instruction}", "'U: {instruction}': {response} is missing"},
           {"{response}", "{instruction} is missing"},
           {"{instruction}{response}{response}", "{response} stands there more than once"},
           {"{response}{instruction}", "{response} stands before {instruction}"},
           {"{instruction}{input}{response}", "'{input}' is no placeholder"},
           {R"({instruction}\r{response})", R"('\r' is no escape; known: \n, \t)"},
           {"alpacca", "'alpacca' is unknown, did you mean 'alpaca'?; known: auto, alpaca,"},
           {"{instruction}\xFF{response}", "is not UTF-8"}}) {
    CHECK_THAT(user_error_of([text = word] { Template::parse(text); }),
               contains_text("--template") && contains_text(fact));
  }
}

TEST_CASE("A template adds no space where the tokenizer puts one before the text", "[data]") {
  const auto spacing = [] {
    TextCodec codec = byte_codec();
    codec.encode = [encode = codec.encode](std::string_view text) {
      return encode(" " + std::string(text));
    };
    codec.leading_space = true;
    return codec;
  };
  const TempDir dir;
  const auto ids_with = [&](const std::string& word, const std::string& record = kPlain) {
    write_file(dir / "a.jsonl", record);
    const auto examples = read_examples({{dir / "a.jsonl"}}, with(word), kVocab, spacing);
    return show_ids(examples.at(0));
  };
  CHECK(ids_with("A: {instruction} B: {response}") == "B A: Add B: 2E");
  CHECK(ids_with("llama2") == "B [INST] Add [/INST] 2 E");
  CHECK(ids_with("paper") == "B Add\n 2E");
  const auto pair = [&](const char* prompt, const char* completion) {
    return ids_with("paper", Json{{"prompt", prompt}, {"completion", completion}}.dump());
  };
  CHECK(pair("A:", "P") + pair("A:", " P") + pair("A:", "    r") == "B A: PEB A: PEB A:    rE");
  CHECK(pair("A: ", "P") + pair("A: ", " P") == "B A: PEB A:  PE");
}

TEST_CASE("The llama2 template gives the ids of Meta's joint sentencepiece encoding", "[data]") {
  const auto strip = [](std::string text) {
    text.erase(0, text.find_first_not_of(" \t\r\n"));
    return text.erase(text.find_last_not_of(" \t\r\n") + 1);
  };
  auto file = source_folder() / "recipes/tiny/instruct.jsonl";
  for (const auto& folder : sentencepiece_folders()) {
    const auto tokenizer = io::Tokenizer::load(folder, 0);
    if (tokenizer.word_rule("") != io::WordRule::kKeeps) {
      continue;  // removes spaces
    }
    const auto codec = [&] {
      return TextCodec{[&](std::string_view text) { return tokenizer.encode(text); },
                       tokenizer.bos_id(), tokenizer.eos_id(), true};
    };
    const auto examples = read_examples({{file}}, with("llama2"), tokenizer.vocab_size(), codec);
    std::ifstream in(file);
    int64_t index = 0;
    for (std::string line; index < 2000 && std::getline(in, line); ++index) {
      const Json record = Json::parse(line);
      const std::string input = record["input"], output = record["output"];
      const std::string content =
          record["instruction"].get<std::string>() + (input.empty() ? "" : "\n" + input);
      const auto joint =
          tokenizer.encode("[INST] " + strip(content) + " [/INST] " + strip(output) + " ");
      std::vector<int32_t> expected = {1};
      expected.insert(expected.end(), joint.begin(), joint.end());
      expected.push_back(2);
      INFO(line);
      REQUIRE((examples.at(index).ids == expected));
    }
    CHECK(index == 2000);
    file = shared_data() / "instruct/alpaca_2000.jsonl";  // for the published tokenizer
  }
}

// The text of a record is encoded as text by every template, also if it spells a special token.

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
  CHECK(tokens_of(R"({"system_prompt": "S", "question": "Q</s>", "response": "R"})", "zephyr") ==
        "<|system|>\nS{/s}\n<|user|>\nQ</s>{/s}\n<|assistant|>\nR{/s}\n");
}

TEST_CASE("A question is encoded like the examples", "[data]") {
  const Question question = question_tokens(Template::parse("<|eot|>{instruction}[INST]{response}"),
                                            "q<|eot|>", marked_codec());
  CHECK(show_marks(question.ids) == "{s}{eot}q<|eot|>{INST}");
  const Question paper = question_tokens(Template::parse("paper"), "Q", marked_codec());
  CHECK(show_marks(paper.ids) + " until " + show_marks(paper.end) == "{s}Q\n until {/s}");
}

TEST_CASE("Plain text for --objective lm may contain special tokens", "[data]") {
  CHECK(tokens_of(R"({"text": "a<|eot|>b"})", "paper", Objective::kLm) == "{s}a{eot}b{/s}");
  CHECK(tokens_of(R"({"text": "<s>a<|eot|></s>"})", "paper", Objective::kLm) == "{s}a{eot}{/s}");
  CHECK(tokens_of(kHostile, "<s>{instruction}:{response}</s>") ==
        "{s}a</s>[INST]\n<|eot|>:b<s></s>{/s}");
}

TEST_CASE("With sentencepiece a template gives the ids of its text", "[data]") {
  const auto tokenizer = std::make_shared<const io::Tokenizer>(
      io::Tokenizer::load(source_folder() / "recipes/tiny/model", 0));
  const TextCodec codec = make_text_codec(tokenizer);
  std::vector<int64_t> marked = codec.encode("Q: a</s> b ");
  marked.push_back(codec.eos);
  const auto end = tokenizer->encode_part("\nA:", {}, /*begins_text=*/false);
  marked.insert(marked.end(), end.begin(), end.end());
  CHECK(codec.encode_filled({"Q: a</s> b </s>\nA:", {{3, 11}}}) == marked);
  const TurnTokens tokens = Template().encode({"", {{"A:", "", "    return"}}, true}, 0, codec);
  std::vector<int64_t> ids(tokens.prompt.begin() + 1, tokens.prompt.end());  // without BOS
  ids.insert(ids.end(), tokens.response.begin(), tokens.response.end());
  CHECK(ids == codec.encode("A:    return"));
}
