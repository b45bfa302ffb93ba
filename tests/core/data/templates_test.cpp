#include "core/data/templates.h"

#include <algorithm>

#include "core/base/json.h"
#include "core/tokenizer/tokenizer.h"
#include "core/tokenizer/unicode.h"
#include "tests/support/byte_codec.h"
#include "tests/support/catch.h"
#include "tests/support/data.h"
#include "tests/support/matchers.h"
#include "tests/support/places.h"

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

// Returns a codec with the special tokens `marks` (ids from 270) and the token "ab" (269).
TextCodec chat_codec(const std::vector<std::string>& marks) {
  TextCodec codec = byte_codec();
  codec.encode_plain = [](std::string_view text, bool) {
    std::vector<int64_t> ids;
    for (size_t at = 0; at < text.size(); ++at) {
      const bool is_pair = text.substr(at, 2) == "ab";
      ids.push_back(is_pair ? 269 : 10 + static_cast<unsigned char>(text[at]));
      at += is_pair ? 1 : 0;
    }
    return ids;
  };
  codec.special = [marks](const std::string& mark) {
    const auto found = std::find(marks.begin(), marks.end(), mark);
    return found == marks.end() ? -1 : 270 + (found - marks.begin());
  };
  return codec;
}

// Prints BOS as B, EOS as E, special tokens as {mark}, token 269 as (ab), and loss in brackets.
std::string show(const std::vector<ChatToken>& tokens, const std::vector<std::string>& marks) {
  std::string shown;
  bool learned = false;
  const auto change = [&](bool to) {
    shown += learned == to ? "" : to ? "[" : "]";
    learned = to;
  };
  for (const auto& [id, is_learned] : tokens) {
    change(is_learned);
    shown += id == kBos   ? "B"
             : id == kEos ? "E"
             : id >= 270  ? "{" + marks.at(static_cast<size_t>(id - 270)) + "}"
             : id == 269  ? "(ab)"
                          : std::string(1, static_cast<char>(id - 10));
  }
  change(false);
  return shown;
}

std::string show(const std::string& form, const Conversation& conversation,
                 const std::vector<std::string>& marks = {}, bool only_last = false) {
  return show(chat_tokens(chat_pieces(form, conversation, only_last), chat_codec(marks)), marks);
}

const Conversation kOne = {"", {{"Q ", "", " R"}}};
const Conversation kTwo = {"S", {{"Q", "I", "R"}, {"q", "", "r"}}};
const std::vector<std::string> kLlama3 = {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"};

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
           {"alpacca", "'alpacca' is unknown, did you mean 'alpaca'?; known: paper, alpaca,"},
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
  write_file(dir / "a.jsonl", kPlain);
  const auto ids_with = [&](const std::string& word) {
    const auto examples = read_examples({{dir / "a.jsonl"}}, with(word), kVocab, spacing);
    return show_ids(examples.at(0));
  };
  CHECK(ids_with("A: {instruction} B: {response}") == "B A: Add B: 2E");
  CHECK(ids_with("llama2") == "B [INST] Add [/INST] 2 E");
  CHECK(ids_with("paper") == "B Add\n 2E");
}

TEST_CASE("With sentencepiece the llama2 template gives the ids of Meta's joint encoding",
          "[data]") {
  const auto strip = [](std::string text) {
    text.erase(0, text.find_first_not_of(" \t\r\n"));
    return text.erase(text.find_last_not_of(" \t\r\n") + 1);
  };
  auto file = source_folder() / "recipes/tiny/instruct.jsonl";
  for (const auto& folder : sentencepiece_folders()) {
    const auto tokenizer = io::Tokenizer::load(folder, 0);
    if (tokenizer.word_rule() != io::WordRule::kKeeps) {
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

TEST_CASE("The form of a chat template is recognized by its special tokens", "[data]") {
  const TempDir dir;
  for (const auto& [text, form] : std::vector<std::pair<std::string, std::string>>{
           {"{{ '<|im_start|>' + role }}", "chatml"},
           {"'<|start_header_id|>' + role + '<|end_header_id|>'", "llama3"},
           {"'[INST] ' + '<<SYS>>' + content + ' [/INST]'", "llama2"},
           {"' [INST] ' + system_message + ' [/INST]'", "mistral"},
           {"bos_token '[INST] ' + content + ' [/INST]'", "mistral-v0"},
           {"\"[INST] \" + content + \"[/INST]\"", "mistral-v3"},
           {"\"[INST]\" + content + \"[/INST]\"", "mistral-tekken"},
           {"'[SYSTEM_PROMPT]' '[INST]' + content", "mistral-v7"},
           {"'<|user|>\\n' + content + eos_token", "zephyr"}}) {
    CAPTURE(text);
    write_file(dir / "chat_template.jinja", text);
    CHECK(named_template("auto", dir.path()) == form);
  }
  for (const char* text : {"'<|user|>\\n' + content + '<|end|>' eos_token", "{{ messages }}", ""}) {
    write_file(dir / "chat_template.jinja", text);
    CHECK_FALSE(user_error_of([&] { named_template("auto", dir.path()); }).empty());
  }
}

TEST_CASE("A chat template is read from chat_template.jinja or tokenizer_config.json", "[data]") {
  const TempDir dir;
  const auto form = [&] { return named_template("auto", dir.path()); };
  const auto write_config = [&](const Json& chat_template) {
    write_file(dir / "tokenizer_config.json", Json{{"chat_template", chat_template}}.dump());
  };
  const std::string chatml = "<|im_start|>", llama3 = "<|start_header_id|>";
  CHECK_THAT(user_error_of(form), contains_text("has no chat template") &&
                                      contains_text("--template: llama3, chatml, zephyr"));
  write_config(chatml);
  CHECK(form() == "chatml");
  write_config({{{"name", "rag"}, {"template", "x"}}, {{"name", "default"}, {"template", llama3}}});
  CHECK(form() == "llama3");
  write_config({{{"name", "rag"}, {"template", llama3}}, 7, {{"name", 1}}});
  CHECK_THAT(user_error_of(form), contains_text("has no chat template"));
  write_config("{{ a date }}");
  CHECK_THAT(user_error_of(form), contains_text("tokenizer_config.json: the chat template is of"));
  write_file(dir / "chat_template.jinja", chatml);
  CHECK(form() == "chatml");
  CHECK(named_template("paper", dir.path()) == "paper");
}

// Chat forms with a tokenizer of one id per byte. tests/interop/chat_templates.py compares the
// forms with transformers.

TEST_CASE("The chat forms are those of the published templates", "[data]") {
  CHECK(show("llama3", kOne, kLlama3) ==
        "B{<|start_header_id|>}user{<|end_header_id|>}\n\nQ{<|eot_id|>}"
        "{<|start_header_id|>}assistant{<|end_header_id|>}\n\n[R{<|eot_id|>}]");
  CHECK(show("chatml", kTwo) ==
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nQ\nI<|im_end|>\n"
        "<|im_start|>assistant\n[R<|im_end|>]\n<|im_start|>user\nq<|im_end|>\n"
        "<|im_start|>assistant\n[r<|im_end|>]\n");
  CHECK(
      show("zephyr", kTwo) ==
      "<|system|>\nSE\n<|user|>\nQ\nIE\n<|assistant|>\n[RE]\n<|user|>\nqE\n<|assistant|>\n[rE]\n");
  CHECK(show("mistral", kTwo) == "B [INST] S\n\nQ\nI [/INST][ RE] [INST] q [/INST][ rE]");
  CHECK(show("mistral-v0", kTwo) == "B[INST] S\n\nQ\nI [/INST][RE][INST] q [/INST][rE]");
  CHECK(show("mistral-v3", kTwo) == "B[INST] Q\nI[/INST][ RE][INST] S\n\nq[/INST][ rE]");
  CHECK(show("mistral-tekken", kTwo) == "B[INST]Q\nI[/INST][RE][INST]S\n\nq[/INST][rE]");
  CHECK(show("mistral-v7", kTwo, {"[INST]"}) ==
        "B[SYSTEM_PROMPT]S[/SYSTEM_PROMPT]{[INST]}Q\nI[/INST][RE]{[INST]}q[/INST][rE]");
}

TEST_CASE("Loss on the last answer excludes the others", "[data]") {
  CHECK(show("mistral-v7", {"", kTwo.turns}, {}, /*only_last=*/true) ==
        "B[INST]Q\nI[/INST]RE[INST]q[/INST][rE]");
}

TEST_CASE("A special token in the text of a user is encoded as text", "[data]") {
  CHECK(show("chatml", {"", {{"<|im_end|>", "", "<|im_end|>"}}}, {"<|im_end|>", "<|im_start|>"}) ==
        "{<|im_start|>}user\n<|im_end|>{<|im_end|>}\n{<|im_start|>}assistant\n"
        "[<|im_end|>{<|im_end|>}]\n");
}

TEST_CASE("Adjacent texts are encoded as one; a token across the boundary has loss", "[data]") {
  using Kind = ChatPiece::Kind;
  const std::vector<ChatPiece> pieces = {
      {Kind::kText, "xa", false}, {Kind::kText, "by", true}, {Kind::kText, "za", false}};
  CHECK(show(chat_tokens(pieces, chat_codec({})), {}) == "x[(ab)y]za");
  CHECK(show(chat_tokens({}, chat_codec({})), {}).empty());
}

TEST_CASE("A question ends where its answer begins", "[data]") {
  const auto asked = [](const std::string& form, const std::vector<std::string>& marks) {
    const Question question = question_tokens(Template::parse(form), "Q", chat_codec(marks));
    const auto shown = [&](const std::vector<int64_t>& ids) {
      std::vector<ChatToken> tokens;
      for (const int64_t id : ids) {
        tokens.push_back({id, false});
      }
      return show(tokens, marks);
    };
    return shown(question.ids) + " until " + shown(question.end);
  };
  CHECK(asked("llama3", kLlama3) ==
        "B{<|start_header_id|>}user{<|end_header_id|>}\n\nQ{<|eot_id|>}"
        "{<|start_header_id|>}assistant{<|end_header_id|>}\n\n until {<|eot_id|>}");
  CHECK(asked("chatml", {}) ==
        "<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\n until <|im_end|>");
  CHECK(asked("zephyr", {}) == "<|user|>\nQE\n<|assistant|>\n until E");
  CHECK(asked("mistral", {}) == "B [INST] Q [/INST] until E");
  CHECK(asked("llama2", {}) == "B[INST] Q [/INST]  until E");
  CHECK(asked("paper", {}) == "BQ\n until E");
}

TEST_CASE("Records are encoded with a chat form", "[data]") {
  ReadSettings settings;
  settings.text_template = Template::parse("zephyr");
  const Examples examples = read_bytes(
      "a.jsonl", R"({"system_prompt": "S", "question": "Q", "response": "R"})", settings);
  CHECK(show_ids(examples.at(0)) == "<|system|>\nSE\n<|user|>\nQE\n<|assistant|>\nRE\n");
  CHECK(show_labels(examples.at(0)) == std::string(40, '.') + "RE.");
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
