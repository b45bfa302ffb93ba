#include "core/data/formats.h"

#include <algorithm>
#include <array>
#include <set>
#include <span>
#include <sstream>
#include <string_view>
#include <utility>

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
constexpr std::array<FormatRow, 11> kFormats = {{
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
    {Format::kChosen, "chosen", "chosen answers", "prompt", {"chosen"}, "chosen"},
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
    {Format::kQuestions, "questions", "questions and answers", "question", {"answer"}, "answer"},
    {Format::kInputOutput, "io", "inputs and outputs", "input", {"output"}, "output"},
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

// Joins a content that is a list of text parts. Throws UserError for parts of other types.
std::string join_parts(const OrderedJson& parts, const std::string& where) {
  std::string text;
  for (const auto& item : parts) {
    const Json part = item;
    USER_ERROR_IF(!part.is_object() || part.value("type", Json("text")) != "text" ||
                      !part.value("text", Json()).is_string(),
                  "{}: 'content' has the part {}; only {{\"type\": \"text\", \"text\"}} is "
                  "supported",
                  where, printable(part.dump(), 80));
    text += part["text"].get<std::string>();
  }
  return text;
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
    OrderedJson read = record[keys.list][index];
    if (&keys == &kShareGptKeys) {
      read = {{"content", role == "assistant" ? get_response(message, keys.text, position)
                                              : get_string(message, keys.text, position)}};
    } else if (read.contains("content") && read["content"].is_array()) {
      read["content"] = join_parts(read["content"], position);
    }
    if (role == "system") {
      one_system(system, get_string(read, "content", position), position);
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

// Returns the record with "messages" in place of a prompt and an answer that are lists of messages.
// A prompt in text stands before an answer that begins with the assistant, and is left out before
// a whole conversation, which begins with the system or the user. Messages of the prompt carry no
// loss.
OrderedJson join_lists(OrderedJson record, const char* answer_key) {
  OrderedJson messages = record.value("prompt", OrderedJson());
  const OrderedJson answer = record[answer_key];
  const bool has_first = !answer.empty() && answer[0].is_object();
  const OrderedJson first = has_first ? answer[0].value("role", OrderedJson()) : OrderedJson();
  const bool is_whole = first == "user" || first == "system";
  if (messages.is_string() && !is_whole) {
    messages = OrderedJson::array({OrderedJson{{"role", "user"}, {"content", messages}}});
  } else if (!messages.is_array()) {
    messages = OrderedJson::array();
  }
  for (auto& message : messages) {
    if (message.is_object() && message.value("role", OrderedJson()) == "assistant") {
      message["weight"] = 0;
    }
  }
  messages.insert(messages.end(), answer.begin(), answer.end());
  record["messages"] = std::move(messages);
  return record;
}

std::string get_optional(const Json& record, const char* key, const std::string& where) {
  return key == nullptr ? "" : get_string(record, key, where, "");
}

// Reads the earlier turns of an Alpaca record: [[question, answer], ...].
std::vector<Turn> read_history(const Json& record, const std::string& where) {
  std::vector<Turn> turns;
  if (is_empty_value(record.value("history", Json()))) {
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

// Returns the key of the response of a format with one turn; null for other formats.
const char* response_key(const Json& record, const FormatRow& row) {
  const bool uses_completion =
      row.format == Format::kPairs && record.contains("completion") && !record.contains("response");
  return uses_completion ? "completion" : row.response;
}

// Returns true if the answer of a prompt is a list of messages.
bool has_lists(const Json& record, const FormatRow& row) {
  return (row.format == Format::kPairs || row.format == Format::kChosen) &&
         record.value(response_key(record, row), Json()).is_array();
}

Conversation read_single(const Json& record, const FormatRow& row, const std::string& where) {
  const bool is_pair = row.format == Format::kPairs || row.format == Format::kChosen;
  Conversation conversation{
      one_system(get_optional(record, row.system, where), get_optional(record, "system", where),
                 where),
      row.format == Format::kAlpaca ? read_history(record, where) : std::vector<Turn>(), is_pair};
  Turn turn{get_string(record, row.key, where), get_optional(record, row.input, where), ""};
  turn.response = get_response(record, response_key(record, row), where);
  conversation.turns.push_back(std::move(turn));
  return conversation;
}

}  // namespace

Columns parse_columns(const std::string& text) {
  Columns columns;
  std::istringstream words(text);
  for (std::string word; std::getline(words, word, ',');) {
    const size_t equals = word.find('=');
    USER_ERROR_IF(equals == 0 || equals == std::string::npos || equals + 1 == word.size(),
                  "--columns {}: must be a list such as question=instruction,answer=output",
                  printable(text, 80));
    columns.emplace_back(word.substr(0, equals), word.substr(equals + 1));
  }
  return columns;
}

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
  static constexpr std::array kRowKeys = {"loss_mask"};
  static constexpr std::array kRecordKeys = {"functions", "images", "videos", "audios", "rejected"};
  static constexpr std::array kTemplateRecordKeys = {"tools", "documents"};
  static constexpr std::array kTurnKeys = {"reasoning_content", "reasoning",     "thinking",
                                           "tool_calls",        "function_call", "tool_call_id"};
  static const std::set<std::string> known = {
      "system", "history", "weight", "labels", "attention_mask", "position_ids", "segment_ids",
      "sequence_lengths",
      // Metadata.
      "id", "_id", "idx", "index", "uuid", "source", "dataset", "category", "task", "type", "url",
      "title", "topic", "language", "lang", "license", "model", "created", "timestamp", "date",
      "split", "score", "token_type_ids", "num_tokens", "length", "metadata", "meta"};
  const FormatRow& row = format_row(format);
  const Json weight = record.value("weight", Json());
  // The values of a table are strings.
  USER_ERROR_IF(!weight.is_null() && weight != Json(1) && weight != Json("1") && weight != Json(""),
                "{}: 'weight' of a record is not supported; remove the key", where);
  if (format == Format::kRows) {
    refuse_keys(record, kRowKeys, where);
  } else if (is_conversation(format)) {
    // The rejected answer of a preference is listed as unused.
    refuse_keys(record, std::span(kRecordKeys).first(format == Format::kChosen ? 4 : 5), where);
    if (!has_chat_template) {
      refuse_keys(record, kTemplateRecordKeys, where);
      for (const char* key : {row.key, response_key(record, row)}) {
        const auto found = key == nullptr ? record.end() : record.find(key);
        const bool has_list = found != record.end() && found->is_array();
        for (size_t i = 0; has_list && i < found->size(); ++i) {
          refuse_keys(found->at(i), kTurnKeys, fmt::format("{}, '{}'[{}]", where, key, i));
        }
      }
    }
  }
  std::vector<std::string> unused;
  for (const auto& item : record.items()) {
    const std::string& key = item.key();
    const auto is_key = [&](const char* other) { return other != nullptr && key == other; };
    const bool is_read =
        known.contains(key) || std::ranges::any_of(row.also, is_key) ||
        std::ranges::any_of(std::array{row.key, row.response, row.input, row.system}, is_key) ||
        (has_chat_template && std::ranges::any_of(kTemplateRecordKeys, is_key));
    if (!is_read && !is_empty_value(item.value())) {
      unused.push_back(key);
    }
  }
  return unused;
}

namespace {

// Returns the range of the tokens that "attention_mask" does not mark as padding.
std::pair<size_t, size_t> unmasked_range(const Json& json, size_t size, const std::string& where) {
  if (!has_value(json, "attention_mask")) {
    return {0, size};
  }
  const std::vector<int64_t> mask = get_ints(json, "attention_mask", where);
  const auto first = std::ranges::find(mask, 1);
  const auto last = std::find(first, mask.end(), 0);
  USER_ERROR_IF(mask.size() != size || first == mask.end() ||
                    std::count(first, last, 1) != last - first ||
                    std::count(mask.begin(), first, 0) != first - mask.begin() ||
                    std::count(last, mask.end(), 0) != mask.end() - last,
                "{}: 'attention_mask' must have a 1 for each of {} tokens, and 0 for padding "
                "before and after them only",
                where, size);
  return {first - mask.begin(), last - mask.begin()};
}

// Returns the ends of the documents of a row of `size` tokens within [first, last). A document
// begins where "position_ids" are 0 or "segment_ids" change, or has its length in
// "sequence_lengths".
std::vector<size_t> document_ends(const Json& json, size_t size, size_t first, size_t last,
                                  const std::string& where) {
  std::vector<size_t> ends;
  for (const std::string key : {"position_ids", "segment_ids", "sequence_lengths"}) {
    if (!has_value(json, key)) {
      continue;
    }
    std::vector<int64_t> values = get_ints(json, key, where);
    const bool is_position = key == "position_ids", is_length = key == "sequence_lengths";
    if (is_length) {  // converts them to segments
      for (const int64_t length : std::exchange(values, std::vector<int64_t>(first))) {
        USER_ERROR_IF(length < 1 || length > static_cast<int64_t>(last - values.size()),
                      "{}: '{}' has {}; the lengths must be positive and sum to {} tokens", where,
                      key, length, last - first);
        values.insert(values.end(), static_cast<size_t>(length), std::ssize(values));
      }
    }
    const size_t expected = is_length ? last : size;
    USER_ERROR_IF(values.size() != expected,
                  "{}: '{}' covers {} tokens, 'input_ids' has {}; they must be equal", where, key,
                  values.size(), expected);
    std::vector<size_t> found;
    for (size_t t = first; t < last; ++t) {
      const bool begins = t == first || (is_position ? values[t] == 0 : values[t] != values[t - 1]);
      USER_ERROR_IF(is_position && values[t] != (begins ? 0 : values[t - 1] + 1),
                    "{}: '{}'[{}] is {}; positions must begin at 0 and count up", where, key, t,
                    values[t]);
      if (begins && t > first) {
        found.push_back(t);
      }
    }
    found.push_back(last);
    USER_ERROR_IF(!ends.empty() && ends != found,
                  "{}: '{}' divides the row into other documents than the keys before it", where,
                  key);
    ends = std::move(found);
  }
  return ends.empty() ? std::vector{last} : ends;
}

}  // namespace

std::vector<Example> read_row(const Json& json, int64_t vocab_size, const std::string& where) {
  const std::vector<int64_t> ids = get_ints(json, "input_ids", where);
  const std::vector<int64_t> labels = get_ints(json, "labels", where);
  USER_ERROR_IF(ids.size() != labels.size(),
                "{}: 'input_ids' has {} entries, 'labels' has {}; they must be equally long", where,
                ids.size(), labels.size());
  auto [begin, last] = unmasked_range(json, ids.size(), where);
  const std::vector<size_t> ends = document_ends(json, ids.size(), begin, last, where);
  const auto check_id = [&](const std::vector<int64_t>& values, const char* key, size_t t) {
    USER_ERROR_IF(
        values[t] < 0 || values[t] >= vocab_size,
        "{}: '{}'[{}] is {}, outside the model's vocabulary of {}; was another tokenizer used?",
        where, key, t, values[t], vocab_size);
  };
  std::vector<Example> examples;
  for (const size_t end : ends) {
    Example example;
    bool has_target = false;
    for (size_t t = begin; t < end; ++t) {
      check_id(ids, "input_ids", t);
      if (labels[t] != kNoLoss) {
        check_id(labels, "labels", t);
        has_target = has_target || t > begin;  // nothing predicts the first token
      }
      example.ids.push_back(static_cast<int32_t>(ids[t]));
      example.labels.push_back(static_cast<int32_t>(labels[t]));
    }
    if (has_target) {
      examples.push_back(std::move(example));
    }
    begin = end;
  }
  USER_ERROR_IF(examples.empty(),
                "{}: no response: no label after the first is other than -100; remove the row",
                where);
  return examples;
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
  if (has_lists(record, row)) {
    return read_conversation(join_lists(record, response_key(record, row)), Format::kMessages,
                             where);
  }
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
  const FormatRow& row = format_row(format);
  if (has_lists(json, row)) {
    const OrderedJson joined = join_lists(record, response_key(json, row));
    return read_chat(joined, joined, Format::kMessages, where);
  }
  if (row.response != nullptr) {
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
