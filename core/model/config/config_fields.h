#pragma once
// What the readers of config.json share: a field of a checked range, what an absent key means, and
// the parts with a file of their own. `where` opens every error and names the file.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/json.h"
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

// What an absent key means, by model_type: the defaults of transformers' configuration classes.
// Ours (moe_relu, moe_scaled) and llama share LLaMA's.
struct TypeDefaults {
  std::optional<int64_t> kv_heads;  // empty: as many as query heads
  int64_t max_position_embeddings = 2048;
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000.0;
  bool qkv_bias = false;
  int64_t experts = 0, experts_per_token = 0, expert_width = 0, shared_expert_width = 0;
};
const TypeDefaults& type_defaults(const std::string& type);

// rope_theta with rope_scaling, rope_parameters, or both where they agree.
RopeConfig read_rope(const Json& json, const std::string& where, double default_theta);

// Keys of Mixtral and Qwen2-MoE that would change the function and are not computed here: a shared
// expert, a window shorter than the context.
void refuse_stock_extras(const Json& json, const std::string& type, const std::string& where,
                         int64_t max_positions);

// The mixture of a folder that has no "moe" object: all that stock tools know of one. The router is
// top-k without dropping, with the gradients and the loss of transformers: st=off where weights are
// renormalised (elsewhere it means nothing), lb=selected.
MoeConfig read_stock_moe(const Json& json, const std::string& type, const std::string& where,
                         const ModelConfig& config);

// E, at most so many that all experts can still be listed by name.
int64_t read_experts(const Json& json, const std::string& type, const std::string& where,
                     size_t moe_layers);

// The layers that mlp_only_layers and decoder_sparse_step make mixtures, ascending.
std::vector<int64_t> stock_moe_layers(const Json& json, const std::string& where, int64_t layers);

// UserError when the router does not fit the experts.
void check_stored_router(const MoeConfig& moe, const std::string& where);

// The "moe" object (core/io/formats.md) and the stock keys beside it, which must agree. `type` is
// the folder's model_type, `config` holds the dense part.
MoeConfig read_moe(const Json& json, const std::string& type, const std::string& where,
                   const ModelConfig& config);

// What model_type says of a folder with this mixture: the name of a stock architecture only where
// stock tools compute the same or, with a capacity, what core/io/formats.md says.
std::string written_model_type(const MoeConfig& moe);

}  // namespace moe::model
