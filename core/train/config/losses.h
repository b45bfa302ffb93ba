#pragma once
// Coefficients of the auxiliary losses of a run, and the description of the total loss that is
// printed before the first step.

#include <string>

#include "core/model/config/config.h"
#include "core/route/router_override.h"
#include "core/train/config/settings.h"

namespace moe::train {

// Fills lb_coef, entropy_coef, z_coef, seq_lb_coef and lambda of `settings` for the router of the
// run. Losses that the router does not have stay unset. A coefficient is the flag's, else the
// folder's if its router is of the same family, else the default; z_coef and seq_lb_coef have no
// default. Lambda is the flag's, else lambda0 if --router names it, else the value that the folder
// was trained up to, else lambda0. Throws UserError for a coefficient of a loss that the router
// does not have.
void resolve_coefficients(TrainSettings& settings, const model::MoeConfig& stored,
                          const route::ResolvedRouter& resolved);

// Throws UserError if any coefficient is set, for a dense model.
void refuse_coefficients(const TrainSettings& settings);

// Describes the losses of a run with resolved settings, such as "language model + 0.01 x load
// balance (of first choices)". If `router_trains` is false, lambda and bias are described as
// constant.
std::string describe_losses(const TrainSettings& settings, const route::RouterSettings& router,
                            int64_t experts, bool router_trains = true);

}  // namespace moe::train
