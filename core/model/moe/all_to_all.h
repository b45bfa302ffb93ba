#pragma once
// An all-to-all of rows with gradients: its backward is the reverse all-to-all. It comes in two
// halves, so that a process can compute while rows travel. Backward has the same halves in reverse,
// and what was computed between them in forward is differentiated between them in backward.

#include <ATen/ATen.h>

#include <memory>
#include <vector>

#include "core/distributed/comm.h"

namespace moe::model {

struct AllToAllState;

// send_counts[q] rows go to process q of `group`, receive_counts[q] come from it. Every process of
// the group makes one, and calls its halves, in the same order, also when it sends and receives
// nothing: whether a gradient passes here depends on what is trained and never on how many rows
// there are, so that every process takes part in backward too.
class AllToAllRows {
 public:
  AllToAllRows(distributed::Comm& group, std::vector<int64_t> send_counts,
               std::vector<int64_t> receive_counts);

  // Sends rows [sum of send_counts, D]. The result [sum of receive_counts, D] is not filled yet and
  // may be handed to finish() alone.
  at::Tensor start(const at::Tensor& rows) const;
  at::Tensor finish(const at::Tensor& receive_buffer) const;
  at::Tensor operator()(const at::Tensor& rows) const { return finish(start(rows)); }

 private:
  std::shared_ptr<AllToAllState> state_;
};

}  // namespace moe::model
