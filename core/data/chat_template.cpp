#include "core/data/chat_template.h"

#include <algorithm>
#include <array>
#include <ctime>
#include <sstream>

#include "core/base/error.h"
#include "core/base/read_file.h"
#include "core/base/text.h"

namespace moe::data {

namespace fs = std::filesystem;

namespace {

constexpr const char *kTemplateFile = "chat_template.jinja",
                     *kTokenizerConfig = "tokenizer_config.json";
constexpr int32_t kOtherData = 1 << 30;  // source of text of a record outside of its messages

// Returns the special tokens that a form's comment names after "needs:".
std::vector<std::string> needed_tokens(const std::string& source) {
  constexpr std::string_view kNeeds = "needs: ";
  const size_t begin = source.find(kNeeds);
  std::istringstream words(begin == std::string::npos ? "" : source.substr(begin + kNeeds.size()));
  std::vector<std::string> tokens;
  for (std::string word; words >> word && word != "-#}";) {
    tokens.push_back(word);
  }
  return tokens;
}

// Returns the entry `name` of "chat_template", or "" without one.
std::string configured_template(const Json& config, const std::string& name) {
  const auto entry = config.is_object() ? config.find("chat_template") : config.end();
  if (entry == config.end()) {
    return "";
  }
  if (entry->is_string()) {
    return name == "default" ? entry->get<std::string>() : "";
  }
  for (const auto& named : *entry) {
    if (named.is_object() && named.value("name", Json()) == name &&
        named.value("template", Json()).is_string()) {
      return named["template"].get<std::string>();
    }
  }
  return "";
}

Json read_config(const fs::path& file) {
  return fs::exists(file) ? read_json(file) : Json::object();
}

// Returns the special tokens named in the folder's files, as special_tokens_map of transformers.
OrderedJson named_tokens(const fs::path& folder) {
  OrderedJson tokens = OrderedJson::object();
  for (const char* file : {kTokenizerConfig, "special_tokens_map.json"}) {
    const Json config = read_config(folder / file);
    for (const auto& item : config.items()) {
      const Json& value = item.value();
      const Json text = value.is_object() ? value.value("content", Json()) : value;
      if (item.key().ends_with("_token") && (text.is_string() || text.is_null()) &&
          !tokens.contains(item.key())) {
        tokens[item.key()] = text;
      }
    }
  }
  return tokens;
}

bool is_known_role(const OrderedJson& role) {
  static constexpr std::array known = {"system",    "developer", "user",
                                       "assistant", "tool",      "ipython"};
  return role.is_string() && std::ranges::count(known, role.get<std::string>()) > 0;
}

bool is_assistant(const ChatMessage& message) {
  return message.json.value("role", OrderedJson()) == "assistant";
}

// Converts a message to a value. A known role has the source of the template's own text.
jinja::Value message_value(const ChatMessage& message, int32_t source) {
  jinja::Dict dict;
  for (const auto& item : message.json.items()) {
    const bool is_role = item.key() == "role" && is_known_role(item.value());
    const bool is_usual = item.key() == "role" || item.key() == "content";
    dict.items.emplace_back(jinja::Text(item.key(), is_usual ? 0 : kOtherData),
                            jinja::make_value(item.value(), is_role ? 0 : source));
  }
  return jinja::Value(std::move(dict));
}

// Returns the ranges of the runs for which `is_wanted` is true; adjacent ranges are joined.
std::vector<io::TextRange> find_ranges(const jinja::Rendered& text, const auto& is_wanted) {
  std::vector<io::TextRange> ranges;
  size_t begin = 0;
  for (const jinja::Run& run : text.runs) {
    if (is_wanted(run) && !ranges.empty() && ranges.back().end == begin) {
      ranges.back().end = run.end;
    } else if (is_wanted(run)) {
      ranges.push_back({begin, run.end});
    }
    begin = run.end;
  }
  return ranges;
}

// Returns the range from the first to the last byte of `source`; an empty one if there is none.
io::TextRange source_range(const jinja::Rendered& text, int32_t source) {
  const auto ranges =
      find_ranges(text, [&](const jinja::Run& run) { return run.source == source; });
  return ranges.empty() ? io::TextRange() : io::TextRange{ranges.front().begin, ranges.back().end};
}

// Returns the end of the last data within the first `size` bytes, or 0.
size_t data_end(const jinja::Rendered& text, size_t size) {
  size_t end = 0;
  for (const jinja::Run& run : text.runs) {
    end = run.source != 0 && run.end <= size ? run.end : end;
  }
  return end;
}

std::string format_time(const std::tm& time, const std::string& format) {
  std::array<char, 256> text{};
  return {text.data(), std::strftime(text.data(), text.size(), format.c_str(), &time)};
}

std::tm parse_date(const std::string& date) {
  std::tm time{};
  const char* end = strptime(date.c_str(), "%Y-%m-%d", &time);
  USER_ERROR_IF(end != date.c_str() + date.size(),
                "--template-date {}: must be a date such as 2026-01-31", printable(date, 40));
  return time;
}

}  // namespace

FilledText filled(const jinja::Rendered& text) {
  return {text.text, find_ranges(text, [](const jinja::Run& run) { return run.source != 0; })};
}

std::vector<io::TextRange> generated_ranges(const jinja::Rendered& text) {
  return find_ranges(text, [](const jinja::Run& run) { return run.is_generated; });
}

std::string_view form_source(std::string_view name) {
  static const std::vector<Form> all = forms();
  const auto found = std::ranges::find(all, name, &Form::name);
  MOE_CHECK(found != all.end(), "no form '{}'", name);
  return found->source;
}

ChatOptions parse_chat_options(const std::string& arguments, const std::string& date) {
  ChatOptions options;
  if (!arguments.empty()) {
    options.arguments = parse_ordered_json(arguments, "--chat-template-args");
    USER_ERROR_IF(!options.arguments.is_object(),
                  "--chat-template-args {}: must be a JSON object such as "
                  "{{\"enable_thinking\": false}}",
                  printable(arguments, 80));
  }
  if (!date.empty()) {
    parse_date(date);
  }
  options.date = date;
  return options;
}

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm time{};
  localtime_r(&now, &time);
  return format_time(time, "%Y-%m-%d");
}

ChatTemplate::ChatTemplate(const std::string& source, const std::string& origin,
                           const fs::path& folder, const ChatOptions& options)
    : origin_(origin),
      names_(named_tokens(folder)),
      date_(options.date.empty() ? today() : options.date) {
  templates_.emplace_back(source, origin);
  for (const auto& item : options.arguments.items()) {
    names_[item.key()] = item.value();
  }
}

std::optional<ChatTemplate> ChatTemplate::find(const fs::path& folder, const ChatOptions& options) {
  if (fs::exists(folder / kTemplateFile)) {
    return read(folder / kTemplateFile, folder, options);
  }
  const Json config = read_config(folder / kTokenizerConfig);
  const std::string source = configured_template(config, "default");
  if (source.empty()) {
    return std::nullopt;
  }
  const std::string file = (folder / kTokenizerConfig).string();
  ChatTemplate found(source, file + ": chat_template", folder, options);
  if (const std::string tool_use = configured_template(config, "tool_use"); !tool_use.empty()) {
    found.templates_.emplace_back(tool_use, file + ": tool_use");
  }
  return found;
}

ChatTemplate ChatTemplate::read(const fs::path& file, const fs::path& folder,
                                const ChatOptions& options) {
  constexpr uint64_t kMaxTemplateBytes = uint64_t{1} << 20;
  return {read_small_file(file, kMaxTemplateBytes), file.string(), folder, options};
}

ChatTemplate ChatTemplate::named(const std::string& name, const fs::path& folder,
                                 const ChatOptions& options) {
  const std::string source(form_source(name));
  ChatTemplate chat_template(source, "--template " + name, folder, options);
  chat_template.special_tokens_ = needed_tokens(source);
  return chat_template;
}

const std::vector<std::string>& ChatTemplate::names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const Form& form : forms()) {
      if (form.source.find("messages") != std::string_view::npos) {
        all.emplace_back(form.name);
      }
    }
    return all;
  }();
  return names;
}

void ChatTemplate::check_special_tokens(const TextCodec& codec) const {
  for (const auto& token : special_tokens_) {
    USER_ERROR_IF(codec.special && codec.special(token) < 0,
                  "{}: the tokenizer has no token {}; moe train adds it with --add-tokens auto, or "
                  "use --template auto, paper or another one whose tokens it has",
                  origin_, token);
  }
}

bool ChatTemplate::uses_date() const {
  return std::ranges::any_of(templates_,
                             [](const auto& each) { return each.mentions("strftime_now"); });
}

std::string ChatTemplate::fingerprint() const {
  std::string text = "chat " + (uses_date() ? date_ : "") + names_.dump();
  for (const auto& each : templates_) {
    text += fmt::format(" {} {}", each.source().size(), each.source());
  }
  return text;
}

jinja::Rendered ChatTemplate::render(const Chat& chat, size_t count, bool adds_prompt,
                                     const TextCodec& codec) const {
  jinja::Dict context;
  jinja::Values messages;
  for (size_t i = 0; i < count; ++i) {
    messages.push_back(message_value(chat.messages[i], static_cast<int32_t>(i + 1)));
  }
  context.set("messages", jinja::Value(std::move(messages)));
  context.set("tools", jinja::make_value(chat.tools, kOtherData));
  context.set("documents", jinja::make_value(chat.documents, kOtherData));
  context.set("add_generation_prompt", adds_prompt);
  for (const auto& [name, text] :
       {std::pair("bos_token", codec.bos_text), std::pair("eos_token", codec.eos_text)}) {
    if (!names_.contains(name) && !text.empty()) {
      context.set(name, text);
    }
  }
  for (const auto& item : names_.items()) {
    if (!item.value().is_null()) {
      context.set(item.key(), jinja::make_value(item.value(), 0));
    }
  }
  const jinja::RenderSettings settings = {
      [this](const std::string& format) { return format_time(parse_date(date_), format); }};
  const bool uses_tools = !chat.tools.is_null() && templates_.size() > 1;
  return templates_[uses_tools ? 1 : 0].render(context, settings);
}

void ChatTemplate::check_used(const Chat& chat) const {
  const auto check = [&](const OrderedJson& value, const std::string& key) {
    const bool is_empty = value == "" || (!value.is_primitive() && value.empty());
    const auto reads = [&](const auto& each) {
      return each.source().find(key) != std::string::npos;
    };
    USER_ERROR_IF(!value.is_null() && !is_empty && std::ranges::none_of(templates_, reads),
                  "the chat template {} does not use '{}', which changes what is learned; remove "
                  "the key, or the record",
                  origin_, key);
  };
  check(chat.tools, "tools");
  check(chat.documents, "documents");
  for (const ChatMessage& message : chat.messages) {
    for (const char* key : {"reasoning_content", "reasoning", "thinking", "tool_calls"}) {
      check(message.json.value(key, OrderedJson()), key);
    }
  }
}

FilledText ChatTemplate::fill_prompt(const Chat& chat, const TextCodec& codec) const {
  const size_t count = chat.messages.size();
  const bool continues = count > 0 && is_assistant(chat.messages.back());
  jinja::Rendered text = render(chat, count, !continues, codec);
  if (continues) {
    const size_t end = source_range(text, static_cast<int32_t>(count)).end;
    USER_ERROR_IF(end == 0, "{}: does not write the last message", origin_);
    text.text.resize(end);
    std::erase_if(text.runs, [&](const jinja::Run& run) { return run.end > end; });
  }
  return filled(text);
}

FilledChat ChatTemplate::fill(const Chat& chat, bool only_last, const TextCodec& codec) const {
  check_used(chat);
  const jinja::Rendered whole = render(chat, chat.messages.size(), false, codec);
  FilledChat result{filled(whole), {}};
  std::vector<size_t> answers;  // indices of messages
  for (size_t i = 0; i < chat.messages.size(); ++i) {
    if (is_assistant(chat.messages[i])) {
      answers.push_back(i);
    }
  }
  const auto carries_loss = [&](size_t message) {
    return chat.messages[message].carries_loss && (!only_last || message == answers.back());
  };
  if (templates_[0].mentions("generation")) {
    const std::vector<io::TextRange> ranges = generated_ranges(whole);
    USER_ERROR_IF(ranges.size() != answers.size(),
                  "{}: writes {} generated parts for {} answers of the assistant", origin_,
                  ranges.size(), answers.size());
    for (size_t i = 0; i < ranges.size(); ++i) {
      if (carries_loss(answers[i])) {
        result.learned.push_back({ranges[i].begin, ranges[i].end, ranges[i].end});
      }
    }
    return result;
  }
  const auto try_render = [&](size_t count, bool adds_prompt) -> std::optional<jinja::Rendered> {
    try {
      return render(chat, count, adds_prompt, codec);
    } catch (const UserError&) {
      return std::nullopt;  // the template refuses a part of the conversation
    }
  };
  for (const size_t message : answers) {
    if (!carries_loss(message)) {
      continue;
    }
    const auto source = static_cast<int32_t>(message + 1);
    io::TextRange range = source_range(whole, source);
    USER_ERROR_IF(range.end == 0, "{}: does not write the answer of message {}", origin_,
                  message + 1);
    // Text of the template between the generation prompt and the answer, and after the answer, is
    // found by rendering the conversation up to there. It carries loss if the whole text has it
    // too.
    size_t turn_end = range.end;
    const std::optional<jinja::Rendered> before = try_render(message, true);
    const std::optional<jinja::Rendered> up_to = try_render(message + 1, false);
    const io::TextRange part = up_to ? source_range(*up_to, source) : io::TextRange();
    if (part.end > 0) {
      const std::string_view text = whole.text, short_text = up_to->text;
      // The text between the data before the answer and the answer begins with the prompt.
      const size_t begin = data_end(*up_to, part.begin);
      const std::string_view between = short_text.substr(begin, part.begin - begin);
      const std::string_view prompt =
          before ? std::string_view(before->text).substr(data_end(*before, before->text.size()))
                 : between;
      if (between.starts_with(prompt)) {
        const std::string_view lead = between.substr(prompt.size());
        range.begin -= text.substr(0, range.begin).ends_with(lead) ? lead.size() : 0;
      }
      const auto tail = short_text.substr(part.end), rest = text.substr(range.end);
      turn_end += static_cast<size_t>(
          std::mismatch(tail.begin(), tail.end(), rest.begin(), rest.end()).first - tail.begin());
    }
    result.learned.push_back({range.begin, range.end, turn_end});
  }
  return result;
}

}  // namespace moe::data
