// Filters, tests, methods and global functions.

#include <utf8proc.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "core/base/text.h"
#include "core/jinja/value.h"

namespace moe::jinja {

namespace {

using In = const Value&;
using Args = const Arguments&;
using Function1 = Value (*)(In value, Args arguments);  // of a filter or method
using Table = std::map<std::string_view, Function1>;

const Text& text_of(In value) { return *value.text(); }

// Returns the only argument.
In only(Args arguments) {
  if (arguments.positional.size() != 1 || !arguments.named.empty()) {
    refuse("a call with other than one argument");
  }
  return arguments.positional[0];
}

Value argument(Args arguments, size_t position, std::string_view name, Value fallback) {
  const Value* found = arguments.find(position, name);
  return found == nullptr ? std::move(fallback) : *found;
}

// --- strings ---

enum class Case { kUpper, kLower, kTitle };

// Returns `one` in another case. Refuses characters whose case is several characters, or depends on
// their neighbours.
Char change_case(const Char& one, Case wanted) {
  static constexpr std::u32string_view kSpecial =
      U"\u00DF\u0130\u0149\u01F0\u0390\u03A3\u03B0\u0587";
  const char32_t code = one.code;
  if (kSpecial.find(code) != std::u32string_view::npos || (code >= 0x1E96 && code <= 0x1E9E) ||
      (code >= 0x1F50 && code <= 0x1FFF) || (code >= 0xFB00 && code <= 0xFB17)) {
    refuse("the case of '{}'", Text(std::vector<Char>{one}).utf8());
  }
  const auto number = static_cast<utf8proc_int32_t>(code);
  const auto changed = wanted == Case::kUpper   ? utf8proc_toupper(number)
                       : wanted == Case::kLower ? utf8proc_tolower(number)
                                                : utf8proc_totitle(number);
  return {static_cast<char32_t>(changed), one.source, one.is_generated};
}

// Returns `text` with each character in the case that `choose(index)` returns.
template <typename Choose>
Text with_case(const Text& text, const Choose& choose) {
  Text result;
  for (size_t i = 0; i < text.size(); ++i) {
    result.chars.push_back(change_case(text.chars[i], choose(i)));
  }
  return result;
}

Text upper(const Text& text) {
  return with_case(text, [](size_t) { return Case::kUpper; });
}
Text lower(const Text& text) {
  return with_case(text, [](size_t) { return Case::kLower; });
}
Text capitalize(const Text& text) {
  return with_case(text, [](size_t i) { return i == 0 ? Case::kTitle : Case::kLower; });
}
// str.title(): a word begins after all but letters.
Text title(const Text& text) {
  return with_case(text, [&](size_t i) {
    const int category =
        i == 0 ? 0 : utf8proc_category(static_cast<utf8proc_int32_t>(text.chars[i - 1].code));
    const bool is_cased = category == UTF8PROC_CATEGORY_LU || category == UTF8PROC_CATEGORY_LL ||
                          category == UTF8PROC_CATEGORY_LT;
    return is_cased ? Case::kLower : Case::kTitle;
  });
}
// The filter `title`: a word begins after white space and any of -({[<.
Text title_of_words(const Text& text) {
  return with_case(text, [&](size_t i) {
    static constexpr std::u32string_view kBegin = U"-({[<";
    const char32_t before = i == 0 ? U' ' : text.chars[i - 1].code;
    const bool begins = is_space(before) || kBegin.find(before) != std::u32string_view::npos;
    return begins ? Case::kUpper : Case::kLower;
  });
}

// Returns the first index of `part` at or after `from`; npos if there is none.
size_t find(const Text& text, const Text& part, size_t from) {
  const auto begin = text.chars.begin() + static_cast<std::ptrdiff_t>(from);
  const auto found = std::search(begin, text.chars.end(), part.chars.begin(), part.chars.end());
  const bool is_found = found != text.chars.end() || part.size() == 0;
  return is_found ? static_cast<size_t>(found - text.chars.begin()) : std::string::npos;
}

Value replace(const Text& text, Args arguments) {
  arguments.check({"old", "new", "count"});
  const Text from = argument(arguments, 0, "old", {}).string("the old text");
  const Text to = argument(arguments, 1, "new", {}).string("the new text");
  const Value limit = argument(arguments, 2, "count", None{});
  int64_t left = limit.is_none() ? -1 : limit.integer("count");
  Text result;
  size_t begin = 0;
  for (; left != 0; --left) {
    const size_t found = find(text, from, begin);
    if (found == std::string::npos) {
      break;
    }
    result.append(text.slice(begin, found));
    result.append(to);
    begin = found + from.size();
    if (from.size() == 0) {  // before each character and at the end
      if (begin == text.size()) {
        break;
      }
      result.chars.push_back(text.chars[begin++]);
    }
  }
  result.append(text.slice(begin, text.size()));
  return result;
}

Value split(In self, Args arguments) {
  arguments.check({"sep", "maxsplit"});
  const Text& text = text_of(self);
  const Value separator = argument(arguments, 0, "sep", None{});
  const int64_t limit = argument(arguments, 1, "maxsplit", -1).integer("maxsplit");
  const auto is_full = [&](const Values& parts) {
    return static_cast<int64_t>(parts.size()) == limit;
  };
  Values parts;
  size_t begin = 0;
  if (!separator.is_none()) {
    const Text& mark = separator.string("the separator");
    if (mark.size() == 0) {
      fail("split() with an empty separator");
    }
    for (size_t end = 0; !is_full(parts) && (end = find(text, mark, begin)) != std::string::npos;
         begin = end + mark.size()) {
      parts.emplace_back(text.slice(begin, end));
    }
    parts.emplace_back(text.slice(begin, text.size()));
    return parts;
  }
  const auto skip = [&](size_t at, bool spaces) {
    while (at < text.size() && is_space(text.chars[at].code) == spaces) {
      ++at;
    }
    return at;
  };
  while ((begin = skip(begin, true)) < text.size()) {
    if (is_full(parts)) {
      parts.emplace_back(text.slice(begin, text.size()));
      break;
    }
    const size_t end = skip(begin, false);
    parts.emplace_back(text.slice(begin, end));
    begin = end;
  }
  return parts;
}

std::vector<Text> split_lines(const Text& text) {
  std::vector<Text> lines;
  size_t begin = 0;
  for (size_t at = 0; at < text.size(); ++at) {
    const char32_t code = text.chars[at].code;
    if ((code >= 10 && code <= 13) || (code >= 0x1C && code <= 0x1E) || code == 0x85 ||
        code == 0x2028 || code == 0x2029) {
      lines.push_back(text.slice(begin, at));
      at += code == '\r' && at + 1 < text.size() && text.chars[at + 1].code == '\n' ? 1 : 0;
      begin = at + 1;
    }
  }
  if (begin < text.size()) {
    lines.push_back(text.slice(begin, text.size()));
  }
  return lines;
}

Value join(const Text& separator, const Values& items) {
  Text result;
  for (size_t i = 0; i < items.size(); ++i) {
    result.append(i == 0 ? Text() : separator);
    result.append(items[i].string("an item of join()"));
  }
  return result;
}

Value indent(In value, Args arguments) {
  arguments.check({"width", "first", "blank"});
  const Value width = argument(arguments, 0, "width", 4);
  const Text space =
      width.text() != nullptr
          ? text_of(width)
          : Text(std::string(std::clamp<int64_t>(width.integer("width"), 0, 1000), ' '));
  Text text = value.string("the text");
  text.append(Text("\n"));
  const std::vector<Text> lines = split_lines(text);
  Text result = arguments.flag(1, "first") ? space : Text();
  for (size_t i = 0; i < lines.size(); ++i) {
    result.append(Text(i == 0 ? "" : "\n"));
    result.append(i > 0 && (lines[i].size() > 0 || arguments.flag(2, "blank")) ? space : Text());
    result.append(lines[i]);
  }
  return result;
}

bool has_affix(const Text& text, In affix, bool at_end) {
  if (type_name(affix) == "tuple") {
    return std::ranges::any_of(affix.sequence()->items,
                               [&](In item) { return has_affix(text, item, at_end); });
  }
  const auto& part = affix.string("the prefix or suffix").chars;
  return part.size() <= text.size() &&
         (at_end ? std::equal(part.rbegin(), part.rend(), text.chars.rbegin())
                 : std::equal(part.begin(), part.end(), text.chars.begin()));
}

int64_t count(const Text& text, const Text& part) {
  if (part.size() == 0) {
    return static_cast<int64_t>(text.size()) + 1;
  }
  int64_t times = 0;
  for (size_t at = find(text, part, 0); at != std::string::npos; at = find(text, part, at)) {
    ++times;
    at += part.size();
  }
  return times;
}

// --- methods ---

template <Text (*kChange)(const Text&)>
Value case_method(In self, Args arguments) {
  arguments.check({});
  return kChange(text_of(self));
}

template <bool kLeft, bool kRight>
Value strip_method(In self, Args arguments) {
  arguments.check({"chars"});
  return strip(text_of(self), arguments.find(0, "chars"), kLeft, kRight);
}

Values pairs(const Dict& dict) {
  Values items;
  for (const auto& [key, value] : dict.items) {
    items.emplace_back(Values{key, value}, Sequence::Kind::kTuple);
  }
  return items;
}

Value list_index(In self, Args arguments) {
  const Values& items = self.sequence()->items;
  const auto found =
      std::ranges::find_if(items, [&](In item) { return equals(item, only(arguments)); });
  if (found == items.end()) {
    fail("{} is not in {}", printable(to_json(only(arguments), {}).utf8(), 60),
         printable(to_json(self, {}).utf8(), 60));
  }
  return static_cast<size_t>(found - items.begin());
}

Value dict_get(In self, Args arguments) {
  if (arguments.positional.empty() || !arguments.named.empty()) {
    fail("get() takes a key and a default");
  }
  arguments.check({"key", "default"});
  const Value* found = self.dict()->find(arguments.positional[0]);
  return found != nullptr ? *found : argument(arguments, 1, "default", None{});
}

Value dict_values(In self, Args arguments) {
  arguments.check({});
  Values values;
  for (const auto& item : self.dict()->items) {
    values.push_back(item.second);
  }
  return Value(std::move(values), Sequence::Kind::kView);
}

const Table& text_methods() {
  static const Table methods = {
      {"capitalize", case_method<capitalize>},
      {"count",
       [](In self, Args args) { return Value(count(text_of(self), only(args).string())); }},
      {"endswith",
       [](In self, Args args) { return Value(has_affix(text_of(self), only(args), true)); }},
      {"find",
       [](In self, Args args) {
         const size_t found = find(text_of(self), only(args).string("the text to find"), 0);
         return found == std::string::npos ? Value(-1) : Value(found);
       }},
      {"isdigit",
       [](In self, Args args) {
         args.check({});
         return Value(text_of(self).size() > 0 &&
                      std::ranges::all_of(text_of(self).chars, [](const Char& one) {
                        if (one.code > 0x7F) {
                          refuse("isdigit() of such a character");
                        }
                        return one.code >= '0' && one.code <= '9';
                      }));
       }},
      {"join", [](In self, Args args) { return join(text_of(self), iterate(only(args))); }},
      {"lower", case_method<lower>},
      {"lstrip", strip_method<true, false>},
      {"replace",
       [](In self, Args args) {
         return args.named.empty() ? replace(text_of(self), args)
                                   : (fail("replace() takes no named arguments"), Value());
       }},
      {"rstrip", strip_method<false, true>},
      {"split", split},
      {"startswith",
       [](In self, Args args) { return Value(has_affix(text_of(self), only(args), false)); }},
      {"strip", strip_method<true, true>},
      {"title", case_method<title>},
      {"upper", case_method<upper>}};
  return methods;
}

const Table& list_methods() {
  static const Table methods = {
      {"count",
       [](In self, Args args) {
         return Value(static_cast<size_t>(std::ranges::count_if(
             self.sequence()->items, [&](In item) { return equals(item, only(args)); })));
       }},
      {"index", list_index}};
  return methods;
}

const Table& dict_methods() {
  static const Table methods = {
      {"get", dict_get},
      {"items", [](In self, Args) { return Value(pairs(*self.dict()), Sequence::Kind::kView); }},
      {"keys", [](In self, Args) { return Value(iterate(self), Sequence::Kind::kView); }},
      {"values", dict_values}};
  return methods;
}

// Python's other attributes, which a template could use.
constexpr std::string_view kOtherTextMethods =
    " casefold center encode expandtabs format format_map index isalnum isalpha isascii isdecimal "
    "isidentifier islower isnumeric isprintable isspace istitle isupper ljust maketrans partition "
    "removeprefix removesuffix rfind rindex rjust rpartition rsplit splitlines swapcase translate "
    "zfill ";
constexpr std::string_view kOtherListMethods =
    " append clear copy extend insert pop remove reverse sort start stop step ";
constexpr std::string_view kOtherDictMethods =
    " clear copy fromkeys pop popitem setdefault update mapping isdisjoint ";
constexpr std::string_view kNumberAttributes =
    " as_integer_ratio bit_count bit_length conjugate denominator from_bytes fromhex hex imag "
    "is_integer numerator real to_bytes ";

// --- filters ---

// Returns the value at the path "a.b.0" of `attribute`, or at an integer; `value` if there is no
// attribute.
Value get_path(In value, const Value* attribute) {
  if (attribute == nullptr || attribute->is_none()) {
    return value;
  }
  if (attribute->text() == nullptr) {
    return get_item(value, attribute->integer("attribute"));
  }
  Value found = value;
  const std::string path = text_of(*attribute).utf8();
  if (path.find(',') != std::string::npos) {
    refuse("several attributes");
  }
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('.', begin), path.size());
    const std::string part = path.substr(begin, end - begin);
    const bool is_number = !part.empty() && part.size() < 10 &&
                           part.find_first_not_of("0123456789") == std::string::npos;
    found = get_item(found, is_number ? Value(std::stoi(part)) : Value(part));
    begin = end + 1;
  }
  return found;
}

// Returns what the items are compared by: their attribute, strings without their case.
Values sort_keys(const Values& items, const Value* attribute, bool case_sensitive) {
  Values keys;
  for (In item : items) {
    const Value key = get_path(item, attribute);
    keys.push_back(!case_sensitive && key.text() != nullptr ? Value(lower(text_of(key))) : key);
  }
  return keys;
}

Value sorted(const Values& items, const Values& keys, const Value* reverse_flag) {
  const bool reverse = reverse_flag != nullptr && reverse_flag->integer("reverse") != 0;
  std::vector<size_t> order(items.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, [&](size_t a, size_t b) {
    const int sign = equals(keys[a], keys[b]) ? 0 : compare(keys[a], keys[b]);
    return reverse ? sign > 0 : sign < 0;
  });
  Values result;
  for (const size_t i : order) {
    result.push_back(items[i]);
  }
  return result;
}

Value sort_filter(In value, Args arguments) {
  arguments.check({"reverse", "case_sensitive", "attribute"});
  const Values items = iterate(value);
  return sorted(
      items, sort_keys(items, arguments.find(2, "attribute"), arguments.flag(1, "case_sensitive")),
      arguments.find(0, "reverse"));
}

Value dictsort_filter(In value, Args arguments) {
  arguments.check({"case_sensitive", "by", "reverse"});
  if (value.dict() == nullptr) {
    fail("dictsort of a {}", type_name(value));
  }
  const std::string by = argument(arguments, 1, "by", "key").string("by").utf8();
  if (by != "key" && by != "value") {
    fail("dictsort: by must be 'key' or 'value'");
  }
  const Values items = pairs(*value.dict());
  const Value position = by == "key" ? 0 : 1;
  return sorted(items, sort_keys(items, &position, arguments.flag(0, "case_sensitive")),
                arguments.find(2, "reverse"));
}

Value unique_filter(In value, Args arguments) {
  arguments.check({"case_sensitive", "attribute"});
  const Values items = iterate(value);
  const Values keys =
      sort_keys(items, arguments.find(1, "attribute"), arguments.flag(0, "case_sensitive"));
  Values kept;
  for (size_t i = 0; i < items.size(); ++i) {
    if (keys[i].dict() != nullptr || type_name(keys[i]) == "list") {
      fail("unique of a {}", type_name(keys[i]));
    }
    if (std::none_of(keys.begin(), keys.begin() + static_cast<std::ptrdiff_t>(i),
                     [&](In key) { return equals(key, keys[i]); })) {
      kept.push_back(items[i]);
    }
  }
  return Value(std::move(kept), Sequence::Kind::kIterator);
}

template <int kSign>
Value extreme_filter(In value, Args arguments) {
  arguments.check({"case_sensitive", "attribute"});
  const Values items = iterate(value);
  const Values keys =
      sort_keys(items, arguments.find(1, "attribute"), arguments.flag(0, "case_sensitive"));
  size_t best = 0;
  for (size_t i = 1; i < items.size(); ++i) {
    best = compare(keys[i], keys[best]) * kSign > 0 ? i : best;
  }
  return items.empty() ? Value(Undefined{"the sequence is empty"}) : items[best];
}

// Removes and returns the first argument, the name of `what`.
Value take(Arguments& arguments, std::string_view what) {
  if (arguments.positional.empty()) {
    fail("{} is missing", what);
  }
  Value first = std::move(arguments.positional.front());
  arguments.positional.erase(arguments.positional.begin());
  return first;
}

Value map_filter(In value, Args arguments) {
  Values mapped;
  Arguments rest = arguments;
  const Value* attribute = arguments.find(SIZE_MAX, "attribute");
  const std::string name =
      attribute != nullptr || !is_true(value) ? "" : take(rest, "the filter").string().utf8();
  for (In item : is_true(value) ? iterate(value) : Values()) {
    Value found = attribute != nullptr ? get_path(item, attribute) : apply_filter(name, item, rest);
    mapped.push_back(attribute != nullptr && found.is_undefined()
                         ? argument(arguments, SIZE_MAX, "default", std::move(found))
                         : std::move(found));
  }
  return Value(std::move(mapped), Sequence::Kind::kIterator);
}

// select, reject, selectattr, rejectattr: keeps the items whose test is `kWanted`.
template <bool kWanted, bool kByAttribute>
Value select_filter(In value, Args arguments) {
  Arguments rest = arguments;
  const Value attribute = kByAttribute ? take(rest, "the attribute") : Value(None{});
  const std::string name =
      rest.positional.empty() ? "" : take(rest, "the test").string("the test").utf8();
  const Test test = find_test(name);
  if (!name.empty() && test == nullptr) {
    refuse("the test '{}'", printable(name, 40));
  }
  Values kept;
  for (In item : is_true(value) ? iterate(value) : Values()) {
    const Value tested = get_path(item, &attribute);
    if ((test == nullptr ? is_true(tested) : test(tested, rest)) == kWanted) {
      kept.push_back(item);
    }
  }
  return Value(std::move(kept), Sequence::Kind::kIterator);
}

Value join_filter(In value, Args arguments) {
  arguments.check({"d", "attribute"});
  Values texts;
  for (In item : iterate(value)) {
    texts.emplace_back(to_text(get_path(item, arguments.find(1, "attribute"))));
  }
  return join(to_text(argument(arguments, 0, "d", "")), texts);
}

Value default_filter(In value, Args arguments) {
  arguments.check({"default_value", "boolean"});
  const bool is_replaced =
      value.is_undefined() || (arguments.flag(1, "boolean") && !is_true(value));
  return is_replaced ? argument(arguments, 0, "default_value", "") : value;
}

// Returns a number, or the number that a whole string is; nothing if it is none.
template <typename Number>
std::optional<Number> read_number(In value, Number (*parse)(const char*, char**)) {
  if (value.defined().text() == nullptr) {
    return value.is_number() ? std::optional(static_cast<Number>(value.number())) : std::nullopt;
  }
  const Text text = strip(text_of(value), nullptr, true, true);
  const std::string bytes = text.utf8();
  const bool has_other = std::ranges::any_of(text.chars, [](const Char& one) {
    return one.code > 0x7F &&
           utf8proc_category(static_cast<utf8proc_int32_t>(one.code)) == UTF8PROC_CATEGORY_ND;
  });
  if (has_other || (bytes.find('_') != std::string::npos &&
                    bytes.find_first_of("0123456789") != std::string::npos)) {
    refuse("reading '{}' as a number", printable(bytes, 40));
  }
  if (bytes.size() < 10 && bytes.find_first_of("nN") != std::string::npos &&
      std::isnan(std::strtod(bytes.c_str(), nullptr) * 0)) {
    refuse("the number '{}'", bytes);
  }
  char* end = nullptr;
  const Number number = parse(bytes.c_str(), &end);
  return bytes.empty() || *end != '\0' ||
                 bytes.find_first_not_of("0123456789+-.eE") != std::string::npos
             ? std::nullopt
             : std::optional(number);
}

Value int_filter(In value, Args arguments) {
  arguments.check({"default", "base"});
  if (arguments.find(1, "base") != nullptr) {
    refuse("int with a base");
  }
  if (value.is_number() && !value.is<double>()) {
    return value.integer();
  }
  const auto real = read_number<double>(value, std::strtod);
  if (real && std::abs(*real) >= 0x1p53) {
    refuse("an integer beyond 2^53");
  }
  return real ? Value(static_cast<int64_t>(*real)) : argument(arguments, 0, "default", 0);
}

Value float_filter(In value, Args arguments) {
  arguments.check({"default"});
  const auto real = read_number<double>(value, std::strtod);
  return real ? Value(*real) : argument(arguments, 0, "default", 0.0);
}

Value sum_filter(In value, Args arguments) {
  arguments.check({"attribute", "start"});
  Value sum = argument(arguments, 1, "start", 0);
  for (In item : iterate(value)) {
    const Value term = get_path(item, arguments.find(0, "attribute"));
    if (term.text() != nullptr) {
      fail("sum of strings");
    }
    sum = arithmetic("+", sum, term);
  }
  return sum;
}

Value abs_filter(In value, Args) {
  return value.is<double>()    ? Value(std::abs(value.number()))
         : value.integer() < 0 ? arithmetic("-", 0, value)
                               : Value(value.integer());
}

Value first_filter(In value, Args arguments) {
  arguments.check({});
  Values items = iterate(value);
  const Value first = items.empty() ? Value(Undefined{"the sequence is empty"}) : items.front();
  if (type_name(value) == "iterator" && !items.empty()) {
    value.sequence()->items.assign(items.begin() + 1, items.end());  // it took one
  }
  return first;
}

Value last_filter(In value, Args arguments) {
  arguments.check({});
  if (type_name(value) == "iterator") {
    fail("an iterator is not reversible");
  }
  const Values items = iterate(value);
  return items.empty() ? Value(Undefined{"the sequence is empty"}) : items.back();
}

Value reverse_filter(In value, Args arguments) {
  arguments.check({});
  if (value.text() != nullptr) {
    return get_slice(value, None{}, None{}, -1);
  }
  const bool is_iterator = type_name(value) == "iterator";
  Values items = iterate(value);
  std::ranges::reverse(items);
  return Value(std::move(items), is_iterator ? Sequence::Kind::kList : Sequence::Kind::kIterator);
}

Value items_filter(In value, Args arguments) {
  arguments.check({});
  if (value.dict() == nullptr && !value.is_undefined()) {
    fail("items of a {}", type_name(value));
  }
  return Value(value.is_undefined() ? Values() : pairs(*value.dict()), Sequence::Kind::kIterator);
}

Value safe_filter(In value, Args) {
  Text text = to_text(value);
  text.is_safe = true;
  return text;
}

template <Text (*kChange)(const Text&)>
Value case_filter(In value, Args arguments) {
  arguments.check({});
  return kChange(to_text(value));
}

const Table& filters() {
  static constexpr Function1 kLength = [](In value, Args) { return Value(length(value)); };
  static const Table all = {
      {"abs", abs_filter},
      {"capitalize", case_filter<capitalize>},
      {"count", kLength},
      {"d", default_filter},
      {"default", default_filter},
      {"dictsort", dictsort_filter},
      {"first", first_filter},
      {"float", float_filter},
      {"indent", indent},
      {"int", int_filter},
      {"items", items_filter},
      {"join", join_filter},
      {"last", last_filter},
      {"length", kLength},
      {"list", [](In value, Args) { return Value(iterate(value)); }},
      {"lower", case_filter<lower>},
      {"map", map_filter},
      {"max", extreme_filter<1>},
      {"min", extreme_filter<-1>},
      {"reject", select_filter<false, false>},
      {"rejectattr", select_filter<false, true>},
      {"replace",
       [](In value, Args args) {
         Arguments texts = args;
         for (size_t i = 0; i < std::min<size_t>(2, texts.positional.size()); ++i) {
           texts.positional[i] = to_text(texts.positional[i]);
         }
         return replace(to_text(value), texts);
       }},
      {"reverse", reverse_filter},
      {"safe", safe_filter},
      {"select", select_filter<true, false>},
      {"selectattr", select_filter<true, true>},
      {"sort", sort_filter},
      {"string", [](In value, Args) { return Value(to_text(value)); }},
      {"sum", sum_filter},
      {"title", case_filter<title_of_words>},
      {"tojson", [](In value, Args args) { return Value(to_json(value, args)); }},
      {"trim",
       [](In value, Args args) {
         args.check({"chars"});
         return Value(strip(to_text(value), args.find(0, "chars"), true, true));
       }},
      {"unique", unique_filter},
      {"upper", case_filter<upper>}};
  return all;
}

bool is_any_of(In value, std::initializer_list<std::string_view> types) {
  return std::ranges::find(types, type_name(value)) != types.end();
}

bool holds_object(In value) {
  const auto in_pair = [](const auto& item) { return holds_object(item.second); };
  return value.object() != nullptr ||
         (value.sequence() != nullptr &&
          std::ranges::any_of(value.sequence()->items, holds_object)) ||
         (value.dict() != nullptr && std::ranges::any_of(value.dict()->items, in_pair));
}

class Namespace : public Object {
 public:
  Value attribute(const std::string& name) override {
    const Value* found = values_.find(Value(name));
    return found != nullptr ? *found : Object::attribute(name);
  }
  void set_attribute(const std::string& name, Value value) override {
    if (holds_object(value)) {
      refuse("a function in a namespace");  // it could outlive its loop, or own itself
    }
    values_.set(Value(name), std::move(value));
  }

 private:
  Dict values_;
};

Value range(Args arguments) {
  if (arguments.positional.empty() || arguments.positional.size() > 3 || !arguments.named.empty()) {
    fail("range() takes one to three integers");
  }
  int64_t bounds[3] = {0, 0, 1};
  for (size_t i = 0; i < arguments.positional.size(); ++i) {
    bounds[arguments.positional.size() == 1 ? 1 : i] = arguments.positional[i].integer("a bound");
  }
  const auto [begin, end, step] = bounds;
  if (step == 0) {
    fail("range() with a step of zero");
  }
  constexpr size_t kMaxItems = 100'000;  // of jinja2's sandbox
  Values items;
  int64_t i = begin;
  for (bool overflows = false; !overflows && (step > 0 ? i < end : i > end);
       overflows = __builtin_add_overflow(i, step, &i)) {
    if (items.size() == kMaxItems) {
      fail("range() of more than {} integers", kMaxItems);
    }
    items.emplace_back(i);
  }
  return Value(std::move(items), Sequence::Kind::kRange);
}

}  // namespace

bool has_filter(std::string_view name) { return filters().contains(name); }

Value apply_filter(const std::string& name, In value, Args arguments) {
  const auto found = filters().find(name);
  const bool is_safe = value.text() != nullptr && text_of(value).is_safe;
  if (found == filters().end() ||
      (is_safe && name != "safe" && name != "string" && name != "length")) {
    refuse("the filter '{}'{}", printable(name, 40), is_safe ? " of a safe string" : "");
  }
  return found->second(value, arguments);
}

Test find_test(std::string_view name) {
  static constexpr Test kEquals = [](In value, Args args) { return equals(value, only(args)); };
  static const std::map<std::string_view, Test> tests = {
      {"boolean", [](In value, Args) { return value.is<bool>(); }},
      {"defined", [](In value, Args) { return !value.is_undefined(); }},
      {"eq", kEquals},
      {"equalto", kEquals},
      {"even", [](In value, Args) { return std::fmod(value.number(), 2.0) == 0.0; }},
      {"false", [](In value, Args) { return value.is<bool>() && !is_true(value); }},
      {"float", [](In value, Args) { return value.is<double>(); }},
      {"in", [](In value, Args args) { return contains(only(args), value); }},
      {"integer", [](In value, Args) { return value.is<int64_t>(); }},
      {"iterable",
       [](In value, Args) {
         return value.text() || value.sequence() || value.dict() || value.is_undefined();
       }},
      {"mapping", [](In value, Args) { return value.dict() != nullptr; }},
      {"ne", [](In value, Args args) { return !equals(value, only(args)); }},
      {"none", [](In value, Args) { return value.is_none(); }},
      {"number", [](In value, Args) { return value.is_number(); }},
      {"odd", [](In value, Args) { return std::abs(std::fmod(value.number(), 2.0)) == 1.0; }},
      {"sequence",
       [](In value, Args) {
         return is_any_of(value, {"str", "dict", "list", "tuple", "range", "undefined value"});
       }},
      {"string", [](In value, Args) { return value.text() != nullptr; }},
      {"true", [](In value, Args) { return value.is<bool>() && is_true(value); }},
      {"undefined", [](In value, Args) { return value.is_undefined(); }}};
  const auto found = tests.find(name);
  return found == tests.end() ? nullptr : found->second;
}

std::optional<Value> find_method(In value, const std::string& name) {
  static const Table none;
  const Sequence* list = value.sequence();
  const Table& methods = value.text() != nullptr               ? text_methods()
                         : value.dict() != nullptr             ? dict_methods()
                         : list != nullptr && list->is_plain() ? list_methods()
                                                               : none;
  const std::string_view others = value.text() != nullptr   ? kOtherTextMethods
                                  : value.dict() != nullptr ? kOtherDictMethods
                                  : list != nullptr         ? kOtherListMethods
                                                            : kNumberAttributes;
  const bool is_safe = value.text() != nullptr && text_of(value).is_safe;
  const auto found = methods.find(name);
  if ((others.find(" " + name + " ") != std::string_view::npos && !value.is_none()) ||
      (is_safe && found != methods.end())) {
    refuse("'{}' of a {}{}", printable(name, 40), is_safe ? "safe " : "", type_name(value));
  }
  if (found == methods.end()) {
    return std::nullopt;
  }
  return make_function([value, method = found->second](Args args) { return method(value, args); });
}

void define_globals(Dict& globals) {
  const auto define = [&](const char* name, Value (*body)(Args)) {
    globals.items.emplace_back(name, make_function(body));
  };
  define("range", range);
  define("namespace", [](Args arguments) {
    arguments.positional.empty() ? void() : refuse("namespace() of a dict");
    const auto made = std::make_shared<Namespace>();
    for (const auto& [name, value] : arguments.named) {
      made->set_attribute(name, value);
    }
    return Value(made);
  });
  define("raise_exception", [](Args arguments) -> Value {
    fail("the template refuses this: {}", to_text(argument(arguments, 0, "message", "")).utf8());
  });
  for (const char* name : {"cycler", "dict", "joiner", "lipsum"}) {
    define(name, [](Args) -> Value { refuse("a global function of jinja2"); });
  }
}

}  // namespace moe::jinja
