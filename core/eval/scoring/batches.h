#pragma once
// Which requests go through the model together. It does not show in the scores of a model without a
// capacity; with one, routing groups are fixed by the order of the requests alone.

#include <cstdint>

#include "core/eval/scoring/prefix_groups.h"
#include "core/model/config/config.h"
#include "core/route/router_settings.h"

namespace moe::eval {

// --batch-tokens auto: 4096, where the products of a narrow model are at full speed (a sweep from
// 256 to 4096 found HellaSwag fastest there and MMLU within 3 % of its best); half of it, and so on
// down to 512, where a layer would take more than 1 GiB. A rule of the model alone: the same on
// every machine, so a run can be repeated to the last bit.
int64_t auto_batch_tokens(const model::ModelConfig& config, const route::RouterSettings& router);

// A file that is larger than memory is read anew for each forward.
struct MappedWeights {
  uint64_t bytes = 0;  // of the weights in the file, 0 where memory holds them
  uint64_t available_memory = 0;
};
// The same of such weights: where memory cannot hold them, as many tokens as give each expert the
// rows that a dense model would have (4096), so that products take longer than the disk; no more
// than go through a layer in a quarter of the memory. That depends on the machine.
int64_t auto_batch_tokens(const model::ModelConfig& config, const route::RouterSettings& router,
                          const MappedWeights& weights);

using Batches = std::vector<std::vector<size_t>>;  // indices of requests

// Longest first (ties in file order), whole requests, up to `batch_tokens` a batch; a longer
// request stands alone.
Batches batches_by_length(const std::vector<Request>& requests, int64_t batch_tokens);
// File order, whole requests, up to `group_tokens` a group; a longer request stands alone.
Batches groups_in_order(const std::vector<Request>& requests, int64_t group_tokens);

// Whether scores depend on what shares a forward: a top-k router with a capacity factor in a model
// that has MoE layers.
bool routes_in_groups(const model::ModelConfig& config, const route::RouterSettings& router);

using PrefixBatches = std::vector<std::vector<PrefixGroup>>;

// Whole groups, the largest first, up to `limit` tokens a batch; a larger one stands alone. In a
// batch roots of one length lie side by side, where one product serves them.
PrefixBatches pack_prefix_groups(std::vector<PrefixGroup> groups, int64_t limit);
// Every request as a group of its own, in the order of `batches`.
PrefixBatches each_alone(const std::vector<Request>& requests, const Batches& batches);

}  // namespace moe::eval
