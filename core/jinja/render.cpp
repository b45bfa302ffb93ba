#include <algorithm>

#include "core/base/text.h"
#include "core/jinja/syntax.h"

namespace moe::jinja {

namespace {

constexpr int kMaxRecursion = 400;  // of nodes, macros and recursive loops

bool holds_object(In value) {
  return value.object() ||
         (value.sequence() && std::ranges::any_of(value.sequence()->items, holds_object)) ||
         (value.dict() && std::ranges::any_of(value.dict()->items, [](const auto& item) {
            return holds_object(item.second);
          }));
}

}  // namespace

Renderer::Renderer(const Dict& context, const RenderSettings& settings, bool is_strict)
    : scope(std::make_shared<Scope>()), settings_(settings), is_strict_(is_strict) {
  for (const auto& [name, value] : context.items) {
    scope->names[name.string().utf8()] = value;
  }
  scope->names["strftime_now"] = make_function([this](Args arguments) -> Value {
    const Value* format = arguments.bind({"format"})[0];
    refuse_if(!settings_.format_date || format == nullptr,
              "strftime_now() without a date and a format");
    return settings_.format_date(format->string().utf8());
  });
}
Renderer::~Renderer() {
  for (const ScopePtr& macro_scope : macro_scopes_) {
    macro_scope->names.clear();  // a macro and its scope own each other
  }
}

Value Renderer::run(const NodePtr& node) {
  at = node->at;
  fail_if(++steps_ > settings_.max_steps, "the template takes more than {} steps",
          settings_.max_steps);
  fail_if(++level_ > kMaxRecursion, "more than {} levels of recursion", kMaxRecursion);
  Value value = node->body(*this, node->children);
  --level_;
  value.make_strict(is_strict_);
  return value;
}

Value Renderer::run_in_scope(const NodePtr& node, const ScopePtr& parent,
                             const std::function<void()>& prepare) {
  const ScopePtr outer =
      std::exchange(scope, std::make_shared<Scope>(Scope{parent, &node->set_first}));
  prepare();
  Value value = run(node);
  scope = outer;
  return value;
}
Text Renderer::capture(const std::function<void()>& body) {
  Text text;
  Text* outer = std::exchange(out_, &text);
  body();
  out_ = outer;
  return text;
}

Value Renderer::look_up(const std::string& name) const {
  bool is_hidden = false;
  for (const Scope* at = scope.get(); at != nullptr; at = at->parent.get()) {
    if (const auto found = at->names.find(name); found != at->names.end()) {
      refuse_if(is_hidden, "reading '{}' before the enclosing block sets it", name);
      return found->second;
    }
    // In jinja2 an inner block sees the enclosing block's variable before it is assigned.
    is_hidden = is_hidden || (at != scope.get() && at->set_first && at->set_first->contains(name));
  }
  refuse_if(name == "self", "'self'");
  return find_function(name, Value()).value_or(Undefined{fmt::format("'{}' is undefined", name)});
}

void Renderer::set_member(In object, const std::string& member, In value) {
  fail_if(object.object() == nullptr || !object.object()->is_namespace,
          "only attributes of a namespace can be set");
  refuse_if(holds_object(value), "a function in a namespace");
  object.object()->attributes[member] = value;
}

Value Renderer::make_macro(const Macro& macro) {
  macro_scopes_.push_back(scope);
  return make_function([this, &macro, outer = scope](Args arguments) -> Value {
    Names names = macro.parameters;
    if (macro.body->names.contains("caller") && arguments.positional.size() <= names.size()) {
      names.emplace_back("caller");
    }
    const std::vector<const Value*> given = arguments.bind(names);
    const size_t first_default = macro.parameters.size() - macro.defaults.size();
    const auto set_parameters = [&] {
      for (size_t i = 0; i < names.size(); ++i) {
        scope->names[names[i]] =
            given[i] ? *given[i] : Undefined{fmt::format("no value for '{}'", names[i])};
      }
      for (size_t i = first_default; i < macro.parameters.size(); ++i) {
        if (given[i] == nullptr) {
          scope->names[names[i]] = run(macro.defaults[i - first_default]);
        }
      }
    };
    return capture([&] { run_in_scope(macro.body, outer, set_parameters); });
  });
}

void Renderer::run_loop(const Loop& loop, const ScopePtr& parent, In iterable, int depth) {
  Values items = iterate(iterable);
  const bool has_loop = loop.is_recursive || loop.body->names.contains("loop");
  const auto is_skipped = [&](In item) {
    return loop.condition != nullptr &&
           !is_true(run_in_scope(loop.condition, parent, [&] { loop.assign(*this, item); }));
  };
  if (has_loop) {  // loop.length counts the items that pass the condition
    std::erase_if(items, is_skipped);
  }
  const auto object = std::make_shared<Object>();
  if (loop.is_recursive) {
    object->call = [this, &loop, parent, depth](Args arguments) -> Value {
      const Values& inner = arguments.positional;
      fail_if(inner.size() != 1, "loop() takes one iterable");
      return capture([&] { run_loop(loop, parent, inner[0], depth + 1); });
    };
  }
  const Value changed =
      make_function([last = std::optional<Values>()](Args arguments) mutable -> Value {
        const bool is_same = last && std::ranges::equal(arguments.positional, *last, equals);
        last = arguments.positional;
        return !is_same;
      });
  const size_t count = items.size();
  const auto item = [&](size_t i) { return i < count ? items[i] : Undefined{"no such item"}; };
  const auto set_loop = [&](size_t i) {
    const auto cycle = [i](Args arguments) {
      fail_if(arguments.positional.empty(), "loop.cycle() without values");
      return arguments.positional[i % arguments.positional.size()];
    };
    object->attributes = {{"changed", changed},
                          {"cycle", make_function(cycle)},
                          {"depth", depth},
                          {"depth0", depth - 1},
                          {"first", i == 0},
                          {"index", i + 1},
                          {"index0", i},
                          {"last", i + 1 == count},
                          {"length", count},
                          {"nextitem", item(i + 1)},
                          {"previtem", item(i - 1)},
                          {"revindex", count - i},
                          {"revindex0", count - i - 1}};
    scope->names["loop"] = object;
  };
  bool has_completed = false;  // true once an iteration has reached its end
  for (size_t i = 0; i < count; ++i) {
    if (!has_loop && is_skipped(items[i])) {
      continue;
    }
    run_in_scope(loop.body, parent, [&] {
      if (has_loop) {
        set_loop(i);
      }
      loop.assign(*this, items[i]);
    });
    has_completed = has_completed || flow == Flow::kNext;
    if (std::exchange(flow, Flow::kNext) == Flow::kBreak) {
      break;
    }
  }
  if (!has_completed && loop.otherwise != nullptr) {
    run_in_scope(loop.otherwise, parent);  // like jinja2, also if no iteration reached its end
  }
}

Template::Template(std::string_view source, std::string name, Dialect dialect)
    : syntax_(std::make_shared<Syntax>(parse(source, name, dialect == Dialect::kChat))),
      name_(std::move(name)),
      dialect_(dialect) {}

Value Template::evaluate(const Dict& context, const RenderSettings& settings, bool as_text) const {
  const NodePtr& root = syntax_->root;
  Renderer renderer(context, settings, dialect_ == Dialect::kTask);
  try {
    if (!as_text && root->children.size() == 1 && root->children[0]->form == Node::Form::kOutput) {
      return renderer.run(root->children[0]->children[0]).usable();
    }
    return renderer.capture([&] { renderer.run_in_scope(root, renderer.scope); });
  } catch (const Fault& fault) {
    const std::string where = place(name_, syntax_->source, renderer.at);
    if (fault.is_unsupported) {
      throw Unsupported("{}: {}", where, fault.message);
    }
    throw UserError("{}: {}", where, fault.message);
  }
}

Rendered Template::render(const Dict& context, const RenderSettings& settings) const {
  const Value value = evaluate(context, settings, true);
  Rendered result{value.text()->utf8(), {}};
  size_t bytes = 0;
  for (const Char& one : value.text()->chars) {
    bytes += one.code < 0x80 ? 1 : one.code < 0x800 ? 2 : one.code < 0x1'0000 ? 3 : 4;
    if (result.runs.empty() || result.runs.back().source != one.source ||
        result.runs.back().is_generated != one.is_generated) {
      result.runs.push_back({0, one.source, one.is_generated});
    }
    result.runs.back().end = bytes;
  }
  return result;
}

const std::string& Template::source() const { return syntax_->source; }
bool Template::mentions(std::string_view name) const {
  return syntax_->root->names.contains(std::string(name));
}

}  // namespace moe::jinja
