#pragma once
// An all-to-all of rows that autograd knows: its backward is the reverse all-to-all. In two halves,
// so that a process can work while rows travel; in backward too, where what was done between the
// halves is done between them again.

#include <ATen/ATen.h>

#include <memory>
#include <vector>

#include "core/dist/comm.h"

namespace moe::model {

struct RowsOnTheWay;

// sent[q] rows go to process q of `group`, received[q] come from it. Every process of the group
// makes one, and its halves, in the same order, also when it sends and gets nothing: whether a
// gradient passes here depends on what is trained and never on how many rows there are, so that
// backward has all processes here too.
class RowExchange {
 public:
  RowExchange(dist::Comm& group, std::vector<int64_t> sent, std::vector<int64_t> received);

  // rows [sum sent, D] leave. The result [sum received, D] may be handed to finish() alone.
  at::Tensor start(const at::Tensor& rows) const;
  at::Tensor finish(const at::Tensor& arriving) const;
  at::Tensor operator()(const at::Tensor& rows) const { return finish(start(rows)); }

 private:
  std::shared_ptr<RowsOnTheWay> state_;
};

}  // namespace moe::model
