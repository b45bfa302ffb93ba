#pragma once
// --batch-tokens auto: how many tokens go through the model at once, where scores do not depend on
// it (score.h).

#include <cstdint>

#include "core/model/config/config.h"
#include "core/route/router_settings.h"

namespace moe::eval {

// Bytes that a token takes while it goes through one layer, f32: the residual stream, queries, keys
// and values with what attention makes of them, and the feed-forward's rows.
int64_t layer_bytes_per_token(const model::ModelConfig& config,
                              const route::RouterSettings& router);

// 4096, where the products of a narrow model are at full speed (a sweep from 256 to 4096 found
// HellaSwag fastest there and MMLU within 3 % of its best); half of it, and so on down to 512,
// where a layer would take more than 1 GiB. A rule of the model alone: the same on every machine,
// so a run can be told again to the last bit.
int64_t auto_batch_tokens(const model::ModelConfig& config, const route::RouterSettings& router);

}  // namespace moe::eval
