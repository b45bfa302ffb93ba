#pragma once
// How far the experts of a folder have moved: from each other, and from what they began as. Copies
// that stay alike are a mixture in name alone.

#include <cstdint>
#include <optional>
#include <vector>

#include "core/base/json.h"
#include "core/io/checkpoint.h"

namespace moe::model {

// Cosines of one MoE layer. An expert is the vector of its gate, up and down projections, summed
// in f64. Finer experts are compared slice by slice, as slices of one feed-forward never were
// alike: with the same slice of other groups, and of a dense feed-forward.
struct LayerDistances {
  int64_t layer = 0;
  double between_experts = 1;  // mean over pairs; 1 of a single expert
  // Mean over experts, each with the same expert of the other folder, or with the layer's
  // feed-forward where that one is dense.
  double to_other = 1;
  double between_routers = 1;             // of router rows, as between_experts
  std::optional<double> router_to_other;  // rows with the other's rows; none of a dense folder
};

// Of the MoE layers of `mixture`, ascending. Holds a block of each expert: E x 65,536 numbers.
// UserError naming both folders: `mixture` is dense, or a layer of it has no like in the other.
std::vector<LayerDistances> expert_distances(const io::Checkpoint& mixture,
                                             const io::Checkpoint& other);

OrderedJson to_json(const std::vector<LayerDistances>& layers);

}  // namespace moe::model
