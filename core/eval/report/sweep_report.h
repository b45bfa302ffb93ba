#pragma once
// Results of a sweep as a table, as bars for a terminal, as JSON, and as an HTML page.

#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/eval/metrics/metrics.h"
#include "core/route/router_override.h"

namespace moe::eval {

// The values of one --sweep.
struct SweepAxis {
  std::string setting;  // "cf", "p", "router" or "ep-ranks"
  std::vector<std::string> values;
  bool is_number() const { return setting != "router"; }
};

// A point of the grid and its router.
struct SweepValue {
  std::vector<std::string> axis_values;  // one per axis
  std::string name;                      // "cf=0.25", "router=top1,cf=2": in tables, and its folder
  route::ResolvedRouter routing;
};

// A task, or a group of --tasks that has an average.
struct SweepColumn {
  std::string name, metric;
  int64_t questions = 0;
};

struct SweepRow {
  SweepValue value;
  std::vector<Mean> means;       // one per column
  double average = 0;            // of the columns
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
// Returns a bar per row, scaled from the smallest to the largest average, `columns` wide.
std::string sweep_bars(const SweepReport& report, size_t columns);
OrderedJson sweep_json(const SweepReport& report);
// Returns a self-contained page (core/base/page/page.h): a panel for the average, each task and
// each share, then a table of the same numbers.
std::string sweep_page(const SweepReport& report);

}  // namespace moe::eval
