#pragma once
// The forwards of an evaluation shared out among ranks. Each rank holds the whole model and every
// rank plans the same forwards, so that what is computed together never depends on how many ranks
// there are; they run them in rounds, one each, and all hear all answers. So every rank ends with
// the numbers of one process.

#include <ATen/ATen.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/dist/comm.h"
#include "core/eval/scoring/forwards.h"

namespace moe::eval {

// One forward's answers, and who got which experts where somebody counts tokens.
struct Answered {
  ForwardAnswers answers;
  std::vector<at::Tensor> token_rows = {};  // as in model::ForwardResult
};

// Of ranks 0, 1, .. of this round; `mine` is empty on ranks that had nothing to run, which are the
// last ones. A collective; `ranks` null: one process.
std::vector<Answered> gather_answers(dist::Comm* ranks, const std::optional<Answered>& mine);
std::vector<std::string> gather_generated(dist::Comm* ranks,
                                          const std::optional<std::string>& mine);

// Runs `body` under dist::together, or alone in one process.
void on_all_ranks(dist::Comm* ranks, const std::function<void()>& body);

inline size_t rank_of(const dist::Comm* ranks) {
  return ranks == nullptr ? 0 : static_cast<size_t>(ranks->rank());
}
inline size_t count_of(const dist::Comm* ranks) {
  return ranks == nullptr ? 1 : static_cast<size_t>(ranks->size());
}

}  // namespace moe::eval
