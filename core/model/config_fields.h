#pragma once
// What the readers of config.json share: a field of a checked range, and the two parts with a file
// of their own. `where` opens every error and names the file.

#include <cstdint>
#include <string>

#include "core/base/json.h"
#include "core/model/config.h"

namespace moe::model {

inline constexpr int64_t kMaxSize = int64_t{1} << 31;  // of one dimension

bool given(const Json& json, const std::string& key);  // there and not null

// The object under `key`, which must be there.
const Json& object_at(const Json& json, const std::string& key, const std::string& where);

// `value` if it is in 1..most, and the same for a field, required or with a fallback.
int64_t bounded(int64_t value,
                const std::string& key,
                const std::string& where,
                int64_t most = kMaxSize);
int64_t read_size(const Json& json,
                  const std::string& key,
                  const std::string& where,
                  int64_t most = kMaxSize);
int64_t read_size_or(const Json& json,
                     const std::string& key,
                     const std::string& where,
                     int64_t fallback);

// `value` if it is finite and positive, or not negative where `zero_is_fine`.
double finite(double value, const std::string& key, const std::string& where, bool zero_is_fine);

// rope_theta with rope_scaling, rope_parameters, or both where they agree (FACTS section 5).
RopeConfig read_rope(const Json& json, const std::string& where);

// The "moe" object (SPEC section 10) and the stock keys beside it, which must agree. `type` is the
// folder's model_type, `config` holds the dense part.
MoeConfig read_moe(const Json& json,
                   const std::string& type,
                   const std::string& where,
                   const ModelConfig& config);

}  // namespace moe::model
