#pragma once
// Results of a sweep, and their output as a table, a bar chart for a terminal, JSON, and HTML.

#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/eval/metrics/metrics.h"
#include "core/route/router_override.h"

namespace moe::eval {

// A flag --sweep SETTING=VALUE,VALUE,..
struct SweepAxis {
  std::string setting;  // "cf", "p", "router" or "ep-ranks"
  std::vector<std::string> values;
  bool is_number() const { return setting != "router"; }
};

// A point of the grid and its router.
struct SweepValue {
  std::vector<std::string> axis_values;  // one per axis
  std::string name;  // "cf=0.25", "router=top1,cf=2": row of tables, name of the results folder
  route::ResolvedRouter routing;
};

// The main metric of a task, or the average of a group.
struct SweepColumn {
  std::string name, metric;
  int64_t questions = 0;
};

struct SweepRow {
  SweepValue value;
  std::vector<Mean> means;       // one per column
  double average = 0;            // mean of `means`
  double drop_rate = 0;          // dropped requests / requests, over all scored tasks
  double experts_per_token = 0;  // rows / token
  double ir_share = 0;           // IR tokens / tokens
  double seconds = 0;            // wall time of the scoring
};

struct SweepReport {
  std::string model;
  std::vector<SweepAxis> axes;
  std::vector<SweepColumn> columns;
  std::vector<SweepRow> rows;
};

std::string sweep_table(const SweepReport& report);
// Returns a bar chart of the averages for a terminal of `columns` columns, scaled to their range.
std::string sweep_bars(const SweepReport& report, size_t columns);
OrderedJson sweep_json(const SweepReport& report);
// Returns an HTML page (core/base/page/page.h): a plot for the average, each column and each
// routing statistic, and a table of the same numbers.
std::string sweep_page(const SweepReport& report);

}  // namespace moe::eval
