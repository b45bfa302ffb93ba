#pragma once
// Log-likelihoods of requests. How requests share a forward is decided here, and it must not show
// in the numbers: without a capacity any batch gives the same scores (to rounding), with one the
// routing groups (README.md) are fixed by the file alone and no speed setting touches them.

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "core/dist/comm.h"
#include "core/eval/scoring/batches.h"
#include "core/eval/scoring/forwards.h"
#include "core/model/llama/llama.h"

namespace moe::eval {

struct Scores;

struct ScoreSettings {
  model::RoutingOptions routing;
  int64_t batch_tokens = 0;     // input tokens of one forward, without a capacity; 0: batch_size.h
  int64_t group_tokens = 4096;  // the same per logical rank, with a capacity
  // After each forward. Where somebody looks, or capacity counts, requests share nothing.
  std::function<void(const Forward&)> observe = {};
  ForwardCache* memory = nullptr;  // asked before each forward; nobody may observe then
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

// `on_progress` gets the number of requests done after each forward. UserError when the model's
// numbers are not finite.
Scores score_requests(const model::Llama& llama, const std::vector<Request>& requests,
                      const ScoreSettings& settings,
                      const std::function<void(int64_t)>& on_progress = {});

}  // namespace moe::eval
