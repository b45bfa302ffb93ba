#pragma once
// Python values of chat templates. Every character has a source, so that text of the template and
// text of messages can be told apart after rendering.

#include <fmt/format.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "core/base/json.h"

namespace moe::jinja {

// Error of rendering. Template::render() converts it to a UserError with line and column.
struct Fault {
  std::string message;
  bool is_unsupported = false;  // jinja2 supports it, this renderer does not
};

template <typename... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Fault{fmt::format(format, std::forward<Args>(args)...)};
}
template <typename... Args>
[[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) {
  throw Fault{fmt::format(format, std::forward<Args>(args)...) + " is not supported", true};
}

template <typename... Args>
void fail_if(bool condition, fmt::format_string<Args...> format, Args&&... args) {
  if (condition) {
    fail(format, std::forward<Args>(args)...);
  }
}
template <typename... Args>
void refuse_if(bool condition, fmt::format_string<Args...> format, Args&&... args) {
  if (condition) {
    refuse(format, std::forward<Args>(args)...);
  }
}

struct Char {
  char32_t code = 0;
  int32_t source = 0;         // 0: the template; else the argument of make_value()
  bool is_generated = false;  // inside {% generation %}
  bool operator==(const Char& other) const { return code == other.code; }
};

struct Text {
  std::vector<Char> chars;
  bool is_safe = false;  // result of the filter `safe`

  Text() = default;
  explicit Text(std::vector<Char> given) : chars(std::move(given)) {}
  explicit Text(std::string_view utf8, int32_t source = 0);  // requires well-formed UTF-8
  size_t size() const { return chars.size(); }
  std::string utf8() const;
  Text slice(size_t begin, size_t end) const;
  void append(const Text& other);
  // Returns the first index of `part` at or after `from`, or kNowhere.
  size_t find(const Text& part, size_t from = 0) const;
};

class Value;
struct Arguments;
struct Object;
using In = const Value&;
using Args = const Arguments&;
using Values = std::vector<Value>;
using Names = std::vector<std::string>;

inline constexpr size_t kNowhere = std::string::npos;

// The value of a missing name, attribute or entry.
struct Undefined {
  std::string message = {};  // "'messages' is undefined"
  bool is_strict = false;    // an error if used, like jinja2.StrictUndefined
};
struct None {};

// Nesting depth of a value and its total number of items. A shared value counts at each use.
struct Extent {
  int depth = 1;
  size_t items = 0;
};

// A Python sequence or iterator. Reading an iterator empties it.
struct Sequence {
  enum class Kind { kList, kTuple, kRange, kView, kIterator } kind = Kind::kList;
  Values items;
  Extent extent = {};
  bool is_plain() const { return kind == Kind::kList || kind == Kind::kTuple; }
};

struct Dict {
  std::vector<std::pair<Value, Value>> items;  // in order of insertion
  Extent extent = {};
  const Value* find(In key) const;  // null if missing
  void set(Value key, Value value);
};

class Value {
 public:
  using Variant =
      std::variant<Undefined, None, bool, int64_t, double, std::shared_ptr<const Text>,
                   std::shared_ptr<Sequence>, std::shared_ptr<Dict>, std::shared_ptr<Object>>;

  Value() = default;  // undefined
  Value(Undefined value) : value_(std::move(value)) {}
  Value(None value) : value_(value) {}
  Value(bool value) : value_(value) {}
  Value(std::integral auto value) : value_(static_cast<int64_t>(value)) {}
  Value(double value) : value_(value) {}
  Value(Text value) : value_(std::make_shared<const Text>(std::move(value))) {}
  Value(const char* value) : Value(Text(value)) {}
  Value(const std::string& value) : Value(Text(value)) {}
  Value(Values items, Sequence::Kind kind = Sequence::Kind::kList);
  Value(Dict value);
  Value(Object value);
  Value(std::shared_ptr<Object> value) : value_(std::move(value)) {}

  template <typename T>
  bool is() const {
    return std::holds_alternative<T>(value_);
  }
  bool is_undefined() const { return is<Undefined>(); }
  bool is_none() const { return is<None>(); }
  bool is_number() const { return is<bool>() || is<int64_t>() || is<double>(); }
  bool is_iterator() const { return sequence() && sequence()->kind == Sequence::Kind::kIterator; }
  const Variant& variant() const { return value_; }
  // Makes the use of an undefined value an error if `is_strict`.
  void make_strict(bool is_strict) {
    if (Undefined* undefined = std::get_if<Undefined>(&value_); undefined && is_strict) {
      undefined->is_strict = true;
    }
  }

  // Return null if the value has another type.
  const Text* text() const { return pointee<std::shared_ptr<const Text>>(); }
  Sequence* sequence() const { return pointee<std::shared_ptr<Sequence>>(); }
  Dict* dict() const { return pointee<std::shared_ptr<Dict>>(); }
  Object* object() const { return pointee<std::shared_ptr<Object>>(); }

  // Throw Fault, naming `what`, if the value has another type. A bool is an integer.
  int64_t integer(std::string_view what = "the value") const;
  double number(std::string_view what = "the value") const;
  const Text& string(std::string_view what = "the value") const;
  const Value& defined(bool is_strict = true) const;      // throws Fault if undefined
  const Value& usable() const { return defined(false); }  // throws Fault if Undefined::is_strict

 private:
  template <typename Pointer>
  auto pointee() const -> typename Pointer::element_type* {
    const Pointer* found = std::get_if<Pointer>(&value_);
    return found == nullptr ? nullptr : found->get();
  }

  Variant value_;
};

// Arguments of a call.
struct Arguments {
  Values positional;
  std::vector<std::pair<std::string, Value>> named;

  // Returns the argument of each parameter, null if missing. Throws Fault for extra arguments.
  std::vector<const Value*> bind(const Names& parameters) const;
};

// A function, a namespace or `loop`.
struct Object {
  std::function<Value(Args)> call = {};
  std::map<std::string, Value> attributes = {};
  bool is_namespace = false;
};

inline Value::Value(Object value) : value_(std::make_shared<Object>(std::move(value))) {}
inline Value make_function(std::function<Value(Args)> body) { return Object{std::move(body)}; }

// Converts JSON. All characters of its strings and keys get `source`.
Value make_value(const OrderedJson& json, int32_t source);

// Settings of json.dumps() with ensure_ascii=False.
struct JsonStyle {
  std::optional<int64_t> indent = std::nullopt;
  Text item_separator = Text(", "), key_separator = Text(": ");
};

// Operations of Python. They throw Fault where Python raises an exception.
std::string_view type_name(In value);  // "str", "list", ...
Text to_text(In value);                // str()
Text to_json(In value, const JsonStyle& style);
bool is_true(In value);
bool equals(In left, In right);
int compare(In left, In right);  // -1, 0 or 1
bool contains(In container, In item);
size_t length(In value);
Values iterate(In value);  // strings as characters, dicts as keys
// `operation` is one of + - * / // % and jinja2's ~.
Value arithmetic(std::string_view operation, In left, In right);
// Returns value[key], the method of that name, or undefined.
Value get_item(In value, In key);
// Returns value[begin:end:step]. None stands for a missing bound.
Value get_slice(In value, In begin, In end, In step);
// Returns the method or attribute `name`, else value[name].
Value get_attribute(In value, const std::string& name);
bool is_space(char32_t code);  // Python's str.isspace()
// Removes the characters of `removed`, by default white space, from the ends.
Text strip(const Text& text, In removed, bool left, bool right);

// Calls the filter |NAME, the test ?NAME, the method TYPE.NAME or the global function NAME.
Value call_builtin(const std::string& name, In self, Args arguments);
bool has_builtin(const std::string& name);
// Returns the builtin as a function of `self`, or nullopt.
std::optional<Value> find_function(const std::string& name, In self);

}  // namespace moe::jinja
