#include "core/eval/tasks/task.h"

#include "core/base/error.h"

namespace moe::eval {

const char* to_string(OutputType type) {
  return type == OutputType::kMultipleChoice  ? "multiple_choice"
         : type == OutputType::kLogLikelihood ? "loglikelihood"
                                              : "generate_until";
}

Compat parse_compat(const std::string& text) {
  if (text == "current" || text == "0.4.1") {
    return text == "current" ? Compat::kCurrent : Compat::k041;
  }
  throw UserError("--compat '{}' is unknown; known: current, 0.4.1", text);
}

const char* to_string(Compat compat) { return compat == Compat::k041 ? "0.4.1" : "current"; }

}  // namespace moe::eval
