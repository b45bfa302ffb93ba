#pragma once
// Forward passes over several requests: their scores, as JSON for response_cache.h, and their
// distribution over ranks. Each rank has the whole model and plans all forward passes, so that the
// plan does not depend on the number of ranks. In each round, every rank runs one forward pass, and
// an all-gather sends its scores to all ranks. All ranks get the results of a single process.

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

// A completed forward pass, for ScoreSettings::observe.
struct Forward {
  const std::vector<size_t>& requests;  // indices of its requests, in the order of the inputs
  const at::Tensor& token_rows;         // as in ForwardOutput
};

// A forward pass to run: the inputs that determine its scores, for a given model and routing.
struct PlannedForward {
  const std::vector<Request>& all;
  const std::vector<size_t>& requests;  // indices into `all`, in the order of the inputs
  const model::Packed& inputs;
};

struct ForwardScores {
  std::vector<Score> scores;                   // one per request of the forward pass
  std::vector<route::CounterValues> counters;  // one per MoE layer
};

// Convert to and from {"scores": [[logprob, is_greedy, tokens], ..], "counters": [{..}, ..]}
// without rounding. parse_forward_scores() throws Json::exception for JSON of another form.
OrderedJson to_json(const ForwardScores& forward);
ForwardScores parse_forward_scores(const Json& json);

struct ForwardOutput {
  ForwardScores scores;
  // [L, T, 3 + E] i64 on the CPU: model::ForwardResult::token_rows of the L MoE layers. Undefined
  // if tokens are not counted.
  at::Tensor token_rows = {};
};

// Return the outputs (gather_forwards) or generated texts (gather_generated) of ranks 0, 1, .. in a
// round. `own` is this rank's; in the last round the last ranks may have none. Collective. `ranks`
// is null in a single process.
std::vector<ForwardOutput> gather_forwards(distributed::Comm* ranks,
                                           const std::optional<ForwardOutput>& own);
std::vector<std::string> gather_generated(distributed::Comm* ranks,
                                          const std::optional<std::string>& own);

inline size_t rank_index(const distributed::Comm* ranks) {
  return ranks == nullptr ? 0 : static_cast<size_t>(ranks->rank());
}
inline size_t num_ranks(const distributed::Comm* ranks) {
  return ranks == nullptr ? 1 : static_cast<size_t>(ranks->size());
}

}  // namespace moe::eval
