#pragma once
// Dense matrices sharded over ranks (ZeRO stage 3, Rajbhandari et al. 2020, section 5.3; PyTorch's
// FSDP). A unit (the embedding, a layer, the head) is gathered for its forward and again for its
// backward, and released after each, while the next one is prefetched. After its backward its
// gradients are reduce-scattered, in the parts of ZeRO-1 (core/train/step/optimizer.h).
//
// A matrix is one tensor, the autograd leaf, whose memory is allocated and freed. A graph saves
// this tensor, so backward reads the values that were gathered again.
//
// All non-const methods are collectives, in an order that does not depend on the data.

#include <ATen/ATen.h>

#include <list>
#include <vector>

#include "core/distributed/comm.h"

namespace moe::model {

struct ShardedWeight {
  at::Tensor whole;           // f32, shape of the matrix; has memory while gathered
  distributed::Part part;     // elements of this rank, in row-major order
  at::Tensor padded;          // [part.length] f32: the elements of this rank, then zeros
  at::Tensor shard;           // [part.size()], `padded` without the zeros; has the summed gradient
  at::Tensor gathered;        // `whole`, or its copy in bf16; the target of the gather
  at::Tensor sent = {};       // `padded` in the dtype of `gathered`, during the gather
  bool had_gradient = false;  // on this rank, in any micro-batch of the step
};

class WeightShards {
 public:
  // `ranks` must outlive this object.
  WeightShards(distributed::Comm& ranks, at::Device device, size_t units);
  WeightShards(const WeightShards&) = delete;
  WeightShards& operator=(const WeightShards&) = delete;

  // Adds a matrix to `unit` and returns it. The caller sets ShardedWeight::shard.
  at::Tensor add(size_t unit, at::IntArrayRef shape);
  // Makes later gathers of the unit fill the bf16 working copies of its matrices instead of their
  // f32 values (kernels/ops/bf16_working_copy.h).
  void gather_in_bf16(size_t unit);
  // All matrices, in the order of add().
  const std::list<ShardedWeight>& weights() const { return weights_; }
  const ShardedWeight* find(const at::Tensor& whole) const;  // nullptr: not sharded
  distributed::Comm& ranks() const { return ranks_; }

  // The matrices of a unit have values between gather() and release(). start() begins the gather.
  void start(size_t unit);
  void gather(size_t unit);
  void release(size_t unit);

  at::Tensor gather_values(const at::Tensor& whole) const;  // gathers a copy

  // Enclose the forward of a unit, which is gathered in forward and in backward. The autograd graph
  // must use their results. enter() prefetches unit `next`, and the backward of leave()
  // prefetches unit `previous`; -1: none.
  at::Tensor enter(size_t unit, const at::Tensor& x, int64_t next);
  void leave(size_t unit, const std::vector<at::Tensor*>& outputs, int64_t previous);

  // Must be called before the forward of a unit whose input has no gradient (the embedding).
  void expect_gradients(size_t unit);
  void begin_backward(size_t unit, int64_t previous);  // called by the backward of leave()
  void reduce_gradients(size_t unit);                  // into the shards
  // Must be called after each backward. Reduces gradients of units whose enter() had no backward,
  // releases all units, and removes the gradients of matrices that had none on any rank.
  void finish_backward();

 private:
  enum class State { kReleased, kGathering, kGathered };
  struct Unit {
    std::vector<ShardedWeight*> weights;
    State state = State::kReleased;
    std::vector<distributed::Transfer> transfers;
    bool is_reduced = true;  // false: has gradients to reduce
  };

  distributed::Comm& ranks_;
  at::TensorOptions options_;
  std::list<ShardedWeight> weights_;  // a list: addresses are stable
  std::vector<Unit> units_;
};

}  // namespace moe::model
