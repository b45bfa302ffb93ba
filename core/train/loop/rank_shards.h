#pragma once
// Gradients and updates of several processes (ZeRO stage 1, Rajbhandari et al. 2020, section 5.1):
// of every parameter that n processes hold each updates an n-th. Gradients are summed up where they
// are needed (reduce-scatter), the moments of a part exist once, the new weights go to all
// (all-gather). Experts are held by the replicas of their place, everything else by all processes.
// Of matrices that are sharded themselves (core/model/llama/weight_shards.h) a process has its part
// alone, and its gradient, which was summed up while backward ran: here they are updated.

#include <vector>

#include "core/distributed/world.h"
#include "core/train/loop/optimizer.h"

namespace moe::train {

// The processes that hold a parameter.
distributed::Comm& holders_of(const model::NamedParameter& parameter, distributed::World& world);

class RankShards {
 public:
  // `trained`: this process's parameters that train, in the same order everywhere.
  RankShards(const std::vector<model::NamedParameter>& trained, distributed::World& world);

  // What this process updates: flat views of its parameters, for AdamW. None is empty.
  const std::vector<Slice>& slices() const { return slices_; }

  // Sums the parameters' gradients over the processes that hold them into those of the slices, and
  // drops the former. A parameter without a gradient everywhere has none.
  void reduce_gradients();
  // Of all gradients together, every parameter counted once; after reduce_gradients().
  double norm() const;
  // The slices' weights, on every process that holds their parameters.
  void gather_weights();

 private:
  // A parameter and the part of it that is updated here.
  struct Held {
    at::Tensor parameter;
    distributed::Comm* holders;
    distributed::Part part;   // of its elements
    at::Tensor slice;         // undefined where that is empty
    bool is_sharded = false;  // its slice is all that is here
  };
  // [elements] of every parameter -> [holders * length] with zeros behind.
  static at::Tensor padded(const at::Tensor& flat, const Held& held);
  std::vector<bool> with_gradient() const;

  distributed::World& world_;
  std::vector<Held> held_;
  std::vector<Slice> slices_;
};

// Every parameter as this process holds it: experts, and parts of sharded matrices, have their
// place in the whole.
std::vector<Slice> held_slices(const std::vector<model::NamedParameter>& parameters,
                               const distributed::Layout& layout);

}  // namespace moe::train
