#pragma once
// A sweep as numbers, and its forms: a table for people, bars for a terminal, JSON, a page.

#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/eval/metrics/metrics.h"
#include "core/route/router_override.h"

namespace moe::eval {

// What one --sweep says.
struct SweepAxis {
  std::string setting;  // "cf", "p", "router" or "ep-ranks"
  std::vector<std::string> values;
  bool is_number() const { return setting != "router"; }
};

// One point of the grid and the router it stands for.
struct SweepValue {
  std::vector<std::string> of_axis;  // one an axis
  std::string name;                  // "cf=0.25", "router=top1,cf=2": in tables, and of its folder
  route::ResolvedRouter routing;
};

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

std::string sweep_table(const SweepReport& report);
// A bar a row, as long as its average stands between the least and the largest.
std::string sweep_bars(const SweepReport& report, size_t columns);
OrderedJson sweep_json(const SweepReport& report);
// The table and its plots as one page that needs nothing else.
std::string sweep_page(const SweepReport& report);

}  // namespace moe::eval
