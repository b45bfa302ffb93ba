#pragma once
// --batch-tokens auto: how many tokens go through the model at once, where scores do not depend on
// it (score.h).

#include <cstdint>

#include "core/model/config.h"
#include "core/route/router_settings.h"

namespace moe::eval {

// Bytes that a token takes while it goes through one layer, f32: the residual stream, queries, keys
// and values with what attention makes of them, and the feed-forward's rows.
int64_t layer_bytes_per_token(const model::ModelConfig& config,
                              const route::RouterSettings& router);

// 4096, at which a narrow model's products are at full speed and MMLU's and HellaSwag's forwards
// are no slower than at 256, 512, 1024 or 2048; half of it, and so on down to 512, where a layer
// would take more than 1 GiB. A rule of the model alone: the same on every machine, so a run can be
// told again to the last bit.
int64_t auto_batch_tokens(const model::ModelConfig& config, const route::RouterSettings& router);

}  // namespace moe::eval
