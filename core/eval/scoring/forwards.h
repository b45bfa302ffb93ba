#pragma once
// One forward over several requests: before it is run, its answers, and those answers as JSON for
// a later run (response_cache.h) or for other ranks (shared_forwards.h).

#include <optional>
#include <vector>

#include "core/base/json.h"
#include "core/eval/scoring/requests.h"
#include "core/model/llama/llama.h"
#include "core/route/counters.h"

namespace moe::eval {

// One forward, as it is shown to who counts tokens.
struct Forward {
  const std::vector<size_t>& requests;        // their indices, in the order of the inputs
  const std::vector<at::Tensor>& token_rows;  // model::ForwardResult::token_rows
};

// A forward before it is run: all that its numbers depend on beside the model and its routing.
struct PlannedForward {
  const std::vector<Request>& all;
  const std::vector<size_t>& requests;  // indices into `all`, in the order of the inputs
  const model::Packed& inputs;
};

struct ForwardAnswers {
  std::vector<Score> scores;                   // one a request of the forward
  std::vector<route::CounterValues> counters;  // one a MoE layer
};

// Answers of forwards for a later run (response_cache.h). Whole forwards, because what is computed
// together shows in capacity's drops and in the last bits of every score: a run that recalls some
// of them ends in the very numbers of one that recalls none.
class ForwardCache {
 public:
  virtual ~ForwardCache() = default;
  virtual std::optional<ForwardAnswers> recall(const PlannedForward& forward) = 0;
  virtual void keep(const PlannedForward& forward, const ForwardAnswers& answers) = 0;
};

// {"scores": [[logprob, is_greedy, tokens], ..], "counters": [{..}, ..]}, and back; numbers keep
// every bit. answers_from throws Json::exception where the JSON is another.
OrderedJson to_json(const ForwardAnswers& answers);
ForwardAnswers answers_from(const Json& json);

}  // namespace moe::eval
