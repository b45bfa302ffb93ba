#pragma once
// Experts that many tokens chose are lent: where few experts have most of the rows, the process
// that holds them works while the others wait, so it sends those experts' weights out in place of
// receiving rows, and every process runs its own rows of them. Weight gradients go back to the one
// that holds them. (He et al. 2022, FasterMoE, section 4.1, "dynamic shadowing".) What is computed
// does not change; sums over rows are taken in parts. G processes, E experts.

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "core/dist/comm.h"

namespace moe::model {

// Sending an expert [3, F, D] to one other process and its gradient back takes as long as the
// products of about this many rows, whatever F and D: a row is 18 F D operations with backward, an
// expert 24 F D bytes both ways (a core here: 80 GFLOP/s, 5 GB/s through memory that is written,
// read and added).
inline constexpr int64_t kLendingRows = 64;

// loads[q][e]: rows of process q at expert e; e is held by process e / (E / G). The experts to
// lend, ascending: as long as it shortens the work of the process that has most, its expert with
// most rows of others. The same answer on every process, by integers alone.
std::vector<int64_t> choose_lent(const std::vector<std::vector<int64_t>>& loads);

// Who sends and who gets the experts of a list: one entry an expert, ascending.
struct Lending {
  dist::Comm* group;
  std::vector<int64_t> owner;  // place of the holder
  std::vector<int64_t> local;  // number among the holder's experts

  Lending(dist::Comm& among, const std::vector<int64_t>& lent, int64_t local_experts);
  int64_t mine() const;  // how many of them are held here
};

// What `held` [E/G, N, M] and the others' weights become.
struct LentWeights {
  at::Tensor held;      // the same values; use it in place of the weight
  at::Tensor borrowed;  // [experts of the list that others hold, N, M]
};

// A collective of the group, forward and backward, when the list is not empty. In backward the
// gradient of a lent expert is the sum over processes, in the order of their places.
LentWeights lend(const at::Tensor& held, const Lending& lending);

}  // namespace moe::model
