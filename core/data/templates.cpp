#include "core/data/templates.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "core/base/error.h"
#include "core/base/text.h"

namespace moe::data {

namespace fs = std::filesystem;

namespace {

// Returns system text (of the first turn), instruction and input, a line each.
FilledText plain_instruct(const Conversation& conversation, size_t index) {
  const Turn& turn = conversation.turns[index];
  FilledText text;
  if (index == 0 && !conversation.system.empty()) {
    text.data(conversation.system + "\n");
  }
  return text.data(question_text(turn));
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
  content.data(question_text(turn));
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

// The texts around the placeholders, and the names between them: one more text than names.
struct TemplatePieces {
  std::vector<std::string> texts{""};
  std::vector<std::string> names;
};

// A placeholder is a word of lower-case letters in braces; other braces are text.
TemplatePieces split_placeholders(const std::string& word) {
  TemplatePieces pieces;
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

// Throws UserError unless the names are instruction and response, once each and in this order.
void check_names(const std::vector<std::string>& names, const std::string& word) {
  const std::string shown = printable(word);
  size_t instructions = 0, responses = 0;
  for (const auto& name : names) {
    instructions += name == "instruction" ? 1 : 0;
    responses += name == "response" ? 1 : 0;
    USER_ERROR_IF(name != "instruction" && name != "response",
                  "--template '{}': '{{{}}}' is no placeholder; known: {{instruction}} and "
                  "{{response}} (write \\{{ for a brace)",
                  shown, printable(name, 40));
  }
  for (const auto& [name, count] :
       {std::pair("instruction", instructions), std::pair("response", responses)}) {
    USER_ERROR_IF(count != 1, "--template '{}': {{{}}} {}; it must stand there once", shown, name,
                  count == 0 ? "is missing" : "stands there more than once");
  }
  USER_ERROR_IF(names.front() != "instruction",
                "--template '{}': {{response}} stands before {{instruction}}", shown);
}

std::vector<int64_t> token_ids(const std::vector<ChatToken>& tokens) {
  std::vector<int64_t> ids;
  for (const auto& token : tokens) {
    ids.push_back(token.id);
  }
  return ids;
}

}  // namespace

Template Template::parse(const std::string& word, const fs::path& folder,
                         const ChatOptions& options) {
  Template parsed;
  if (word == "auto") {
    try {
      parsed.chat_ = ChatTemplate::find(folder, options);
    } catch (const jinja::Unsupported& error) {
      parsed.refusal_ = error.what();
    }
    return parsed;
  }
  if (word == "paper") {
    return parsed;
  }
  if (word == "alpaca" || word == "llama2") {
    parsed.kind_ = word == "alpaca" ? Kind::kAlpaca : Kind::kLlama2;
    return parsed;
  }
  const std::vector<std::string>& chats = ChatTemplate::names();
  if (std::ranges::find(chats, word) != chats.end()) {
    parsed.chat_ = ChatTemplate::named(word, folder, options);
    return parsed;
  }
  if (word.ends_with(".jinja")) {
    parsed.chat_ = ChatTemplate::read(word, folder, options);
    return parsed;
  }
  USER_ERROR_IF(find_invalid_utf8(word) != kValidUtf8, "--template '{}': is not UTF-8",
                printable(word));
  if (word.find_first_of("{} \\\n") == std::string::npos) {
    std::vector<std::string> known = {"paper", "alpaca", "llama2"};
    known.insert(known.end(), chats.begin(), chats.end());
    known.emplace_back("auto");
    throw UserError(
        "--template '{}' is unknown{}; known: {}, FILE.jinja, or a text with {{instruction}} and "
        "{{response}}",
        printable(word, 40), did_you_mean(word, known), fmt::join(known, ", "));
  }
  TemplatePieces pieces = split_placeholders(word);
  check_names(pieces.names, word);
  parsed.kind_ = Kind::kOwn;
  parsed.before_ = std::move(pieces.texts[0]);
  parsed.between_ = std::move(pieces.texts[1]);
  parsed.after_ = std::move(pieces.texts[2]);
  return parsed;
}

std::string Template::words() const {
  return chat_ ? chat_->words()
               : fmt::format("{} {} {} {} {}{}{}", static_cast<int>(kind_), before_.size(),
                             between_.size(), after_.size(), before_, between_, after_);
}

void Template::require_usable() const {
  USER_ERROR_IF(!refusal_.empty(), "{}; name another one with --template: {}, FILE.jinja, paper",
                refusal_, fmt::join(ChatTemplate::names(), ", "));
}

std::string Template::description() const {
  static constexpr const char* kNames[] = {"paper", "alpaca", "llama2", "the text of --template"};
  return chat_               ? "the chat template " + chat_->origin()
         : !refusal_.empty() ? "the folder's chat template, which is not supported"
                             : kNames[static_cast<size_t>(kind_)];
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
      return {turn == 0, plain_instruct(conversation, turn).own(conversation.verbatim ? "" : "\n"),
              false, FilledText().data(conversation.turns[turn].response)};
  }
  const bool has_space = between_.ends_with(' ');
  return {turn == 0,
          FilledText()
              .own(before_)
              .append(plain_instruct(conversation, turn))
              .own(between_.substr(0, between_.size() - (has_space ? 1 : 0))),
          has_space, FilledText().data(conversation.turns[turn].response).own(after_)};
}

Question question_tokens(const Template& form, const std::string& question,
                         const TextCodec& codec) {
  form.require_usable();
  const Conversation conversation{"", {{question, "", "."}}};
  if (form.chat()) {
    form.chat()->check_marks(codec);
    Chat chat = make_chat(conversation);
    Question result;
    const FilledChat answered = form.chat()->fill(chat, true, codec);
    const io::TextRange end =
        end_of_turn(answered, answered.learned.back(),
                    codec.split ? codec.split(answered.text) : std::vector<io::TokenOrText>());
    const FilledText end_text{answered.text.text.substr(end.begin, end.end - end.begin)};
    result.end = token_ids(chat_tokens({end_text, {}}, codec));
    chat.messages.pop_back();
    result.ids = token_ids(chat_tokens({form.chat()->fill_prompt(chat, codec), {}}, codec));
    return result;
  }
  TurnText text = form.render(conversation, 0);
  text.prompt.own(text.space_before_response && !codec.leading_space ? " " : "");
  Question result{codec.encode_filled(text.prompt), {codec.eos}};
  if (text.begins_with_bos && codec.bos >= 0) {
    result.ids.insert(result.ids.begin(), codec.bos);
  }
  return result;
}

}  // namespace moe::data
