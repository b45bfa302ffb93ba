#pragma once
// Log-likelihoods of requests: sums of token log-probabilities. Which requests share a forward must
// not show in the scores. Without a capacity any batch gives the same ones, to rounding. With one,
// what is routed together competes for slots, so the groups (batches.h) follow from the file alone
// and no setting for speed changes them.

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "core/distributed/comm.h"
#include "core/eval/scoring/batches.h"
#include "core/eval/scoring/forwards.h"
#include "core/model/llama/llama.h"

namespace moe::eval {

struct Scores;

struct ScoreSettings {
  model::RoutingOptions routing;
  int64_t batch_tokens = 0;     // input tokens of one forward, without a capacity; 0: auto
  int64_t group_tokens = 4096;  // the same per logical rank, with a capacity
  // Called after each forward. Where it is set, or a capacity is, requests share no prefix.
  std::function<void(const Forward&)> observe = {};
  ForwardCache* cache = nullptr;  // looked into before each forward; `observe` must be empty then
  // Called after each forward, run or found in the cache: the scores of `requests` are in `so_far`.
  std::function<void(const std::vector<size_t>& requests, const Scores& so_far)> answered = {};
  // The ranks that share the forwards, each with the whole model; all of them must call. Scores and
  // calls are the same on all of them, and those of one process.
  distributed::Comm* ranks = nullptr;
};

struct Scores {
  std::vector<Score> scores;                   // in the order of the requests
  std::vector<route::CounterValues> counters;  // one a MoE layer, summed over all forwards
  int64_t forwards = 0;                        // with a capacity: the number of routing groups
  int64_t input_tokens = 0;                    // computed; counters count these
  int64_t head_rows = 0;                       // of them, those whose next token is scored
};

// The tokens of the largest forward with which score_requests() would score them in this process:
// known without the model, but for the bytes that it has mapped (model::Llama::mapped_bytes).
int64_t largest_forward(const model::ModelConfig& config, uint64_t mapped_bytes,
                        const std::vector<Request>& requests, const ScoreSettings& settings);

// Up to how many tokens whole requests share a forward; a longer request stands alone.
int64_t forward_limit(const model::ModelConfig& config, uint64_t mapped_bytes,
                      const ScoreSettings& settings);

// `on_progress` gets the number of requests done after each forward. UserError when a
// log-probability is not finite.
Scores score_requests(const model::Llama& llama, const std::vector<Request>& requests,
                      const ScoreSettings& settings,
                      const std::function<void(int64_t)>& on_progress = {});

}  // namespace moe::eval
