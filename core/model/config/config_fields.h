#pragma once
// What the readers of config.json share: a field of a checked range, what an absent key means, and
// the parts with a file of their own. `where` opens every error and names the file.

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/model/config/architecture.h"
#include "core/model/config/config.h"

namespace moe::model {

inline constexpr int64_t kMaxSize = int64_t{1} << 31;  // of one dimension

bool given(const Json& json, const std::string& key);  // there and not null

// The object under `key`, which must be there.
const Json& object_at(const Json& json, const std::string& key, const std::string& where);

// `value` if it is in 1..most, and the same for a field, required or with a fallback.
int64_t bounded(int64_t value, const std::string& key, const std::string& where,
                int64_t most = kMaxSize);
int64_t read_size(const Json& json, const std::string& key, const std::string& where,
                  int64_t most = kMaxSize);
int64_t read_size_or(const Json& json, const std::string& key, const std::string& where,
                     int64_t fallback);

// `value` if it is finite and positive, or not negative where `zero_is_fine`.
double finite(double value, const std::string& key, const std::string& where, bool zero_is_fine);

// rope_theta with rope_scaling, rope_parameters, or both where they agree.
RopeConfig read_rope(const Json& json, const std::string& where, double default_theta);

// Keys of this architecture that would change the function and are not computed here: attention of
// other kinds.
void refuse_stock_extras(const Json& json, const Architecture& architecture,
                         const std::string& where);

// ModelConfig::sliding_window, from the keys of this architecture, max_position_embeddings and the
// number of layers.
int64_t read_short_window(const Json& json, const Architecture& architecture,
                          const std::string& where, const ModelConfig& config);

// The mixture of a folder that has no "moe" object: all that stock tools know of one. The router is
// top-k without dropping, with the gradients and the loss of transformers: st=off where weights are
// renormalised (elsewhere it means nothing), lb=selected.
MoeConfig read_stock_moe(const Json& json, const Architecture& architecture,
                         const std::string& where, const ModelConfig& config);

// Width of the shared expert, 0 where there is none. UserError: beside norms of queries and keys,
// which no stock mixture has together.
int64_t read_shared_expert(const Json& json, const Architecture& architecture,
                           const std::string& where, bool qk_norm);

// E, at most so many that all experts can still be listed by name.
int64_t read_experts(const Json& json, const Architecture& architecture, const std::string& where,
                     size_t moe_layers);

// The layers that mlp_only_layers and decoder_sparse_step make mixtures, ascending.
std::vector<int64_t> stock_moe_layers(const Json& json, const std::string& where, int64_t layers);

// UserError when the router does not fit the experts.
void check_stored_router(const MoeConfig& moe, const std::string& where);

// The "moe" object (core/io/formats.md) and the stock keys beside it, which must agree.
// `architecture` is the folder's, `config` holds the dense part.
MoeConfig read_moe(const Json& json, const Architecture& architecture, const std::string& where,
                   const ModelConfig& config);

// Of a folder with this mixture in a model with norms of queries and keys or without: a stock one
// only where stock tools compute the same or, with a capacity, what core/io/formats.md says.
const Architecture& written_architecture(const MoeConfig& moe, bool qk_norm);

}  // namespace moe::model
