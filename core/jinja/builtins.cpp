// Filters, tests, methods and global functions.

#include <utf8proc.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <sstream>

#include "core/base/text.h"
#include "core/jinja/value.h"

namespace moe::jinja {

namespace {

using Pairs = std::vector<std::pair<Value, Value>>;

// A call of a builtin.
struct Call {
  In self;                                // the value that a filter, test or method is applied to
  const Arguments& arguments;             // as given
  const std::vector<const Value*> bound;  // by parameter
  // Returns argument i, or none.
  Value operator[](size_t i) const { return get(i, None{}); }
  Value get(size_t i, Value fallback) const { return bound[i] ? *bound[i] : std::move(fallback); }
  const Text& text() const { return self.string(); }
};
using C = const Call&;

Value undefined_item() { return Undefined{"the sequence is empty"}; }
Value as_iterator(Values items) { return {std::move(items), Sequence::Kind::kIterator}; }
Value as_view(Values items) { return {std::move(items), Sequence::Kind::kView}; }

enum class Case { kUpper, kLower, kTitle };

// Changes the case of a character. Refuses mappings to several characters or by context.
Char change_case(const Char& one, Case wanted) {
  static constexpr std::u32string_view kSpecial =
      U"\u00DF\u0130\u0149\u01F0\u0390\u03A3\u03B0\u0587";
  const char32_t code = one.code;
  if (kSpecial.find(code) != kNowhere || (code >= 0x1E96 && code <= 0x1E9E) ||
      (code >= 0x1F50 && code <= 0x1FFF) || (code >= 0xFB00 && code <= 0xFB17)) {
    refuse("the case of '{}'", Text(std::vector<Char>{one}).utf8());
  }
  const auto number = static_cast<utf8proc_int32_t>(code);
  const auto changed = wanted == Case::kUpper   ? utf8proc_toupper(number)
                       : wanted == Case::kLower ? utf8proc_tolower(number)
                                                : utf8proc_totitle(number);
  return {static_cast<char32_t>(changed), one.source, one.is_generated};
}

// Converts the first character and those after ends_word() to case `first`, others to `rest`.
Text with_case(const Text& text, Case first, Case rest, bool (*ends_word)(char32_t) = nullptr) {
  Text result;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool is_first = i == 0 || (ends_word && ends_word(text.chars[i - 1].code));
    result.chars.push_back(change_case(text.chars[i], is_first ? first : rest));
  }
  return result;
}
Text upper(C c) { return with_case(to_text(c.self), Case::kUpper, Case::kUpper); }
Text lower(C c) { return with_case(to_text(c.self), Case::kLower, Case::kLower); }
Text capitalize(C c) { return with_case(to_text(c.self), Case::kTitle, Case::kLower); }
// str.title(): a word begins after any character that is not a cased letter.
Text title(C c) {
  return with_case(c.text(), Case::kTitle, Case::kLower, [](char32_t before) {
    const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(before));
    return category != UTF8PROC_CATEGORY_LU && category != UTF8PROC_CATEGORY_LL &&
           category != UTF8PROC_CATEGORY_LT;
  });
}
// The filter `title`: a word begins after white space and any of -({[<.
Text title_of_words(C c) {
  return with_case(to_text(c.self), Case::kUpper, Case::kLower, [](char32_t before) {
    return is_space(before) || std::u32string_view(U"-({[<").find(before) != kNowhere;
  });
}

// Replaces the first `limit` occurrences of `from`, or all if `limit` is none or negative.
Text replace(const Text& text, const Text& from, const Text& to, In limit) {
  Text result;
  size_t begin = 0;
  for (int64_t left = limit.is_none() ? -1 : limit.integer("count"); left != 0; --left) {
    const size_t found = begin > text.size() ? kNowhere : text.find(from, begin);
    if (found == kNowhere) {
      break;
    }
    result.append(text.slice(begin, found));
    result.append(to);
    begin = found + from.size();
    if (from.size() == 0) {  // before each character and at the end
      result.append(text.slice(begin, std::min(begin + 1, text.size())));
      ++begin;
    }
  }
  result.append(text.slice(std::min(begin, text.size()), text.size()));
  return result;
}

Value split(C c) {
  const Text& text = c.text();
  const bool by_space = c[0].is_none();
  const Text mark = by_space ? Text() : c[0].string("the separator");
  fail_if(!by_space && mark.size() == 0, "split() with an empty separator");
  const int64_t limit = c.get(1, -1).integer("maxsplit");
  const auto skip = [&](size_t at, bool spaces) {
    while (at < text.size() && is_space(text.chars[at].code) == spaces) {
      ++at;
    }
    return at;
  };
  Values parts;
  for (size_t begin = 0, end = 0;; begin = end + mark.size()) {
    begin = by_space ? skip(begin, true) : begin;
    if (by_space && begin == text.size()) {
      return parts;
    }
    const bool is_full = static_cast<int64_t>(parts.size()) == limit;
    end = is_full ? text.size() : by_space ? skip(begin, false) : text.find(mark, begin);
    end = std::min(end, text.size());
    parts.emplace_back(text.slice(begin, end));
    if (end == text.size()) {
      return parts;
    }
  }
}
Text join(const Text& separator, const Values& items) {
  Text result;
  for (size_t i = 0; i < items.size(); ++i) {
    result.append(i == 0 ? Text() : separator);
    result.append(items[i].string("an item of join()"));
  }
  return result;
}

Text indent(C c) {
  static constexpr std::u32string_view kLineEnds = U"\n\v\f\r\u001C\u001D\u001E\u0085\u2028\u2029";
  const Value width = c.get(0, 4);
  const Text space =
      width.text() ? *width.text()
                   : Text(std::string(std::clamp<int64_t>(width.integer("width"), 0, 1000), ' '));
  Text text = c.text();
  text.append(Text("\n"));
  const auto ends_line = [&](size_t i) { return kLineEnds.find(text.chars[i].code) != kNowhere; };
  Text result = is_true(c[1]) ? space : Text();
  for (size_t i = 0; i < text.size(); ++i) {
    if (!ends_line(i)) {
      result.chars.push_back(text.chars[i]);
      continue;
    }
    i += text.chars[i].code == '\r' && text.chars[i + 1].code == '\n' ? 1 : 0;
    if (i + 1 < text.size()) {
      result.append(Text("\n"));
      result.append(is_true(c[2]) || !ends_line(i + 1) ? space : Text());
    }
  }
  return result;
}

bool has_affix(const Text& text, In affix, bool at_end) {
  refuse_if(affix.sequence() != nullptr, "a tuple of prefixes or suffixes");
  const size_t size = affix.string("the prefix or suffix").size(), all = text.size();
  return size <= all &&
         text.slice(at_end ? all - size : 0, at_end ? all : size).chars == affix.text()->chars;
}

Values as_tuples(const Pairs& pairs) {
  Values items;
  for (const auto& [key, value] : pairs) {
    items.emplace_back(Values{key, value}, Sequence::Kind::kTuple);
  }
  return items;
}
Values second_items(const Pairs& pairs) {
  Values items;
  for (const auto& pair : pairs) {
    items.push_back(pair.second);
  }
  return items;
}
int64_t count_items(C c) {
  return std::ranges::count_if(c.self.sequence()->items,
                               [&](In item) { return equals(item, c[0]); });
}
int64_t index_of(C c) {
  const Values& items = c.self.sequence()->items;
  const auto found = std::ranges::find_if(items, [&](In item) { return equals(item, c[0]); });
  const auto shown = [](In value) { return printable(to_json(value, {}).utf8(), 60); };
  found == items.end() ? fail("{} is not in {}", shown(c[0]), shown(c.self)) : void();
  return found - items.begin();
}

// Returns the item of `value` at `attribute`, a path "a.b.0" or an integer, or else `fallback`.
Value get_path(In value, In attribute, In fallback = None{}) {
  if (attribute.is_none()) {
    return value;
  }
  const std::string path =
      attribute.text() ? attribute.text()->utf8() : std::to_string(attribute.integer("attribute"));
  refuse_if(path.find(',') != kNowhere || path.starts_with('-'), "such an attribute");
  Value found = value;
  for (size_t begin = 0, end = 0; begin <= path.size(); begin = end + 1) {
    end = std::min(path.find('.', begin), path.size());
    const std::string part = path.substr(begin, end - begin);
    const bool is_number =
        !part.empty() && part.size() < 10 && part.find_first_not_of("0123456789") == kNowhere;
    found = get_item(found, is_number ? Value(std::stoi(part)) : Value(part));
    found = found.is_undefined() && !fallback.is_none() ? fallback : found;
  }
  return found;
}

// Returns pairs of sort key (an attribute, strings in lower case) and item.
Pairs with_keys(const Values& items, In attribute, In case_sensitive) {
  Pairs pairs;
  for (In item : items) {
    const Value key = get_path(item, attribute);
    const bool is_lowered = !is_true(case_sensitive) && key.text() != nullptr;
    pairs.emplace_back(is_lowered ? with_case(*key.text(), Case::kLower, Case::kLower) : key, item);
  }
  return pairs;
}
Value sorted(Pairs pairs, In reverse) {
  const bool descends = reverse.integer("reverse") != 0;
  std::ranges::stable_sort(pairs, [&](const auto& a, const auto& b) {
    const int sign = equals(a.first, b.first) ? 0 : compare(a.first, b.first);
    return descends ? sign > 0 : sign < 0;
  });
  return second_items(pairs);
}
template <int kSign>
Value extreme(C c) {
  const Pairs pairs = with_keys(iterate(c.self), c[1], c[0]);
  size_t best = 0;
  for (size_t i = 1; i < pairs.size(); ++i) {
    best = compare(pairs[i].first, pairs[best].first) * kSign > 0 ? i : best;
  }
  return pairs.empty() ? undefined_item() : pairs[best].second;
}

// Removes and returns the first argument.
Value take(Arguments& arguments) {
  fail_if(arguments.positional.empty(), "an argument is missing");
  Value first = std::move(arguments.positional.front());
  arguments.positional.erase(arguments.positional.begin());
  return first;
}
Value map(C c) {
  Values items = is_true(c.self) ? iterate(c.self) : Values();
  Arguments rest = c.arguments;
  if (rest.positional.empty()) {
    const std::vector<const Value*> given = rest.bind({"attribute", "default"});
    refuse_if(given[0] == nullptr, "map() without a filter and an attribute");
    for (Value& item : items) {
      item = get_path(item, *given[0], given[1] != nullptr ? *given[1] : None{});
    }
  } else {
    const std::string filter = "|" + take(rest).string("the filter").utf8();
    for (Value& item : items) {
      item = call_builtin(filter, item, rest);
    }
  }
  return as_iterator(std::move(items));
}

// select, reject, selectattr, rejectattr: keeps the items whose test is `kWanted`.
template <bool kWanted, bool kByAttribute>
Value select(C c) {
  Arguments rest = c.arguments;
  const Value attribute = kByAttribute ? take(rest) : None{};
  const std::string test = rest.positional.empty() ? "" : take(rest).string("the test").utf8();
  Values items = is_true(c.self) ? iterate(c.self) : Values();
  std::erase_if(items, [&](In item) {
    const Value tested = get_path(item, attribute);
    return is_true(test.empty() ? tested : call_builtin("?" + test, tested, rest)) != kWanted;
  });
  return as_iterator(std::move(items));
}
Value default_filter(C c) {
  return c.self.is_undefined() || (is_true(c[1]) && !is_true(c.self)) ? c.get(0, "") : c.self;
}

// Converts a number or a string to a float. Returns `fallback` for other values.
Value read_number(In value, In fallback) {
  if (value.defined().text() == nullptr) {
    return value.is_number() ? Value(value.number()) : fallback;
  }
  const std::string bytes = strip(*value.text(), None{}, true, true).utf8();
  char* end = nullptr;
  const double number = std::strtod(bytes.c_str(), &end);
  const bool is_number = !bytes.empty() && end == bytes.data() + bytes.size();
  // Python also reads other digits, _ between digits, nan and inf.
  refuse_if(
      (is_number && !std::isfinite(number)) ||
          std::ranges::any_of(bytes, [](char byte) { return byte == '_' || (byte & 0x80) != 0; }),
      "reading '{}' as a number", printable(bytes, 40));
  const bool is_decimal = bytes.find_first_not_of("0123456789+-.eE") == kNowhere;
  return is_number && is_decimal ? Value(number) : fallback;
}
Value tojson(C c) {
  JsonStyle style;
  refuse_if(is_true(c[0]) || c[1].text() != nullptr,
            "tojson with ensure_ascii, or indented by a string,");
  if (!c[1].is_none()) {
    style.indent = std::clamp<int64_t>(c[1].integer("indent"), 0, 100);
    style.item_separator = Text(",");
  }
  if (!c[2].is_none()) {
    const Values separators = iterate(c[2]);
    fail_if(separators.size() != 2, "separators must be a pair of strings");
    style.item_separator = separators[0].string();
    style.key_separator = separators[1].string();
  }
  return to_json(c.self, style);
}
Value range(C c) {
  const bool has_begin = c.bound[1] != nullptr;
  const int64_t begin = has_begin ? c[0].integer("a bound") : 0,
                step = c.get(2, 1).integer("a step"), end = c[has_begin ? 1 : 0].integer("a bound");
  fail_if(step == 0, "range() with a step of zero");
  Values items;
  bool overflows = false;
  for (int64_t i = begin; !overflows && (step > 0 ? i < end : i > end);
       overflows = __builtin_add_overflow(i, step, &i)) {
    fail_if(items.size() == 100'000, "range() of more than 100000 integers");  // as in jinja2
    items.emplace_back(i);
  }
  return {std::move(items), Sequence::Kind::kRange};
}
Value refused_global(C) { refuse("a global function of jinja2"); }
// Returns true for values that have a length and items in Python.
bool is_collection(In value) {
  const Sequence* list = value.sequence();
  return value.text() || value.dict() || value.usable().is_undefined() ||
         (list != nullptr && list->kind <= Sequence::Kind::kRange);
}
template <typename Type>
bool is_type(C c) {
  return c.self.is<Type>();
}
bool is_equal(C c) { return equals(c.self, c[0]); }

// A builtin: the filter |NAME, the test ?NAME, the method TYPE.NAME or the global function NAME.
struct Builtin {
  std::function<Value(C)> body;
  Names parameters = {};
  size_t num_required = 0;
};

// Parameters follow the name. NAME= is optional, / is positional; with * the body reads arguments.
std::map<std::string, Builtin> make_table(
    std::initializer_list<std::pair<std::string_view, std::function<Value(C)>>> rows) {
  std::map<std::string, Builtin> table;
  for (const auto& [signature, body] : rows) {
    std::istringstream words{std::string(signature)};
    std::string word;
    words >> word;
    Builtin& made = table[word] = {body};
    while (words >> word) {
      made.num_required += word.ends_with('=') ? 0 : 1;
      made.parameters.push_back(word.substr(0, word.find('=')));
    }
  }
  return table;
}
const std::map<std::string, Builtin> kBuiltins = make_table(
    {{"|abs", [](C c) { return arithmetic(compare(c.self, 0) < 0 ? "-" : "+", 0, c.self); }},
     {"|capitalize", capitalize},
     {"|count", [](C c) { return length(c.self); }},
     {"|d default_value= boolean=", default_filter},
     {"|default default_value= boolean=", default_filter},
     {"|dictsort case_sensitive= by= reverse=",
      [](C c) {
        const Value by = c.get(1, "key");
        const bool by_key = equals(by, "key");
        fail_if(!c.self.dict() || (!by_key && !equals(by, "value")),
                "dictsort of a {}, or not by 'key' or 'value'", type_name(c.self));
        const Values items = as_tuples(c.self.dict()->items);
        return sorted(with_keys(items, by_key ? 0 : 1, c[0]), c.get(2, false));
      }},
     {"|first",
      [](C c) {
        Values items = iterate(c.self);
        const Value first = items.empty() ? undefined_item() : items.front();
        if (c.self.is_iterator() && !items.empty()) {
          c.self.sequence()->items.assign(items.begin() + 1, items.end());  // keeps the rest
        }
        return first;
      }},
     {"|float default=", [](C c) { return read_number(c.self, c.get(0, 0.0)); }},
     {"|indent width= first= blank=", indent},
     {"|int default=",
      [](C c) {
        const bool is_integer = c.self.is_number() && !c.self.is<double>();
        const Value number = is_integer ? Value(c.self.integer()) : read_number(c.self, None{});
        refuse_if(number.is<double>() && !(std::abs(number.number()) < 0x1p53), "such an integer");
        return number.is_none()      ? c.get(0, 0)
               : number.is<double>() ? Value(static_cast<int64_t>(number.number()))
                                     : number;
      }},
     {"|items",
      [](C c) {
        const Dict* dict = c.self.dict();
        fail_if(!dict && !c.self.usable().is_undefined(), "items of a {}", type_name(c.self));
        return as_iterator(dict != nullptr ? as_tuples(dict->items) : Values());
      }},
     {"|join d= attribute=",
      [](C c) {
        Values items = iterate(c.self);
        for (Value& item : items) {
          item = to_text(get_path(item, c[1]));
        }
        return join(to_text(c.get(0, "")), items);
      }},
     {"|last",
      [](C c) {
        fail_if(c.self.is_iterator(), "an iterator is not reversible");
        const Values items = iterate(c.self);
        return items.empty() ? undefined_item() : items.back();
      }},
     {"|length", [](C c) { return length(c.self); }},
     {"|list", [](C c) { return iterate(c.self); }},
     {"|lower", lower},
     {"|map *", map},
     {"|max case_sensitive= attribute=", extreme<1>},
     {"|min case_sensitive= attribute=", extreme<-1>},
     {"|reject *", select<false, false>},
     {"|rejectattr *", select<false, true>},
     {"|replace old new count=",
      [](C c) { return replace(to_text(c.self), to_text(c[0]), to_text(c[1]), c[2]); }},
     {"|reverse",
      [](C c) {
        if (c.self.text() != nullptr) {
          return get_slice(c.self, None{}, None{}, -1);
        }
        const bool is_iterator = c.self.is_iterator();
        Values items = iterate(c.self);
        std::ranges::reverse(items);
        return is_iterator ? Value(std::move(items)) : as_iterator(std::move(items));
      }},
     {"|safe",
      [](C c) {
        Text text = to_text(c.self);
        text.is_safe = true;
        return text;
      }},
     {"|select *", select<true, false>},
     {"|selectattr *", select<true, true>},
     {"|sort reverse= case_sensitive= attribute=",
      [](C c) { return sorted(with_keys(iterate(c.self), c[2], c[1]), c.get(0, false)); }},
     {"|string", [](C c) { return to_text(c.self); }},
     {"|sum attribute= start=",
      [](C c) {
        Value sum = c.get(1, 0);
        fail_if(sum.text() != nullptr, "sum of strings");
        for (In item : iterate(c.self)) {
          sum = arithmetic("+", sum, get_path(item, c[0]));
        }
        return sum;
      }},
     {"|title", title_of_words},
     {"|tojson ensure_ascii= indent= separators=", tojson},
     {"|trim chars=", [](C c) { return strip(to_text(c.self), c[0], true, true); }},
     {"|unique case_sensitive= attribute=",
      [](C c) {
        Values kept, seen;
        for (const auto& pair : with_keys(iterate(c.self), c[1], c[0])) {
          In key = pair.first;
          fail_if(key.dict() || type_name(key) == "list", "unique of a {}", type_name(key));
          if (std::ranges::none_of(seen, [&](In other) { return equals(other, key); })) {
            kept.push_back(pair.second);
            seen.push_back(key);
          }
        }
        return as_iterator(std::move(kept));
      }},
     {"|upper", upper},
     {"?== /", is_equal},
     {"?boolean", is_type<bool>},
     {"?callable",
      [](C c) {
        return c.self.is_undefined() || (c.self.object() && !c.self.object()->is_namespace);
      }},
     {"?defined", [](C c) { return !c.self.is_undefined(); }},
     {"?eq /", is_equal},
     {"?equalto /", is_equal},
     {"?even", [](C c) { return std::fmod(c.self.number(), 2.0) == 0.0; }},
     {"?false", [](C c) { return c.self.is<bool>() && !is_true(c.self); }},
     {"?float", is_type<double>},
     {"?in /", [](C c) { return contains(c[0], c.self); }},
     {"?integer", is_type<int64_t>},
     {"?iterable", [](C c) { return c.self.sequence() || is_collection(c.self); }},
     {"?mapping", is_type<std::shared_ptr<Dict>>},
     {"?ne /", [](C c) { return !is_equal(c); }},
     {"?none", is_type<None>},
     {"?number", [](C c) { return c.self.is_number(); }},
     {"?odd", [](C c) { return std::abs(std::fmod(c.self.number(), 2.0)) == 1.0; }},
     {"?sequence", [](C c) { return is_collection(c.self); }},
     {"?string", is_type<std::shared_ptr<const Text>>},
     {"?true", [](C c) { return c.self.is<bool>() && is_true(c.self); }},
     {"?undefined", is_type<Undefined>},
     {"cycler *", refused_global},
     {"dict *", refused_global},
     {"dict.get / /=",
      [](C c) {
        const Value* found = c.self.dict()->find(c[0]);
        return found != nullptr ? *found : c[1];
      }},
     {"dict.items", [](C c) { return as_view(as_tuples(c.self.dict()->items)); }},
     {"dict.keys", [](C c) { return as_view(iterate(c.self)); }},
     {"dict.values", [](C c) { return as_view(second_items(c.self.dict()->items)); }},
     {"joiner *", refused_global},
     {"lipsum *", refused_global},
     {"list.count /", count_items},
     {"list.index /", index_of},
     {"namespace *",
      [](C c) {
        refuse_if(!c.arguments.positional.empty(), "namespace() of a dict");
        return Object{{}, {c.arguments.named.begin(), c.arguments.named.end()}, true};
      }},
     {"raise_exception message=",
      [](C c) -> Value { fail("the template refuses this: {}", to_text(c.get(0, "")).utf8()); }},
     {"range / /= /=", range},
     {"str.capitalize", capitalize},
     {"str.count /",
      [](C c) {
        const Text &text = c.text(), part = c[0].string();
        size_t times = part.size() == 0 ? text.size() + 1 : 0;
        for (size_t at = 0; part.size() > 0 && (at = text.find(part, at)) != kNowhere;
             at += part.size()) {
          ++times;
        }
        return times;
      }},
     {"str.endswith /", [](C c) { return has_affix(c.text(), c[0], true); }},
     {"str.find /", [](C c) { return static_cast<int64_t>(c.text().find(c[0].string())); }},
     {"str.join /", [](C c) { return join(c.text(), iterate(c[0])); }},
     {"str.lower", lower},
     {"str.lstrip /=", [](C c) { return strip(c.text(), c[0], true, false); }},
     {"str.replace / / /=",
      [](C c) { return replace(c.text(), c[0].string(), c[1].string(), c.get(2, -1)); }},
     {"str.rstrip /=", [](C c) { return strip(c.text(), c[0], false, true); }},
     {"str.split sep= maxsplit=", split},
     {"str.startswith /", [](C c) { return has_affix(c.text(), c[0], false); }},
     {"str.strip /=", [](C c) { return strip(c.text(), c[0], true, true); }},
     {"str.title", title},
     {"str.upper", upper},
     {"tuple.count /", count_items},
     {"tuple.index /", index_of}});

}  // namespace

bool has_builtin(const std::string& name) { return kBuiltins.contains(name); }

Value call_builtin(const std::string& name, In self, Args arguments) {
  const auto found = kBuiltins.find(name);
  const bool is_safe = self.text() && self.text()->is_safe && name[0] != '?' && name != "|safe" &&
                       name != "|string" && name != "|length";
  if (found == kBuiltins.end() || is_safe) {
    refuse("'{}' of a {}", printable(name, 40), is_safe ? "safe string" : type_name(self));
  }
  const auto& [body, parameters, num_required] = found->second;
  if (parameters == Names{"*"}) {
    return body({self, arguments, {}});
  }
  const Call call{self, arguments, arguments.bind(parameters)};
  fail_if(std::ranges::count(std::span(call.bound).first(num_required), nullptr) > 0,
          "an argument is missing");
  return body(call);
}

std::optional<Value> find_function(const std::string& name, In self) {
  return !has_builtin(name) ? std::nullopt
                            : std::optional(make_function([name, self](Args arguments) {
                                return call_builtin(name, self, arguments);
                              }));
}

}  // namespace moe::jinja
