#pragma once
// Questions as requests: one a choice, question after question.

#include <vector>

#include "core/eval/requests.h"
#include "core/eval/tasks.h"

namespace moe::eval {

std::vector<TextPair> text_pairs(const std::vector<Question>& questions);

}  // namespace moe::eval
