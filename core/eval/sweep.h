#pragma once
// One setting of the routing over many values (`moe eval --sweep cf=0.25,0.5,1,2`): the model and
// the tasks are read once, every value is checked before anything is computed, and all end in one
// table. Two sweeps make a grid, as the tables of Rectify-Router are.

#include <string>
#include <vector>

#include "core/eval/evaluate.h"

namespace moe::eval {

// What one --sweep says.
struct SweepAxis {
  std::string setting;  // "cf", "p", "router" or "ep-ranks"
  std::vector<std::string> values;
  bool is_number() const { return setting != "router"; }
};

// "cf=0.25,0.5,inf", "p=0.1,0.4", "router=top1,top1+ir:cf=2,order=score,top2", "ep-ranks=8,4,2". A
// comma goes on with the same router where no router begins behind it. UserError: another form, an
// unknown setting, no values.
SweepAxis parse_sweep(const std::string& text);

// One point of the grid and the router it stands for.
struct SweepValue {
  std::vector<std::string> of_axis;  // one an axis
  std::string name;                  // "cf=0.25", "router=top1,cf=2": in tables, and of its folder
  route::ResolvedRouter routing;
};

// The points, the last axis running fastest. `base` is what the other flags say; `p` keeps the max=
// of its router or of the folder's. UserError, naming the value: what override_router refuses, a
// setting that `base` or another axis gives too, a point that is there twice, a dense model.
std::vector<SweepValue> sweep_values(const std::vector<SweepAxis>& axes,
                                     const route::RouterRequest& base,
                                     const model::ModelConfig& config, bool force);

// A task, or a group that was asked for and has a mean.
struct SweepColumn {
  std::string name, metric;
  int64_t questions = 0;
};

struct SweepRow {
  SweepValue value;
  std::vector<Mean> means;       // one a column
  double average = 0;            // of the columns
  double drop_rate = 0;          // dropped requests / requests, over all scored tasks
  double experts_per_token = 0;  // rows / token
  double ir_share = 0;           // IR tokens / tokens
  double seconds = 0;            // wall time of its scoring
};

struct SweepReport {
  std::string model;
  std::vector<SweepAxis> axes;
  std::vector<SweepColumn> columns;
  std::vector<SweepRow> rows;
  bool has_drops = false, has_ir = false;  // in some row
};

// The settings' `out` gets sweep.json, sweep.html and VALUE/results.json with its samples. A sweep
// that was interrupted goes on where its responses are (response_cache.h).
SweepReport sweep(const EvalSettings& settings, const std::vector<SweepAxis>& axes,
                  const EvalEvents& events = {});

std::string sweep_table(const SweepReport& report);
// A bar a row, as long as its average stands between the least and the largest.
std::string sweep_bars(const SweepReport& report, size_t columns);
OrderedJson sweep_json(const SweepReport& report);
// The table and its plots as one page without scripts, fit for light and dark.
std::string sweep_page(const SweepReport& report);

}  // namespace moe::eval
