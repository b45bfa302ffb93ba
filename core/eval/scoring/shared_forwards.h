#pragma once
// The forwards of an evaluation distributed over ranks. Each rank holds the whole model and plans
// the same forwards, so that what is computed together does not depend on the number of ranks. In
// each round every rank runs one forward, and an all-gather gives its scores to all. So every rank
// ends with the results of one process.

#include <ATen/ATen.h>

#include <optional>
#include <string>
#include <vector>

#include "core/distributed/comm.h"
#include "core/eval/scoring/forwards.h"

namespace moe::eval {

// One forward's scores, and the experts of each token where tokens are counted.
struct ForwardOutput {
  ForwardScores scores;
  std::vector<at::Tensor> token_rows = {};  // as in model::ForwardResult
};

// The outputs of ranks 0, 1, .. in this round. `own` is empty on ranks that had nothing to run,
// which are the last ones. Collective; `ranks` is null in a single process.
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
