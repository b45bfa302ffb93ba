#pragma once
// The syntax tree of a template, and its parser: the grammar of jinja2 3.1 with the settings of
// transformers (trim_blocks, lstrip_blocks, loop controls, {% generation %}).

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/jinja/value.h"

namespace moe::jinja {

struct Node;
using NodePtr = std::unique_ptr<const Node>;

// A statement or an expression. The comment of each kind names its `kids`; [x] may be null.
struct Node {
  enum class Kind {
    // Expressions.
    kConstant,     // of `value`
    kName,         // of `name`
    kList,         // items
    kTuple,        // items
    kDict,         // key, value, key, value, ...
    kSign,         // operand; `name` is + or -
    kNot,          // operand
    kAnd,          // left, right
    kOr,           // left, right
    kArithmetic,   // left, right; `name` is the operation, ~ among them
    kCompare,      // operands; `names` are the comparisons between them
    kConditional,  // value, condition, [value otherwise]
    kAttribute,    // object; `name`
    kItem,         // object, key
    kSlice,        // object, [begin], [end], [step]
    kCall,         // callee, positional arguments; `names` and the last kids: named arguments
    kFilter,       // operand, then as kCall; `name`
    kTest,         // operand, then as kCall; `name`
    kBody,         // the text of the block that a filter is applied to
    // Statements.
    kBlock,        // statements; `names` that it sets before it reads them
    kText,         // of `value`
    kOutput,       // expression
    kIf,           // condition, block, condition, block, ..., [block of else]
    kFor,          // target, iterable, [condition], block, [block of else]; `flag`: recursive
    kSet,          // target, value
    kSetBlock,     // target, block, [filter of kBody]
    kFilterBlock,  // block, filter of kBody
    kMacro,        // block, [call of a call block], defaults of the last of `names`; `name`
    kGeneration,   // block
    kBreak,
    kContinue,
  };
  Kind kind = Kind::kConstant;
  size_t at = 0;  // offset in the source
  std::string name = {};
  Value value = {};
  std::vector<NodePtr> kids = {};
  std::vector<std::string> names = {};
  bool flag = false;
  int depth = 1;  // of the tree below
};

struct Syntax {
  std::string source;  // with line feeds alone
  NodePtr root;
};

// Parses `source`. `name` opens errors, with line and column. Throws Unsupported for a template
// that is invalid or beyond the subset.
// `trims` is for trim_blocks, lstrip_blocks and one line feed at the end.
Syntax parse(std::string_view source, const std::string& name, bool trims);

// Returns "NAME line 3 column 7".
std::string place(const std::string& name, std::string_view source, size_t at);

}  // namespace moe::jinja
