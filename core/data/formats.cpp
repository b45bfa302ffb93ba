#include "core/data/formats.h"

#include <algorithm>
#include <array>
#include <set>
#include <span>
#include <string_view>

#include "core/base/error.h"
#include "core/base/text.h"

namespace moe::data {

namespace {

// A format and the keys of its records: `key`, and one of `also` unless those are null.
struct FormatRow {
  Format format;
  const char* name;
  const char* label;
  const char* key;
  std::array<const char*, 2> also;
  // Keys of formats with one turn, null if absent. The instruction has `key`.
  const char* response = nullptr;
  const char* input = nullptr;
  const char* system = nullptr;
};
// In order of precedence: the format of a record is the first one whose keys it has.
constexpr std::array<FormatRow, 8> kFormats = {{
    {Format::kRows, "rows", "pre-tokenised rows", "input_ids", {}},
    {Format::kAlpaca, "alpaca", "Alpaca records", "instruction", {"output"}, "output", "input"},
    {Format::kDolly,
     "dolly",
     "Dolly records",
     "instruction",
     {"response", "context"},
     "response",
     "context"},
    {Format::kPairs, "pairs", "prompt pairs", "prompt", {"response", "completion"}, "response"},
    {Format::kMessages, "messages", "chat messages", "messages", {}},
    {Format::kShareGpt, "sharegpt", "ShareGPT conversations", "conversations", {}},
    {Format::kOpenOrca,
     "openorca",
     "OpenOrca records",
     "question",
     {"response"},
     "response",
     nullptr,
     "system_prompt"},
    {Format::kText, "text", "text documents", "text", {}},
}};

const FormatRow& format_row(Format format) {
  const auto* const row = std::ranges::find(kFormats, format, &FormatRow::format);
  MOE_CHECK(row != kFormats.end());
  return *row;
}

bool has_keys(const Json& record, const FormatRow& row) {
  const auto has_key = [&](const char* key) { return key != nullptr && record.contains(key); };
  return has_key(row.key) && (row.also[0] == nullptr || std::ranges::any_of(row.also, has_key));
}

std::string get_response(const Json& record, const char* key, const std::string& where) {
  std::string response = get_string(record, key, where);
  USER_ERROR_IF(is_blank(response),
                "{}: no response: '{}' is empty; remove the record or give it one", where, key);
  return response;
}

// Returns false if the "weight" of a message is 0 or its "train" is false.
bool has_loss(const Json& message, const std::string& where) {
  for (const char* key : {"weight", "train"}) {
    if (!has_value(message, key)) {
      continue;
    }
    const Json& value = message[key];
    const bool is_zero = value == Json(0) || value == Json(false);
    USER_ERROR_IF(!is_zero && value != Json(1) && value != Json(true),
                  "{}: '{}' is {}; known are 0 and 1, false and true", where, key,
                  printable(value.dump(), 40));
    if (is_zero) {
      return false;
    }
  }
  return true;
}

// Returns true for null, false, "", [], {} and the strings "[]" and "{}".
bool is_empty_value(const Json& value) {
  return value.is_null() || value == Json(false) || value == Json("") || value == Json("[]") ||
         value == Json("{}") || ((value.is_array() || value.is_object()) && value.empty());
}

void refuse_keys(const Json& object, std::span<const char* const> keys, const std::string& where) {
  for (const char* key : keys) {
    const auto found = object.find(key);
    USER_ERROR_IF(found != object.end() && !is_empty_value(*found),
                  "{}: '{}' changes what is learned and is not supported; remove the key, or the "
                  "record",
                  where, key);
  }
}

// Returns the only system text of a conversation.
std::string one_system(const std::string& first, const std::string& second,
                       const std::string& where) {
  USER_ERROR_IF(!first.empty() && !second.empty(), "{}: has two system texts; remove one", where);
  return first.empty() ? second : first;
}

// The keys and role names of a list of messages.
struct ChatKeys {
  const char *list, *role, *text;
  const char* known;  // for messages
};
constexpr ChatKeys kMessageKeys = {"messages", "role", "content", "system, user, assistant"};
constexpr ChatKeys kShareGptKeys = {"conversations", "from", "value", "system, human, gpt"};

const ChatKeys& chat_keys(Format format) {
  return format == Format::kMessages ? kMessageKeys : kShareGptKeys;
}

bool is_answer(const ChatMessage& message) { return message.json["role"] == "assistant"; }

// Returns the messages of a record, after its system text, with the roles "user" and "assistant"
// for their other names. `json` is the same record.
Chat read_messages(const OrderedJson& record, const Json& json, const ChatKeys& keys,
                   const std::string& where) {
  USER_ERROR_IF(!json.contains(keys.list), "{}: '{}' is missing", where, keys.list);
  const Json& list = json[keys.list];
  USER_ERROR_IF(!list.is_array(), "{}: '{}' must be a list of messages", where, keys.list);
  Chat chat;
  const std::string system = get_string(json, "system", where, "");
  if (!system.empty()) {
    chat.messages.push_back({{{"role", "system"}, {"content", system}}, false, where});
  }
  for (size_t index = 0; index < list.size(); ++index) {
    const Json& message = list[index];
    const std::string position = fmt::format("{}, '{}'[{}]", where, keys.list, index);
    USER_ERROR_IF(!message.is_object(), "{}: a message {{\"{}\", \"{}\"}} is expected", position,
                  keys.role, keys.text);
    std::string role = get_string(message, keys.role, position);
    role = role == "human" ? "user" : role == "gpt" || role == "chatgpt" ? "assistant" : role;
    if (role == "system") {
      one_system(system, get_string(message, keys.text, position), position);
    }
    OrderedJson read = record[keys.list][index];
    if (&keys == &kShareGptKeys) {
      read = {{"content", role == "assistant" ? get_response(message, keys.text, position)
                                              : get_string(message, keys.text, position)}};
    }
    read["role"] = role;
    chat.messages.push_back(
        {std::move(read), role == "assistant" && has_loss(message, position), position});
  }
  return chat;
}

// Returns the turns of `chat`. Throws UserError for other roles, and unless questions and answers
// alternate.
Conversation read_turns(const Chat& chat, const ChatKeys& keys) {
  Conversation conversation;
  std::optional<std::string> question;  // without an answer yet
  for (const ChatMessage& message : chat.messages) {
    const auto require = [&](bool condition, const char* words) {
      USER_ERROR_IF(!condition, "{}: {}", message.where, words);
    };
    const Json json = message.json;
    const std::string role = json["role"];
    if (role == "system") {
      require(!question && conversation.turns.empty(),
              "a system text may only stand first; remove the record or move it");
      conversation.system = one_system(conversation.system,
                                       get_string(json, "content", message.where), message.where);
    } else if (role == "user") {
      require(!question, "two questions in a row; join them or remove the record");
      question = get_string(json, "content", message.where);
    } else {
      USER_ERROR_IF(role != "assistant",
                    "{}: '{}' is '{}', an unknown role; known: {}; remove the record or rename it",
                    message.where, keys.role, printable(role, 40), keys.known);
      require(question || !conversation.turns.empty(),
              "the conversation starts with the answer; remove the record or that message");
      require(question.has_value(), "two answers in a row; join them or remove the record");
      conversation.turns.push_back(
          {*question, "", get_response(json, "content", message.where), message.carries_loss});
      question.reset();
    }
  }
  return conversation;
}

// Throws UserError if no answer of a conversation carries loss.
void check_answers(const auto& answers, const auto& carries_loss, const std::string& where) {
  USER_ERROR_IF(answers.empty(),
                "{}: no response: the conversation holds no answer; remove the record", where);
  USER_ERROR_IF(std::ranges::none_of(answers, carries_loss),
                "{}: no answer carries loss; remove the record", where);
}

std::string get_optional(const Json& record, const char* key, const std::string& where) {
  return key == nullptr ? "" : get_string(record, key, where, "");
}

// Reads the earlier turns of an Alpaca record: [[question, answer], ...].
std::vector<Turn> read_history(const Json& record, const std::string& where) {
  std::vector<Turn> turns;
  if (!has_value(record, "history")) {
    return turns;
  }
  const Json& history = record["history"];
  USER_ERROR_IF(!history.is_array(), "{}: 'history' must be a list of [question, answer]", where);
  for (const Json& turn : history) {
    USER_ERROR_IF(!turn.is_array() || turn.size() != 2 || !turn[0].is_string() ||
                      !turn[1].is_string() || is_blank(turn[1].get<std::string>()),
                  "{}: 'history' must be a list of [question, answer]", where);
    turns.push_back({turn[0].get<std::string>(), "", turn[1].get<std::string>()});
  }
  return turns;
}

Conversation read_single(const Json& record, const FormatRow& row, const std::string& where) {
  const bool is_pair = row.format == Format::kPairs;
  const bool uses_completion =
      is_pair && record.contains("completion") && !record.contains("response");
  Conversation conversation{
      one_system(get_optional(record, row.system, where), get_optional(record, "system", where),
                 where),
      row.format == Format::kAlpaca ? read_history(record, where) : std::vector<Turn>(), is_pair};
  Turn turn{get_string(record, row.key, where), get_optional(record, row.input, where), ""};
  turn.response = get_response(record, uses_completion ? "completion" : row.response, where);
  conversation.turns.push_back(std::move(turn));
  return conversation;
}

}  // namespace

bool is_blank(std::string_view text) {
  return text.find_first_not_of(" \t\r\n") == std::string_view::npos;
}

Format parse_format(const std::string& name) {
  std::vector<std::string> known;
  for (const auto& row : kFormats) {
    if (name == row.name) {
      return row.format;
    }
    known.emplace_back(row.name);
  }
  throw UserError("--format '{}' is unknown{}; known: {}", printable(name, 40),
                  did_you_mean(name, known), fmt::join(known, ", "));
}

const char* format_name(Format format) { return format_row(format).name; }
const char* format_label(Format format) { return format_row(format).label; }
const char* format_key(Format format) { return format_row(format).key; }

bool is_conversation(Format format) { return format != Format::kRows && format != Format::kText; }

std::vector<std::string> check_keys(const Json& record, Format format, bool has_chat_template,
                                    const std::string& where) {
  static constexpr std::array kRowKeys = {"segment_ids", "sequence_lengths", "loss_mask"};
  static constexpr std::array kRecordKeys = {"functions", "images", "videos", "audios", "rejected"};
  static constexpr std::array kTemplateRecordKeys = {"tools", "documents"};
  static constexpr std::array kTurnKeys = {"reasoning_content", "reasoning",     "thinking",
                                           "tool_calls",        "function_call", "tool_call_id"};
  static const std::set<std::string> known = {
      "system", "history", "weight", "labels", "attention_mask", "position_ids",
      // Metadata.
      "id", "_id", "idx", "index", "uuid", "source", "dataset", "category", "task", "type", "url",
      "title", "topic", "language", "lang", "license", "model", "created", "timestamp", "date",
      "split", "score", "token_type_ids", "num_tokens", "length", "metadata", "meta"};
  const FormatRow& row = format_row(format);
  if (format == Format::kRows) {
    refuse_keys(record, kRowKeys, where);
  } else if (is_conversation(format)) {
    refuse_keys(record, kRecordKeys, where);
    USER_ERROR_IF(has_value(record, "weight") && record["weight"] != Json(1),
                  "{}: 'weight' of a record is not supported; remove the key", where);
    if (!has_chat_template) {
      refuse_keys(record, kTemplateRecordKeys, where);
      const auto found = record.find(row.key);
      const bool has_list = found != record.end() && found->is_array();
      for (size_t i = 0; has_list && i < found->size(); ++i) {
        refuse_keys(found->at(i), kTurnKeys, fmt::format("{}, '{}'[{}]", where, row.key, i));
      }
    }
  }
  std::vector<std::string> unused;
  for (const auto& [key, value] : record.items()) {
    const auto is_key = [&](const char* other) { return other != nullptr && key == other; };
    const bool is_read =
        known.contains(key) || std::ranges::any_of(row.also, is_key) ||
        std::ranges::any_of(std::array{row.key, row.response, row.input, row.system}, is_key) ||
        (has_chat_template && std::ranges::any_of(kTemplateRecordKeys, is_key));
    if (!is_read && !is_empty_value(value)) {
      unused.push_back(key);
    }
  }
  return unused;
}

std::optional<Format> recognise(const Json& record, Objective objective) {
  if (objective == Objective::kLm && record.contains("text") && !record.contains("input_ids")) {
    return Format::kText;
  }
  const auto find = [](const auto& is_format) {
    const auto* const row = std::ranges::find_if(kFormats, is_format);
    return row == kFormats.end() ? std::nullopt : std::optional(row->format);
  };
  const auto complete = find([&](const FormatRow& row) { return has_keys(record, row); });
  // A record that lacks a key has the nearest format, whose reader names the key.
  return complete ? complete : find([&](const FormatRow& row) { return record.contains(row.key); });
}

std::string quoted_keys(const Json& record) {
  std::string keys;
  for (const auto& item : record.items()) {
    if (keys.size() > 80) {
      return keys + ", ...";
    }
    keys += (keys.empty() ? "'" : ", '") + printable(item.key(), 40) + "'";
  }
  return keys.empty() ? "none" : keys;
}

Conversation read_conversation(const Json& record, Format format, const std::string& where) {
  const FormatRow& row = format_row(format);
  if (row.response != nullptr) {
    return read_single(record, row, where);
  }
  const ChatKeys& keys = chat_keys(format);
  Conversation conversation = read_turns(read_messages(record, record, keys, where), keys);
  check_answers(conversation.turns, &Turn::carries_loss, where);
  return conversation;
}

std::string question_text(const Turn& turn) {
  return turn.instruction + (turn.input.empty() ? "" : "\n" + turn.input);
}

Chat make_chat(const Conversation& conversation) {
  Chat chat;
  const auto add = [&](const char* role, const std::string& content, bool carries_loss) {
    chat.messages.push_back({{{"role", role}, {"content", content}}, carries_loss});
  };
  if (!conversation.system.empty()) {
    add("system", conversation.system, false);
  }
  for (const Turn& turn : conversation.turns) {
    add("user", question_text(turn), false);
    add("assistant", turn.response, turn.carries_loss);
  }
  return chat;
}

Chat read_chat(const OrderedJson& record, const Json& json, Format format,
               const std::string& where) {
  Chat chat;
  if (format_row(format).response != nullptr) {
    chat = make_chat(read_conversation(json, format, where));
  } else {
    const ChatKeys& keys = chat_keys(format);
    chat = read_messages(record, json, keys, where);
    while (!chat.messages.empty() && !is_answer(chat.messages.back())) {
      chat.messages.pop_back();
    }
    for (const ChatMessage& message : chat.messages) {
      const auto value = [&](const char* key) { return message.json.value(key, OrderedJson()); };
      if (is_answer(message) && value("content").is_string() && value("tool_calls").is_null()) {
        get_response(message.json, "content", message.where);
      }
    }
    check_answers(chat.messages, &ChatMessage::carries_loss, where);
  }
  chat.tools = record.value("tools", OrderedJson());
  chat.documents = record.value("documents", OrderedJson());
  return chat;
}

}  // namespace moe::data
