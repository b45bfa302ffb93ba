// Chat forms with a tokenizer of one id per byte. tests/interop/chat_templates.py compares the
// forms with transformers.

#include <algorithm>

#include "core/data/templates.h"
#include "tests/support/byte_codec.h"
#include "tests/support/catch.h"

using namespace moe;
using namespace moe::data;
using namespace moe::test;

namespace {

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

}  // namespace

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
