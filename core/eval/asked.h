#pragma once
// What an evaluation asks of a model at once, known before the model is loaded: memory is compared
// with that, so that what fits is not refused and what does not fit is.

#include <vector>

#include "core/eval/runner.h"

namespace moe::eval {

// The largest forward that scores these requests.
Asked asked_of(const EvalSettings& settings, const OpenedModel& opened,
               const std::vector<Request>& requests);

// The same of tasks, which need not be encoded for it: few texts are encoded as they will be, of
// many the longest, because many fill a forward to its limit.
Asked asked_of(const EvalSettings& settings, const OpenedModel& opened,
               const std::vector<LoadedTask>& tasks);

}  // namespace moe::eval
