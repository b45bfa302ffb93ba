#pragma once
// Dense matrices sharded over ranks (ZeRO stage 3, Rajbhandari et al. 2020, section 5.3; PyTorch's
// FSDP). Every rank keeps an equal part of each matrix. A unit (the embedding, a layer, the head)
// is gathered for its forward and again for its backward, and released after each, while the next
// one is prefetched. After the backward of a unit its gradients are reduce-scattered: the same
// sums, in the same parts, that ZeRO-1 computes for one micro-batch (core/train/step/optimizer.h).
//
// A matrix is one tensor, the autograd leaf, whose memory is allocated and freed. A graph saves
// this tensor, so backward reads the values that were gathered again, and no graph keeps the
// memory.
//
// All non-const methods are collectives. The order of gathers follows from the trained parameters
// and the order of the layers, never from the data.

#include <ATen/ATen.h>

#include <list>
#include <memory>
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
  // `ranks` must outlive it.
  WeightShards(distributed::Comm& ranks, at::Device device, size_t units);
  WeightShards(const WeightShards&) = delete;
  WeightShards& operator=(const WeightShards&) = delete;

  // Adds a matrix to `unit` and returns it. The caller sets ShardedWeight::shard.
  at::Tensor add(size_t unit, at::IntArrayRef shape);
  // Makes later gathers of the unit use bf16, half the bytes, for products on a GPU. They fill the
  // working copy of its matrices (kernels/ops/bf16_working_copy.h), which have no f32 values then.
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

  // Enclose the forward of a unit, which may have a backward. The unit is gathered between enter()
  // and leave() and during its backward; `next` and in backward `previous` are prefetched unless
  // negative. Backward must pass through x, the input that enter() returns, and the outputs that
  // leave() replaces.
  at::Tensor enter(size_t unit, const at::Tensor& x, int64_t next);
  void leave(size_t unit, const std::vector<at::Tensor*>& outputs, int64_t previous);

  // Call before the forward of a unit whose input has no gradient (the embedding).
  // finish_backward() reduces its gradients.
  void expect_gradients(size_t unit);
  void begin_backward(size_t unit, int64_t previous);  // called by the backward of leave()
  // Reduces the gradients of the unit's matrices into the shards and frees them.
  void reduce_gradients(size_t unit);
  // Call after each backward. Reduces gradients of units whose enter() had no backward (the lowest
  // trained layer, the embedding) and releases all units. Removes the gradient of a matrix that had
  // none on any rank.
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
