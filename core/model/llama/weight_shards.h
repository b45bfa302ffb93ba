#pragma once
// Dense matrices sharded over ranks (ZeRO stage 3, Rajbhandari et al. 2020, section 5.3; PyTorch's
// FSDP). A unit is what runs together: the embedding, a layer, the head. Every rank keeps an equal
// part of each matrix; a unit is gathered whole for its forward, again for its backward, and
// released after each, the next one being on its way meanwhile. When the backward of a unit is over
// its gradients are summed up over the ranks, and each keeps that of its part: the very sums, in
// the same parts, that ZeRO-1 makes of one micro-batch after the last layer
// (core/train/step/updater.h).
//
// A matrix stays one tensor, the leaf that autograd knows, whose memory comes and goes. What a
// graph keeps of it is this tensor, so that a backward reads what was gathered again, and no graph
// holds the memory in between.
//
// Whatever is not const is a collective of the ranks: what is gathered, and when, follows from what
// trains and from the order of the layers, never from the data.

#include <ATen/ATen.h>

#include <list>
#include <memory>
#include <vector>

#include "core/distributed/comm.h"

namespace moe::model {

struct ShardedWeight {
  at::Tensor whole;           // f32, of the matrix's shape; has memory while it is gathered
  distributed::Part part;     // of its elements, in their order
  at::Tensor padded;          // [part.length] f32: the elements of this rank, then zeros
  at::Tensor shard;           // [part.size()] of them, without the zeros; has the summed gradient
  at::Tensor gathered;        // what has memory while it is gathered: `whole`, or its copy in bf16
  at::Tensor sent = {};       // `padded` in that type, while it is under way
  bool had_gradient = false;  // on this rank, in any micro-batch since `shard` had none
};

class WeightShards {
 public:
  // `ranks` outlives it.
  WeightShards(distributed::Comm& ranks, at::Device device, size_t units);
  WeightShards(const WeightShards&) = delete;
  WeightShards& operator=(const WeightShards&) = delete;

  // A matrix of `unit`, its values to be filled in (ShardedWeight::shard).
  at::Tensor add(size_t unit, at::IntArrayRef shape);
  // From now on the unit is gathered in bf16, half the bytes, as the working copy of its matrices
  // (kernels/ops/bf16_working_copy.h), which have no f32 values then: for products on a GPU.
  void gather_in_bf16(size_t unit);
  // In the order in which they were added.
  const std::list<ShardedWeight>& weights() const { return weights_; }
  const ShardedWeight* find(const at::Tensor& whole) const;  // nullptr: it is no sharded matrix
  distributed::Comm& ranks() const { return ranks_; }

  // The unit's matrices are whole from gather() to release(). start() has them on their way.
  void start(size_t unit);
  void gather(size_t unit);
  void release(size_t unit);

  at::Tensor values_of(const at::Tensor& whole) const;  // a copy, in memory of its own

  // Around a forward that may have a backward: between enter() and leave() the unit is gathered,
  // and `next`, if not negative, is on its way; and again while the backward of what lies between
  // them runs, with `previous` on its way. enter() returns `x`, the unit's input, and leave()
  // replaces each of its `outputs` that has a gradient: backward must come through these.
  at::Tensor enter(size_t unit, const at::Tensor& x, int64_t next);
  void leave(size_t unit, const std::vector<at::Tensor*>& outputs, int64_t previous);

  // Of a unit whose input has no gradient, the embedding: before its forward. finish_backward()
  // sums its gradients up.
  void expect_gradients(size_t unit);
  void begin_backward(size_t unit, int64_t previous);  // what leave() does there
  // Sums the gradients of the unit's matrices up, and drops them.
  void reduce_gradients(size_t unit);
  // After each backward: sums up what no enter() saw (the lowest layer that trains, the embedding)
  // and releases what is still gathered. A matrix that nowhere had a gradient has none then.
  void finish_backward();

 private:
  enum class State { kReleased, kUnderWay, kGathered };
  struct Unit {
    std::vector<ShardedWeight*> weights;
    State state = State::kReleased;
    std::vector<std::unique_ptr<distributed::Transfer>> transfers;
    bool is_reduced = true;  // what its backward has added
  };

  distributed::Comm& ranks_;
  at::TensorOptions options_;
  std::list<ShardedWeight> weights_;  // stay where they are
  std::vector<Unit> units_;
};

}  // namespace moe::model
