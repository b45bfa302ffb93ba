#include <algorithm>
#include <cctype>

#include "core/base/text.h"
#include "core/jinja/syntax.h"

namespace moe::jinja {

namespace {

using Type = Token::Type;

bool is_name_byte(char byte) {
  return std::isalnum(static_cast<unsigned char>(byte)) != 0 || byte == '_';
}

// Splits a template into tokens, like jinja2.lexer.
class Lexer {
 public:
  Lexer(const std::string& source, const std::string& name, bool trims)
      : source_(source), name_(name), trims_(trims) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) {
      lex_data();
    }
    add(Type::kEof, "", at_);
    return std::move(tokens_);
  }

 private:
  void reject_if(bool condition, size_t at, const std::string& message) const {
    if (condition) {
      throw Unsupported("{}: {}", place(name_, source_, at), message);
    }
  }
  void add(Type type, std::string text, size_t at) {
    tokens_.push_back({type, std::move(text), at});
  }
  char byte(size_t at) const { return at < source_.size() ? source_[at] : '\0'; }
  bool has(std::string_view text, size_t at) const {
    return at < source_.size() && source_.compare(at, text.size(), text) == 0;
  }
  size_t skip_sign(size_t at) const { return at + (byte(at) == '-' || byte(at) == '+' ? 1 : 0); }
  size_t skip_digits(size_t at) const {
    return std::min(source_.find_first_not_of("0123456789", at), source_.size());
  }
  size_t skip_space(size_t at) const {
    for (size_t next = at; next < source_.size(); at = next) {
      if (!is_space(next_code_point(source_, next))) {
        return at;
      }
    }
    return at;
  }

  // Reads data and the tag after it.
  void lex_data() {
    static constexpr std::string_view kKinds = "{%#";
    const size_t begin = at_;
    size_t open = source_.find('{', begin);
    while (open != kNowhere && kKinds.find(byte(open + 1)) == kNowhere) {
      open = source_.find('{', open + 1);
    }
    if (open == kNowhere) {
      at_ = source_.size();
      return add(Type::kData, source_.substr(begin), begin);
    }
    const char kind = source_[open + 1];
    const size_t inside = skip_sign(open + 2);
    add_data(begin, open, kind == '{');
    if (kind == '#') {
      for (size_t at = inside; !finish_tag(at, "#}"); ++at) {
        reject_if(at >= source_.size(), open, "a comment {# without #}");
      }
      return;
    }
    if (kind == '%' && lex_raw(inside)) {
      return;
    }
    add(Type::kSymbol, source_.substr(open, 2), open);
    lex_tag(inside, kind == '{' ? "}}" : "%}");
  }

  // Adds the data before the tag at `open`. Strips it by the sign of the tag and lstrip_blocks.
  void add_data(size_t begin, size_t open, bool is_variable) {
    std::string data = source_.substr(begin, open - begin);
    if (byte(open + 2) == '-') {
      data = strip(Text(data), None{}, false, true).utf8();
    } else if (trims_ && byte(open + 2) != '+' && !is_variable) {
      const size_t line = data.rfind('\n') + 1;  // 0 without a line feed
      if ((line > 0 || begin == 0 || source_[begin - 1] == '\n') &&
          data.find_first_not_of(" \t", line) == kNowhere) {
        data.resize(line);
      }
    }
    if (!data.empty()) {
      add(Type::kData, data, begin);
    }
  }

  // Returns true if `close` is at `at`, and moves past it and the white space that it strips.
  bool finish_tag(size_t at, std::string_view close) {
    const bool is_block = close != "}}";
    const bool strips = byte(at) == '-', keeps = byte(at) == '+' && is_block;
    at += strips || keeps ? 1 : 0;
    if (!has(close, at)) {
      return false;
    }
    at += close.size();
    at_ = strips ? skip_space(at) : at + (trims_ && !keeps && is_block && has("\n", at) ? 1 : 0);
    return true;
  }

  // Reads {% raw %} ... {% endraw %}; `at` is after the first {%. Returns false for other tags.
  bool lex_raw(size_t at) {
    const size_t word = skip_space(at), close = skip_space(word + 3);
    if (!has("raw", word) || !(has("%}", close) || has("-%}", close))) {
      return false;
    }
    const size_t begin = source_[close] == '-' ? skip_space(close + 3) : close + 2;
    for (size_t open = source_.find("{%", begin);; open = source_.find("{%", open + 1)) {
      reject_if(open == kNowhere, at, "{% raw %} without {% endraw %}");
      const size_t name = skip_space(skip_sign(open + 2));
      if (has("endraw", name) && finish_tag(skip_space(name + 6), "%}")) {
        add_data(begin, open, false);
        return true;
      }
    }
  }

  void lex_tag(size_t at, std::string_view close) {
    static constexpr std::string_view kPairs[] = {"//", "==", "!=", ">=", "<="};
    static constexpr std::string_view kOperators = "([{)]}+-/*%~<>=.:|,";
    int depth = 0;  // of open brackets
    for (size_t begin = at; depth != 0 || !finish_tag(at, close); begin = at) {
      reject_if(at >= source_.size(), at, fmt::format("a tag without {}", close));
      if (at = skip_space(at); at > begin) {
        continue;
      }
      if (at = skip_digits(at); at > begin) {
        at = lex_number(begin);
      } else if (byte(at) == '\'' || byte(at) == '"') {
        at = lex_string(at);
      } else if (is_name_byte(byte(at))) {
        at = static_cast<size_t>(
            std::find_if_not(source_.begin() + at, source_.end(), is_name_byte) - source_.begin());
        add(Type::kName, source_.substr(begin, at - begin), begin);
      } else {
        const size_t found = kOperators.find(byte(at));
        const bool is_pair = std::ranges::count(kPairs, source_.substr(at, 2)) > 0;
        reject_if(found == kNowhere && !is_pair, at, "unexpected character");
        depth += found < 3 ? 1 : found < 6 ? -1 : 0;
        at += is_pair ? 2 : 1;
        add(Type::kSymbol, source_.substr(begin, at - begin), begin);
      }
    }
    add(Type::kSymbol, std::string(close), at);
  }

  size_t lex_number(size_t begin) {
    const size_t integer_end = skip_digits(begin);
    size_t end = integer_end;
    end = has(".", end) && skip_digits(end + 1) > end + 1 ? skip_digits(end + 1) : end;
    end = has("e", end) || has("E", end) ? skip_digits(skip_sign(end + 1)) : end;
    const std::string text = source_.substr(begin, end - begin);
    const bool is_float = end > integer_end;
    reject_if(is_name_byte(byte(end)) || text.find_last_of("0123456789") + 1 != text.size() ||
                  (!is_float && (text.size() > 18 || (text.size() > 1 && text[0] == '0'))),
              begin, "unsupported form of a number");
    add(is_float ? Type::kFloat : Type::kInteger, text, begin);
    return end;
  }

  size_t lex_string(size_t begin) {
    static constexpr std::string_view kLetters = "ntr\\'\"bf", kBytes = "\n\t\r\\'\"\b\f";
    std::string text;
    size_t at = begin + 1;
    for (; at < source_.size() && source_[at] != source_[begin]; ++at) {
      const bool escapes = source_[at] == '\\';
      const size_t letter = escapes ? kLetters.find(byte(++at)) : 0;
      reject_if(letter == kNowhere, at - 1, "unsupported escape sequence in a string");
      text += escapes ? kBytes[letter] : source_[at];
    }
    reject_if(at >= source_.size(), begin, "a string without closing quote");
    add(Type::kString, text, begin);
    return at + 1;
  }

  const std::string& source_;
  const std::string& name_;
  const bool trims_;
  std::vector<Token> tokens_;
  size_t at_ = 0;
};

}  // namespace

std::vector<Token> lex(const std::string& source, const std::string& name, bool trims) {
  return Lexer(source, name, trims).run();
}

std::string place(const std::string& name, std::string_view source, size_t at) {
  const std::string_view before = source.substr(0, at);
  const size_t line_begin = before.rfind('\n') + 1;
  return fmt::format("{} line {} column {}", name, std::ranges::count(before, '\n') + 1,
                     Text(before.substr(line_begin)).size() + 1);
}

}  // namespace moe::jinja
