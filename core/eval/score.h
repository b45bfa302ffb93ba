#pragma once
// Log-likelihoods of requests. How requests share a forward is decided here, and it must not show
// in the numbers: without a capacity any batch gives the same scores (to rounding), with one the
// routing groups of SPEC section 12 are fixed by the file alone and no speed setting touches them.

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "core/dist/comm.h"
#include "core/eval/requests.h"
#include "core/model/llama/llama.h"
#include "core/route/counters.h"

namespace moe::eval {

struct Score {
  double logprob = 0;      // sum over the scored tokens of log_softmax, natural log
  bool is_greedy = false;  // every scored token is the argmax
  int64_t tokens = 0;      // scored tokens
};

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
class ForwardMemory {
 public:
  virtual ~ForwardMemory() = default;
  virtual std::optional<ForwardAnswers> recall(const PlannedForward& forward) = 0;
  virtual void keep(const PlannedForward& forward, const ForwardAnswers& answers) = 0;
};

struct Scores;

struct ScoreSettings {
  model::RoutingOptions routing;
  int64_t batch_tokens = 0;     // input tokens of one forward, without a capacity; 0: batch_size.h
  int64_t group_tokens = 4096;  // the same per logical rank, with a capacity
  // After each forward. Where somebody looks, or capacity counts, requests share nothing.
  std::function<void(const Forward&)> observe = {};
  ForwardMemory* memory = nullptr;  // asked before each forward; nobody may observe then
  // After each forward, run or recalled: its requests, whose scores stand in `so_far`.
  std::function<void(const std::vector<size_t>& requests, const Scores& so_far)> answered = {};
  // The ranks that share the forwards out, each with the whole model; all of them call. Scores,
  // observe and answered are the same on all, and those of one process.
  dist::Comm* ranks = nullptr;
};

struct Scores {
  std::vector<Score> scores;                   // in the order of the requests
  std::vector<route::CounterValues> counters;  // one a MoE layer, summed over all forwards
  int64_t forwards = 0;                        // with a capacity: the number of routing groups
  int64_t input_tokens = 0;                    // computed; counters count these
  int64_t head_rows = 0;                       // of them, those whose next token is scored
};

using Batches = std::vector<std::vector<size_t>>;  // indices of requests

// Longest first (ties in file order), whole requests, up to `batch_tokens` a batch; a longer
// request stands alone.
Batches batches_by_length(const std::vector<Request>& requests, int64_t batch_tokens);
// File order, whole requests, up to `group_tokens` a group; a longer request stands alone.
Batches groups_in_order(const std::vector<Request>& requests, int64_t group_tokens);

// Whether scores depend on what shares a forward: a top-k router with a capacity factor in a model
// that has MoE layers.
bool routes_in_groups(const model::ModelConfig& config, const route::RouterSettings& router);

// `on_progress` gets the number of requests done after each forward. UserError when the model's
// numbers are not finite.
Scores score_requests(const model::Llama& llama, const std::vector<Request>& requests,
                      const ScoreSettings& settings,
                      const std::function<void(int64_t)>& on_progress = {});

}  // namespace moe::eval
