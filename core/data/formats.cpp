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

// The forms in the order in which a record is tried; the first one with all keys is its form.
struct FormatRow {
  Format format;
  const char* name;
  const char* words;
  const char* key;
  std::array<const char*, 2> also;  // and one of these, if not null
  // Keys of formats with one turn, null if absent. `key` has the instruction.
  const char* response = nullptr;
  const char* input = nullptr;
  const char* system = nullptr;
};
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
  for (const auto& row : kFormats) {
    if (row.format == format) {
      return row;
    }
  }
  fail_check("a format is in the table", __FILE__, __LINE__, "");
}

bool fits(const Json& record, const FormatRow& row) {
  return record.contains(row.key) && (row.also[0] == nullptr || record.contains(row.also[0]) ||
                                      (row.also[1] != nullptr && record.contains(row.also[1])));
}

std::string get_response(const Json& record, const char* key, const std::string& where) {
  std::string response = get_string(record, key, where);
  USER_ERROR_IF(is_blank(response),
                "{}: no response: '{}' is empty; remove the record or give it one", where, key);
  return response;
}

// Returns false if a message says that its answer carries no loss.
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

struct Message {
  std::string where, role;  // role: "user" and "assistant" for their other names too
  const Json& json;
};

// Returns the messages of a record. Throws UserError if one of them is no object with a role.
std::vector<Message> list_messages(const Json& record, const ChatKeys& keys,
                                   const std::string& where) {
  const auto found = record.find(keys.list);
  USER_ERROR_IF(found == record.end(), "{}: '{}' is missing", where, keys.list);
  USER_ERROR_IF(!found->is_array(), "{}: '{}' must be a list of messages", where, keys.list);
  std::vector<Message> messages;
  for (const Json& message : *found) {
    const std::string position = fmt::format("{}, '{}'[{}]", where, keys.list, messages.size());
    USER_ERROR_IF(!message.is_object(), "{}: a message {{\"{}\", \"{}\"}} is expected", position,
                  keys.role, keys.text);
    const std::string role = get_string(message, keys.role, position);
    messages.push_back({position,
                        role == "human"                      ? "user"
                        : role == "gpt" || role == "chatgpt" ? "assistant"
                                                             : role,
                        message});
  }
  return messages;
}

Conversation read_messages(const Json& record, const ChatKeys& keys, const std::string& where) {
  Conversation conversation{get_string(record, "system", where, ""), {}};
  std::optional<std::string> question;  // not answered yet
  bool is_first = true;
  for (const auto& [position, role, message] : list_messages(record, keys, where)) {
    const auto require = [&place = position](bool holds, const char* words) {
      USER_ERROR_IF(!holds, "{}: {}", place, words);
    };
    if (role == "system") {
      require(is_first, "a system text may only stand first; remove the record or move it");
      conversation.system =
          one_system(conversation.system, get_string(message, keys.text, position), position);
    } else if (role == "user") {
      require(!question, "two questions in a row; join them or remove the record");
      question = get_string(message, keys.text, position);
    } else {
      USER_ERROR_IF(role != "assistant",
                    "{}: '{}' is '{}', an unknown role; known: {}; remove the record or rename it",
                    position, keys.role, printable(role, 40), keys.known);
      require(question || !conversation.turns.empty(),
              "the conversation starts with the answer; remove the record or that message");
      require(question.has_value(), "two answers in a row; join them or remove the record");
      conversation.turns.push_back(
          {*question, "", get_response(message, keys.text, position), has_loss(message, position)});
      question.reset();
    }
    is_first = false;
  }
  USER_ERROR_IF(conversation.turns.empty(),
                "{}: no response: the conversation holds no answer; remove the record", where);
  return conversation;
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
      one_system(get_optional(record, row.system, where), get_string(record, "system", where, ""),
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
const char* format_words(Format format) { return format_row(format).words; }
const char* format_key(Format format) { return format_row(format).key; }

bool is_conversation(Format format) { return format != Format::kRows && format != Format::kText; }

void refuse_unsupported_keys(const Json& record, Format format, bool has_chat_template,
                             const std::string& where) {
  static constexpr std::array kRowKeys = {"segment_ids", "sequence_lengths", "loss_mask"};
  static constexpr std::array kRecordKeys = {"functions", "images", "videos", "audios", "rejected"};
  static constexpr std::array kTemplateRecordKeys = {"tools", "documents"};
  static constexpr std::array kTurnKeys = {"reasoning_content", "reasoning",     "thinking",
                                           "tool_calls",        "function_call", "tool_call_id"};
  if (format == Format::kRows) {
    return refuse_keys(record, kRowKeys, where);
  }
  if (!is_conversation(format)) {
    return;
  }
  refuse_keys(record, kRecordKeys, where);
  USER_ERROR_IF(has_value(record, "weight") && record["weight"] != Json(1),
                "{}: 'weight' of a record is not supported; remove the key", where);
  if (has_chat_template) {
    return;
  }
  refuse_keys(record, kTemplateRecordKeys, where);
  const auto messages = record.find(format_key(format));
  for (size_t i = 0; messages != record.end() && messages->is_array() && i < messages->size();
       ++i) {
    if (messages->at(i).is_object()) {
      refuse_keys(messages->at(i), kTurnKeys,
                  fmt::format("{}, '{}'[{}]", where, format_key(format), i));
    }
  }
}

std::vector<std::string> unused_keys(const Json& record, Format format, bool has_chat_template) {
  static const std::set<std::string> known = {
      "system", "history", "weight", "labels", "attention_mask", "position_ids",
      // Metadata.
      "id", "_id", "idx", "index", "uuid", "source", "dataset", "category", "task", "type", "url",
      "title", "topic", "language", "lang", "license", "model", "created", "timestamp", "date",
      "split", "score", "token_type_ids", "num_tokens", "length", "metadata", "meta"};
  const FormatRow& row = format_row(format);
  std::set<std::string> used = {row.key};
  if (has_chat_template) {
    used.insert({"tools", "documents"});
  }
  for (const char* key : {row.also[0], row.also[1], row.response, row.input, row.system}) {
    if (key != nullptr) {
      used.insert(key);
    }
  }
  std::vector<std::string> unused;
  for (const auto& item : record.items()) {
    if (!used.contains(item.key()) && !known.contains(item.key()) &&
        !is_empty_value(item.value())) {
      unused.push_back(item.key());
    }
  }
  return unused;
}

std::optional<Format> recognise(const Json& record, Objective objective) {
  if (objective == Objective::kLm && record.contains("text") && !record.contains("input_ids")) {
    return Format::kText;
  }
  for (const auto& row : kFormats) {
    if (fits(record, row)) {
      return row.format;
    }
  }
  // A field is missing: the reader of the nearest form names it.
  for (const auto& row : kFormats) {
    if (record.contains(row.key)) {
      return row.format;
    }
  }
  return std::nullopt;
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
  if (format == Format::kMessages || format == Format::kShareGpt) {
    Conversation conversation = read_messages(record, chat_keys(format), where);
    USER_ERROR_IF(std::ranges::none_of(conversation.turns, &Turn::carries_loss),
                  "{}: no answer carries loss; remove the record", where);
    return conversation;
  }
  const FormatRow& row = format_row(format);
  MOE_CHECK(row.response != nullptr, "{} are no conversation", row.words);
  return read_single(record, row, where);
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
  if (format != Format::kMessages && format != Format::kShareGpt) {
    chat = make_chat(read_conversation(json, format, where));
  } else {
    const ChatKeys& keys = chat_keys(format);
    std::string system = get_string(json, "system", where, "");
    if (!system.empty()) {
      chat.messages.push_back({{{"role", "system"}, {"content", system}}, false});
    }
    size_t index = 0;
    for (const auto& [position, role, message] : list_messages(json, keys, where)) {
      if (role == "system") {
        one_system(system, get_string(message, keys.text, position), position);
      }
      OrderedJson read = record[keys.list][index++];
      if (format == Format::kShareGpt) {
        read = {{"role", role}, {"content", get_string(message, keys.text, position)}};
      }
      read["role"] = role;
      const bool is_answer = role == "assistant";
      if (is_answer && !has_value(message, "tool_calls") &&
          message.value(keys.text, Json()).is_string()) {
        get_response(message, keys.text, position);
      }
      chat.messages.push_back({std::move(read), is_answer && has_loss(message, position)});
    }
    const auto is_answer = [](const ChatMessage& message) {
      return message.json["role"] == "assistant";
    };
    while (!chat.messages.empty() && !is_answer(chat.messages.back())) {
      chat.messages.pop_back();
    }
    USER_ERROR_IF(chat.messages.empty(),
                  "{}: no response: the conversation holds no answer; remove the record", where);
    USER_ERROR_IF(std::ranges::none_of(chat.messages, &ChatMessage::carries_loss),
                  "{}: no answer carries loss; remove the record", where);
  }
  chat.tools = record.value("tools", OrderedJson());
  chat.documents = record.value("documents", OrderedJson());
  return chat;
}

}  // namespace moe::data
