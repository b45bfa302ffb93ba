#pragma once
// Templates as trees of closures. The grammar is that of jinja2 3.1 as configured by transformers.

#include <set>

#include "core/jinja/template.h"
#include "core/jinja/value.h"

namespace moe::jinja {

struct Token {
  // kSymbol: operators and delimiters of tags, such as {% and }}.
  enum class Type { kName, kSymbol, kEof, kData, kInteger, kFloat, kString };
  Type type = Type::kEof;
  std::string text;
  size_t at = 0;  // offset in the source
};

class Renderer;
struct Node;
using NodePtr = std::shared_ptr<const Node>;
using Nodes = std::vector<NodePtr>;

// A statement or an expression.
struct Node {
  enum class Form { kOther, kCall, kOutput };
  size_t at = 0;   // offset in the source
  Nodes children;  // elements may be null
  std::function<Value(Renderer& renderer, const Nodes& children)> body;
  int depth = 1;  // levels of the subtree
  Form form = Form::kOther;
  // Set for a block with a scope: names that occur, and names assigned before they are read.
  std::set<std::string> names = {}, set_first = {};
};

struct Syntax {
  std::string source;  // with \n line ends
  NodePtr root;
};

// Parses `source`. `trims`: trim_blocks, lstrip_blocks, no final line feed. Throws Unsupported that
// begins with `name`, line and column if the template is invalid or uses unsupported features.
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

// The variables of a block. Macros and loops keep the scope in which they were defined.
struct Scope {
  std::shared_ptr<Scope> parent;
  const std::set<std::string>* set_first = nullptr;  // Node::set_first of the block
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
  // Calls `prepare`, which sets variables, and runs `node` in a new scope below `parent`.
  Value run_in_scope(
      const NodePtr& node, const ScopePtr& parent, const std::function<void()>& prepare = [] {});
  Text capture(const std::function<void()>& body);  // returns the text written by `body`
  void write(const Text& text) { out_->append(text); }
  Value look_up(const std::string& name) const;
  void set_member(In object, const std::string& member, In value);
  Value make_macro(const Macro& macro);
  void run_loop(const Loop& loop, const ScopePtr& parent, In iterable, int depth);

  ScopePtr scope;
  Flow flow = Flow::kNext;  // of the innermost loop
  Value caller;             // macro of a call block, passed to the next call
  size_t at = 0;            // offset of the current node

 private:
  const RenderSettings& settings_;
  const bool is_strict_;  // using an undefined value is an error
  std::vector<ScopePtr> macro_scopes_;
  Text* out_ = nullptr;
  int64_t steps_ = 0;
  int level_ = 0;
};

}  // namespace moe::jinja
