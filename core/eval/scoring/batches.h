#pragma once
// Groups requests into forward passes. The grouping does not change the scores of a model without a
// capacity; with a capacity, routing groups follow the order of the requests alone.

#include <cstdint>
#include <vector>

#include "core/eval/scoring/requests.h"
#include "core/model/config/config.h"
#include "core/route/router_settings.h"

namespace moe::eval {

// Requests with a shared prefix, which is computed once for all of them: the choices of a question
// share its context, and equal requests share everything. Laid out as the prefix (the root) and one
// branch for each different rest, which continues the root (model::Packed::continues).
struct PrefixGroup {
  struct Branch {
    size_t request;  // the branch is this request's inputs from `root` on; not empty
    int64_t length;
  };
  struct Member {
    size_t request;
    int64_t branch;  // index into branches; -1: the request's inputs are the root's first tokens
  };
  size_t request = 0;  // the root is this request's first `root` inputs
  int64_t root = 0;
  std::vector<Branch> branches;
  std::vector<Member> members;

  int64_t tokens() const;  // root and branches
};

// Assigns each request to one group. Returns the largest groups first, ties in file order of their
// first request. Changes scores by rounding only.
std::vector<PrefixGroup> find_prefix_groups(const std::vector<Request>& requests);

// Returns the value of --batch-tokens auto: 4096 tokens, halved down to 512 while a layer would
// take more than 1 GiB. Products of a narrow model are at full speed at 4096 (of 256 to 4096,
// HellaSwag was fastest there and MMLU within 3 % of its best). Depends on the model alone, so that
// a run can be repeated bit for bit on another machine.
int64_t auto_batch_tokens(const model::ModelConfig& config, const route::RouterSettings& router);

// A file larger than memory, which every forward pass reads anew.
struct MappedWeights {
  uint64_t bytes = 0;  // of the weights in the file; 0 if they fit in memory
  uint64_t available_memory = 0;
};
// Overload for mapped weights: if they do not fit in memory, returns as many tokens as give each
// expert the 4096 rows of a dense model, so that products take longer than the disk, up to what
// goes through a layer in a quarter of the memory. Depends on the machine.
int64_t auto_batch_tokens(const model::ModelConfig& config, const route::RouterSettings& router,
                          const MappedWeights& weights);

using Batches = std::vector<std::vector<size_t>>;  // indices of requests

// Returns batches of whole requests, longest first (ties in file order), up to `batch_tokens`; a
// longer request is a batch of its own.
Batches batches_by_length(const std::vector<Request>& requests, int64_t batch_tokens);
// Returns batches of whole requests in file order, up to `group_tokens`; a longer request is a
// batch of its own.
Batches groups_in_order(const std::vector<Request>& requests, int64_t group_tokens);

// Returns true if scores depend on the other requests of a forward pass: in a model with MoE layers
// under a top-k router with a capacity factor.
bool routes_in_groups(const model::ModelConfig& config, const route::RouterSettings& router);

using PrefixBatches = std::vector<std::vector<PrefixGroup>>;

// Returns batches of whole groups, the largest first, up to `limit` tokens; a larger group is a
// batch of its own. Roots of equal length are neighbours in a batch, so that one product serves
// them.
PrefixBatches pack_prefix_groups(std::vector<PrefixGroup> groups, int64_t limit);
// Returns each request as a group of its own, in the order of `batches`.
PrefixBatches each_alone(const std::vector<Request>& requests, const Batches& batches);

}  // namespace moe::eval
