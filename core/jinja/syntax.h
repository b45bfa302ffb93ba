#pragma once
// Templates as trees of closures, in jinja2 3.1's grammar as transformers sets it (template.h).

#include <set>

#include "core/jinja/template.h"
#include "core/jinja/value.h"

namespace moe::jinja {

struct Token {
  // kSymbol: operators and the marks of tags, such as {% and }}.
  enum class Type { kName, kSymbol, kEof, kData, kInteger, kFloat, kString };
  Type type = Type::kEof;
  std::string text;
  size_t at = 0;  // offset in the source
};

class Renderer;
struct Node;
using NodePtr = std::shared_ptr<const Node>;
using Nodes = std::vector<NodePtr>;

// A statement, which writes text, or an expression.
struct Node {
  enum class Form { kOther, kCall, kOutput };
  size_t at = 0;  // offset in the source
  Nodes kids;     // may be null
  std::function<Value(Renderer& renderer, const Nodes& kids)> body;
  int depth = 1;  // of the tree below
  Form form = Form::kOther;
  // Only of a block with its own scope: the names in it, and those assigned before they are read.
  std::set<std::string> names = {}, set_first = {};
};

struct Syntax {
  std::string source;  // with line feeds alone
  NodePtr root;
};

// Parses `source`. `name` opens errors, with line and column. Throws Unsupported for a template
// that is invalid or beyond the subset. `trims`: trim_blocks, lstrip_blocks, no last line feed.
Syntax parse(std::string_view source, const std::string& name, bool trims);
std::vector<Token> lex(const std::string& source, const std::string& name, bool trims);

// Returns "NAME line 3 column 7".
std::string place(const std::string& name, std::string_view source, size_t at);

// Assigns a value to the left side of an assignment.
using Assign = std::function<void(Renderer& renderer, In value)>;

struct Loop {
  Assign assign;
  NodePtr condition = nullptr, body = nullptr, otherwise = nullptr;
  bool is_recursive = false;
};

struct Macro {
  std::string name;
  Names parameters = {};
  Nodes defaults = {};  // of the last parameters
  NodePtr body = nullptr;
};

// The names of a block. Macros and loops keep the scope that they were defined in.
struct Scope {
  std::shared_ptr<Scope> parent;
  const std::set<std::string>* set_first = nullptr;  // of its block
  std::map<std::string, Value> names = {};
};
using ScopePtr = std::shared_ptr<Scope>;

// The state of one rendering.
class Renderer {
 public:
  enum class Flow { kNext, kBreak, kContinue };

  Renderer(const Dict& context, const RenderSettings& settings, bool is_strict);
  ~Renderer();

  Value run(const NodePtr& node);
  // Runs `node` in a scope below `parent` that `prepare` fills.
  Value run_in_scope(
      const NodePtr& node, const ScopePtr& parent, const std::function<void()>& prepare = [] {});
  Text capture(const std::function<void()>& body);  // returns what `body` writes
  void write(const Text& text) { out_->append(text); }
  Value look_up(const std::string& name) const;
  void set_member(In object, const std::string& member, In value);
  Value make_macro(const Macro& macro);
  void run_loop(const Loop& loop, const ScopePtr& parent, In iterable, int depth);

  ScopePtr scope;
  Flow flow = Flow::kNext;  // of the innermost loop
  Value caller;             // the macro of a call block whose call comes next
  size_t at = 0;            // of the node that runs

 private:
  const RenderSettings& settings_;
  const bool is_strict_;  // undefined values are errors where they are used
  std::vector<ScopePtr> macro_scopes_;
  Text* out_ = nullptr;
  int64_t steps_ = 0;
  int level_ = 0;
};

}  // namespace moe::jinja
