#pragma once
// One forward over several requests: before it is run, and its scores, which as JSON serve a later
// run (response_cache.h) and other ranks (shared_forwards.h).

#include <optional>
#include <vector>

#include "core/base/json.h"
#include "core/eval/scoring/requests.h"
#include "core/model/llama/llama.h"
#include "core/route/counters.h"

namespace moe::eval {

// One forward after it ran, as ScoreSettings::observe gets it.
struct Forward {
  const std::vector<size_t>& requests;        // their indices, in the order of the inputs
  const std::vector<at::Tensor>& token_rows;  // model::ForwardResult::token_rows
};

// A forward before it is run: all that its scores depend on besides the model and its routing.
struct PlannedForward {
  const std::vector<Request>& all;
  const std::vector<size_t>& requests;  // indices into `all`, in the order of the inputs
  const model::Packed& inputs;
};

struct ForwardScores {
  std::vector<Score> scores;                   // one a request of the forward
  std::vector<route::CounterValues> counters;  // one a MoE layer
};

// Scores of forwards for a later run (response_cache.h). The unit is the whole forward, because
// what is computed together decides which rows a capacity drops, and the last bits of every score:
// a run that finds some of its forwards in the cache must end in the scores of one that finds none.
class ForwardCache {
 public:
  virtual ~ForwardCache() = default;
  virtual std::optional<ForwardScores> find(const PlannedForward& forward) = 0;
  virtual void store(const PlannedForward& forward, const ForwardScores& scores) = 0;
};

// {"scores": [[logprob, is_greedy, tokens], ..], "counters": [{..}, ..]}, and back; every
// bit of a number survives. forward_scores_from throws Json::exception for JSON of another form.
OrderedJson to_json(const ForwardScores& forward);
ForwardScores forward_scores_from(const Json& json);

}  // namespace moe::eval
