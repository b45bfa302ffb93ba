#include <algorithm>
#include <map>
#include <utility>

#include "core/base/text.h"
#include "core/jinja/syntax.h"
#include "core/jinja/template.h"

namespace moe::jinja {

namespace {

using Kind = Node::Kind;

constexpr int kMaxRecursion = 400;  // of nodes, macros and recursive loops

bool mentions_in(const Node& node, std::string_view name) {
  return (node.kind == Kind::kName && node.name == name) ||
         (node.kind == Kind::kGeneration && name == "generation") ||
         std::ranges::any_of(node.kids, [&](const NodePtr& kid) {
           return kid != nullptr && mentions_in(*kid, name);
         });
}

// The names of a block. Macros and loops keep the scope that they were defined in.
struct Scope {
  std::shared_ptr<Scope> parent;
  const Node* block = nullptr;
  std::map<std::string, Value> names = {};
};
using ScopePtr = std::shared_ptr<Scope>;

enum class Flow { kNext, kBreak, kContinue };

class Renderer {
 public:
  Renderer(const Dict& context, const RenderSettings& settings, Dialect dialect)
      : settings_(settings),
        is_strict_(dialect == Dialect::kTask),
        scope_(std::make_shared<Scope>()) {
    Dict globals;
    define_globals(globals);
    for (const Dict* names : {static_cast<const Dict*>(&globals), &context}) {
      for (const auto& [name, value] : names->items) {
        scope_->names[name.string().utf8()] = value;
      }
    }
    scope_->names["strftime_now"] = make_function([this](const Arguments& arguments) -> Value {
      arguments.check({"format"});
      if (!settings_.format_date || arguments.positional.empty()) {
        refuse("strftime_now() without a date and a format");
      }
      return settings_.format_date(arguments.positional[0].string().utf8());
    });
    scope_ = std::make_shared<Scope>(Scope{scope_});
  }
  Renderer(const Renderer&) = delete;
  Renderer& operator=(const Renderer&) = delete;
  ~Renderer() {
    for (const auto& scope : macro_scopes_) {
      scope->names.clear();  // a macro and its scope own each other
    }
  }

  size_t at() const { return at_; }  // of the node that failed

  Text render(const Node& root) {
    scope_->block = &root;
    return capture([&] { execute(root); });
  }

  Value evaluate(const Node& node) {
    const Level level(*this, node);
    const auto kid = [&](size_t index) {
      Value value = node.kids[index] == nullptr ? Value(None{}) : evaluate(*node.kids[index]);
      at_ = node.at;
      return is_strict_ && node.name != "defined" && node.name != "default" ? value.defined()
                                                                            : value;
    };
    switch (node.kind) {
      case Kind::kConstant:
        return node.value;
      case Kind::kName:
        return look_up(node.name);
      case Kind::kBody:
        return body_;
      case Kind::kList:
      case Kind::kTuple: {
        Values items;
        for (const NodePtr& item : node.kids) {
          items.push_back(evaluate(*item));
        }
        const bool is_tuple = node.kind == Kind::kTuple;
        return {std::move(items), is_tuple ? Sequence::Kind::kTuple : Sequence::Kind::kList};
      }
      case Kind::kDict: {
        Dict dict;
        for (size_t i = 0; i < node.kids.size(); i += 2) {
          Value key = kid(i);
          dict.set(std::move(key), kid(i + 1));
        }
        return {std::move(dict)};
      }
      case Kind::kSign: {
        const Value operand = kid(0);
        return operand.is<double>() && node.name == "-" ? Value(-operand.number())
                                                        : arithmetic(node.name, 0, operand);
      }
      case Kind::kNot:
        return !is_true(kid(0));
      case Kind::kAnd:
      case Kind::kOr: {
        Value left = kid(0);
        return is_true(left) == (node.kind == Kind::kAnd) ? kid(1) : left;
      }
      case Kind::kArithmetic: {
        const Value left = kid(0), right = kid(1);
        if (node.name != "~") {
          return arithmetic(node.name, left, right);
        }
        Text text = to_text(left);
        text.append(to_text(right));
        text.is_safe = false;
        return text;
      }
      case Kind::kCompare:
        return evaluate_comparison(node);
      case Kind::kConditional:
        return is_true(kid(1))           ? kid(0)
               : node.kids[2] == nullptr ? Value(Undefined{"a condition has no else"})
                                         : kid(2);
      case Kind::kAttribute:
        return get_attribute(kid(0), node.name);
      case Kind::kItem: {
        const Value object = kid(0);
        return get_item(object, kid(1));
      }
      case Kind::kSlice: {
        const Value object = kid(0), begin = kid(1), end = kid(2);
        return get_slice(object, begin, end, kid(3));
      }
      case Kind::kCall: {
        const Value callee = kid(0);
        return call(node, callee, evaluate_arguments(node));
      }
      case Kind::kFilter:
      case Kind::kTest: {
        const Value operand = kid(0);
        const Arguments arguments = evaluate_arguments(node);
        at_ = node.at;
        return node.kind == Kind::kFilter ? apply_filter(node.name, operand, arguments)
                                          : Value(find_test(node.name)(operand, arguments));
      }
      default:
        MOE_CHECK(false, "a statement in an expression");
    }
  }

 private:
  friend class Loop;

  // Counts a step and a level of recursion.
  class Level {
   public:
    Level(Renderer& renderer, const Node& node) : level_(renderer.level_) {
      renderer.at_ = node.at;
      if (++renderer.steps_ > renderer.settings_.max_steps) {
        fail("the template takes more than {} steps", renderer.settings_.max_steps);
      }
      if (level_ == kMaxRecursion) {
        fail("more than {} levels of recursion", kMaxRecursion);
      }
      ++level_;
    }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;
    ~Level() { --level_; }

   private:
    int& level_;
  };

  Value look_up(const std::string& name) const {
    bool is_hidden = false;
    for (const Scope* scope = scope_.get(); scope != nullptr; scope = scope->parent.get()) {
      if (const auto found = scope->names.find(name); found != scope->names.end()) {
        if (is_hidden) {
          refuse("reading '{}' before the block around it sets it", name);
        }
        return found->second;
      }
      // jinja2 gives an inner block the name of this one, although it is not set yet.
      is_hidden =
          is_hidden || (scope != scope_.get() && scope->block != nullptr &&
                        std::ranges::find(scope->block->names, name) != scope->block->names.end());
    }
    if (name == "self") {
      refuse("'self'");
    }
    return Undefined{fmt::format("'{}' is undefined", name)};
  }

  Arguments evaluate_arguments(const Node& node) {
    Arguments arguments;
    const size_t first_named = node.kids.size() - node.names.size();
    for (size_t i = 1; i < node.kids.size(); ++i) {
      Value value = evaluate(*node.kids[i]);
      if (i < first_named) {
        arguments.positional.push_back(std::move(value));
      } else {
        arguments.named.emplace_back(node.names[i - first_named], std::move(value));
      }
    }
    return arguments;
  }

  Value call(const Node& node, const Value& callee, const Arguments& arguments) {
    at_ = node.at;
    if (callee.defined().object() == nullptr) {
      fail("a {} is not callable", type_name(callee));
    }
    return callee.object()->call(arguments);
  }

  bool evaluate_comparison(const Node& node) {
    Value left = evaluate(*node.kids[0]);
    for (size_t i = 0; i < node.names.size(); ++i) {
      Value right = evaluate(*node.kids[i + 1]);
      at_ = node.at;
      const std::string& name = node.names[i];
      const bool holds = name == "=="       ? equals(left, right)
                         : name == "!="     ? !equals(left, right)
                         : name == "in"     ? contains(right, left)
                         : name == "not in" ? !contains(right, left)
                         : name == "<"      ? compare(left, right) < 0
                         : name == "<="     ? compare(left, right) <= 0
                         : name == ">"      ? compare(left, right) > 0
                                            : compare(left, right) >= 0;
      if (!holds) {
        return false;
      }
      left = std::move(right);
    }
    return true;
  }

  // Runs `body` in a scope of its own below `parent`.
  template <typename Body>
  auto in_scope(const ScopePtr& parent, const Node& block, const Body& body) {
    struct Restore {
      ScopePtr& scope;
      ScopePtr saved;
      ~Restore() { scope = std::move(saved); }
    } restore{scope_, scope_};
    scope_ = std::make_shared<Scope>(Scope{parent, &block});
    return body();
  }

  // Returns the text that `body` writes.
  template <typename Body>
  Text capture(const Body& body) {
    struct Restore {
      Text*& out;
      Text* saved;
      ~Restore() { out = saved; }
    } restore{out_, out_};
    Text text;
    out_ = &text;
    body();
    return text;
  }

  void write(const Text& text) {
    out_->append(text);
    for (size_t i = out_->size() - text.size(); generation_ > 0 && i < out_->size(); ++i) {
      out_->chars[i].is_generated = true;
    }
  }

  Flow execute(const Node& node) {
    const Level level(*this, node);
    switch (node.kind) {
      case Kind::kBlock:
        for (const NodePtr& statement : node.kids) {
          if (const Flow flow = execute(*statement); flow != Flow::kNext) {
            return flow;
          }
        }
        return Flow::kNext;
      case Kind::kText:
        write(*node.value.text());
        return Flow::kNext;
      case Kind::kOutput: {
        const Value value = evaluate(*node.kids[0]);
        at_ = node.at;
        write(to_text(is_strict_ ? value.defined() : value));
        return Flow::kNext;
      }
      case Kind::kIf:
        for (size_t i = 0; i < node.kids.size(); i += 2) {
          const bool is_else = i + 1 == node.kids.size();
          if (is_else || is_true(evaluate(*node.kids[i]))) {
            return execute(*node.kids[is_else ? i : i + 1]);
          }
        }
        return Flow::kNext;
      case Kind::kFor:
        return run_loop(node, scope_, evaluate(*node.kids[1]), 1);
      case Kind::kSet:
        assign(*node.kids[0], evaluate(*node.kids[1]));
        return Flow::kNext;
      case Kind::kSetBlock:
      case Kind::kFilterBlock: {
        const bool is_set = node.kind == Kind::kSetBlock;
        const Node* filter = node.kids[is_set ? 2 : 1].get();
        Value value = in_scope(scope_, *node.kids[is_set ? 1 : 0], [&] {
          return capture([&] { execute(*node.kids[is_set ? 1 : 0]); });
        });
        if (filter != nullptr) {
          Value outer = std::exchange(body_, value);
          value = evaluate(*filter);
          body_ = std::move(outer);
        }
        is_set ? assign(*node.kids[0], std::move(value)) : write(to_text(value));
        return Flow::kNext;
      }
      case Kind::kMacro: {
        const Node* call_node = node.kids[1].get();
        if (call_node == nullptr) {
          scope_->names[node.name] = make_macro(node);
          return Flow::kNext;
        }
        const Value callee = evaluate(*call_node->kids[0]);
        Arguments arguments = evaluate_arguments(*call_node);
        arguments.named.emplace_back("caller", make_macro(node));
        write(to_text(call(*call_node, callee, arguments)));
        return Flow::kNext;
      }
      case Kind::kGeneration: {
        ++generation_;
        in_scope(scope_, *node.kids[0], [&] { return execute(*node.kids[0]); });
        --generation_;
        return Flow::kNext;
      }
      case Kind::kBreak:
        return Flow::kBreak;
      case Kind::kContinue:
        return Flow::kContinue;
      default:
        MOE_CHECK(false, "an expression as a statement");
    }
  }

  void assign(const Node& target, Value value) {
    if (target.kind == Kind::kName) {
      scope_->names[target.name] = std::move(value);
      return;
    }
    if (target.kind == Kind::kAttribute) {
      const Value object = evaluate(*target.kids[0]);
      if (object.object() == nullptr) {
        fail("only attributes of a namespace can be set");
      }
      return object.object()->set_attribute(target.name, std::move(value));
    }
    Values items = iterate(value);
    if (items.size() != target.kids.size()) {
      fail("{} values cannot be assigned to {} names", items.size(), target.kids.size());
    }
    for (size_t i = 0; i < items.size(); ++i) {
      assign(*target.kids[i], std::move(items[i]));
    }
  }

  Value make_macro(const Node& node) {
    for (const char* name : {"varargs", "kwargs"}) {
      if (mentions_in(*node.kids[0], name)) {
        refuse("{} of a macro", name);
      }
    }
    macro_scopes_.push_back(scope_);
    const bool takes_caller = mentions_in(*node.kids[0], "caller");
    return make_function([this, &node, takes_caller, scope = scope_](const Arguments& arguments) {
      return in_scope(scope, *node.kids[0], [&]() -> Value {
        bind(node, arguments, takes_caller);
        return capture([&] { execute(*node.kids[0]); });
      });
    });
  }

  // Sets the parameters of a macro in the innermost scope.
  void bind(const Node& macro, const Arguments& arguments, bool takes_caller) {
    const std::vector<std::string>& names = macro.names;
    const size_t first_default = names.size() + 2 - macro.kids.size();
    if (arguments.positional.size() > names.size()) {
      fail("the macro '{}' takes {} arguments, not {}", macro.name, names.size(),
           arguments.positional.size());
    }
    for (const auto& [name, value] : arguments.named) {
      const auto found = std::ranges::find(names, name);
      const auto index = static_cast<size_t>(found - names.begin());
      if (found == names.end() ? !(takes_caller && name == "caller")
                               : index < arguments.positional.size()) {
        fail("the macro '{}' has no parameter '{}', or two values for it", macro.name, name);
      }
    }
    if (takes_caller) {
      const Value* caller = arguments.find(SIZE_MAX, "caller");
      scope_->names["caller"] =
          caller != nullptr ? *caller : Value(Undefined{"there is no caller"});
    }
    for (size_t i = 0; i < names.size(); ++i) {
      const Value* given = arguments.find(i, names[i]);
      scope_->names[names[i]] =
          given != nullptr
              ? *given
              : Value(Undefined{fmt::format("parameter '{}' was not provided", names[i])});
    }
    for (size_t i = first_default; i < names.size(); ++i) {
      if (arguments.find(i, names[i]) == nullptr) {
        scope_->names[names[i]] = evaluate(*macro.kids[2 + i - first_default]);
      }
    }
  }

  Flow run_loop(const Node& node, const ScopePtr& scope, const Value& iterable, int depth);

  const RenderSettings& settings_;
  const bool is_strict_;  // undefined values are errors where they are used
  ScopePtr scope_;
  std::vector<ScopePtr> macro_scopes_;
  Text* out_ = nullptr;
  Value body_;  // of the innermost filter block
  size_t at_ = 0;
  int64_t steps_ = 0;
  int level_ = 0, generation_ = 0;
};

// `loop`.
class Loop : public Object {
 public:
  Loop(Renderer& renderer, const Node& node, ScopePtr scope, Values items, int depth)
      : items(std::move(items)),
        renderer_(renderer),
        node_(node),
        scope_(std::move(scope)),
        depth_(depth) {}

  const Values items;
  size_t index = 0;

  Value attribute(const std::string& name) override {
    const size_t count = items.size();
    if (name == "cycle") {
      return make_function([this](const Arguments& arguments) {
        const Values& values = arguments.positional;
        return values.empty() ? (fail("loop.cycle() without values"), Value())
                              : values[index % values.size()];
      });
    }
    if (name == "changed") {
      return make_function([this](const Arguments& arguments) -> Value {
        const bool is_same = last_ && std::ranges::equal(arguments.positional, *last_, equals);
        last_ = arguments.positional;
        return !is_same;
      });
    }
    if (name == "previtem" || name == "nextitem") {
      const size_t other = name == "previtem" ? index - 1 : index + 1;
      return other < count ? items[other] : Value(Undefined{"there is no such item"});
    }
    return name == "index"       ? Value(index + 1)
           : name == "index0"    ? Value(index)
           : name == "revindex"  ? Value(count - index)
           : name == "revindex0" ? Value(count - index - 1)
           : name == "first"     ? Value(index == 0)
           : name == "last"      ? Value(index + 1 == count)
           : name == "length"    ? Value(count)
           : name == "depth"     ? Value(depth_)
           : name == "depth0"    ? Value(depth_ - 1)
                                 : Object::attribute(name);
  }

  Value call(const Arguments& arguments) override {
    if (!node_.flag || arguments.positional.size() != 1) {
      fail("the loop is not recursive, or is called without an iterable");
    }
    return renderer_.capture(
        [&] { renderer_.run_loop(node_, scope_, arguments.positional[0], depth_ + 1); });
  }

 private:
  Renderer& renderer_;
  const Node& node_;
  ScopePtr scope_;
  int depth_;
  std::optional<Values> last_;  // of loop.changed()
};

Flow Renderer::run_loop(const Node& node, const ScopePtr& scope, const Value& iterable, int depth) {
  Values items = iterate(iterable);
  if (node.kids[2] != nullptr) {
    std::erase_if(items, [&](const Value& item) {
      return in_scope(scope, *node.kids[3], [&] {
        assign(*node.kids[0], item);
        return !is_true(evaluate(*node.kids[2]));
      });
    });
  }
  const auto loop = std::make_shared<Loop>(*this, node, scope, std::move(items), depth);
  bool has_completed = false;  // an iteration
  for (; loop->index < loop->items.size(); ++loop->index) {
    const Flow flow = in_scope(scope, *node.kids[3], [&] {
      scope_->names["loop"] = Value(std::shared_ptr<Object>(loop));
      assign(*node.kids[0], loop->items[loop->index]);
      return execute(*node.kids[3]);
    });
    has_completed = has_completed || flow == Flow::kNext;
    if (flow == Flow::kBreak) {
      break;
    }
  }
  if (has_completed || node.kids[4] == nullptr) {
    return Flow::kNext;
  }
  // As jinja2: also if break or continue ended each iteration.
  return in_scope(scope, *node.kids[4], [&] { return execute(*node.kids[4]); });
}

// Calls `body`; makes a UserError of a Fault.
template <typename Body>
auto with_place(const Syntax& syntax, const std::string& name, const Renderer& renderer,
                const Body& body) {
  try {
    return body();
  } catch (const Fault& fault) {
    const std::string where = place(name, syntax.source, renderer.at());
    if (fault.is_unsupported) {
      throw Unsupported("{}: {}", where, fault.message);
    }
    throw UserError("{}: {}", where, fault.message);
  }
}

}  // namespace

Template::Template(std::string_view source, std::string name, Dialect dialect)
    : syntax_(std::make_shared<Syntax>(parse(source, name, dialect == Dialect::kChat))),
      name_(std::move(name)),
      dialect_(dialect) {}

Rendered Template::render(const Dict& context, const RenderSettings& settings) const {
  Renderer renderer(context, settings, dialect_);
  const Text text =
      with_place(*syntax_, name_, renderer, [&] { return renderer.render(*syntax_->root); });
  Rendered result{text.utf8(), {}};
  size_t bytes = 0;
  for (const Char& one : text.chars) {
    bytes += one.code < 0x80 ? 1 : one.code < 0x800 ? 2 : one.code < 0x1'0000 ? 3 : 4;
    if (result.runs.empty() || result.runs.back().source != one.source ||
        result.runs.back().is_generated != one.is_generated) {
      result.runs.push_back({0, one.source, one.is_generated});
    }
    result.runs.back().end = bytes;
  }
  return result;
}

Value Template::evaluate(const Dict& context, const RenderSettings& settings) const {
  const Node& root = *syntax_->root;
  const bool is_expression = root.kids.size() == 1 && root.kids[0]->kind == Kind::kOutput;
  Renderer renderer(context, settings, dialect_);
  return with_place(*syntax_, name_, renderer, [&]() -> Value {
    if (!is_expression) {
      return renderer.render(root);
    }
    const Value value = renderer.evaluate(*root.kids[0]->kids[0]);
    return dialect_ == Dialect::kTask ? value.defined() : value;
  });
}

const std::string& Template::source() const { return syntax_->source; }

bool Template::mentions(std::string_view name) const { return mentions_in(*syntax_->root, name); }

}  // namespace moe::jinja
