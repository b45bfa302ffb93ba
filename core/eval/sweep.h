#pragma once
// One setting of the routing over many values (`moe eval --sweep cf=0.25,0.5,1,2`): the model and
// the tasks are read once, every value is checked before anything is computed, and all end in one
// table. Two sweeps make a grid, as the tables of Rectify-Router are.

#include <string>
#include <vector>

#include "core/eval/report/sweep_report.h"
#include "core/eval/settings.h"

namespace moe::eval {

// "cf=0.25,0.5,inf", "p=0.1,0.4", "router=top1,top1+ir:cf=2,order=score,top2", "ep-ranks=8,4,2". A
// comma goes on with the same router where no router begins behind it. UserError: another form, an
// unknown setting, no values.
SweepAxis parse_sweep(const std::string& text);

// The points, the last axis running fastest. `base` is what the other flags say; `p` keeps the max=
// of its router or of the folder's. UserError, naming the value: what override_router refuses, a
// setting that `base` or another axis gives too, a point that is there twice, a dense model.
std::vector<SweepValue> sweep_values(const std::vector<SweepAxis>& axes,
                                     const route::RouterRequest& base,
                                     const model::ModelConfig& config, bool force);

// The settings' `out` gets sweep.json, sweep.html and VALUE/results.json with its samples. A sweep
// that was interrupted goes on where its responses are (response_cache.h).
SweepReport sweep(const EvalSettings& settings, const std::vector<SweepAxis>& axes,
                  const EvalEvents& events = {});

}  // namespace moe::eval
