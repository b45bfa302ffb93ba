#include <fmt/ranges.h>

#include <algorithm>

#include "core/base/text.h"
#include "core/jinja/syntax.h"

namespace moe::jinja {

namespace {

using R = Renderer&;
using Children = const Nodes&;
using V = const Values&;

constexpr int kMaxTreeDepth = 150;
constexpr size_t kMaxSourceBytes = size_t{1} << 20;
constexpr int kConditional = 0, kOr = 1, kAnd = 2, kNot = 3, kCompare = 4;  // precedences

const std::map<std::string_view, Value> kConstants = {{"none", None{}}, {"None", None{}},
                                                      {"true", true},   {"True", true},
                                                      {"false", false}, {"False", false}};

bool holds(std::string_view comparison, In left, In right) {
  if (comparison == "==" || comparison == "!=") {
    return equals(left, right) == (comparison == "==");
  }
  if (comparison == "in" || comparison == "not") {  // not in
    return contains(right, left) == (comparison == "in");
  }
  const int order = compare(left, right);
  return order == 0 ? comparison.ends_with('=') : (order < 0) == comparison.starts_with('<');
}

Value call_value(In callee, Args arguments) {
  const Object* object = callee.defined().object();
  fail_if(object == nullptr || !object->call, "a {} is not callable", type_name(callee));
  return object->call(arguments);
}

// Returns the text of a block, or the value of its filter. The filter reads the variable "".
Value filtered(R r, Children block_and_filter) {
  const Value text = r.capture([&] { r.run_in_scope(block_and_filter[0], r.scope); });
  r.scope->names[""] = text;
  return block_and_filter[1] != nullptr ? r.run(block_and_filter[1]) : text;
}

// A recursive-descent parser, like jinja2.parser.
class Parser {
 public:
  Parser(const std::string& source, const std::string& name, bool trims)
      : source_(source), name_(name), tokens_(lex(source, name, trims)) {}

  NodePtr run() {
    NodePtr root = parse_frame({}, 0);
    reject_if(token().type != Token::Type::kEof, "unexpected {{% {} %}}", shown(peek()));
    return root;
  }

 private:
  using Type = Token::Type;

  const Token& token() const { return tokens_[next_]; }
  const Token& peek() const { return tokens_[std::min(next_ + 1, tokens_.size() - 1)]; }
  Token take() { return tokens_[next_++]; }
  static bool is_word(const Token& token, std::string_view text) {
    return token.type <= Type::kSymbol && token.text == text;
  }
  bool is(std::string_view text) const { return is_word(token(), text); }
  bool skip(std::string_view text) {
    const bool found = is(text);
    next_ += found ? 1 : 0;
    return found;
  }
  void expect(std::string_view text) {
    reject_if(!skip(text), "'{}' is expected, not '{}'", text, shown(token()));
  }
  std::string expect_name() {
    reject_if(token().type != Type::kName, "a name is expected, not '{}'", shown(token()));
    return take().text;
  }
  static std::string shown(const Token& token) { return printable(token.text, 40); }
  template <typename... Args>
  void reject_if(bool condition, fmt::format_string<Args...> format, Args&&... args) const {
    if (condition) {
      throw Unsupported("{}: {}", place(name_, source_, token().at),
                        fmt::format(format, std::forward<Args>(args)...));
    }
  }
  void check_depth(int depth) const {
    reject_if(depth > kMaxTreeDepth, "more than {} levels of nesting", kMaxTreeDepth);
  }
  // Returns a node with `body`, which returns a Value or void.
  template <typename Body>
  std::shared_ptr<Node> make(size_t at, Nodes children, Body body,
                             Node::Form form = Node::Form::kOther) const {
    auto node = std::make_shared<Node>(Node{at, std::move(children), {}, 1, form});
    for (const NodePtr& child : node->children) {
      node->depth = std::max(node->depth, child == nullptr ? 1 : child->depth + 1);
    }
    check_depth(node->depth);
    node->body = [body = std::move(body)](R r, Children nodes) -> Value {
      if constexpr (std::is_void_v<decltype(body(r, nodes))>) {
        return body(r, nodes), Value();
      } else {
        return body(r, nodes);
      }
    };
    return node;
  }
  // Returns a node that calls `function` with the values of its children (none for a null child).
  template <typename Function>
  NodePtr apply(size_t at, Nodes children, Function function) const {
    return make(at, std::move(children),
                [at, function = std::move(function)](R r, Children nodes) -> Value {
                  Values values;
                  for (const NodePtr& child : nodes) {
                    values.push_back(child == nullptr ? Value(None{}) : r.run(child));
                  }
                  r.at = at;
                  return function(values);
                });
  }

  // Reads the name of a filter or test.
  auto expect_builtin(const std::string& prefix) {
    const std::string name = prefix + token().text;
    reject_if(!has_builtin(name), "'{}' is not supported", shown(token()));
    expect_name();
    return [name](In value, Args arguments) { return call_builtin(name, value, arguments); };
  }

  // Parses statements up to a tag named in `ends`, or to the end of the template if it is empty.
  std::shared_ptr<Node> parse_block(const Names& ends) {
    check_depth(++level_);
    const size_t begin = token().at;
    Nodes statements;
    while (token().type != Type::kEof &&
           !(is("{%") && (peek().text.starts_with("end") || peek().text.starts_with("el")))) {
      statements.push_back(parse_statement());
    }
    const bool is_end = std::ranges::find(ends, peek().text) != ends.end();
    reject_if(!is_end && !ends.empty(), "{{% {} %}} is missing", fmt::join(ends, " or "));
    next_ += is_end ? 1 : 0;
    --level_;
    return make(begin, std::move(statements), [](R r, Children nodes) {
      for (size_t i = 0; i < nodes.size() && r.flow == Renderer::Flow::kNext; ++i) {
        r.run(nodes[i]);
      }
    });
  }
  // Parses a block with its own scope inside `loops` loops. Skips its end if `ends` has one tag.
  NodePtr parse_frame(const Names& ends, int loops) {
    if (!ends.empty()) {
      expect("%}");
    }
    Frame outer = std::exchange(frame_, Frame{loops});
    const auto block = parse_block(ends);
    next_ += ends.size() == 1 ? 1 : 0;
    block->names = frame_.names;
    block->set_first = frame_.set_first;
    outer.names.merge(frame_.names);
    frame_ = std::move(outer);
    return block;
  }
  // Parses an expression that is evaluated in the scope of the block after it.
  NodePtr parse_in_next_scope() {
    const std::set<std::string> read = frame_.read;
    NodePtr expression = parse_expression();
    frame_.read = read;
    return expression;
  }

  NodePtr parse_statement() {
    const size_t at = token().at;
    if (token().type == Type::kData) {
      return make(at, {}, [text = Text(take().text)](R r, Children) { r.write(text); });
    }
    if (skip("{{")) {
      const NodePtr value = parse_tuple();
      expect("}}");
      const auto write = [](R r, Children nodes) { r.write(to_text(r.run(nodes[0]))); };
      return make(at, {value}, write, Node::Form::kOutput);
    }
    expect("{%");
    const std::string word = expect_name();
    const NodePtr statement = word == "if"           ? parse_if(at)
                              : word == "for"        ? parse_for(at)
                              : word == "set"        ? parse_set(at)
                              : word == "macro"      ? parse_macro(at, false)
                              : word == "call"       ? parse_macro(at, true)
                              : word == "filter"     ? parse_filter(at)
                              : word == "generation" ? parse_generation(at)
                                                     : parse_jump(at, word);
    expect("%}");
    return statement;
  }

  NodePtr parse_if(size_t at) {
    Nodes children;  // condition (null for else), block, condition, block, ...
    ++frame_.conditions;
    for (std::string word = "elif"; word != "endif"; word = take().text) {
      const bool is_else = word == "else";
      children.push_back(is_else ? nullptr : parse_tuple(false));
      expect("%}");
      children.push_back(is_else ? parse_block({"endif"}) : parse_block({"elif", "else", "endif"}));
    }
    --frame_.conditions;
    return make(at, std::move(children), [](R r, Children nodes) {
      for (size_t i = 0; i < nodes.size(); i += 2) {
        if (nodes[i] == nullptr || is_true(r.run(nodes[i]))) {
          r.run(nodes[i + 1]);
          break;
        }
      }
    });
  }
  NodePtr parse_for(size_t at) {
    Names names;
    Loop loop{parse_target(names)};
    expect("in");
    const NodePtr iterable = parse_tuple(false);
    loop.condition = skip("if") ? parse_in_next_scope() : nullptr;
    loop.is_recursive = skip("recursive");
    loop.body = parse_frame({"endfor", "else"}, frame_.loops + 1);
    loop.otherwise = take().text == "else" ? parse_frame({"endfor"}, frame_.loops) : nullptr;
    return make(at, {iterable, loop.condition, loop.body, loop.otherwise},
                [loop](R r, Children nodes) { r.run_loop(loop, r.scope, r.run(nodes[0]), 1); });
  }

  NodePtr parse_set(size_t at) {
    Names names;
    const Assign assign = peek().text == "." ? parse_member() : parse_target(names);
    const bool is_block = !skip("=");
    Nodes children = is_block ? Nodes() : Nodes{parse_tuple()};
    // In jinja2 a name that is set under a condition has its outer value until then.
    std::erase_if(names, [&](const std::string& name) {
      return frame_.conditions > 0 || frame_.read.contains(name);
    });
    frame_.set_first.insert(names.begin(), names.end());
    if (is_block) {
      const NodePtr filter = skip("|") ? parse_filters(written_text(at)) : nullptr;
      children = {parse_frame({"endset"}, 0), filter};
    }
    return make(at, children, [assign, is_block](R r, Children nodes) {
      assign(r, is_block ? filtered(r, nodes) : r.run(nodes[0]));
    });
  }
  // Parses NAMESPACE.NAME.
  Assign parse_member() {
    const std::string name = expect_name();
    expect(".");
    frame_.read.insert(name);
    return [name, member = expect_name()](R r, In value) {
      r.set_member(r.look_up(name), member, value);
    };
  }
  // Parses a name, or names with commas, and adds them to `names`.
  Assign parse_target(Names& names) {
    bool is_tuple = false;
    do {
      const std::string& name = token().text;
      reject_if(kConstants.contains(name) || name == "loop", "'{}' cannot be set", name);
      names.push_back(expect_name());
      is_tuple = is_tuple || is(",");
    } while (skip(",") && !is("in") && !is("="));
    return [names, is_tuple](R r, In value) {
      const Values values = is_tuple ? iterate(value) : Values{value};
      fail_if(values.size() != names.size(), "{} values cannot be assigned to {} names",
              values.size(), names.size());
      for (size_t i = 0; i < names.size(); ++i) {
        r.scope->names[names[i]] = values[i];
      }
    };
  }

  NodePtr parse_filter(size_t at) {
    const NodePtr filter = parse_filters(written_text(at));
    return make(at, {parse_frame({"endfilter"}, 0), filter},
                [](R r, Children nodes) { r.write(to_text(filtered(r, nodes))); });
  }
  NodePtr written_text(size_t at) const {
    return make(at, {}, [](R r, Children) { return r.look_up(""); });
  }
  NodePtr parse_generation(size_t at) {
    frame_.names.insert("generation");
    return make(at, {parse_frame({"endgeneration"}, 0)}, [](R r, Children nodes) {
      Text text = r.capture([&] { r.run_in_scope(nodes[0], r.scope); });
      std::ranges::for_each(text.chars, [](Char& one) { one.is_generated = true; });
      r.write(text);
    });
  }
  NodePtr parse_jump(size_t at, const std::string& word) {
    reject_if(word != "break" && word != "continue", "{{% {} %}} is not supported",
              printable(word, 40));
    reject_if(frame_.loops == 0, "{{% {} %}} outside of a loop", word);
    const auto flow = word == "break" ? Renderer::Flow::kBreak : Renderer::Flow::kContinue;
    return make(at, {}, [flow](R r, Children) { r.flow = flow; });
  }

  NodePtr parse_macro(size_t at, bool is_call) {
    Macro macro{is_call ? "caller" : expect_name()};
    if (!is_call || is("(")) {
      expect("(");
      while (!skip(")")) {
        if (!macro.parameters.empty()) {
          expect(",");
        }
        macro.parameters.push_back(expect_name());
        reject_if(!is("=") && !macro.defaults.empty(), "a parameter after one with a default");
        if (skip("=")) {
          macro.defaults.push_back(parse_in_next_scope());
        }
      }
    }
    const NodePtr call = is_call ? parse_expression() : nullptr;
    reject_if(is_call && call->form != Node::Form::kCall, "{{% call %}} needs a call");
    macro.body = parse_frame({is_call ? "endcall" : "endmacro"}, 0);
    reject_if(macro.body->names.contains("varargs") || macro.body->names.contains("kwargs"),
              "varargs and kwargs of a macro are not supported");
    Nodes children = macro.defaults;
    children.insert(children.end(), {macro.body, call});
    return make(at, children, [macro](R r, Children nodes) {
      const Value made = r.make_macro(macro);
      if (nodes.back() == nullptr) {
        r.scope->names[macro.name] = made;
      } else {
        r.caller = made;
        r.write(to_text(r.run(nodes.back())));
      }
    });
  }

  NodePtr parse_tuple(bool allows_conditional = true, bool allows_none = false) {
    const size_t at = token().at;
    Nodes items;
    bool is_tuple = false;
    while (!is("%}") && !is("}}") && !is(")") &&
           !(is_tuple && !allows_conditional && is("recursive"))) {
      items.push_back(allows_conditional ? parse_expression() : parse_binary(kOr));
      if (!skip(",")) {
        break;
      }
      is_tuple = true;
    }
    reject_if(items.empty() && !allows_none, "an expression is expected");
    return !is_tuple && !items.empty()
               ? items[0]
               : apply(at, items, [](V v) { return Value(v, Sequence::Kind::kTuple); });
  }

  // Returns the precedence of the next binary operator, or -1.
  int precedence() const {
    static constexpr std::string_view kLevels[] = {
        " if ", " or ", " and ", "", " == != < <= > >= in ", " + - ", " ~ ", " * / // % "};
    if (is("not")) {
      return is_word(peek(), "in") ? kCompare : -1;
    }
    const std::string word = token().type <= Type::kSymbol ? " " + token().text + " " : "?";
    int level = std::size(kLevels) - 1;
    while (level >= 0 && kLevels[level].find(word) == kNowhere) {
      --level;
    }
    return level;
  }
  NodePtr parse_expression() { return parse_binary(kConditional); }
  // Parses operations of `min_precedence` and higher ones.
  NodePtr parse_binary(int min_precedence) {
    check_depth(++level_);
    const size_t begin = token().at;
    NodePtr left = min_precedence <= kNot && skip("not")
                       ? apply(begin, {parse_binary(kNot)}, [](V v) { return !is_true(v[0]); })
                       : parse_unary(true);
    for (int level = precedence(); level >= min_precedence; level = precedence()) {
      const size_t at = token().at;
      const std::string name = take().text;
      next_ += name == "not" ? 1 : 0;  // not in
      if (level == kConditional) {
        const NodePtr condition = parse_binary(kOr);
        const NodePtr otherwise = skip("else") ? parse_expression() : nullptr;
        left = make(begin, {left, condition, otherwise}, [](R r, Children nodes) -> Value {
          const NodePtr& chosen = nodes[is_true(r.run(nodes[1])) ? 0 : 2];
          return chosen != nullptr ? r.run(chosen) : Undefined{"a condition has no else"};
        });
      } else if (level <= kAnd) {
        left = make(at, {left, parse_binary(level + 1)}, [level](R r, Children nodes) {
          const Value left = r.run(nodes[0]);
          return is_true(left) == (level == kAnd) ? r.run(nodes[1]) : left;
        });
      } else {
        left = apply(at, {left, parse_binary(level + 1)}, [name, level](V v) {
          return level == kCompare ? holds(name, v[0], v[1]) : arithmetic(name, v[0], v[1]);
        });
        reject_if(level == kCompare && precedence() == level,
                  "chained comparisons are not supported");
      }
    }
    --level_;
    return left;
  }

  NodePtr parse_unary(bool takes_filters) {
    check_depth(++level_);
    const size_t begin = token().at;
    NodePtr node;
    if (is("-") || is("+")) {
      const std::string sign = take().text;
      node = apply(begin, {parse_unary(false)}, [sign](V v) {
        return arithmetic(sign, v[0].is<double>() ? Value(-0.0) : Value(0), v[0]);
      });
    } else {
      node = parse_postfix(parse_primary());
    }
    while (takes_filters && (is("|") || is("is") || is("("))) {
      const size_t at = token().at;
      node = skip("|")    ? parse_filters(node)
             : skip("is") ? parse_test(at, node)
                          : parse_postfix(node);
    }
    --level_;
    return node;
  }

  NodePtr parse_primary() {
    const bool opens = is("(") || is("[") || is("{");
    reject_if(token().type == Type::kSymbol && !opens, "unexpected '{}'", shown(token()));
    const auto [type, first, at] = take();
    if (type == Type::kSymbol && first != "(") {
      return parse_items(at, first == "{");
    }
    if (type == Type::kSymbol) {
      NodePtr inner = parse_tuple(true, true);
      expect(")");
      return inner;
    }
    if (type == Type::kName && !kConstants.contains(first)) {
      frame_.read.insert(first);
      frame_.names.insert(first);
      return make(at, {}, [name = first](R r, Children) { return r.look_up(name); });
    }
    std::string text = first;
    while (type == Type::kString && token().type == Type::kString) {
      text += take().text;
    }
    const Value value = type == Type::kName      ? kConstants.at(text)
                        : type == Type::kInteger ? Value(std::stoll(text))
                        : type == Type::kFloat   ? std::strtod(text.c_str(), nullptr)
                                                 : Value(text);
    return make(at, {}, [value](R, Children) { return value; });
  }
  NodePtr parse_items(size_t at, bool is_dict) {
    const std::string close = is_dict ? "}" : "]";
    Nodes items;
    while (!skip(close)) {
      items.push_back(parse_expression());
      if (is_dict) {
        expect(":");
        items.push_back(parse_expression());
      }
      if (!is(close)) {
        expect(",");
      }
    }
    return apply(at, std::move(items), [is_dict](V v) {
      Dict dict;
      for (size_t i = 0; is_dict && i < v.size(); i += 2) {
        dict.set(v[i], v[i + 1]);
      }
      return is_dict ? Value(dict) : Value(v);
    });
  }
  NodePtr parse_postfix(NodePtr node) {
    while (is(".") || is("[") || is("(")) {
      const size_t at = token().at;
      if (is("(")) {
        node = parse_call(at, node, call_value, Node::Form::kCall);
      } else if (skip("[")) {
        node = parse_subscript(at, node);
      } else {
        expect(".");
        const std::string name = expect_name();
        node = apply(at, {node}, [name](V v) { return get_attribute(v[0], name); });
      }
    }
    return node;
  }
  NodePtr parse_subscript(size_t at, const NodePtr& object) {
    const auto part = [&] { return is(":") || is("]") ? nullptr : parse_expression(); };
    Nodes children = {object, part()};
    if (children[1] == nullptr || is(":")) {
      expect(":");
      children.push_back(part());
      children.push_back(skip(":") ? part() : nullptr);
    }
    expect("]");
    return apply(at, std::move(children), [](V v) {
      return v.size() == 2 ? get_item(v[0], v[1]) : get_slice(v[0], v[1], v[2], v[3]);
    });
  }
  NodePtr parse_filters(NodePtr node) {
    do {
      const size_t at = token().at;
      node = parse_call(at, node, expect_builtin("|"));
    } while (skip("|"));
    return node;
  }
  NodePtr parse_test(size_t at, const NodePtr& node) {
    const bool wanted = !skip("not");
    const NodePtr test = parse_call(at, node, expect_builtin("?"), Node::Form::kOther, true);
    return wanted ? test : apply(at, {test}, [](V v) { return !is_true(v[0]); });
  }
  // Parses arguments and returns a call of `function`. `takes_operand`: one argument may omit ().
  template <typename Function>
  NodePtr parse_call(size_t at, NodePtr operand, Function function,
                     Node::Form form = Node::Form::kOther, bool takes_operand = false) {
    Nodes children = {std::move(operand)};
    Names names;  // of the arguments; "" for positional ones
    const bool is_name = token().type == Type::kName && !is("else") && !is("or") && !is("and");
    reject_if(takes_operand && is("is"), "tests cannot be chained with 'is'");
    if (takes_operand && (is_name || is("[") || is("{") || token().type > Type::kData)) {
      children.push_back(parse_postfix(parse_primary()));
      names.emplace_back();
    } else if (skip("(")) {
      while (!skip(")")) {
        const bool is_named = token().type == Type::kName && is_word(peek(), "=");
        reject_if(!is_named && !names.empty() && !names.back().empty(),
                  "a positional argument after a named one");
        names.push_back(is_named ? take().text : "");
        next_ += is_named ? 1 : 0;
        children.push_back(parse_expression());
        if (!is(")")) {
          expect(",");
        }
      }
    }
    const auto run = [at, names, function](R r, Children nodes) -> Value {
      const Value caller = std::exchange(r.caller, Value());
      const Value operand = r.run(nodes[0]);
      Arguments arguments;
      for (size_t i = 0; i < names.size(); ++i) {
        const Value value = r.run(nodes[i + 1]);
        names[i].empty() ? arguments.positional.push_back(value)
                         : void(arguments.named.emplace_back(names[i], value));
      }
      if (!caller.is_undefined()) {
        arguments.named.emplace_back("caller", caller);
      }
      r.at = at;
      return function(operand, arguments);
    };
    return make(at, std::move(children), run, form);
  }

  // State of the innermost block with its own scope.
  struct Frame {
    int loops = 0, conditions = 0;  // around the next token
    std::set<std::string> names = {}, read = {}, set_first = {};
  };

  const std::string& source_;
  const std::string& name_;
  std::vector<Token> tokens_;
  size_t next_ = 0;
  int level_ = 0;
  Frame frame_;
};

}  // namespace

Syntax parse(std::string_view source, const std::string& name, bool trims) {
  USER_ERROR_IF(source.size() > kMaxSourceBytes, "{}: a template of more than {} bytes", name,
                kMaxSourceBytes);
  USER_ERROR_IF(find_invalid_utf8(source) != kValidUtf8, "{}: the template is not UTF-8", name);
  Syntax syntax{replace_all(replace_all(source, "\r\n", "\n"), "\r", "\n"), nullptr};
  if (trims && syntax.source.ends_with('\n')) {
    syntax.source.pop_back();
  }
  syntax.root = Parser(syntax.source, name, trims).run();
  return syntax;
}

}  // namespace moe::jinja
