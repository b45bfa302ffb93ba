#include "core/base/json.h"

#include <cmath>
#include <functional>
#include <limits>

#include "core/base/error.h"
#include "core/base/read_file.h"
#include "core/base/text.h"

namespace moe {

namespace {

constexpr auto kLargestInt = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());

// Returns the message without "[json.exception.parse_error.101] " and "parse error at ".
std::string parser_message(const Json::exception& error) {
  std::string_view message = error.what();
  for (const std::string_view prefix_end : {"] ", "parse error at "}) {
    const size_t at = message.find(prefix_end);
    message.remove_prefix(at == std::string_view::npos ? 0 : at + prefix_end.size());
  }
  return printable(message, 300);
}

// A builder of a value from the events of nlohmann's parser. Limits the depth, because copying,
// comparing and dumping a value recurse. Takes linear time, unlike nlohmann's parser with a
// callback, which visits all members of an object after each member.
template <typename AnyJson>
class JsonBuilder {
 public:
  JsonBuilder(const std::string& where, DuplicateKeys duplicates)
      : where_(where), duplicates_(duplicates) {}

  AnyJson take() { return std::move(root_); }

  bool null() { return add(nullptr); }
  bool boolean(bool value) { return add(value); }
  bool number_integer(int64_t value) { return add(value); }
  bool number_unsigned(uint64_t value) { return add(value); }
  bool number_float(double value, const std::string&) { return add(value); }
  bool string(std::string& value) { return add(std::move(value)); }
  bool binary(typename AnyJson::binary_t&) { return false; }  // not in JSON text
  bool start_object(size_t) { return open(AnyJson::object()); }
  bool start_array(size_t) { return open(AnyJson::array()); }
  bool end_object() { return end_array(); }
  bool end_array() {
    open_.pop_back();
    return true;
  }
  bool key(std::string& key) {
    auto& object = open_.back()->template get_ref<typename AnyJson::object_t&>();
    const auto [entry, is_new] = object.emplace(std::move(key), AnyJson());
    USER_ERROR_IF(!is_new && duplicates_ == DuplicateKeys::kRefused, "{}: '{}' occurs twice",
                  where_, printable(entry->first));
    member_ = &entry->second;
    return true;
  }
  bool parse_error(size_t, const std::string&, const Json::exception& error) {
    throw UserError("{}: broken JSON: {}", where_, parser_message(error));
  }

 private:
  bool add(AnyJson value) {
    last_ = open_.empty() ? &root_ : member_;
    if (!open_.empty() && open_.back()->is_array()) {
      auto& list = open_.back()->template get_ref<typename AnyJson::array_t&>();
      list.push_back(std::move(value));
      last_ = &list.back();
    } else {
      *last_ = std::move(value);
    }
    return true;
  }
  bool open(AnyJson value) {
    USER_ERROR_IF(open_.size() == kMaxJsonDepth,
                  "{}: nested deeper than {} levels: this is no file of a model or its data",
                  where_, kMaxJsonDepth);
    add(std::move(value));
    open_.push_back(last_);
    return true;
  }

  const std::string& where_;
  DuplicateKeys duplicates_;
  AnyJson root_;
  std::vector<AnyJson*> open_;  // unclosed objects and arrays, outermost first
  AnyJson* member_ = nullptr;   // of the innermost open object: the value of its last key
  AnyJson* last_ = nullptr;     // the value that was added last
};

template <typename AnyJson>
AnyJson parse_checked(std::string_view text, const std::string& where, DuplicateKeys duplicates) {
  USER_ERROR_IF(text.empty(), "{}: is empty, JSON was expected", where);
  if (const size_t at = find_invalid_utf8(text); at != kValidUtf8) {
    throw UserError("{}: not UTF-8 at byte {} (0x{:02X}): save it as UTF-8", where, at,
                    static_cast<uint8_t>(text[at]));
  }
  JsonBuilder<AnyJson> builder(where, duplicates);
  AnyJson::sax_parse(text, &builder);  // throws on errors
  return builder.take();
}

// Returns a short description of a value for "must be ..., is ...".
std::string describe(const Json& value) {
  if (value.is_object()) {
    return "an object";
  }
  if (value.is_array()) {
    return fmt::format("a list of {}", value.size());
  }
  return printable(value.dump(-1, ' ', false, Json::error_handler_t::replace), 60);
}

// Returns the value of `key`, or nullptr if has_fallback and the key is missing or null. Throws
// UserError if `json` is no object or, without a fallback, lacks the key.
const Json* find(const Json& json, const std::string& key, const std::string& where,
                 bool has_fallback = false) {
  USER_ERROR_IF(!json.is_object(), "{}: must be an object with a key '{}', is {}", where, key,
                describe(json));
  if (has_fallback && !has_value(json, key)) {
    return nullptr;
  }
  const auto value = json.find(key);
  USER_ERROR_IF(value == json.end(), "{}: '{}' is missing", where, key);
  return &*value;
}

// Returns the value of `key`, or `*fallback` if there is one and the key is missing or null. Throws
// UserError unless is_valid(value); `kind` describes valid values ("a string").
template <typename Value, typename IsValid>
Value get_value(const Json& json, const std::string& key, const std::string& where,
                const std::optional<Value>& fallback, IsValid is_valid, const char* kind) {
  const Json* value = find(json, key, where, fallback.has_value());
  if (value == nullptr) {
    return *fallback;
  }
  USER_ERROR_IF(!std::invoke(is_valid, *value), "{}: '{}' must be {}, is {}", where, key, kind,
                describe(*value));
  return value->get<Value>();
}

int64_t as_int(const Json& value, const std::string& key, const std::string& where) {
  USER_ERROR_IF(!value.is_number_integer(), "{}: '{}' must be a whole number, is {}", where, key,
                describe(value));
  USER_ERROR_IF(value.is_number_unsigned() && value.get<uint64_t>() > kLargestInt,
                "{}: '{}' is {}, beyond a 64-bit integer", where, key, describe(value));
  return value.get<int64_t>();
}

}  // namespace

Json parse_json(std::string_view text, const std::string& where, DuplicateKeys duplicates) {
  return parse_checked<Json>(text, where, duplicates);
}

OrderedJson parse_ordered_json(std::string_view text, const std::string& where) {
  return parse_checked<OrderedJson>(text, where, DuplicateKeys::kLastWins);
}

std::optional<Json> try_parse_json(std::string_view text) {
  try {
    return parse_json(text, "");
  } catch (const UserError&) {
    return std::nullopt;
  }
}

Json read_json(const std::filesystem::path& file, uint64_t max_bytes) {
  return parse_json(read_small_file(file, max_bytes), file.string(), DuplicateKeys::kRefused);
}

bool has_value(const Json& json, const std::string& key) {
  const auto value = json.find(key);
  return value != json.end() && !value->is_null();
}

int64_t get_int(const Json& json, const std::string& key, const std::string& where,
                std::optional<int64_t> fallback) {
  const Json* value = find(json, key, where, fallback.has_value());
  return value == nullptr ? *fallback : as_int(*value, key, where);
}

double get_double(const Json& json, const std::string& key, const std::string& where,
                  std::optional<double> fallback) {
  const auto is_finite = [](const Json& value) {
    return value.is_number() && std::isfinite(value.get<double>());
  };
  return get_value(json, key, where, fallback, is_finite, "a finite number");
}

bool get_bool(const Json& json, const std::string& key, const std::string& where, bool fallback) {
  return get_value<bool>(json, key, where, fallback, &Json::is_boolean, "true or false");
}

std::string get_string(const Json& json, const std::string& key, const std::string& where,
                       const std::optional<std::string>& fallback) {
  return get_value(json, key, where, fallback, &Json::is_string, "a string");
}

std::vector<int64_t> get_ints(const Json& json, const std::string& key, const std::string& where) {
  const Json& list = *find(json, key, where);
  USER_ERROR_IF(!list.is_array(), "{}: '{}' must be a list of whole numbers, is {}", where, key,
                describe(list));
  std::vector<int64_t> numbers;
  numbers.reserve(list.size());
  for (const Json& value : list) {
    // Lists of token ids are long: the name of an element is formatted only if it may be invalid.
    const bool is_valid = value.is_number_unsigned() && value.get<uint64_t>() <= kLargestInt;
    numbers.push_back(is_valid ? value.get<int64_t>()
                               : as_int(value, fmt::format("{}[{}]", key, numbers.size()), where));
  }
  return numbers;
}

std::string json_text(const OrderedJson& json, int indent) {
  return terminal_json(json.dump(indent, ' ', false, OrderedJson::error_handler_t::replace));
}

}  // namespace moe
