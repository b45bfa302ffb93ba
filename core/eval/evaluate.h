#pragma once
// Entry points of `moe eval`: tasks, files of requests, raw text, and sweeps over routing settings.
// User input is checked before the weights are loaded; errors in encoding may show later
// (EncodedTasks).

#include <filesystem>
#include <string>
#include <vector>

#include "core/eval/report/report.h"
#include "core/eval/report/sweep_report.h"
#include "core/eval/runner.h"

namespace moe::eval {

// Evaluates settings.tasks and writes the report to settings.out. Throws Interrupted if
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
// "ep-ranks=8,4,2". A comma separates two routers only if a router family follows it. Throws
// UserError.
SweepAxis parse_sweep(const std::string& text);

// Returns the points of the grid; the last axis varies fastest. `base` has the router flags that
// are not swept. A sweep of p keeps max= of the router in `base`, else of the folder's router.
// Throws UserError if override_router() rejects a value, a setting is also in `base` or in another
// axis, two points are the same router, or the model is dense.
std::vector<SweepValue> sweep_values(const std::vector<SweepAxis>& axes,
                                     const route::RouterRequest& base,
                                     const model::ModelConfig& config, bool force);

// Evaluates the tasks at every point of the grid. Loads the model and the tasks once, and checks
// every value before it computes anything. Writes sweep.json and sweep.html to settings.out, and
// results.json and the sample logs of each point to settings.out/VALUE. An interrupted sweep can be
// resumed if its responses are cached (response_cache.h).
SweepReport sweep(const EvalSettings& settings, const std::vector<SweepAxis>& axes,
                  const EvalEvents& events = {});

}  // namespace moe::eval
