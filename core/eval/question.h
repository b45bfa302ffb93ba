#pragma once
// A question as text, ready to be scored, and what a model made of it.

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/json.h"

namespace moe::eval {

struct Question {
  OrderedJson fields;                      // the document, for the sample log
  std::string context;                     // description, examples and prompt
  std::vector<std::string> choices;        // none where text is generated
  int64_t gold = 0;                        // index of the right choice; -1 = none of them is
  std::string where;                       // file and line, for messages
  std::string source = {};                 // for statistics (lines.h)
  std::vector<std::string> contexts = {};  // one a choice, where they differ by context
  std::string target = {};                 // the right answer as the sample log tells it
  std::string delimiter = " ";             // between context and choice

  const std::string& context_of(size_t choice) const {
    return contexts.empty() ? context : contexts[choice];
  }
  // What follows context_of(choice) and is scored.
  std::string continuation_of(size_t choice) const {
    return delimiter + (contexts.empty() ? choices[choice] : target);
  }
};

}  // namespace moe::eval
