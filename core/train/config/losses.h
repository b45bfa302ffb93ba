#pragma once
// What the auxiliary losses of a run are multiplied by, where each number comes from, and what is
// in force in words: no loss is ever silently off.

#include <string>

#include "core/model/config/config.h"
#include "core/route/router_override.h"
#include "core/train/config/settings.h"

namespace moe::train {

// Closes lb_coef, entropy_coef, z_coef, seq_lb_coef and lambda of `settings` for the router of the
// run; empty stays what it does not have. A coefficient is the flag's, else the folder's where the
// family is the same, else the default; z_coef and seq_lb_coef have none and stay empty. Lambda is
// the flag's, else lambda0 where --router names it, else what the folder was trained up to, else
// lambda0. UserError: a coefficient for a loss that the router does not have.
void resolve_coefficients(TrainSettings& settings, const model::MoeConfig& stored,
                          const route::ResolvedRouter& resolved);

// UserError: any of these flags, for a folder that is dense.
void refuse_coefficients(const TrainSettings& settings);

// Describes the losses of a run with resolved settings, such as "language model + 0.01 x load
// balance (of first choices)". Without `router_trains` lambda and bias are described as constant.
std::string losses_in_force(const TrainSettings& settings, const route::RouterSettings& router,
                            int64_t experts, bool router_trains = true);

}  // namespace moe::train
