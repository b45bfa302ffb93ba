#pragma once
// A run on a cluster, on paper: memory of a GPU by class, and what a step spends on computing and
// on talking, from a model with stated rates. Nothing is loaded; the config alone says the shapes.
//
// A step of one GPU, T tokens of a micro-batch here, D wide, n micro-batches a replica:
//   computing   3 (forward and twice as much back; 4 when layers are computed again) x FLOP of the
//               forward: 2 a weight that a token meets, and causal attention
//   tokens      rows of D numbers that leave for experts elsewhere, and come back; the same again
//               in backward, and in a forward that is computed again. A capacity router sends its
//               buffers whole, C_r slots for every expert
//   gradients   reduce-scatter of gradients and all-gather of weights, f32, (n - 1) / n of their
//               bytes each way among n holders (rank_shards.h)
// With --shard weights (core/model/llama/weight_shards.h), for the matrices that it shards:
//   gradients   the reduce-scatter alone, once a micro-batch
//   weights     all-gathers a micro-batch: of a layer two, forward and backward, of embedding and
//               head one; in bf16 what products read so
// Weights are gathered a layer ahead, while this one is computed: of their time counts what is left
// beyond computing. Nothing else overlaps here, so that the share is an upper bound of what the
// stated rates cost.

#include <string>

#include "core/model/config/config.h"
#include "core/train/plan/memory_plan.h"

namespace moe::train {

struct ClusterRates {
  int64_t nodes = 1, gpus = 8;  // GPUs a node
  double tflops = 400;          // 1e12 FLOP/s that a GPU sustains
  double link_gbs = 350;        // 1e9 bytes/s of a GPU to others in its node, each way
  double network_gbs = 50;      // the same to other nodes
};

struct ClusterPlan {
  TrainSettings settings;  // resolved
  route::RouterSettings router;
  distributed::Layout layout;
  MemoryPlan memory;               // of one GPU
  int64_t parameters = 0;          // of the model
  int64_t tokens = 0;              // of a step, all GPUs
  double flop = 0;                 // of a step, one GPU
  double token_bytes = 0;          // that leave a GPU a step, between experts
  double gradient_bytes = 0;       // and for gradients, and weights that are whole everywhere
  double weight_bytes = 0;         // and to gather sharded weights
  std::vector<std::string> notes;  // of known_failures.h
  double compute_s = 0, token_s = 0, gradient_s = 0;
  double weight_s = 0, waiting_s = 0;  // to gather weights, and of it what computing does not hide
  double step_s() const { return compute_s + token_s + gradient_s + waiting_s; }
  double communication_share() const { return 1 - compute_s / step_s(); }
};

// `settings.model` is a folder or a config.json; weights and data are not looked at. A dense one is
// planned as the mixture that `settings.upcycle` asks for. UserError: what the config, the mixture,
// the router or the layout say; rates that are not positive.
ClusterPlan plan_cluster(const TrainSettings& settings, const ClusterRates& rates);

}  // namespace moe::train
