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

char unescape(char c, const std::string& word) {
  USER_ERROR_IF(std::string_view("nt\\{}").find(c) == std::string_view::npos,
                "--template '{}': '\\{}' is no escape; known: \\n, \\t, \\\\, \\{{ and \\}}",
                printable(word), printable(std::string(1, c)));
  return c == 'n' ? '\n' : c == 't' ? '\t' : c;
}

// A template of a turn as a jinja template, and the names of its placeholders.
struct TurnSource {
  std::string source = "{% if first %}{{ bos_token }}{% endif %}";
  std::vector<std::string> names;
};

// Converts the text of --template. A placeholder is a word of lower-case letters in braces; other
// braces are text.
TurnSource convert_placeholders(const std::string& word) {
  TurnSource turn;
  std::string text;
  const auto end_text = [&] {
    turn.source += "{{ " + Json(std::exchange(text, "")).dump() + " }}";
  };
  for (size_t at = 0; at < word.size(); ++at) {
    const size_t end = word.find_first_not_of("abcdefghijklmnopqrstuvwxyz_", at + 1);
    if (word[at] == '\\' && at + 1 < word.size()) {
      text += unescape(word[++at], word);
    } else if (word[at] == '{' && end != std::string::npos && end > at + 1 && word[end] == '}') {
      turn.names.push_back(word.substr(at + 1, end - at - 1));
      end_text();
      turn.source += turn.names.back() == "response"
                         ? "{% generation %}{{ response }}"
                         : "{{ system + '\n' if system else '' }}{{ question }}";
      at = end;
    } else {
      text += word[at];
    }
  }
  end_text();
  turn.source += "{% endgeneration %}";
  return turn;
}

// Throws UserError unless the names are "instruction" and "response", in this order.
void check_names(const std::vector<std::string>& names, const std::string& word) {
  const std::string shown = printable(word);
  for (const auto& name : names) {
    USER_ERROR_IF(name != "instruction" && name != "response",
                  "--template '{}': '{{{}}}' is no placeholder; known: {{instruction}} and "
                  "{{response}} (write \\{{ for a brace)",
                  shown, printable(name, 40));
  }
  for (const char* name : {"instruction", "response"}) {
    const auto count = std::ranges::count(names, name);
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

Template::Template() : Template("paper", form_source("paper")) {}

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
  std::vector<std::string> known = {"auto"};
  const std::vector<std::string>& chats = ChatTemplate::names();
  for (const auto& [name, source] : forms()) {
    if (word != name) {
      known.emplace_back(name);
    } else if (std::ranges::find(chats, word) == chats.end()) {
      return {word, source};
    } else {
      parsed.chat_ = ChatTemplate::named(word, folder, options);
      return parsed;
    }
  }
  if (word.ends_with(".jinja")) {
    parsed.chat_ = ChatTemplate::read(word, folder, options);
    return parsed;
  }
  USER_ERROR_IF(find_invalid_utf8(word) != kValidUtf8, "--template '{}': is not UTF-8",
                printable(word));
  if (word.find_first_of("{} \\\n") == std::string::npos) {
    throw UserError(
        "--template '{}' is unknown{}; known: {}, FILE.jinja, or a text with {{instruction}} and "
        "{{response}}",
        printable(word, 40), did_you_mean(word, known), fmt::join(known, ", "));
  }
  const TurnSource turn = convert_placeholders(word);
  check_names(turn.names, word);
  return {"the text of --template", turn.source};
}

std::string Template::fingerprint() const {
  return chat_ ? chat_->fingerprint() : "turn " + turn_.source();
}

void Template::require_usable() const {
  USER_ERROR_IF(!refusal_.empty(), "{}; name another one with --template: {}, FILE.jinja, paper",
                refusal_, fmt::join(ChatTemplate::names(), ", "));
}

std::string Template::description() const {
  return chat_               ? "the chat template " + chat_->origin()
         : !refusal_.empty() ? "the folder's chat template, which is not supported"
                             : name_;
}

TurnTokens Template::encode(const Conversation& conversation, size_t index,
                            const TextCodec& codec) const {
  constexpr int32_t kData = 1, kBos = 2;
  const Turn& turn = conversation.turns[index];
  const bool is_first = index == 0;
  const jinja::Value names = jinja::make_value({{"system", is_first ? conversation.system : ""},
                                                {"instruction", turn.instruction},
                                                {"input", turn.input},
                                                {"question", question_text(turn)},
                                                {"response", turn.response},
                                                {"first", is_first},
                                                {"verbatim", conversation.verbatim}},
                                               kData);
  names.dict()->set("bos_token", jinja::Text("B", kBos));
  const jinja::Rendered rendered = turn_.render(*names.dict());
  const FilledText text = filled(rendered);
  const size_t begin = rendered.runs.front().source == kBos ? rendered.runs.front().end : 0;
  size_t prompt_end = generated_ranges(rendered).at(0).begin, response = prompt_end;
  if (codec.leading_space) {
    prompt_end -= prompt_end > begin && text.text[prompt_end - 1] == ' ' ? 1 : 0;
    // Some tokenizers add no space to a text that begins with one.
    const bool is_doubled = text.text[prompt_end] == ' ' && codec.encode(" a") != codec.encode("a");
    response = prompt_end + (is_doubled ? 1 : 0);
  }
  TurnTokens tokens{codec.encode_filled(text.slice(begin, prompt_end)),
                    codec.encode_filled(text.slice(response, text.text.size()))};
  tokens.had_bos = !tokens.prompt.empty() && tokens.prompt.front() == codec.bos;
  if (begin > 0 && codec.bos >= 0 && !tokens.had_bos) {
    tokens.prompt.insert(tokens.prompt.begin(), codec.bos);
  }
  return tokens;
}

Question question_tokens(const Template& form, const std::string& question,
                         const TextCodec& codec) {
  form.require_usable();
  const Conversation conversation{"", {{replace_invalid_utf8(question), "", "."}}};
  if (form.chat()) {
    form.chat()->check_special_tokens(codec);
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
  return {form.encode(conversation, 0, codec).prompt, {codec.eos}};
}

}  // namespace moe::data
