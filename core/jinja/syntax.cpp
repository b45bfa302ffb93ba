#include "core/jinja/syntax.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <set>

#include "core/base/text.h"
#include "core/jinja/template.h"

namespace moe::jinja {

namespace {

using Kind = Node::Kind;

constexpr int kMaxTreeDepth = 150;
constexpr size_t kMaxSourceBytes = size_t{1} << 20;

struct Token {
  enum class Type { kData, kBegin, kEnd, kName, kInteger, kFloat, kString, kOperator, kEof };
  Type type = Type::kEof;
  std::string text;  // of kBegin and kEnd: "{%", "%}", "{{", "}}"
  size_t at = 0;
};

std::string normalize_lines(std::string_view text, bool drops_last) {
  std::string lines;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\r') {
      lines += '\n';
      i += i + 1 < text.size() && text[i + 1] == '\n' ? 1 : 0;
    } else {
      lines += text[i];
    }
  }
  if (drops_last && lines.ends_with('\n')) {
    lines.pop_back();
  }
  return lines;
}

bool is_name_byte(char byte) {
  return std::isalnum(static_cast<unsigned char>(byte)) != 0 || byte == '_';
}
bool is_digit(char byte) { return byte >= '0' && byte <= '9'; }

// Splits a template into tokens, as jinja2.lexer does.
class Lexer {
 public:
  Lexer(const std::string& source, const std::string& name, bool trims)
      : source_(source), name_(name), trims_(trims) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) {
      lex_data();
    }
    add(Token::Type::kEof, "", at_);
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void fail_at(size_t at, const std::string& message) const {
    throw Unsupported("{}: {}", place(name_, source_, at), message);
  }
  void add(Token::Type type, std::string text, size_t at) {
    tokens_.push_back({type, std::move(text), at});
  }
  bool has(std::string_view text, size_t at) const {
    return std::string_view(source_).substr(at).starts_with(text);
  }
  size_t skip_space(size_t at) const {
    while (at < source_.size()) {
      size_t next = at;
      if (!is_space(next_code_point(source_, next))) {
        break;
      }
      at = next;
    }
    return at;
  }

  // Adds the data before a tag that begins at `open` with `sign`, stripped as they say.
  void add_data(size_t begin, size_t open, char sign, bool is_variable) {
    std::string data = source_.substr(begin, open - begin);
    if (sign == '-') {
      data = strip(Text(data), nullptr, false, true).utf8();
    } else if (trims_ && sign != '+' && !is_variable) {
      const size_t line = data.rfind('\n') + 1;  // 0 without a line feed
      if ((line > 0 || is_line_start_) &&
          data.find_first_not_of(" \t", line) == std::string::npos) {
        data.resize(line);
      }
    }
    if (!data.empty()) {
      add(Token::Type::kData, data, begin);
    }
  }

  // Returns the end of a tag that closes at `at` by e.g. "%}", with the white space that it strips;
  // npos if none closes there.
  size_t tag_end(size_t at, std::string_view close) const {
    const bool is_variable = close == "}}";
    const bool has_sign =
        at < source_.size() && (source_[at] == '-' || (source_[at] == '+' && !is_variable));
    if (!has(close, at + (has_sign ? 1 : 0))) {
      return std::string::npos;
    }
    const size_t end = at + (has_sign ? 1 : 0) + close.size();
    if (has_sign && source_[at] == '-') {
      return skip_space(end);
    }
    return end + (trims_ && !has_sign && !is_variable && has("\n", end) ? 1 : 0);
  }

  void finish_tag(size_t end) {
    is_line_start_ = end > 0 && source_[end - 1] == '\n';
    at_ = end;
  }

  char sign_at(size_t at) const {
    return at < source_.size() && (source_[at] == '-' || source_[at] == '+') ? source_[at] : ' ';
  }

  // Reads data and the tag after it.
  void lex_data() {
    size_t open = at_;
    for (;; ++open) {
      open = source_.find('{', open);
      if (open == std::string::npos || open + 1 >= source_.size()) {
        add(Token::Type::kData, source_.substr(at_), at_);
        at_ = source_.size();
        return;
      }
      if (source_[open + 1] == '{' || source_[open + 1] == '%' || source_[open + 1] == '#') {
        break;
      }
    }
    const char kind = source_[open + 1];
    const char sign = sign_at(open + 2);
    add_data(at_, open, sign, kind == '{');
    const size_t inside = open + 2 + (sign == ' ' ? 0 : 1);
    if (kind == '#') {
      return lex_comment(open, inside);
    }
    if (kind == '%' && lex_raw(inside)) {
      return;
    }
    add(Token::Type::kBegin, source_.substr(open, 2), open);
    lex_tag(inside, kind == '{' ? "}}" : "%}");
  }

  void lex_comment(size_t open, size_t at) {
    for (; at < source_.size(); ++at) {
      if (const size_t end = tag_end(at, "#}"); end != std::string::npos) {
        return finish_tag(end);
      }
    }
    fail_at(open, "a comment {# without #}");
  }

  // Reads {% raw %} ... {% endraw %} whose first tag has its words at `at`; false if it is another.
  bool lex_raw(size_t at) {
    const size_t word = skip_space(at);
    size_t begin = skip_space(word + 3);
    if (!has("raw", word) || !(has("%}", begin) || has("-%}", begin))) {
      return false;
    }
    begin = source_[begin] == '-' ? skip_space(begin + 3) : begin + 2;
    is_line_start_ = source_[begin - 1] == '\n';
    for (size_t open = source_.find("{%", begin); open != std::string::npos;
         open = source_.find("{%", open + 1)) {
      const char sign = sign_at(open + 2);
      const size_t name = skip_space(open + 2 + (sign == ' ' ? 0 : 1));
      const size_t end =
          has("endraw", name) ? tag_end(skip_space(name + 6), "%}") : std::string::npos;
      if (end != std::string::npos) {
        add_data(begin, open, sign, false);
        finish_tag(end);
        return true;
      }
    }
    fail_at(at, "{% raw %} without {% endraw %}");
  }

  void lex_tag(size_t at, std::string_view close) {
    std::string brackets;
    while (true) {
      if (brackets.empty()) {
        if (const size_t end = tag_end(at, close); end != std::string::npos) {
          add(Token::Type::kEnd, std::string(close), at);
          return finish_tag(end);
        }
      }
      if (at >= source_.size()) {
        fail_at(at, fmt::format("a tag without its {}", close));
      }
      if (const size_t next = skip_space(at); next > at) {
        at = next;
      } else if (is_digit(source_[at])) {
        at = lex_number(at);
      } else if (is_name_byte(source_[at])) {
        const size_t end =
            std::find_if_not(source_.begin() + at, source_.end(), is_name_byte) - source_.begin();
        add(Token::Type::kName, source_.substr(at, end - at), at);
        at = end;
      } else if (source_[at] == '\'' || source_[at] == '"') {
        at = lex_string(at);
      } else {
        at = lex_operator(at, brackets);
      }
    }
  }

  size_t skip_digits(size_t at) const {
    return std::min(source_.find_first_not_of("0123456789", at), source_.size());
  }

  size_t lex_number(size_t begin) {
    size_t end = skip_digits(begin);
    const bool follows_dot = begin > 0 && source_[begin - 1] == '.';
    const bool is_float = !follows_dot && has(".", end) && skip_digits(end + 1) > end + 1;
    end = is_float ? skip_digits(end + 1) : end;
    const bool has_exponent = !follows_dot && (has("e", end) || has("E", end));
    if (has_exponent) {
      const size_t digits = end + 1 + (sign_at(end + 1) == ' ' ? 0 : 1);
      end = skip_digits(digits) > digits ? skip_digits(digits) : end;
    }
    const std::string text = source_.substr(begin, end - begin);
    if ((end < source_.size() && is_name_byte(source_[end])) ||
        (!is_float && !has_exponent && text.size() > 1 && text[0] == '0')) {
      fail_at(begin, "such a number is not supported");
    }
    add(is_float || has_exponent ? Token::Type::kFloat : Token::Type::kInteger, text, begin);
    return end;
  }

  size_t lex_string(size_t begin) {
    std::string text;
    size_t at = begin + 1;
    while (at < source_.size() && source_[at] != source_[begin]) {
      if (source_[at] == '\\' && at + 1 < source_.size()) {
        at = lex_escape(at + 1, text);
      } else {
        text += source_[at++];
      }
    }
    if (at >= source_.size()) {
      fail_at(begin, "a string without its end");
    }
    add(Token::Type::kString, text, begin);
    return at + 1;
  }

  // Reads the escape whose letter is at `at`; returns its end.
  size_t lex_escape(size_t at, std::string& text) {
    static constexpr std::string_view kLetters = "ntr\\'\"bf", kBytes = "\n\t\r\\'\"\b\f";
    const char letter = source_[at];
    if (const size_t known = kLetters.find(letter); known != std::string::npos) {
      text += kBytes[known];
      return at + 1;
    }
    const size_t digits = letter == 'x' ? 2 : letter == 'u' ? 4 : letter == 'U' ? 8 : 0;
    const char* begin = source_.data() + at + 1;
    const char* last = begin + std::min(digits, source_.size() - at - 1);
    uint32_t code = 0;
    if (digits == 0 || std::from_chars(begin, last, code, 16).ptr != begin + digits ||
        code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) {
      fail_at(at - 1, "such an escape of a string is not supported");
    }
    text += Text(std::vector<Char>{{static_cast<char32_t>(code)}}).utf8();
    return at + 1 + digits;
  }

  size_t lex_operator(size_t at, std::string& brackets) {
    static constexpr std::array kOperators = {"//", "==", "!=", ">=", "<=", "+", "-", "/",
                                              "*",  "%",  "~",  "[",  "]",  "(", ")", "{",
                                              "}",  ">",  "<",  "=",  ".",  ":", "|", ","};
    const auto found =
        std::ranges::find_if(kOperators, [&](const char* known) { return has(known, at); });
    if (found == kOperators.end()) {
      size_t end = at;
      next_code_point(source_, end);
      fail_at(at, fmt::format("unexpected '{}'", printable(source_.substr(at, end - at))));
    }
    const std::string text = *found;
    static constexpr std::string_view kOpen = "([{", kClose = ")]}";
    if (kOpen.find(text[0]) != std::string::npos) {
      brackets += kClose[kOpen.find(text[0])];
    } else if (kClose.find(text[0]) != std::string::npos) {
      if (brackets.empty() || brackets.back() != text[0]) {
        fail_at(at, fmt::format("unexpected '{}'", text));
      }
      brackets.pop_back();
    }
    add(Token::Type::kOperator, text, at);
    return at + text.size();
  }

  const std::string& source_;
  const std::string& name_;
  bool trims_;
  std::vector<Token> tokens_;
  size_t at_ = 0;
  bool is_line_start_ = true;  // the last tag ended a line
};

// Recursive descent, as jinja2.parser.
class Parser {
 public:
  Parser(const std::string& source, const std::string& name, bool trims)
      : source_(source), name_(name), tokens_(Lexer(source, name, trims).run()) {}

  NodePtr run() {
    NodePtr root = parse_frame({});
    if (token().type != Token::Type::kEof) {
      fail_here(fmt::format("unexpected {{% {} %}}", printable(peek(1).text, 40)));
    }
    return root;
  }

 private:
  using Type = Token::Type;

  const Token& token() const { return tokens_[next_]; }
  const Token& peek(size_t count) const {
    return tokens_[std::min(next_ + count, tokens_.size() - 1)];
  }
  bool is(Type type, std::string_view text) const {
    return token().type == type && token().text == text;
  }
  bool is_operator(std::string_view text) const { return is(Type::kOperator, text); }
  bool is_name(std::string_view text) const { return is(Type::kName, text); }
  bool skip(Type type, std::string_view text) {
    const bool found = is(type, text);
    next_ += found ? 1 : 0;
    return found;
  }
  bool skip_operator(std::string_view text) { return skip(Type::kOperator, text); }
  bool skip_name(std::string_view text) { return skip(Type::kName, text); }
  [[noreturn]] void fail_here(const std::string& message) const {
    throw Unsupported("{}: {}", place(name_, source_, token().at), message);
  }
  void expect(Type type, std::string_view text) {
    if (!skip(type, text)) {
      fail_here(fmt::format("'{}' is expected, not '{}'", text, printable(token().text, 40)));
    }
  }
  std::string expect_name() {
    if (token().type != Type::kName) {
      fail_here(fmt::format("a name is expected, not '{}'", printable(token().text, 40)));
    }
    return tokens_[next_++].text;
  }

  template <typename... Kids>
  std::unique_ptr<Node> make(Kind kind, size_t at, Kids&&... kids) {
    auto node = std::make_unique<Node>();
    node->kind = kind;
    node->at = at;
    (add(*node, std::forward<Kids>(kids)), ...);
    return node;
  }
  void add(Node& node, NodePtr kid) {
    node.depth = std::max(node.depth, kid == nullptr ? 1 : kid->depth + 1);
    if (node.depth > kMaxTreeDepth) {
      fail_here(fmt::format("more than {} levels of nesting", kMaxTreeDepth));
    }
    node.kids.push_back(std::move(kid));
  }
  // Counts a level of recursion.
  class Level {
   public:
    explicit Level(Parser& parser) : parser_(parser) {
      if (++parser_.level_ > kMaxTreeDepth) {
        parser_.fail_here(fmt::format("more than {} levels of nesting", kMaxTreeDepth));
      }
    }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;
    ~Level() { --parser_.level_; }

   private:
    Parser& parser_;
  };

  // --- statements ---

  // Parses statements up to a tag that begins with one of `ends`, and leaves its name as the next
  // token; without `ends`, up to the end of the template.
  std::unique_ptr<Node> parse_block(std::initializer_list<std::string_view> ends) {
    const Level level(*this);
    auto block = make(Kind::kBlock, token().at);
    while (token().type != Type::kEof) {
      if (token().type == Type::kData) {
        auto text = make(Kind::kText, token().at);
        text->value = Value(tokens_[next_++].text);
        add(*block, std::move(text));
      } else if (token().text == "{{") {
        const size_t at = tokens_[next_++].at;
        add(*block, make(Kind::kOutput, at, parse_tuple()));
        expect(Type::kEnd, "}}");
      } else {
        const std::string& word = peek(1).text;
        if (std::ranges::find(ends, word) != ends.end()) {
          ++next_;
          return block;
        }
        if (word.starts_with("end") || word == "else" || word == "elif") {
          break;
        }
        ++next_;
        add(*block, parse_statement());
        expect(Type::kEnd, "%}");
      }
    }
    if (ends.size() > 0) {
      fail_here(fmt::format("{{% {} %}} is missing", fmt::join(ends, " or ")));
    }
    return block;
  }
  // Parses a block with names of its own.
  NodePtr parse_frame(std::initializer_list<std::string_view> ends) {
    Frame outer = std::exchange(frame_, {});
    const int conditions = std::exchange(conditions_, 0);
    auto block = parse_block(ends);
    conditions_ = conditions;
    block->names = std::exchange(frame_, std::move(outer)).set_first;
    return block;
  }
  // Parses an expression that is evaluated within the block after it.
  NodePtr parse_inside() {
    Frame outer = std::exchange(frame_, {});
    NodePtr expression = parse_expression();
    frame_ = std::move(outer);
    return expression;
  }
  void note_set(const Node& target) {
    for (const NodePtr& kid : target.kids) {
      note_set(*kid);
    }
    // In jinja2 a name that is set under a condition has its outer value before.
    if (target.kind == Kind::kName && conditions_ == 0 && !frame_.read.contains(target.name)) {
      frame_.set_first.push_back(target.name);
    }
  }
  // Parses "%}", statements, and "{% END" of which `end` is the only one.
  // No loop around it counts for break and continue, unless `is_in_loop`.
  NodePtr parse_body(std::string_view end, bool is_in_loop = false) {
    expect(Type::kEnd, "%}");
    const int loops = std::exchange(loops_, is_in_loop ? loops_ : 0);
    NodePtr block = end == "endif" ? parse_block({end}) : parse_frame({end});
    loops_ = loops;
    ++next_;
    return block;
  }

  NodePtr parse_statement() {
    const size_t at = token().at;
    const std::string word = expect_name();
    if (word == "if") {
      return parse_if(at);
    }
    if (word == "for") {
      return parse_for(at);
    }
    if (word == "set") {
      return parse_set(at);
    }
    if (word == "macro" || word == "call") {
      auto macro = make(Kind::kMacro, at, nullptr, nullptr);
      macro->name = word == "macro" ? expect_name() : "caller";
      if (word == "macro" || is_operator("(")) {
        parse_parameters(*macro);
      }
      if (word == "call") {
        macro->kids[1] = parse_expression();
        if (macro->kids[1]->kind != Kind::kCall) {
          fail_here("{% call %} needs a call");
        }
      }
      macro->kids[0] = parse_body("end" + word);
      return macro;
    }
    if (word == "filter") {
      NodePtr filter = parse_filters(make(Kind::kBody, at), true);
      NodePtr body = parse_body("endfilter");
      return make(Kind::kFilterBlock, at, std::move(body), std::move(filter));
    }
    if (word == "generation") {
      return make(Kind::kGeneration, at, parse_body("endgeneration"));
    }
    if (word == "break" || word == "continue") {
      if (loops_ == 0) {
        fail_here(fmt::format("{{% {} %}} outside of a loop", word));
      }
      return make(word == "break" ? Kind::kBreak : Kind::kContinue, at);
    }
    fail_here(fmt::format("{{% {} %}} is not supported", printable(word, 40)));
  }

  NodePtr parse_if(size_t at) {
    auto node = make(Kind::kIf, at);
    ++conditions_;
    while (true) {
      add(*node, parse_tuple(false));
      expect(Type::kEnd, "%}");
      add(*node, parse_block({"elif", "else", "endif"}));
      if (skip_name("elif")) {
        continue;
      }
      if (skip_name("else")) {
        add(*node, parse_body("endif", true));
      } else {
        ++next_;
      }
      --conditions_;
      return node;
    }
  }

  NodePtr parse_for(size_t at) {
    NodePtr target = parse_target();
    expect(Type::kName, "in");
    NodePtr iterable = parse_tuple(false, "recursive");
    NodePtr condition = skip_name("if") ? parse_inside() : nullptr;
    const bool is_recursive = skip_name("recursive");
    expect(Type::kEnd, "%}");
    ++loops_;
    NodePtr body = parse_frame({"endfor", "else"});
    --loops_;
    NodePtr otherwise;
    if (skip_name("else")) {
      otherwise = parse_body("endfor", true);
    } else {
      ++next_;
    }
    auto node = make(Kind::kFor, at, std::move(target), std::move(iterable), std::move(condition),
                     std::move(body), std::move(otherwise));
    node->flag = is_recursive;
    return node;
  }

  NodePtr parse_set(size_t at) {
    NodePtr target = parse_target(true);
    if (skip_operator("=")) {
      auto set = make(Kind::kSet, at, std::move(target), parse_tuple());
      note_set(*set->kids[0]);
      return set;
    }
    note_set(*target);
    NodePtr filter = is_operator("|") ? parse_filters(make(Kind::kBody, at), false) : nullptr;
    NodePtr body = parse_body("endset");
    return make(Kind::kSetBlock, at, std::move(target), std::move(body), std::move(filter));
  }

  // A name, names with commas (in parentheses or not), or with `allows_member` NAMESPACE.NAME.
  NodePtr parse_target(bool allows_member = false) {
    const size_t at = token().at;
    const auto parse_one = [&]() -> NodePtr {
      const Level level(*this);
      if (skip_operator("(")) {
        NodePtr inner = parse_target();
        expect(Type::kOperator, ")");
        return inner;
      }
      static constexpr std::array kReserved = {"true",  "false", "none", "True",
                                               "False", "None",  "loop"};
      auto name = make(Kind::kName, token().at);
      name->name = expect_name();
      if (std::ranges::find(kReserved, name->name) != kReserved.end()) {
        fail_here(fmt::format("'{}' cannot be set", name->name));
      }
      return name;
    };
    NodePtr first = parse_one();
    if (allows_member && is_operator(".") && first->kind == Kind::kName) {
      ++next_;
      auto member = make(Kind::kAttribute, at, std::move(first));
      member->name = expect_name();
      return member;
    }
    if (!is_operator(",")) {
      return first;
    }
    auto tuple = make(Kind::kTuple, at, std::move(first));
    while (skip_operator(",")) {
      if (is_name("in") || is_operator("=") || is_operator(")")) {
        break;
      }
      add(*tuple, parse_one());
    }
    return tuple;
  }

  void parse_parameters(Node& node) {
    expect(Type::kOperator, "(");
    bool has_default = false;
    while (!skip_operator(")")) {
      if (!node.names.empty()) {
        expect(Type::kOperator, ",");
      }
      node.names.push_back(expect_name());
      if (skip_operator("=")) {
        has_default = true;
        add(node, parse_inside());
      } else if (has_default) {
        fail_here("a parameter without a default after one with it");
      }
    }
  }

  // --- expressions, by descending precedence from the end ---

  NodePtr parse_tuple(bool allows_conditional = true, std::string_view end_name = "",
                      bool is_in_parentheses = false) {
    const size_t at = token().at;
    std::vector<NodePtr> items;
    bool is_tuple = false;
    while (true) {
      if (!items.empty()) {
        expect(Type::kOperator, ",");
      }
      if (token().type == Type::kEnd || is_operator(")") ||
          (!end_name.empty() && is_name(end_name))) {
        break;
      }
      items.push_back(allows_conditional ? parse_expression() : parse_or());
      if (!is_operator(",")) {
        break;
      }
      is_tuple = true;
    }
    if (!is_tuple && !items.empty()) {
      return std::move(items[0]);
    }
    if (items.empty() && !is_in_parentheses) {
      fail_here("an expression is expected");
    }
    auto tuple = make(Kind::kTuple, at);
    for (NodePtr& item : items) {
      add(*tuple, std::move(item));
    }
    return tuple;
  }

  NodePtr parse_expression() {
    const Level level(*this);
    const size_t at = token().at;
    NodePtr value = parse_or();
    while (skip_name("if")) {
      NodePtr condition = parse_or();
      NodePtr otherwise = skip_name("else") ? parse_expression() : nullptr;
      value = make(Kind::kConditional, at, std::move(value), std::move(condition),
                   std::move(otherwise));
    }
    return value;
  }

  NodePtr parse_or() { return parse_binary(0); }

  // Parses operands of the same precedence: or, and, (not, comparisons), + -, ~, * / // %.
  NodePtr parse_binary(size_t level) {
    static const std::vector<std::vector<std::string_view>> operations = {
        {"or"}, {"and"}, {"+", "-"}, {"~"}, {"*", "/", "//", "%"}};
    const auto operand = [&] {
      return level == 1 ? parse_not() : level == 4 ? parse_unary(true) : parse_binary(level + 1);
    };
    NodePtr left = operand();
    while (token().type == (level < 2 ? Type::kName : Type::kOperator) &&
           std::ranges::find(operations[level], token().text) != operations[level].end()) {
      const Token& operation = tokens_[next_++];
      auto node = make(level == 0   ? Kind::kOr
                       : level == 1 ? Kind::kAnd
                                    : Kind::kArithmetic,
                       operation.at, std::move(left), operand());
      node->name = operation.text;
      left = std::move(node);
    }
    return left;
  }

  NodePtr parse_not() {
    const Level level(*this);
    const size_t at = token().at;
    return skip_name("not") ? make(Kind::kNot, at, parse_not()) : parse_compare();
  }

  NodePtr parse_compare() {
    auto node = make(Kind::kCompare, token().at, parse_binary(2));
    while (true) {
      static constexpr std::array kComparisons = {"==", "!=", ">", ">=", "<", "<="};
      if (token().type == Type::kOperator &&
          std::ranges::find(kComparisons, token().text) != kComparisons.end()) {
        node->names.push_back(tokens_[next_++].text);
      } else if (skip_name("in")) {
        node->names.emplace_back("in");
      } else if (is_name("not") && peek(1).type == Type::kName && peek(1).text == "in") {
        next_ += 2;
        node->names.emplace_back("not in");
      } else {
        return node->names.empty() ? std::move(node->kids[0]) : std::move(node);
      }
      add(*node, parse_binary(2));
    }
  }

  NodePtr parse_unary(bool takes_filters) {
    const Level level(*this);
    const size_t at = token().at;
    NodePtr node;
    if (is_operator("-") || is_operator("+")) {
      const std::string sign = tokens_[next_++].text;
      auto signed_node = make(Kind::kSign, at, parse_unary(false));
      signed_node->name = sign;
      node = std::move(signed_node);
    } else {
      node = parse_primary();
    }
    node = parse_postfix(std::move(node));
    return takes_filters ? parse_filter_expression(std::move(node)) : std::move(node);
  }

  NodePtr constant(size_t at, Value value) {
    auto node = make(Kind::kConstant, at);
    node->value = std::move(value);
    return node;
  }

  NodePtr parse_primary() {
    const Token first = token();
    ++next_;
    switch (first.type) {
      case Type::kName:
        if (first.text == "true" || first.text == "True" || first.text == "false" ||
            first.text == "False") {
          return constant(first.at, Value(first.text[0] == 't' || first.text[0] == 'T'));
        }
        if (first.text == "none" || first.text == "None") {
          return constant(first.at, None{});
        } else {
          auto name = make(Kind::kName, first.at);
          name->name = first.text;
          frame_.read.insert(first.text);
          return name;
        }
      case Type::kString: {
        std::string text = first.text;
        for (; token().type == Type::kString; ++next_) {
          text += token().text;
        }
        return constant(first.at, Value(text));
      }
      case Type::kInteger: {
        int64_t value = 0;
        const char* end = first.text.data() + first.text.size();
        if (std::from_chars(first.text.data(), end, value).ec != std::errc()) {
          --next_;
          fail_here("an integer beyond 64 bits");
        }
        return constant(first.at, value);
      }
      case Type::kFloat:
        return constant(first.at, std::strtod(first.text.c_str(), nullptr));
      case Type::kOperator:
        if (first.text == "(") {
          NodePtr inner = parse_tuple(true, "", true);
          expect(Type::kOperator, ")");
          return inner;
        }
        if (first.text == "[" || first.text == "{") {
          return parse_items(first.at, first.text == "{");
        }
        [[fallthrough]];
      default:
        --next_;
        fail_here(fmt::format("unexpected '{}'", printable(first.text, 40)));
    }
  }

  NodePtr parse_items(size_t at, bool is_dict) {
    auto node = make(is_dict ? Kind::kDict : Kind::kList, at);
    const std::string close = is_dict ? "}" : "]";
    while (!skip_operator(close)) {
      if (!node->kids.empty()) {
        expect(Type::kOperator, ",");
        if (skip_operator(close)) {
          break;
        }
      }
      add(*node, parse_expression());
      if (is_dict) {
        expect(Type::kOperator, ":");
        add(*node, parse_expression());
      }
    }
    return node;
  }

  NodePtr parse_postfix(NodePtr node) {
    while (true) {
      const size_t at = token().at;
      if (skip_operator(".")) {
        if (token().type == Type::kInteger) {
          NodePtr key = parse_primary();
          node = make(Kind::kItem, at, std::move(node), std::move(key));
        } else {
          auto attribute = make(Kind::kAttribute, at, std::move(node));
          attribute->name = expect_name();
          node = std::move(attribute);
        }
      } else if (skip_operator("[")) {
        node = parse_subscript(at, std::move(node));
      } else if (is_operator("(")) {
        auto call = make(Kind::kCall, at, std::move(node));
        parse_arguments(*call);
        node = std::move(call);
      } else {
        return node;
      }
    }
  }

  NodePtr parse_subscript(size_t at, NodePtr object) {
    const auto part = [&]() -> NodePtr {
      return is_operator(":") || is_operator("]") ? nullptr : parse_expression();
    };
    NodePtr first = part();
    if (first != nullptr && !is_operator(":")) {
      expect(Type::kOperator, "]");
      return make(Kind::kItem, at, std::move(object), std::move(first));
    }
    expect(Type::kOperator, ":");
    NodePtr end = part();
    NodePtr step = skip_operator(":") ? part() : nullptr;
    expect(Type::kOperator, "]");
    return make(Kind::kSlice, at, std::move(object), std::move(first), std::move(end),
                std::move(step));
  }

  void parse_arguments(Node& node) {
    expect(Type::kOperator, "(");
    bool is_first = true;
    while (!skip_operator(")")) {
      if (!is_first) {
        expect(Type::kOperator, ",");
        if (skip_operator(")")) {
          return;
        }
      }
      is_first = false;
      if (is_operator("*") || is_operator("**")) {
        fail_here("arguments with * are not supported");
      }
      const bool is_named =
          token().type == Type::kName && peek(1).type == Type::kOperator && peek(1).text == "=";
      if (is_named) {
        node.names.push_back(expect_name());
        ++next_;
      } else if (!node.names.empty()) {
        fail_here("a positional argument after a named one");
      }
      add(node, parse_expression());
    }
  }

  NodePtr parse_filter_expression(NodePtr node) {
    while (true) {
      const size_t at = token().at;
      if (is_operator("|")) {
        node = parse_filters(std::move(node), false);
      } else if (skip_name("is")) {
        node = parse_test(at, std::move(node));
      } else if (is_operator("(")) {
        node = parse_postfix(std::move(node));
      } else {
        return node;
      }
    }
  }

  NodePtr parse_filters(NodePtr node, bool is_first_named) {
    while (is_first_named || skip_operator("|")) {
      is_first_named = false;
      auto filter = make(Kind::kFilter, token().at, std::move(node));
      if (!has_filter(token().text)) {
        fail_here(fmt::format("the filter '{}' is not supported", printable(token().text, 40)));
      }
      filter->name = expect_name();
      if (is_operator("(")) {
        parse_arguments(*filter);
      }
      node = std::move(filter);
    }
    return node;
  }

  NodePtr parse_test(size_t at, NodePtr node) {
    const bool is_negated = skip_name("not");
    auto test = make(Kind::kTest, at, std::move(node));
    if (find_test(token().text) == nullptr) {
      fail_here(fmt::format("the test '{}' is not supported", printable(token().text, 40)));
    }
    test->name = expect_name();
    if (is_operator("(")) {
      parse_arguments(*test);
    } else if ((token().type == Type::kName && !is_name("else") && !is_name("or") &&
                !is_name("and")) ||
               token().type == Type::kString || token().type == Type::kInteger ||
               token().type == Type::kFloat || is_operator("[") || is_operator("{")) {
      if (is_name("is")) {
        fail_here("tests cannot be chained with 'is'");
      }
      add(*test, parse_postfix(parse_primary()));
    }
    return is_negated ? make(Kind::kNot, at, std::move(test)) : std::move(test);
  }

  const std::string& source_;
  const std::string& name_;
  std::vector<Token> tokens_;
  size_t next_ = 0;
  int level_ = 0, loops_ = 0, conditions_ = 0;
  // The names of the innermost frame: a block that has names of its own.
  struct Frame {
    std::set<std::string> read;
    std::vector<std::string> set_first;
  } frame_;
};

}  // namespace

Syntax parse(std::string_view source, const std::string& name, bool trims) {
  USER_ERROR_IF(source.size() > kMaxSourceBytes, "{}: a template of more than {} bytes", name,
                kMaxSourceBytes);
  USER_ERROR_IF(find_invalid_utf8(source) != kValidUtf8, "{}: the template is not UTF-8", name);
  Syntax syntax{normalize_lines(source, trims), nullptr};
  syntax.root = Parser(syntax.source, name, trims).run();
  return syntax;
}

std::string place(const std::string& name, std::string_view source, size_t at) {
  const std::string_view before = source.substr(0, at);
  const size_t line_begin = before.rfind('\n') + 1;
  return fmt::format("{} line {} column {}", name, std::ranges::count(before, '\n') + 1,
                     Text(before.substr(line_begin)).size() + 1);
}

}  // namespace moe::jinja
