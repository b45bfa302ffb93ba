#include "core/base/json.h"

#include <cmath>
#include <fstream>
#include <limits>
#include <set>

#include "core/base/error.h"
#include "core/base/terminal_text.h"
#include "core/base/utf8.h"

namespace moe {

namespace {

constexpr auto kLargestInt = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());

// Nesting is counted before parsing: nlohmann's parser does not recurse, but copying, comparing and
// dumping a value do. Up to the first syntax error this sees the same strings and brackets as the
// parser.
void check_depth(std::string_view text, const std::string& where) {
  int depth = 0;
  bool in_string = false;
  for (size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (in_string) {
      if (c == '\\') {
        ++at;
      } else if (c == '"') {
        in_string = false;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kMaxJsonDepth) {
        throw UserError(
            "{}: nested deeper than {} levels at byte {}: this is no file of a model or its data",
            where, kMaxJsonDepth, at);
      }
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
}

void check_utf8(std::string_view text, const std::string& where) {
  const size_t at = find_invalid_utf8(text);
  if (at != kValidUtf8) {
    throw UserError("{}: not UTF-8 at byte {} (0x{:02X}): save it as UTF-8", where, at,
                    static_cast<uint8_t>(text[at]));
  }
}

// "[json.exception.parse_error.101] parse error at line 1, column 2: ..." without its machine-made
// front.
std::string parser_words(const Json::exception& error) {
  std::string_view words = error.what();
  if (words.starts_with('[')) {
    words.remove_prefix(std::min(words.size(), words.find(']') + 2));
  }
  constexpr std::string_view kFront = "parse error at ";
  if (words.starts_with(kFront)) {
    words.remove_prefix(kFront.size());
  }
  return printable(words, 300);
}

Json parse_refusing_duplicates(std::string_view text, const std::string& where) {
  std::vector<std::set<std::string>> open_objects;
  const auto on_event = [&](int, Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::object_start) {
      open_objects.emplace_back();
    } else if (event == Json::parse_event_t::object_end) {
      open_objects.pop_back();
    } else if (event == Json::parse_event_t::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!open_objects.back().insert(key).second) {
        throw UserError("{}: '{}' stands there twice", where, printable(key));
      }
    }
    return true;
  };
  return Json::parse(text, on_event);
}

// What a value is, in a word or two, for "must be ..., is ...".
std::string describe(const Json& value) {
  if (value.is_object()) {
    return "an object";
  }
  if (value.is_array()) {
    return fmt::format("a list of {}", value.size());
  }
  return printable(value.dump(-1, ' ', false, Json::error_handler_t::replace), 60);
}

// The value of `key`, or nullptr when it is missing. `json` must be an object.
const Json* find(const Json& json, const std::string& key, const std::string& where) {
  if (!json.is_object()) {
    throw UserError("{}: must be an object with a key '{}', is {}", where, key, describe(json));
  }
  const auto found = json.find(key);
  return found == json.end() ? nullptr : &*found;
}

const Json& require(const Json& json, const std::string& key, const std::string& where) {
  const Json* value = find(json, key, where);
  if (value == nullptr) {
    throw UserError("{}: '{}' is missing", where, key);
  }
  return *value;
}

const Json* find_given(const Json& json, const std::string& key, const std::string& where) {
  const Json* value = find(json, key, where);
  return value == nullptr || value->is_null() ? nullptr : value;
}

int64_t as_int(const Json& value, const std::string& key, const std::string& where) {
  if (!value.is_number_integer()) {
    throw UserError("{}: '{}' must be a whole number, is {}", where, key, describe(value));
  }
  if (value.is_number_unsigned() && value.get<uint64_t>() > kLargestInt) {
    throw UserError("{}: '{}' is {}, beyond a 64-bit integer", where, key, describe(value));
  }
  return value.get<int64_t>();
}

double as_double(const Json& value, const std::string& key, const std::string& where) {
  if (!value.is_number() || !std::isfinite(value.get<double>())) {
    throw UserError("{}: '{}' must be a finite number, is {}", where, key, describe(value));
  }
  return value.get<double>();
}

std::string as_string(const Json& value, const std::string& key, const std::string& where) {
  if (!value.is_string()) {
    throw UserError("{}: '{}' must be a string, is {}", where, key, describe(value));
  }
  return value.get<std::string>();
}

}  // namespace

Json parse_json(std::string_view text, const std::string& where, DuplicateKeys duplicates) {
  if (text.empty()) {
    throw UserError("{}: is empty, JSON was expected", where);
  }
  check_utf8(text, where);
  check_depth(text, where);
  try {
    return duplicates == DuplicateKeys::kRefused ? parse_refusing_duplicates(text, where)
                                                 : Json::parse(text);
  } catch (const Json::exception& error) {
    throw UserError("{}: broken JSON: {}", where, parser_words(error));
  }
}

Json read_json(const std::filesystem::path& file, uint64_t max_bytes) {
  const std::string where = file.string();
  std::error_code error;
  const auto status = std::filesystem::status(file, error);
  if (!std::filesystem::exists(status)) {
    throw UserError("{}: no such file", where);
  }
  if (!std::filesystem::is_regular_file(status)) {
    throw UserError("{}: is not a regular file, a JSON file was expected", where);
  }
  std::ifstream in(file, std::ios::binary);
  const uint64_t size = std::filesystem::file_size(file, error);
  if (!in || error) {
    throw UserError("{}: cannot be read, look at its permissions", where);
  }
  if (size > max_bytes) {
    throw UserError("{}: has {} bytes, more than the {} that such a file may have", where, size,
                    max_bytes);
  }
  std::string text(size, '\0');
  in.read(text.data(), static_cast<std::streamsize>(size));
  text.resize(static_cast<size_t>(in.gcount()));
  return parse_json(text, where);
}

int64_t get_int(const Json& json, const std::string& key, const std::string& where) {
  return as_int(require(json, key, where), key, where);
}

int64_t get_int(const Json& json, const std::string& key, const std::string& where,
                int64_t fallback) {
  const Json* value = find_given(json, key, where);
  return value == nullptr ? fallback : as_int(*value, key, where);
}

double get_double(const Json& json, const std::string& key, const std::string& where) {
  return as_double(require(json, key, where), key, where);
}

double get_double(const Json& json, const std::string& key, const std::string& where,
                  double fallback) {
  const Json* value = find_given(json, key, where);
  return value == nullptr ? fallback : as_double(*value, key, where);
}

bool get_bool(const Json& json, const std::string& key, const std::string& where, bool fallback) {
  const Json* value = find_given(json, key, where);
  if (value == nullptr) {
    return fallback;
  }
  if (!value->is_boolean()) {
    throw UserError("{}: '{}' must be true or false, is {}", where, key, describe(*value));
  }
  return value->get<bool>();
}

std::string get_string(const Json& json, const std::string& key, const std::string& where) {
  return as_string(require(json, key, where), key, where);
}

std::string get_string(const Json& json, const std::string& key, const std::string& where,
                       const std::string& fallback) {
  const Json* value = find_given(json, key, where);
  return value == nullptr ? fallback : as_string(*value, key, where);
}

std::vector<int64_t> get_ints(const Json& json, const std::string& key, const std::string& where) {
  const Json& list = require(json, key, where);
  if (!list.is_array()) {
    throw UserError("{}: '{}' must be a list of whole numbers, is {}", where, key, describe(list));
  }
  std::vector<int64_t> numbers;
  numbers.reserve(list.size());
  for (const Json& value : list) {
    // The element's name is made only for an error: lists of token ids are long.
    constexpr auto kWhole = Json::value_t::number_unsigned;
    const bool plain = value.type() == kWhole && value.get<uint64_t>() <= kLargestInt;
    numbers.push_back(plain ? value.get<int64_t>()
                            : as_int(value, fmt::format("{}[{}]", key, numbers.size()), where));
  }
  return numbers;
}

std::string json_text(const OrderedJson& json, int indent) {
  return terminal_json(json.dump(indent, ' ', false, OrderedJson::error_handler_t::replace));
}

}  // namespace moe
