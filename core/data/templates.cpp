#include "core/data/templates.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>

#include "core/base/error.h"
#include "core/base/utf8.h"
#include "core/data/chat_forms.h"

namespace moe::data {

namespace {

// System text (of the first turn), instruction and input, a line each.
FilledText plain_instruct(const Conversation& conversation, size_t index) {
  const Turn& turn = conversation.turns[index];
  FilledText text;
  if (index == 0 && !conversation.system.empty()) {
    text.data(conversation.system + "\n");
  }
  return text.data(turn.instruction + (turn.input.empty() ? "" : "\n" + turn.input));
}

TurnText paper_turn(const Conversation& conversation, size_t index) {
  return {index == 0, plain_instruct(conversation, index).own(conversation.verbatim ? "" : "\n"),
          false, FilledText().data(conversation.turns[index].response)};
}

// tatsu-lab/stanford_alpaca, train.py, PROMPT_DICT.
TurnText alpaca_turn(const Conversation& conversation, size_t index) {
  const Turn& turn = conversation.turns[index];
  FilledText prompt;
  if (index == 0 && !conversation.system.empty()) {
    prompt.data(conversation.system).own("\n\n");
  } else if (index == 0) {
    prompt.own(turn.input.empty()
                   ? "Below is an instruction that describes a task. "
                   : "Below is an instruction that describes a task, paired with an input that "
                     "provides further context. ");
    prompt.own("Write a response that appropriately completes the request.\n\n");
  }
  prompt.own("### Instruction:\n").data(turn.instruction).own("\n\n");
  if (!turn.input.empty()) {
    prompt.own("### Input:\n").data(turn.input).own("\n\n");
  }
  return {index == 0, prompt.own("### Response:"), false, FilledText().data(turn.response)};
}

// meta-llama/llama, llama/generation.py, chat_completion.
TurnText llama2_turn(const Conversation& conversation, size_t index) {
  const Turn& turn = conversation.turns[index];
  FilledText content;
  if (index == 0 && !conversation.system.empty()) {
    content.own("<<SYS>>\n").data(conversation.system).own("\n<</SYS>>\n\n");
  }
  content.data(turn.instruction + (turn.input.empty() ? "" : "\n" + turn.input));
  return {true, FilledText().own("[INST] ").append(content.stripped()).own(" [/INST]"), true,
          FilledText().data(turn.response).stripped().own(" ")};
}

char unescape(char c, const std::string& word) {
  switch (c) {
    case 'n':
      return '\n';
    case 't':
      return '\t';
    case '\\':
    case '{':
    case '}':
      return c;
    default:
      throw UserError("--template '{}': '\\{}' is no escape; known: \\n, \\t, \\\\, \\{{ and \\}}",
                      printable(word), printable(std::string(1, c)));
  }
}

// The texts around the placeholders, and the placeholders between them: one more text than names.
struct Pieces {
  std::vector<std::string> texts{""};
  std::vector<std::string> names;
};

// A placeholder is a word of lower-case letters in braces; other braces are text.
Pieces cut(const std::string& word) {
  Pieces pieces;
  for (size_t at = 0; at < word.size(); ++at) {
    if (word[at] == '\\' && at + 1 < word.size()) {
      pieces.texts.back() += unescape(word[++at], word);
      continue;
    }
    if (word[at] == '{') {
      const size_t end = word.find_first_not_of("abcdefghijklmnopqrstuvwxyz_", at + 1);
      if (end != std::string::npos && end > at + 1 && word[end] == '}') {
        pieces.names.push_back(word.substr(at + 1, end - at - 1));
        pieces.texts.emplace_back();
        at = end;
        continue;
      }
    }
    pieces.texts.back() += word[at];
  }
  return pieces;
}

// UserError where the names are not instruction and response, once each and in this order.
void check_names(const std::vector<std::string>& names, const std::string& word) {
  const std::string shown = printable(word);
  size_t instructions = 0, responses = 0;
  for (const auto& name : names) {
    instructions += name == "instruction" ? 1 : 0;
    responses += name == "response" ? 1 : 0;
    if (name != "instruction" && name != "response") {
      throw UserError(
          "--template '{}': '{{{}}}' is no placeholder; known: {{instruction}} and {{response}} "
          "(write \\{{ for a brace)",
          shown, printable(name, 40));
    }
  }
  for (const auto& [name, count] :
       {std::pair("instruction", instructions), std::pair("response", responses)}) {
    if (count != 1) {
      throw UserError("--template '{}': {{{}}} {}; it must stand there once", shown, name,
                      count == 0 ? "is missing" : "stands there more than once");
    }
  }
  if (names.front() != "instruction") {
    throw UserError("--template '{}': {{response}} stands before {{instruction}}", shown);
  }
}

}  // namespace

Template Template::parse(const std::string& word) {
  Template parsed;
  if (word == "paper") {
    return parsed;
  }
  if (word == "alpaca" || word == "llama2") {
    parsed.kind_ = word == "alpaca" ? Kind::kAlpaca : Kind::kLlama2;
    return parsed;
  }
  const std::vector<std::string>& chats = chat_form_names();
  if (std::find(chats.begin(), chats.end(), word) != chats.end()) {
    parsed.kind_ = Kind::kChat;
    parsed.form_ = word;
    return parsed;
  }
  if (find_invalid_utf8(word) != kValidUtf8) {
    throw UserError("--template '{}': is not UTF-8", printable(word));
  }
  if (word.find_first_of("{} \\\n") == std::string::npos) {
    std::vector<std::string> known = {"paper", "alpaca", "llama2"};
    known.insert(known.end(), chats.begin(), chats.end());
    known.emplace_back("auto");
    const std::string near = nearest_name(word, known);
    throw UserError(
        "--template '{}' is unknown{}; known: {}, or a text with {{instruction}} and {{response}}",
        printable(word, 40), near.empty() ? "" : ", did you mean '" + near + "'?",
        fmt::join(known, ", "));
  }
  Pieces pieces = cut(word);
  check_names(pieces.names, word);
  parsed.kind_ = Kind::kOwn;
  parsed.before_ = std::move(pieces.texts[0]);
  parsed.between_ = std::move(pieces.texts[1]);
  parsed.after_ = std::move(pieces.texts[2]);
  return parsed;
}

std::string Template::words() const {
  return is_chat() ? "chat " + form_
                   : fmt::format("{} {} {} {} {}{}{}", static_cast<int>(kind_), before_.size(),
                                 between_.size(), after_.size(), before_, between_, after_);
}

TurnText Template::render(const Conversation& conversation, size_t turn) const {
  switch (kind_) {
    case Kind::kAlpaca:
      return alpaca_turn(conversation, turn);
    case Kind::kLlama2:
      return llama2_turn(conversation, turn);
    case Kind::kOwn:
      break;
    default:
      return paper_turn(conversation, turn);
  }
  const bool has_space = between_.ends_with(' ');
  return {turn == 0,
          FilledText()
              .own(before_)
              .append(plain_instruct(conversation, turn))
              .own(between_.substr(0, between_.size() - (has_space ? 1 : 0))),
          has_space, FilledText().data(conversation.turns[turn].response).own(after_)};
}

}  // namespace moe::data
