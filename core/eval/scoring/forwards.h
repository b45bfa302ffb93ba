#pragma once
// Forward passes over several requests, their scores as JSON for a later run (response_cache.h),
// and their distribution over ranks. Each rank holds the whole model and plans the same forward
// passes, so that the grouping does not depend on the number of ranks. In each round every rank
// runs one, and an all-gather gives its scores to all: each rank ends with the results of one
// process.

#include <ATen/ATen.h>

#include <optional>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/distributed/comm.h"
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

// The scores of one forward pass, and the experts of each token if tokens are counted.
struct ForwardOutput {
  ForwardScores scores;
  std::vector<at::Tensor> token_rows = {};  // as in model::ForwardResult
};

// Returns the outputs of ranks 0, 1, .. in this round. `own` is empty on ranks without a forward
// pass, which are the last ones. Collective; `ranks` is null in a single process.
std::vector<ForwardOutput> gather_forwards(distributed::Comm* ranks,
                                           const std::optional<ForwardOutput>& own);
std::vector<std::string> gather_generated(distributed::Comm* ranks,
                                          const std::optional<std::string>& own);

inline size_t rank_of(const distributed::Comm* ranks) {
  return ranks == nullptr ? 0 : static_cast<size_t>(ranks->rank());
}
inline size_t count_of(const distributed::Comm* ranks) {
  return ranks == nullptr ? 1 : static_cast<size_t>(ranks->size());
}

}  // namespace moe::eval
