#include "core/data/templates.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/read_file.h"
#include "core/base/text.h"

namespace moe::data {

namespace fs = std::filesystem;

namespace {

using Kind = ChatPiece::Kind;

// Collects the pieces of a conversation. begin_content(true) marks the following ones as
// learned, until end_content().
class ChatWriter {
 public:
  void text(const std::string& text) {
    if (!text.empty()) {
      pieces_.push_back({Kind::kText, text, is_learned_});
    }
  }
  void mark(const std::string& text) { pieces_.push_back({Kind::kMark, text, is_learned_}); }
  void bos() { pieces_.push_back({Kind::kBos}); }
  void eos() { pieces_.push_back({Kind::kEos, "", is_learned_}); }

  void begin_content(bool is_learned) {
    content_ = pieces_.size();
    is_learned_ = is_learned;
  }
  void end_content() { is_learned_ = false; }

  std::vector<ChatPiece> pieces() { return std::move(pieces_); }
  std::vector<ChatPiece> before_last_content() {
    pieces_.resize(content_);
    return std::move(pieces_);
  }

 private:
  std::vector<ChatPiece> pieces_;
  size_t content_ = 0;  // the first piece of the last content
  bool is_learned_ = false;
};

std::string question_text(const Turn& turn) {
  return turn.instruction + (turn.input.empty() ? "" : "\n" + turn.input);
}

// A form whose messages (system, user, assistant) are all written alike.
struct MessageForm {
  const char* name;
  bool has_bos, strips_texts, is_role_in_mark;
  const char *before_role, *after_role;  // marks; null: none
  const char* after_header;
  const char* end;  // mark; null: EOS
  const char* after_end;
};

constexpr std::array<MessageForm, 3> kMessageForms = {{
    {"llama3", true, true, false, "<|start_header_id|>", "<|end_header_id|>", "\n\n", "<|eot_id|>",
     ""},
    {"chatml", false, false, false, "<|im_start|>", nullptr, "\n", "<|im_end|>", "\n"},
    {"zephyr", false, false, true, "<|", "|>", "\n", nullptr, "\n"},
}};

void write_messages(const MessageForm& form, ChatWriter& out, const Conversation& conversation,
                    bool only_last) {
  const auto message = [&](const std::string& role, const std::string& content, bool is_learned) {
    if (form.is_role_in_mark) {
      out.mark(form.before_role + role + form.after_role);
    } else {
      out.mark(form.before_role);
      out.text(role);
      if (form.after_role != nullptr) {
        out.mark(form.after_role);
      }
    }
    out.text(form.after_header);
    out.begin_content(is_learned);
    out.text(form.strips_texts ? strip(content) : content);
    form.end == nullptr ? out.eos() : out.mark(form.end);
    out.end_content();
    out.text(form.after_end);
  };
  if (form.has_bos) {
    out.bos();
  }
  if (!conversation.system.empty()) {
    message("system", conversation.system, false);
  }
  for (const Turn& turn : conversation.turns) {
    message("user", question_text(turn), false);
    message("assistant", turn.response,
            turn.carries_loss && (!only_last || &turn == &conversation.turns.back()));
  }
}

// One of Mistral's spacings.
struct Mistral {
  enum class System { kFirst, kLast, kMarked };
  const char* name;
  const char *before_inst, *after_inst, *before_end, *before_answer;
  bool strips_answers;
  System system;
};

constexpr std::array<Mistral, 5> kMistrals = {{
    {"mistral", " ", " ", " ", " ", false, Mistral::System::kFirst},
    {"mistral-v0", "", " ", " ", "", false, Mistral::System::kFirst},
    {"mistral-v3", "", " ", "", " ", true, Mistral::System::kLast},
    {"mistral-tekken", "", "", "", "", false, Mistral::System::kLast},
    {"mistral-v7", "", "", "", "", false, Mistral::System::kMarked},
}};

void write_mistral(const Mistral& form, ChatWriter& out, const Conversation& conversation,
                   bool only_last) {
  const auto& turns = conversation.turns;
  const bool has_system = !conversation.system.empty();
  out.bos();
  if (has_system && form.system == Mistral::System::kMarked) {
    out.mark("[SYSTEM_PROMPT]");
    out.text(conversation.system);
    out.mark("[/SYSTEM_PROMPT]");
  }
  for (const Turn& turn : turns) {
    const bool is_last = &turn == &turns.back();
    const bool has_system_before_it =
        has_system && ((form.system == Mistral::System::kFirst && &turn == &turns.front()) ||
                       (form.system == Mistral::System::kLast && is_last));
    out.text(form.before_inst);
    out.mark("[INST]");
    out.text(form.after_inst + (has_system_before_it ? conversation.system + "\n\n" : "") +
             question_text(turn) + form.before_end);
    out.mark("[/INST]");
    out.begin_content(turn.carries_loss && (!only_last || is_last));
    out.text(form.before_answer + (form.strips_answers ? strip(turn.response) : turn.response));
    out.eos();
    out.end_content();
  }
}

template <typename Forms>
auto find_form(const Forms& forms, const std::string& name) {
  const auto found =
      std::ranges::find_if(forms, [&](const auto& form) { return name == form.name; });
  return found == forms.end() ? nullptr : &*found;
}

void write_chat(const std::string& form, ChatWriter& out, const Conversation& conversation,
                bool only_last) {
  if (const MessageForm* messages = find_form(kMessageForms, form)) {
    return write_messages(*messages, out, conversation, only_last);
  }
  const Mistral* mistral = find_form(kMistrals, form);
  MOE_CHECK(mistral != nullptr, "no chat form '{}'", form);
  write_mistral(*mistral, out, conversation, only_last);
}

const std::vector<std::string>& chat_form_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const auto& form : kMessageForms) {
      all.emplace_back(form.name);
    }
    for (const auto& form : kMistrals) {
      all.emplace_back(form.name);
    }
    return all;
  }();
  return names;
}

constexpr const char *kTemplateFile = "chat_template.jinja",
                     *kTokenizerConfig = "tokenizer_config.json";

// Returns the default of "chat_template"; empty if there is none.
std::string default_template(const Json& config) {
  const auto entry = config.is_object() ? config.find("chat_template") : config.end();
  if (entry == config.end()) {
    return "";
  }
  if (entry->is_string()) {
    return entry->get<std::string>();
  }
  for (const auto& named : *entry) {
    if (named.is_object() && named.value("name", Json()) == "default" &&
        named.value("template", Json()).is_string()) {
      return named["template"].get<std::string>();
    }
  }
  return "";
}

// Returns the form of a chat template by its text; empty if no form fits.
std::string chat_form_by_marks(const std::string& chat_template) {
  const auto has = [&](std::string_view mark) {
    return chat_template.find(mark) != std::string::npos;
  };
  if (has("<|im_start|>")) {
    return "chatml";
  }
  if (has("<|start_header_id|>")) {
    return "llama3";
  }
  if (has("[INST]")) {
    if (has("[SYSTEM_PROMPT]")) {
      return "mistral-v7";
    }
    if (has("<<SYS>>")) {
      return "llama2";
    }
    if (has(" [INST]")) {
      return "mistral";
    }
    const bool is_tight = has("\"[INST]\"") || has("'[INST]'");
    return is_tight ? "mistral-tekken" : has(" [/INST]") ? "mistral-v0" : "mistral-v3";
  }
  if (has("<|user|>") && (has("eos_token") || has("</s>") || has("<|endoftext|>")) &&
      !has("<|end|>")) {
    return "zephyr";
  }
  return "";
}

std::string detect_chat_form(const fs::path& folder) {
  std::string text;
  fs::path file = folder / kTemplateFile;
  if (fs::exists(file)) {
    constexpr uint64_t kMaxTemplateBytes = uint64_t{1} << 20;
    text = read_small_file(file, kMaxTemplateBytes);
  } else if (file = folder / kTokenizerConfig; fs::exists(file)) {
    text = default_template(read_json(file));
  }
  const std::string remedy =
      fmt::format("name one with --template: {}, llama2", fmt::join(chat_form_names(), ", "));
  USER_ERROR_IF(text.empty(), "{}: has no chat template ({} or \"chat_template\" of {}); {}",
                folder.string(), kTemplateFile, kTokenizerConfig, remedy);
  const std::string form = chat_form_by_marks(text);
  USER_ERROR_IF(form.empty(), "{}: the chat template is of no form that moe knows; {}",
                file.string(), remedy);
  return form;
}

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

std::vector<ChatPiece> chat_pieces(const std::string& form, const Conversation& conversation,
                                   bool only_last) {
  ChatWriter out;
  write_chat(form, out, conversation, only_last);
  return out.pieces();
}

std::string named_template(const std::string& word, const fs::path& folder) {
  return word == "auto" ? detect_chat_form(folder) : word;
}

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
  if (std::ranges::find(chats, word) != chats.end()) {
    parsed.kind_ = Kind::kChat;
    parsed.form_ = word;
    return parsed;
  }
  USER_ERROR_IF(find_invalid_utf8(word) != kValidUtf8, "--template '{}': is not UTF-8",
                printable(word));
  if (word.find_first_of("{} \\\n") == std::string::npos) {
    std::vector<std::string> known = {"paper", "alpaca", "llama2"};
    known.insert(known.end(), chats.begin(), chats.end());
    known.emplace_back("auto");
    throw UserError(
        "--template '{}' is unknown{}; known: {}, or a text with {{instruction}} and {{response}}",
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
  const Conversation conversation{"", {{question, "", ""}}};
  if (form.is_chat()) {
    const MessageForm* messages = find_form(kMessageForms, form.chat_form());
    const bool has_end_mark = messages != nullptr && messages->end != nullptr;
    const ChatPiece end =
        has_end_mark ? ChatPiece{Kind::kMark, messages->end} : ChatPiece{Kind::kEos};
    ChatWriter out;
    write_chat(form.chat_form(), out, conversation, /*only_last=*/true);
    return {token_ids(chat_tokens(out.before_last_content(), codec)),
            token_ids(chat_tokens({end}, codec))};
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
