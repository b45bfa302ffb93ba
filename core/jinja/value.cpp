#include "core/jinja/value.h"

#include <utf8proc.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "core/base/error.h"
#include "core/base/text.h"

namespace moe::jinja {

namespace {

constexpr size_t kMaxChars = size_t{16} << 20;  // of a text
constexpr int kMaxDepth = 128;                  // of nested values

int deeper(int depth) {
  if (depth >= kMaxDepth) {
    fail("values are nested more than {} deep", kMaxDepth);
  }
  return depth + 1;
}

int depth_of(const Value& value) {
  return value.sequence() != nullptr ? value.sequence()->depth
         : value.dict() != nullptr   ? value.dict()->depth
                                     : 0;
}

// Returns repr() of a float: the shortest digits that read back as the same number.
std::string float_text(double value) {
  if (!std::isfinite(value)) {
    return std::isnan(value) ? "nan" : value < 0 ? "-inf" : "inf";
  }
  const double size = std::abs(value);
  const bool is_scientific = size != 0.0 && (size < 1e-4 || size >= 1e16);
  char buffer[400];
  const auto format = is_scientific ? std::chars_format::scientific : std::chars_format::fixed;
  const char* end = std::to_chars(std::begin(buffer), std::end(buffer), value, format).ptr;
  const std::string text(buffer, static_cast<size_t>(end - buffer));
  return is_scientific || text.find('.') != std::string::npos ? text : text + ".0";
}

std::string number_text(const Value& value) {
  return value.is<bool>()     ? (value.integer() != 0 ? "True" : "False")
         : value.is<double>() ? float_text(value.number())
                              : std::to_string(value.integer());
}

bool is_printable(char32_t code) {
  const int category = utf8proc_category(static_cast<utf8proc_int32_t>(code));
  return code == ' ' || (category != UTF8PROC_CATEGORY_CN && category < UTF8PROC_CATEGORY_ZS);
}

// Appends `text` in quotes, with escapes as in Python or, with `is_json`, as in JSON.
void append_quoted(Text& out, const Text& text, bool is_json) {
  const auto has = [&](char32_t code) {
    return std::ranges::find(text.chars, code, &Char::code) != text.chars.end();
  };
  const char32_t quote = is_json || (has('\'') && !has('"')) ? '"' : '\'';
  out.chars.push_back({quote});
  for (const Char& one : text.chars) {
    static constexpr std::string_view kEscaped = "\n\r\t\b\f", kLetters = "nrtbf";
    const auto code = static_cast<uint32_t>(one.code);
    const size_t letter = code < 0x80 ? kEscaped.find(static_cast<char>(code)) : std::string::npos;
    std::string escape;
    if (one.code == quote || code == '\\') {
      escape = std::string("\\") + static_cast<char>(code);
    } else if (letter < (is_json ? 5 : 3)) {
      escape = std::string("\\") + kLetters[letter];
    } else if (is_json ? code < 0x20 : !is_printable(one.code)) {
      escape = is_json || (code > 0xFF && code < 0x1'0000) ? fmt::format("\\u{:04x}", code)
               : code <= 0xFF                              ? fmt::format("\\x{:02x}", code)
                                                           : fmt::format("\\U{:08x}", code);
    }
    if (escape.empty()) {
      out.chars.push_back(one);
    } else {
      out.append(Text(escape, one.source));
    }
  }
  out.chars.push_back({quote});
}

// The settings of json.dumps(), or of repr().
struct Style {
  bool is_json = false, has_indent = false, sorts_keys = false;
  Text indent, item_separator = Text(", "), key_separator = Text(": ");
};

void append_value(Text& out, const Value& value, const Style& style, int depth) {
  const auto newline = [&](int levels) {
    if (style.has_indent) {
      out.chars.push_back({'\n'});
      for (int i = 0; i < levels; ++i) {
        out.append(style.indent);
      }
    }
  };
  const auto append_items = [&](const auto& items, const char* open, const char* close,
                                const auto& append) {
    out.append(Text(open));
    for (size_t i = 0; i < items.size(); ++i) {
      out.append(i == 0 ? Text() : style.item_separator);
      newline(depth + 1);
      append(items[i]);
    }
    if (!items.empty()) {
      newline(depth);
    }
    out.append(Text(close));
  };
  const bool is_json = style.is_json;
  if (const Text* text = value.text()) {
    if (text->is_safe && !is_json) {
      refuse("printing a list with a safe string");
    }
    append_quoted(out, *text, is_json);
  } else if (is_json && value.is<bool>()) {
    out.append(Text(is_true(value) ? "true" : "false"));
  } else if (value.is_number()) {
    if (is_json && !std::isfinite(value.number())) {
      refuse("tojson of {}", number_text(value));
    }
    out.append(Text(number_text(value)));
  } else if (value.is_none()) {
    out.append(Text(is_json ? "null" : "None"));
  } else if (value.is_undefined() && !is_json) {
    out.append(Text("Undefined"));
  } else if (const Dict* dict = value.dict()) {
    auto items = dict->items;
    if (style.sorts_keys) {
      std::ranges::stable_sort(
          items, [](const auto& a, const auto& b) { return compare(a.first, b.first) < 0; });
    }
    append_items(items, "{", "}", [&](const auto& item) {
      if (is_json && item.first.text() == nullptr) {
        refuse("tojson of a key that is no string");
      }
      append_value(out, item.first, style, depth + 1);
      out.append(style.key_separator);
      append_value(out, item.second, style, depth + 1);
    });
  } else if (const Sequence* list = value.sequence(); list != nullptr && list->is_plain()) {
    const bool is_tuple = !is_json && list->kind == Sequence::Kind::kTuple;
    append_items(list->items, is_tuple ? "(" : "[",
                 !is_tuple                 ? "]"
                 : list->items.size() == 1 ? ",)"
                                           : ")",
                 [&](const Value& item) { append_value(out, item, style, depth + 1); });
  } else if (is_json) {
    fail("Object of type {} is not JSON serializable", type_name(value));
  } else {
    refuse("printing a {}", type_name(value));
  }
}

Value integer_arithmetic(std::string_view operation, int64_t a, int64_t b) {
  int64_t result = 0;
  const bool overflows = operation == "+"   ? __builtin_add_overflow(a, b, &result)
                         : operation == "-" ? __builtin_sub_overflow(a, b, &result)
                         : operation == "*" ? __builtin_mul_overflow(a, b, &result)
                                            : a == INT64_MIN && b == -1;
  if (overflows) {
    refuse("an integer beyond 64 bits");
  }
  if (operation == "//" || operation == "%") {
    const int64_t floor = a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
    return operation == "//" ? floor : a - floor * b;
  }
  return result;
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
  if (size() + other.size() > kMaxChars) {
    fail("the text has more than {} characters", kMaxChars);
  }
  chars.insert(chars.end(), other.chars.begin(), other.chars.end());
}

const Value* Arguments::find(size_t position, std::string_view name) const {
  if (position < positional.size()) {
    return &positional[position];
  }
  const auto found =
      std::ranges::find_if(named, [&](const auto& argument) { return argument.first == name; });
  return found == named.end() ? nullptr : &found->second;
}

void Arguments::check(std::initializer_list<std::string_view> names) const {
  if (positional.size() > names.size()) {
    fail("takes at most {} arguments, not {}", names.size(), positional.size());
  }
  for (const auto& [name, value] : named) {
    const auto* found = std::find(names.begin(), names.end(), name);
    if (found == names.end() || static_cast<size_t>(found - names.begin()) < positional.size()) {
      fail("the argument '{}' is unknown or given twice", printable(name, 40));
    }
  }
}

bool Arguments::flag(size_t position, std::string_view name) const {
  const Value* found = find(position, name);
  return found != nullptr && is_true(*found);
}

Value Object::attribute(const std::string& name) {
  return Undefined{fmt::format("there is no attribute '{}'", printable(name, 40))};
}
void Object::set_attribute(const std::string& /*name*/, Value /*value*/) {
  fail("only attributes of a namespace can be set");
}
Value Object::call(const Arguments& /*arguments*/) { fail("the object is not callable"); }

const Value* Dict::find(const Value& key) const {
  const auto found =
      std::ranges::find_if(items, [&](const auto& item) { return equals(item.first, key); });
  return found == items.end() ? nullptr : &found->second;
}

void Dict::set(Value key, Value value) {
  if (key.sequence() != nullptr || key.dict() != nullptr || key.object() != nullptr) {
    refuse("a {} as key of a dict", type_name(key));
  }
  if (const Value* found = find(key)) {
    *const_cast<Value*>(found) = std::move(value);
  } else {
    items.emplace_back(std::move(key), std::move(value));
  }
}

Value::Value(Values items, Sequence::Kind kind) {
  int depth = 0;
  for (const Value& item : items) {
    depth = std::max(depth, depth_of(item));
  }
  value_ = std::make_shared<Sequence>(Sequence{kind, std::move(items), deeper(depth)});
}

Value::Value(Dict value) {
  for (const auto& item : value.items) {
    value.depth = std::max(value.depth, deeper(depth_of(item.second)));
  }
  value_ = std::make_shared<Dict>(std::move(value));
}

int64_t Value::integer(std::string_view what) const {
  if (const bool* boolean = std::get_if<bool>(&value_)) {
    return *boolean ? 1 : 0;
  }
  const int64_t* found = std::get_if<int64_t>(&value_);
  if (found == nullptr) {
    fail("{} must be an integer, not a {}", what, type_name(*this));
  }
  return *found;
}

double Value::number(std::string_view what) const {
  const double* found = std::get_if<double>(&value_);
  return found != nullptr ? *found : static_cast<double>(integer(what));
}

const Text& Value::string(std::string_view what) const {
  if (text() == nullptr) {
    fail("{} must be a string, not a {}", what, type_name(*this));
  }
  return *text();
}

const Value& Value::defined() const {
  if (const Undefined* undefined = std::get_if<Undefined>(&value_)) {
    fail("{}", undefined->what);
  }
  return *this;
}

Value make_value(const OrderedJson& json, int32_t source) {
  if (json.is_string()) {
    return Text(json.get<std::string>(), source);
  }
  if (json.is_array()) {
    Values items;
    for (const auto& item : json) {
      items.push_back(make_value(item, source));
    }
    return Value(std::move(items));
  }
  if (json.is_object()) {
    Dict dict;
    for (const auto& item : json.items()) {
      dict.items.emplace_back(Text(item.key(), source), make_value(item.value(), source));
    }
    return Value(std::move(dict));
  }
  USER_ERROR_IF(json.is_number_unsigned() && json.get<uint64_t>() > uint64_t{INT64_MAX},
                "{} is beyond 64 bits; templates take no such number", json.dump());
  return json.is_boolean()          ? Value(json.get<bool>())
         : json.is_number_integer() ? Value(json.get<int64_t>())
         : json.is_number()         ? Value(json.get<double>())
                                    : Value(None{});
}

std::string_view type_name(const Value& value) {
  static constexpr std::string_view kNames[] = {
      "undefined value", "None", "bool", "int", "float", "str", "list", "dict", "function"};
  static constexpr std::string_view kKinds[] = {"list", "tuple", "range", "view", "iterator"};
  return value.sequence() != nullptr ? kKinds[static_cast<size_t>(value.sequence()->kind)]
                                     : kNames[value.variant().index()];
}

Text to_text(const Value& value) {
  if (value.text() != nullptr || value.is_undefined()) {
    return value.is_undefined() ? Text() : *value.text();
  }
  Text out;
  append_value(out, value, {}, 0);
  return out;
}

Text to_json(const Value& value, const Arguments& arguments) {
  arguments.check({"ensure_ascii", "indent", "separators", "sort_keys"});
  Style style;
  style.is_json = true;
  style.sorts_keys = arguments.flag(3, "sort_keys");
  if (arguments.flag(0, "ensure_ascii")) {
    refuse("tojson with ensure_ascii");
  }
  if (const Value* indent = arguments.find(1, "indent"); indent != nullptr && !indent->is_none()) {
    style.has_indent = true;
    if (indent->text() != nullptr) {
      refuse("tojson indented by a text");
    }
    style.item_separator = Text(",");
    style.indent = Text(std::string(std::clamp<int64_t>(indent->integer("indent"), 0, 100), ' '));
  }
  if (const Value* pair = arguments.find(2, "separators"); pair != nullptr && !pair->is_none()) {
    const Values items = iterate(*pair);
    if (items.size() != 2) {
      fail("separators must be a pair of strings");
    }
    style.item_separator = items[0].string();
    style.key_separator = items[1].string();
  }
  Text out;
  append_value(out, value, style, 0);
  return out;
}

bool is_true(const Value& value) {
  if (value.is_number()) {
    return value.number() != 0.0;
  }
  if (const Sequence* list = value.sequence()) {
    return list->kind == Sequence::Kind::kIterator || !list->items.empty();
  }
  return value.object() != nullptr || (value.dict() != nullptr && !value.dict()->items.empty()) ||
         (value.text() != nullptr && value.text()->size() > 0);
}

bool equals(const Value& left, const Value& right) {
  if (left.is_number() && right.is_number()) {
    return compare(left, right) == 0;
  }
  if (left.variant().index() != right.variant().index()) {
    return false;
  }
  if (const Text* text = left.text()) {
    return text->chars == right.text()->chars;
  }
  if (const Dict* dict = left.dict()) {
    return dict->items.size() == right.dict()->items.size() &&
           std::ranges::all_of(dict->items, [&](const auto& item) {
             const Value* other = right.dict()->find(item.first);
             return other != nullptr && equals(item.second, *other);
           });
  }
  if (const Sequence* list = left.sequence()) {
    if (!list->is_plain() || !right.sequence()->is_plain()) {
      refuse("comparing a {} and a {}", type_name(left), type_name(right));
    }
    return list->kind == right.sequence()->kind &&
           std::ranges::equal(list->items, right.sequence()->items, equals);
  }
  return left.object() == right.object();
}

int compare(const Value& left, const Value& right) {
  const auto order = [](auto a, auto b) { return a < b ? -1 : a > b ? 1 : 0; };
  if (left.is_number() && right.is_number()) {
    return left.is<double>() || right.is<double>() ? order(left.number(), right.number())
                                                   : order(left.integer(), right.integer());
  }
  if (left.text() != nullptr && right.text() != nullptr) {
    return std::clamp(left.text()->utf8().compare(right.text()->utf8()), -1, 1);
  }
  if (left.sequence() != nullptr && right.sequence() != nullptr) {
    refuse("the order of two lists");
  }
  fail("a {} and a {} have no order", type_name(left), type_name(right));
}

bool contains(const Value& container, const Value& item) {
  if (const Text* text = container.text()) {
    const Text& part = item.string("the left side of 'in'");
    const auto end = text->chars.end();
    return part.size() == 0 ||
           std::search(text->chars.begin(), end, part.chars.begin(), part.chars.end()) != end;
  }
  if (const Dict* dict = container.dict()) {
    return dict->find(item) != nullptr;
  }
  if (type_name(container) == "iterator") {
    refuse("'in' of an iterator");
  }
  return std::ranges::any_of(iterate(container),
                             [&](const Value& entry) { return equals(entry, item); });
}

size_t length(const Value& value) {
  if (value.text() != nullptr || value.is_undefined()) {
    return value.is_undefined() ? 0 : value.text()->size();
  }
  const Sequence* list = value.sequence();
  if (value.dict() == nullptr && (list == nullptr || list->kind == Sequence::Kind::kIterator)) {
    fail("a {} has no length", type_name(value));
  }
  return list != nullptr ? list->items.size() : value.dict()->items.size();
}

Values iterate(const Value& value) {
  if (Sequence* list = value.sequence()) {
    return list->kind == Sequence::Kind::kIterator ? std::exchange(list->items, {}) : list->items;
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
  } else if (!value.is_undefined()) {
    fail("a {} is not iterable", type_name(value));
  }
  return items;
}

Value arithmetic(std::string_view operation, const Value& left, const Value& right) {
  const Text *a = left.defined().text(), *b = right.defined().text();
  if (left.is_number() && right.is_number()) {
    const bool is_float = left.is<double>() || right.is<double>(), divides = operation == "/";
    if ((divides || operation == "//" || operation == "%") && right.number() == 0.0) {
      fail("division by zero");
    }
    if (!is_float && !divides) {
      return integer_arithmetic(operation, left.integer(), right.integer());
    }
    constexpr double kExact = 0x1p53;
    const double x = left.number(), y = right.number();
    if (operation == "//" || operation == "%" ||
        (!is_float && (std::abs(x) > kExact || std::abs(y) > kExact))) {
      refuse("'{}' of such numbers", operation);
    }
    return divides ? x / y : operation == "+" ? x + y : operation == "-" ? x - y : x * y;
  }
  if (operation == "+" && a != nullptr && b != nullptr) {
    if (a->is_safe != b->is_safe) {
      static constexpr std::u32string_view kEscaped = U"&<>\"'";
      for (const Char& one : (a->is_safe ? b : a)->chars) {
        if (kEscaped.find(one.code) != std::u32string_view::npos) {
          refuse("HTML escaping of a string that is added to a safe one");
        }
      }
    }
    Text sum = *a;
    sum.append(*b);
    sum.is_safe = a->is_safe || b->is_safe;
    return sum;
  }
  const Sequence *first = left.sequence(), *second = right.sequence();
  if (operation == "+" && first != nullptr && second != nullptr && first->is_plain() &&
      first->kind == second->kind) {
    Values items = first->items;
    items.insert(items.end(), second->items.begin(), second->items.end());
    return Value(std::move(items), first->kind);
  }
  if (operation == "*" && (a != nullptr || b != nullptr) &&
      (left.is_number() || right.is_number())) {
    const Text& text = a != nullptr ? *a : *b;
    if (text.is_safe) {
      refuse("a safe string times a number");
    }
    Text repeated;
    const int64_t count = text.size() == 0 ? 0 : (a != nullptr ? right : left).integer("a count");
    for (int64_t i = 0; i < count; ++i) {
      repeated.append(text);
    }
    return repeated;
  }
  if ((operation == "%" && a != nullptr) || (operation == "*" && (first || second))) {
    refuse("'{}' of a {}", operation, type_name(left));
  }
  fail("'{}' of a {} and a {}", operation, type_name(left), type_name(right));
}

Value get_item(const Value& value, const Value& key) {
  const Sequence* list = value.defined().sequence();
  if (const Value* found = value.dict() == nullptr ? nullptr : value.dict()->find(key)) {
    return *found;
  }
  const bool is_indexed = value.text() != nullptr ||
                          (list != nullptr && (list->is_plain() || type_name(value) == "range"));
  if (key.is_number() && !key.is<double>() && is_indexed) {
    const auto count = static_cast<int64_t>(length(value));
    const int64_t index = key.integer() + (key.integer() < 0 ? count : 0);
    if (index >= 0 && index < count) {
      return value.text() != nullptr ? get_slice(value, index, index + 1, None{})
                                     : list->items[static_cast<size_t>(index)];
    }
  }
  if (key.text() != nullptr && value.object() != nullptr) {
    return value.object()->attribute(key.text()->utf8());
  }
  if (key.text() != nullptr) {
    if (std::optional<Value> method = find_method(value, key.text()->utf8())) {
      return *method;
    }
  }
  return Undefined{
      fmt::format("a {} has no entry {}", type_name(value), printable(to_text(key).utf8(), 60))};
}

Value get_slice(const Value& value, const Value& begin, const Value& end, const Value& step) {
  const Sequence* list = value.defined().sequence();
  if (value.text() == nullptr && (list == nullptr || !list->is_plain())) {
    refuse("a slice of a {}", type_name(value));
  }
  const auto count = static_cast<int64_t>(length(value));
  const int64_t stride =
      step.is_none() ? 1 : std::clamp<int64_t>(step.integer("a step"), -count - 1, count + 1);
  if (stride == 0) {
    fail("the step of a slice is zero");
  }
  const auto bound = [&](const Value& given, int64_t fallback) {
    if (given.is_none()) {
      return fallback;
    }
    const int64_t at = given.integer("a bound of a slice");
    return std::clamp<int64_t>(at < 0 ? at + count : at, stride > 0 ? 0 : -1,
                               stride > 0 ? count : count - 1);
  };
  const int64_t first = bound(begin, stride > 0 ? 0 : count - 1);
  const int64_t last = bound(end, stride > 0 ? count : -1);
  Text text;
  Values items;
  for (int64_t i = first; stride > 0 ? i < last : i > last; i += stride) {
    const auto index = static_cast<size_t>(i);
    if (list != nullptr) {
      items.push_back(list->items[index]);
    } else {
      text.chars.push_back(value.text()->chars[index]);
    }
  }
  return list != nullptr ? Value(std::move(items), list->kind) : Value(std::move(text));
}

Value get_attribute(const Value& value, const std::string& name) {
  if (name.starts_with("__")) {
    refuse("the attribute '{}'", printable(name, 40));
  }
  if (value.defined().object() != nullptr) {
    return value.object()->attribute(name);
  }
  if (std::optional<Value> method = find_method(value, name)) {
    return *method;
  }
  const Value* found = value.dict() == nullptr ? nullptr : value.dict()->find(Value(name));
  return found != nullptr ? *found
                          : Value(Undefined{fmt::format("a {} has no attribute '{}'",
                                                        type_name(value), printable(name, 40))});
}

bool is_space(char32_t code) {
  return (code >= 9 && code <= 13) || (code >= 0x1C && code <= 0x20) || code == 0x85 ||
         code == 0xA0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 ||
         code == 0x2029 || code == 0x202F || code == 0x205F || code == 0x3000;
}

Text strip(const Text& text, const Value* chars, bool left, bool right) {
  const bool strips_space = chars == nullptr || chars->is_none();
  const std::vector<Char> removed = strips_space ? std::vector<Char>() : chars->string().chars;
  const auto is_kept = [&](const Char& one) {
    return strips_space ? !is_space(one.code) : std::ranges::find(removed, one) == removed.end();
  };
  const auto& all = text.chars;
  const auto begin = left ? std::find_if(all.begin(), all.end(), is_kept) : all.begin();
  const auto end =
      right ? std::find_if(all.rbegin(), std::make_reverse_iterator(begin), is_kept).base()
            : all.end();
  return Text(std::vector<Char>(begin, end));
}

}  // namespace moe::jinja
