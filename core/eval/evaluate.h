#pragma once
// Entry points of `moe eval`: tasks, files of requests, raw text, and sweeps over routing settings.
// User input is checked before the weights are loaded, except for errors in encoding, which are
// thrown when the task is run (EncodedTasks).

#include <filesystem>
#include <string>
#include <vector>

#include "core/eval/report/report.h"
#include "core/eval/report/sweep_report.h"
#include "core/eval/runner.h"

namespace moe::eval {

// Evaluates settings.tasks and writes the report to settings.out. Throws Interrupted once
// events.stop_requested returns true.
RunReport evaluate(const EvalSettings& settings, const EvalEvents& events = {});

// Scores a file of {"context", "continuation"} lines. Returns the scores in file order.
// settings.tasks and settings.out must be empty.
Scores evaluate_requests(const EvalSettings& settings, const std::filesystem::path& file,
                         const EvalEvents& events = {});

// Returns the routing statistics of raw text (read_text_windows()). settings.tasks and settings.out
// must be empty. Throws UserError if the model is dense.
RoutingStats evaluate_texts(const EvalSettings& settings,
                            const std::vector<std::filesystem::path>& files,
                            const EvalEvents& events = {});

// Parses a --sweep: "cf=0.25,0.5,inf", "p=0.1,0.4", "router=top1,top1+ir:cf=2,order=score,top2",
// "ep-ranks=8,4,2". A comma separates two routers only if the name of a router family follows it.
// Throws UserError if the setting is unknown or has no values.
SweepAxis parse_sweep(const std::string& text);

// Returns the points of the grid; the last axis varies fastest. `base` contains the router flags
// that are not swept. A sweep of p keeps the max= option of the router in `base`, or of the model's
// router if `base` has none. Throws UserError if override_router() rejects a value, a setting is
// also in `base` or in another axis, two points are the same router, or the model is dense.
std::vector<SweepValue> sweep_values(const std::vector<SweepAxis>& axes,
                                     const route::RouterRequest& base,
                                     const model::ModelConfig& config, bool force);

// Evaluates the tasks at every point of the grid. Loads the model and the tasks once, and checks
// every value before the first forward pass. Writes sweep.json and sweep.html to settings.out, and
// the report of each point to settings.out/NAME (SweepValue::name). An interrupted sweep can be
// resumed if responses are cached (response_cache.h).
SweepReport sweep(const EvalSettings& settings, const std::vector<SweepAxis>& axes,
                  const EvalEvents& events = {});

}  // namespace moe::eval
