#pragma once
// Values of the template language: those of Python that chat templates use. Every character knows
// its source, which operations pass on, so that rendered text tells what the template wrote and
// what a message did.

#include <fmt/format.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "core/base/json.h"

namespace moe::jinja {

// A failure at rendering. Template::render() adds the place and makes a UserError of it.
struct Fault {
  std::string message;
  bool is_unsupported = false;  // jinja2 renders this, the engine refuses
};

template <typename... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Fault{fmt::format(format, std::forward<Args>(args)...)};
}
template <typename... Args>
[[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) {
  throw Fault{fmt::format(format, std::forward<Args>(args)...) + " is not supported", true};
}

struct Char {
  char32_t code = 0;
  int32_t source = 0;         // 0: the template; else as the caller of make_value() numbered it
  bool is_generated = false;  // inside {% generation %}
  bool operator==(const Char& other) const { return code == other.code; }
};

struct Text {
  std::vector<Char> chars;
  bool is_safe = false;  // made by the filter `safe`

  Text() = default;
  explicit Text(std::vector<Char> given) : chars(std::move(given)) {}
  explicit Text(std::string_view utf8, int32_t source = 0);  // well-formed
  size_t size() const { return chars.size(); }
  std::string utf8() const;
  Text slice(size_t begin, size_t end) const;
  void append(const Text& other);
};

class Value;
class Object;
using Values = std::vector<Value>;

// The value of a missing name, attribute or entry.
struct Undefined {
  std::string what = {};  // "'messages' is undefined"
};
struct None {};

// A Python sequence or iterator. An iterator is empty after it was read once.
struct Sequence {
  enum class Kind { kList, kTuple, kRange, kView, kIterator } kind = Kind::kList;
  Values items;
  int depth = 1;  // of nested sequences and dicts
  bool is_plain() const { return kind == Kind::kList || kind == Kind::kTuple; }
};

struct Dict {
  std::vector<std::pair<Value, Value>> items;  // in the order of insertion
  int depth = 1;
  const Value* find(const Value& key) const;  // null if there is none
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
  Value(int64_t value) : value_(value) {}
  Value(int value) : value_(int64_t{value}) {}
  Value(size_t value) : value_(static_cast<int64_t>(value)) {}
  Value(double value) : value_(value) {}
  Value(Text value) : value_(std::make_shared<const Text>(std::move(value))) {}
  Value(const char* value) : Value(Text(value)) {}
  Value(const std::string& value) : Value(Text(value)) {}
  Value(Values items, Sequence::Kind kind = Sequence::Kind::kList);
  Value(Dict value);
  Value(std::shared_ptr<Object> value) : value_(std::move(value)) {}

  template <typename T>
  bool is() const {
    return std::holds_alternative<T>(value_);
  }
  bool is_undefined() const { return is<Undefined>(); }
  bool is_none() const { return is<None>(); }
  bool is_number() const { return is<bool>() || is<int64_t>() || is<double>(); }
  const Variant& variant() const { return value_; }

  // Null if the value is of another type.
  const Text* text() const { return pointee<std::shared_ptr<const Text>>(); }
  Sequence* sequence() const { return pointee<std::shared_ptr<Sequence>>(); }
  Dict* dict() const { return pointee<std::shared_ptr<Dict>>(); }
  Object* object() const { return pointee<std::shared_ptr<Object>>(); }

  // Throw Fault, which names `what`, if the value is of another type. A bool is an integer.
  int64_t integer(std::string_view what = "the value") const;
  double number(std::string_view what = "the value") const;
  const Text& string(std::string_view what = "the value") const;
  const Value& defined() const;

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

  // Returns the argument at `position` or of that name; null if there is none.
  const Value* find(size_t position, std::string_view name) const;
  // Throws Fault if there are more arguments than `names`, or others.
  void check(std::initializer_list<std::string_view> names) const;
  bool flag(size_t position, std::string_view name) const;  // false if there is none
};

// A namespace or `loop`.
class Object {
 public:
  Object() = default;
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;
  virtual ~Object() = default;
  virtual Value attribute(const std::string& name);                  // undefined if there is none
  virtual void set_attribute(const std::string& name, Value value);  // throws Fault
  virtual Value call(const Arguments& arguments);                    // throws Fault
};

class Function : public Object {
 public:
  explicit Function(std::function<Value(const Arguments&)> body) : body_(std::move(body)) {}
  Value call(const Arguments& arguments) override { return body_(arguments); }

 private:
  std::function<Value(const Arguments&)> body_;
};
inline Value make_function(std::function<Value(const Arguments&)> body) {
  return {std::make_shared<Function>(std::move(body))};
}

// Converts JSON; every character of its strings, keys included, gets `source`.
Value make_value(const OrderedJson& json, int32_t source);

// Python's operations; all throw Fault where Python raises an exception.
std::string_view type_name(const Value& value);                // "str", "list", ...
Text to_text(const Value& value);                              // str()
Text to_json(const Value& value, const Arguments& arguments);  // json.dumps(), ensure_ascii False
bool is_true(const Value& value);
bool equals(const Value& left, const Value& right);
int compare(const Value& left, const Value& right);  // -1, 0 or 1
bool contains(const Value& container, const Value& item);
size_t length(const Value& value);
Values iterate(const Value& value);  // strings as characters, dicts as keys
Value arithmetic(std::string_view operation, const Value& left, const Value& right);
// Returns value[key], or the method of that name; undefined if there is neither.
Value get_item(const Value& value, const Value& key);
// Returns value[begin:end:step]; absent bounds are none.
Value get_slice(const Value& value, const Value& begin, const Value& end, const Value& step);
// Returns the method or attribute `name`, else value[name].
Value get_attribute(const Value& value, const std::string& name);

// Filters, tests, methods and globals, in builtins.cpp.
bool has_filter(std::string_view name);
Value apply_filter(const std::string& name, const Value& value, const Arguments& arguments);
using Test = bool (*)(const Value& value, const Arguments& arguments);
Test find_test(std::string_view name);  // null if it is not supported
// Returns the method `name` of a string, list or dict, bound to `value`; nothing if Python has
// none.
std::optional<Value> find_method(const Value& value, const std::string& name);
void define_globals(Dict& globals);  // range, namespace and raise_exception
bool is_space(char32_t code);        // Python's str.isspace()
Text strip(const Text& text, const Value* chars, bool left, bool right);

}  // namespace moe::jinja
