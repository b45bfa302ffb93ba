#include "core/jinja/value.h"

#include <utf8proc.h>

#include <algorithm>
#include <cmath>

#include "core/base/error.h"
#include "core/base/text.h"

namespace moe::jinja {

namespace {

constexpr size_t kMaxChars = size_t{16} << 20;  // of a text
constexpr int kMaxDepth = 128;                  // of nested values
constexpr size_t kMaxItems = size_t{1} << 20;   // of a value and the values in it

// Adds `item` to the extent of a sequence or dict. Throws Fault beyond the limits.
void include(Extent& extent, In item) {
  const Extent inner = item.sequence() ? item.sequence()->extent
                       : item.dict()   ? item.dict()->extent
                                       : Extent{0, 0};
  fail_if(inner.depth >= kMaxDepth, "values are nested more than {} deep", kMaxDepth);
  extent.depth = std::max(extent.depth, inner.depth + 1);
  extent.items += 1 + inner.items;
  fail_if(extent.items > kMaxItems, "a value has more than {} items", kMaxItems);
}

// Returns repr() of a number.
std::string number_text(In value) {
  if (!value.is<double>()) {
    return value.is<bool>() ? (is_true(value) ? "True" : "False") : std::to_string(value.integer());
  }
  const std::string text = fmt::format("{}", value.number());  // shortest that round-trips
  return text.find_first_of(".en") == kNowhere ? text + ".0" : text;
}

// Returns the escape sequence of `code` in a Python or JSON string, or "".
std::string escape_sequence(char32_t code, char32_t quote, bool is_json) {
  static constexpr std::u32string_view kEscaped = U"\n\r\t\b\f";
  const size_t letter = kEscaped.find(code);
  if (code == quote || code == '\\' || letter < (is_json ? 5 : 3)) {
    return {'\\', letter < 5 ? "nrtbf"[letter] : static_cast<char>(code)};
  }
  const int category = utf8proc_category(static_cast<utf8proc_int32_t>(code));
  const bool is_separator = category == UTF8PROC_CATEGORY_CN || category >= UTF8PROC_CATEGORY_ZS;
  if (is_json ? code >= 0x20 : code == ' ' || !is_separator) {
    return "";
  }
  const auto number = static_cast<uint32_t>(code);
  return is_json || (code > 0xFF && code < 0x1'0000) ? fmt::format("\\u{:04x}", number)
         : code <= 0xFF                              ? fmt::format("\\x{:02x}", number)
                                                     : fmt::format("\\U{:08x}", number);
}

void append_quoted(Text& out, const Text& text, bool is_json) {
  const auto has = [&](char32_t code) { return std::ranges::count(text.chars, Char{code}) > 0; };
  const char32_t quote = is_json || (has('\'') && !has('"')) ? '"' : '\'';
  out.chars.push_back({quote});
  for (const Char& one : text.chars) {
    const std::string escape = escape_sequence(one.code, quote, is_json);
    escape.empty() ? out.chars.push_back(one) : out.append(Text(escape, one.source));
  }
  out.chars.push_back({quote});
}

// Appends json.dumps() of `value`, or repr() without `json`.
void append_value(Text& out, In value, const JsonStyle* json, int depth) {
  static const JsonStyle repr;
  const JsonStyle& style = json != nullptr ? *json : repr;
  const auto put = [&](const std::string& text) { out.append(Text(text)); };
  const auto newline = [&](int levels) {
    if (style.indent) {
      put("\n" + std::string(static_cast<size_t>(*style.indent * levels), ' '));
    }
  };
  const auto put_items = [&](const auto& items, const char* open, const char* close,
                             const auto& put_item) {
    put(open);
    for (size_t i = 0; i < items.size(); ++i) {
      out.append(i == 0 ? Text() : style.item_separator);
      newline(depth + 1);
      put_item(items[i]);
    }
    if (!items.empty()) {
      newline(depth);
    }
    put(close);
  };
  const bool is_json = json != nullptr;
  if (const Text* text = value.text()) {
    refuse_if(text->is_safe && !is_json, "printing a list with a safe string");
    append_quoted(out, *text, is_json);
  } else if (value.is_number()) {
    refuse_if(is_json && !std::isfinite(value.number()), "tojson of {}", number_text(value));
    const bool is_lower = is_json && value.is<bool>();
    put(!is_lower ? number_text(value) : is_true(value) ? "true" : "false");
  } else if (value.is_none() || (value.is_undefined() && !is_json)) {
    put(is_json ? "null" : value.is_none() ? "None" : "Undefined");
  } else if (const Dict* dict = value.dict()) {
    put_items(dict->items, "{", "}", [&](const auto& item) {
      refuse_if(is_json && item.first.text() == nullptr, "tojson of a key that is not a string");
      append_value(out, item.first, json, depth + 1);
      out.append(style.key_separator);
      append_value(out, item.second, json, depth + 1);
    });
  } else if (const Sequence* list = value.sequence(); list != nullptr && list->is_plain()) {
    const bool is_tuple = !is_json && list->kind == Sequence::Kind::kTuple;
    const char* close = !is_tuple ? "]" : list->items.size() == 1 ? ",)" : ")";
    put_items(list->items, is_tuple ? "(" : "[", close,
              [&](In item) { append_value(out, item, json, depth + 1); });
  } else if (is_json) {
    fail("Object of type {} is not JSON serializable", type_name(value));
  } else {
    refuse("printing a {}", type_name(value));
  }
}

Value number_arithmetic(std::string_view operation, In left, In right) {
  const bool is_float = left.is<double>() || right.is<double>(), divides = operation == "/";
  const bool is_whole = operation == "//" || operation == "%";
  const double x = left.number(), y = right.number();
  fail_if((divides || is_whole) && y == 0.0, "division by zero");
  if (is_float || divides) {
    refuse_if(is_whole || (!is_float && (std::abs(x) > 0x1p53 || std::abs(y) > 0x1p53)),
              "'{}' of such numbers", operation);
    return divides ? x / y : operation == "+" ? x + y : operation == "-" ? x - y : x * y;
  }
  const int64_t a = left.integer(), b = right.integer();
  int64_t result = 0;
  const bool overflows = operation == "+"   ? __builtin_add_overflow(a, b, &result)
                         : operation == "-" ? __builtin_sub_overflow(a, b, &result)
                         : operation == "*" ? __builtin_mul_overflow(a, b, &result)
                                            : a == INT64_MIN && b == -1;
  refuse_if(overflows, "an integer beyond 64 bits");
  const int64_t floor = is_whole ? a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0) : 0;
  return operation == "//" ? floor : operation == "%" ? a - floor * b : result;
}

// Attributes of Python values that are not supported.
constexpr std::string_view kOtherAttributes =
    " append as_integer_ratio bit_count bit_length casefold center clear conjugate copy "
    "denominator encode expandtabs extend format format_map from_bytes fromhex hex imag index "
    "insert is_integer isalnum isalpha isascii isdecimal isdigit isidentifier islower isnumeric "
    "isprintable isspace istitle isupper ljust maketrans numerator partition pop real remove "
    "removeprefix removesuffix reverse rfind rindex rjust rpartition rsplit sort splitlines "
    "start step stop swapcase to_bytes translate zfill ";
constexpr std::string_view kOtherDictMethods =
    " clear copy fromkeys pop popitem setdefault update mapping isdisjoint ";

// Returns the method `name` of `value`, or nullopt. Throws Fault for unsupported methods of Python.
std::optional<Value> find_method(In value, const std::string& name) {
  const auto method = find_function(fmt::format("{}.{}", type_name(value), name), value);
  const std::string_view others = value.dict() ? kOtherDictMethods : kOtherAttributes;
  if (!method && !value.is_none() && others.find(" " + name + " ") != kNowhere) {
    refuse("'{}' of a {}", printable(name, 40), type_name(value));
  }
  return method;
}

}  // namespace

Text::Text(std::string_view utf8, int32_t source) {
  for (size_t at = 0; at < utf8.size();) {
    chars.push_back({next_code_point(utf8, at), source});
  }
}
std::string Text::utf8() const {
  std::string bytes;
  for (const Char& one : chars) {
    utf8proc_uint8_t buffer[4];
    const auto size = utf8proc_encode_char(static_cast<utf8proc_int32_t>(one.code), buffer);
    bytes.append(buffer, buffer + size);
  }
  return bytes;
}
Text Text::slice(size_t begin, size_t end) const {
  const auto at = [&](size_t index) { return chars.begin() + static_cast<std::ptrdiff_t>(index); };
  return Text(std::vector<Char>(at(begin), at(std::max(begin, end))));
}
void Text::append(const Text& other) {
  fail_if(size() + other.size() > kMaxChars, "the text has more than {} characters", kMaxChars);
  chars.insert(chars.end(), other.chars.begin(), other.chars.end());
}
size_t Text::find(const Text& part, size_t from) const {
  const auto found = std::search(chars.begin() + static_cast<std::ptrdiff_t>(from), chars.end(),
                                 part.chars.begin(), part.chars.end());
  return found != chars.end() || part.size() == 0 ? static_cast<size_t>(found - chars.begin())
                                                  : kNowhere;
}

std::vector<const Value*> Arguments::bind(const Names& parameters) const {
  refuse_if(positional.size() > parameters.size(), "a call with more than {} arguments",
            parameters.size());
  std::vector<const Value*> bound(parameters.size());
  std::ranges::transform(positional, bound.begin(), [](In value) { return &value; });
  for (const auto& [name, value] : named) {
    const auto found = std::ranges::find(parameters, name);
    const auto index = static_cast<size_t>(found - parameters.begin());
    refuse_if(found == parameters.end() || bound[index] != nullptr,
              "the argument '{}', which is unknown or given twice,", printable(name, 40));
    bound[index] = &value;
  }
  return bound;
}

const Value* Dict::find(In key) const {
  const auto found =
      std::ranges::find_if(items, [&](const auto& item) { return equals(item.first, key); });
  return found == items.end() ? nullptr : &found->second;
}
void Dict::set(Value key, Value value) {
  refuse_if(key.sequence() != nullptr || key.dict() != nullptr || key.object() != nullptr,
            "a {} as key of a dict", type_name(key));
  if (const Value* found = find(key)) {
    *const_cast<Value*>(found) = std::move(value);
  } else {
    items.emplace_back(std::move(key), std::move(value));
  }
}

Value::Value(Values items, Sequence::Kind kind) {
  Extent extent;
  for (const Value& item : items) {
    include(extent, item);
  }
  value_ = std::make_shared<Sequence>(Sequence{kind, std::move(items), extent});
}
Value::Value(Dict value) {
  for (const auto& item : value.items) {
    include(value.extent, item.second);
  }
  value_ = std::make_shared<Dict>(std::move(value));
}

int64_t Value::integer(std::string_view what) const {
  fail_if(!is<bool>() && !is<int64_t>(), "{} must be an integer, not a {}", what, type_name(*this));
  return is<bool>() ? (std::get<bool>(value_) ? 1 : 0) : std::get<int64_t>(value_);
}
double Value::number(std::string_view what) const {
  const double* found = std::get_if<double>(&value_);
  return found != nullptr ? *found : static_cast<double>(integer(what));
}
const Text& Value::string(std::string_view what) const {
  fail_if(text() == nullptr, "{} must be a string, not a {}", what, type_name(*this));
  return *text();
}
const Value& Value::defined(bool is_strict) const {
  if (const auto* undefined = std::get_if<Undefined>(&value_);
      undefined != nullptr && (is_strict || undefined->is_strict)) {
    fail("{}", undefined->message);
  }
  return *this;
}

Value make_value(const OrderedJson& json, int32_t source) {
  if (json.is_array()) {
    Values items;
    for (const auto& item : json) {
      items.push_back(make_value(item, source));
    }
    return items;
  }
  if (json.is_object()) {
    Dict dict;
    for (const auto& item : json.items()) {
      dict.items.emplace_back(Text(item.key(), source), make_value(item.value(), source));
    }
    return dict;
  }
  USER_ERROR_IF(json.is_number_unsigned() && json.get<uint64_t>() > uint64_t{INT64_MAX},
                "{} exceeds the 64-bit integers of templates", json.dump());
  return json.is_string()           ? Text(json.get<std::string>(), source)
         : json.is_boolean()        ? Value(json.get<bool>())
         : json.is_number_integer() ? Value(json.get<int64_t>())
         : json.is_number()         ? Value(json.get<double>())
                                    : Value(None{});
}

std::string_view type_name(In value) {
  static constexpr std::string_view kNames[] = {
      "undefined value", "None", "bool", "int", "float", "str", "list", "dict", "function"};
  static constexpr std::string_view kKinds[] = {"list", "tuple", "range", "view", "iterator"};
  return value.sequence() != nullptr ? kKinds[static_cast<size_t>(value.sequence()->kind)]
                                     : kNames[value.variant().index()];
}

Text to_text(In value) {
  Text out = value.text() ? *value.text() : Text();
  if (!value.text() && !value.usable().is_undefined()) {
    append_value(out, value, nullptr, 0);
  }
  return out;
}
Text to_json(In value, const JsonStyle& style) {
  Text out;
  append_value(out, value, &style, 0);
  return out;
}

bool is_true(In value) {
  if (value.is_number()) {
    return value.number() != 0.0;
  }
  return value.object() || value.is_iterator() || (!value.is_none() && length(value) > 0);
}

bool equals(In left, In right) {
  if (left.usable().is_number() && right.usable().is_number()) {
    return compare(left, right) == 0;
  }
  if (left.text() && right.text()) {
    return left.text()->chars == right.text()->chars;
  }
  if (const Dict* a = left.dict(), *b = right.dict(); a && b) {
    return a->items.size() == b->items.size() &&
           std::ranges::all_of(a->items, [&](const auto& item) {
             const Value* other = b->find(item.first);
             return other != nullptr && equals(item.second, *other);
           });
  }
  if (const Sequence* a = left.sequence(), *b = right.sequence(); a && b) {
    refuse_if(!a->is_plain() || !b->is_plain(), "comparing a {} and a {}", type_name(left),
              type_name(right));
    return a->kind == b->kind && std::ranges::equal(a->items, b->items, equals);
  }
  return left.variant().index() == right.variant().index() && left.object() == right.object();
}

int compare(In left, In right) {
  const auto order = [](auto a, auto b) { return a < b ? -1 : a > b ? 1 : 0; };
  if (left.is_number() && right.is_number()) {
    return left.is<double>() || right.is<double>() ? order(left.number(), right.number())
                                                   : order(left.integer(), right.integer());
  }
  if (left.text() != nullptr && right.text() != nullptr) {
    return order(left.text()->utf8(), right.text()->utf8());
  }
  refuse_if(left.sequence() != nullptr && right.sequence() != nullptr, "the order of two lists");
  fail("a {} and a {} have no order", type_name(left), type_name(right));
}
bool contains(In container, In item) {
  if (container.text() != nullptr) {
    return container.text()->find(item.string("the left side of 'in'")) != kNowhere;
  }
  refuse_if(container.is_iterator(), "'in' of an iterator");
  return std::ranges::any_of(iterate(container), [&](In entry) { return equals(entry, item); });
}
size_t length(In value) {
  const Sequence* list = value.sequence();
  fail_if((!list && !value.dict() && !value.text() && !value.usable().is_undefined()) ||
              value.is_iterator(),
          "a {} has no length", type_name(value));
  return list           ? list->items.size()
         : value.dict() ? value.dict()->items.size()
         : value.text() ? value.text()->size()
                        : 0;
}

Values iterate(In value) {
  if (Sequence* list = value.sequence()) {
    return value.is_iterator() ? std::exchange(list->items, {}) : list->items;
  }
  Values items;
  if (const Text* text = value.text()) {
    for (const Char& one : text->chars) {
      items.emplace_back(Text(std::vector<Char>{one}));
    }
  } else if (const Dict* dict = value.dict()) {
    for (const auto& item : dict->items) {
      items.push_back(item.first);
    }
  } else if (!value.usable().is_undefined()) {
    fail("a {} is not iterable", type_name(value));
  }
  return items;
}

Value arithmetic(std::string_view operation, In left, In right) {
  if (operation == "~") {
    Text text = to_text(left);
    text.append(to_text(right));
    text.is_safe = false;
    return text;
  }
  const bool adds = operation == "+", repeats = operation == "*";
  const Text *a = left.defined().text(), *b = right.defined().text();
  const Sequence *first = left.sequence(), *second = right.sequence();
  if (left.is_number() && right.is_number()) {
    return number_arithmetic(operation, left, right);
  }
  if (adds && a != nullptr && b != nullptr) {
    refuse_if(a->is_safe != b->is_safe, "adding a string to a safe one, which escapes HTML,");
    Text sum = *a;
    sum.append(*b);
    return sum;
  }
  if (adds && first && second && first->is_plain() && first->kind == second->kind) {
    Values items = first->items;
    items.insert(items.end(), second->items.begin(), second->items.end());
    return {std::move(items), first->kind};
  }
  if (repeats && ((a != nullptr && right.is_number()) || (b != nullptr && left.is_number()))) {
    Text repeated = a != nullptr ? *a : *b;
    const Text text(std::exchange(repeated.chars, {}));
    const int64_t count = (a != nullptr ? right : left).integer("a count");
    for (int64_t i = 0; i < count && text.size() > 0; ++i) {
      repeated.append(text);
    }
    return repeated;
  }
  refuse_if((operation == "%" && a) || (repeats && (first || second)), "'{}' of a {}", operation,
            type_name(left));
  fail("'{}' of a {} and a {}", operation, type_name(left), type_name(right));
}

Value get_item(In value, In key) {
  if (const Value* found = value.defined().dict() ? value.dict()->find(key) : nullptr) {
    return *found;
  }
  const Sequence* list = value.sequence();
  const bool is_indexed = value.text() || (list && list->kind <= Sequence::Kind::kRange);
  if (key.is_number() && !key.is<double>() && is_indexed) {
    const auto count = static_cast<int64_t>(length(value));
    const int64_t index = key.integer() + (key.integer() < 0 ? count : 0);
    if (index >= 0 && index < count) {
      return list == nullptr ? get_slice(value, index, index + 1, None{})
                             : list->items[static_cast<size_t>(index)];
    }
  }
  if (key.text() != nullptr) {
    return get_attribute(value, key.text()->utf8());
  }
  return Undefined{fmt::format("a {} has no entry {}", type_name(value), to_text(key).utf8())};
}

Value get_slice(In value, In begin, In end, In step) {
  const Sequence* list = value.defined().sequence();
  refuse_if(value.text() == nullptr && (list == nullptr || !list->is_plain()), "a slice of a {}",
            type_name(value));
  const auto count = static_cast<int64_t>(length(value));
  const int64_t stride =
      step.is_none() ? 1 : std::clamp<int64_t>(step.integer("a step"), -count - 1, count + 1);
  fail_if(stride == 0, "the step of a slice is zero");
  const int64_t min_index = stride > 0 ? 0 : -1;
  const auto bound = [&](In given, int64_t fallback) {
    const int64_t at = given.is_none() ? fallback : given.integer("a bound of a slice");
    return given.is_none() ? at
                           : std::clamp(at < 0 ? at + count : at, min_index, min_index + count);
  };
  const int64_t first = bound(begin, stride > 0 ? 0 : count - 1);
  const int64_t last = bound(end, stride > 0 ? count : -1);
  Text text;
  text.is_safe = list == nullptr && value.text()->is_safe;
  Values items;
  for (int64_t i = first; stride > 0 ? i < last : i > last; i += stride) {
    const auto index = static_cast<size_t>(i);
    list != nullptr ? items.push_back(list->items[index])
                    : text.chars.push_back(value.text()->chars[index]);
  }
  return list != nullptr ? Value(std::move(items), list->kind) : Value(std::move(text));
}

Value get_attribute(In value, const std::string& name) {
  if (name.starts_with("__")) {
    refuse("the attribute '{}'", printable(name, 40));
  }
  if (Object* object = value.defined().object()) {
    if (const auto found = object->attributes.find(name); found != object->attributes.end()) {
      return found->second;
    }
  } else if (std::optional<Value> method = find_method(value, name)) {
    return *method;
  }
  const Value* found = value.dict() == nullptr ? nullptr : value.dict()->find(Value(name));
  return found != nullptr ? *found
                          : Undefined{fmt::format("a {} has no attribute '{}'", type_name(value),
                                                  printable(name, 40))};
}

bool is_space(char32_t code) {
  return (code >= 9 && code <= 13) || (code >= 0x1C && code <= 0x20) || code == 0x85 ||
         code == 0xA0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 ||
         code == 0x2029 || code == 0x202F || code == 0x205F || code == 0x3000;
}
Text strip(const Text& text, In removed, bool left, bool right) {
  const Text* set = removed.is_none() ? nullptr : &removed.string("the characters to remove");
  const auto is_kept = [&](const Char& one) {
    return set != nullptr ? std::ranges::count(set->chars, one) == 0 : !is_space(one.code);
  };
  const auto& all = text.chars;
  const auto begin = left ? std::find_if(all.begin(), all.end(), is_kept) : all.begin();
  const auto end =
      right ? std::find_if(all.rbegin(), std::make_reverse_iterator(begin), is_kept).base()
            : all.end();
  return Text(std::vector<Char>(begin, end));
}

}  // namespace moe::jinja
