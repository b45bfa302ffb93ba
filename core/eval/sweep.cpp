#include "core/eval/sweep.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <set>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/eval/evaluate.h"
#include "core/eval/report/report.h"
#include "core/eval/runner.h"
#include "core/io/file.h"
#include "core/io/output_checks.h"
#include "core/model/convert/upcycle.h"
#include "core/route/counters_json.h"
#include "core/route/router.h"

namespace moe::eval {

namespace fs = std::filesystem;

namespace {

const std::vector<std::string> kSettings = {"cf", "p", "router", "ep-ranks"};

std::vector<std::string> split_at_commas(const std::string& text) {
  std::vector<std::string> parts = {""};
  for (const char c : text) {
    if (c == ',') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

// "top1", "topp:0.4", "relu:k=1" begin a router; "order=score" and "max=2" go on with one.
bool begins_router(std::string part) {
  std::transform(part.begin(), part.end(), part.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const auto& families = route::router_families();
  return std::any_of(families.begin(), families.end(),
                     [&](const auto& family) { return part.starts_with(family.word); });
}

std::vector<std::string> split_routers(const std::string& text) {
  std::vector<std::string> routers;
  for (const auto& part : split_at_commas(text)) {
    if (routers.empty() || part.empty() || begins_router(part)) {
      routers.push_back(part);
    } else {
      routers.back() += "," + part;
    }
  }
  return routers;
}

std::optional<int64_t> whole_number(const std::string& text) {
  int64_t number = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
  return failure == std::errc() && end == text.data() + text.size() ? std::optional(number)
                                                                    : std::nullopt;
}

// `max=` of the router that p is put into.
std::string max_of(const route::RouterRequest& base, const route::RouterSettings& stored) {
  const auto router = base.router.empty() ? stored : route::parse_router(base.router);
  if (!base.router.empty() && router.family->name != "topp") {
    throw UserError("--sweep p needs a top-p router, --router {} is none", base.router);
  }
  return router.max_experts ? fmt::format(",max={}", *router.max_experts) : "";
}

// Puts one value of an axis into `request`.
void apply(const std::string& setting, const std::string& value, const std::string& max,
           route::RouterRequest& request) {
  if (value.empty()) {
    throw UserError("a value is empty; remove a comma");
  }
  if (setting == "cf") {
    request.cf = value;
  } else if (setting == "p") {
    request.router = "topp:" + value + max;
  } else if (setting == "router") {
    request.router = value;
  } else {
    request.ep_ranks = whole_number(value);
    if (!request.ep_ranks) {
      throw UserError("a number of ranks is whole");
    }
  }
}

void check_axes(const std::vector<SweepAxis>& axes, const route::RouterRequest& base) {
  std::set<std::string> given;
  for (const auto& axis : axes) {
    const bool is_flag = (axis.setting == "cf" && !base.cf.empty()) ||
                         (axis.setting == "router" && !base.router.empty()) ||
                         (axis.setting == "ep-ranks" && base.ep_ranks);
    if (is_flag) {
      throw UserError("--sweep {0} and --{0} together; give one of them", axis.setting);
    }
    if (!given.insert(axis.setting).second) {
      throw UserError("--sweep {} stands twice; give all its values at once", axis.setting);
    }
  }
  if (given.contains("p") && (given.contains("router") || given.contains("cf"))) {
    throw UserError(
        "--sweep p is a sweep of top-p routers, which name p and have no capacity; leave out the "
        "other --sweep");
  }
}

// All combinations, the last axis running fastest.
std::vector<std::vector<std::string>> grid_of(const std::vector<SweepAxis>& axes) {
  std::vector<std::vector<std::string>> grid = {{}};
  for (const auto& axis : axes) {
    std::vector<std::vector<std::string>> wider;
    for (const auto& point : grid) {
      for (const auto& value : axis.values) {
        wider.push_back(point);
        wider.back().push_back(value);
      }
    }
    grid = std::move(wider);
  }
  return grid;
}

std::string name_of(const std::vector<SweepAxis>& axes, const std::vector<std::string>& point) {
  std::vector<std::string> parts;
  for (size_t i = 0; i < axes.size(); ++i) {
    parts.push_back(axes[i].setting + "=" + point[i]);
  }
  return fmt::format("{}", fmt::join(parts, ","));
}

// Columns of a report in the order of its tasks; a group among them stands for its tasks.
std::vector<std::pair<SweepColumn, Mean>> columns_of(const RunReport& report,
                                                     const std::vector<std::string>& names) {
  std::vector<std::pair<SweepColumn, Mean>> columns;
  std::set<std::string> covered;
  for (const auto& [group, mean, questions] : report.groups) {
    if (std::find(names.begin(), names.end(), group.name) != names.end()) {
      columns.push_back({{group.name, group.metric, questions}, mean});
      const auto members = tasks_of(group);
      covered.insert(members.begin(), members.end());
    }
  }
  for (const auto& task : report.tasks) {
    const std::string& name = task.loaded.task.name;
    if (!covered.contains(name)) {
      const Metric& metric = main_metric(task.loaded.task);
      columns.push_back({{name, metric.key(), task.questions()}, task.metrics.at(metric.key())});
    }
  }
  return columns;
}

void add_row(SweepReport& sweep, const SweepValue& value, const RunReport& report,
             const std::vector<std::string>& names) {
  SweepRow row{value, {}};
  sweep.columns.clear();
  for (const auto& [column, mean] : columns_of(report, names)) {
    sweep.columns.push_back(column);
    row.means.push_back(mean);
    row.average += mean.value;
  }
  row.average /= static_cast<double>(row.means.size());
  route::CounterValues sum;
  for (const auto& task : report.tasks) {
    for (const auto& layer : task.run.counters) {
      sum.add(layer);
    }
  }
  const auto share = [](int64_t part, int64_t whole) {
    return route::share_of(static_cast<double>(part), static_cast<double>(whole));
  };
  row.drop_rate = share(sum.dropped_requests, sum.requests);
  row.ir_share = share(sum.ir_tokens, sum.tokens);
  row.experts_per_token = sum.experts_per_token();
  row.seconds = report.seconds;
  sweep.has_drops = sweep.has_drops || sum.dropped_requests > 0;
  sweep.has_ir = sweep.has_ir || sum.ir_tokens > 0;
  sweep.rows.push_back(std::move(row));
}

// Refuses before anything is computed, but for what an interrupted sweep left to go on from.
void check_sweep_output(const EvalSettings& settings, const std::vector<SweepValue>& values,
                        const std::vector<LoadedTask>& tasks) {
  if (settings.out.empty()) {
    return;
  }
  const auto cache = response_file(settings);
  const bool goes_on = cache && cache->ends_with_run && fs::exists(cache->file);
  const std::vector<fs::path> inputs = input_files(settings);
  const std::vector<fs::path> of_sweep = {settings.out / "sweep.json", settings.out / "sweep.html"};
  io::check_output(of_sweep, settings.force, "-o", inputs);
  io::check_own_output(of_sweep);
  for (const auto& value : values) {
    const fs::path folder = settings.out / value.name;
    if (fs::is_symlink(folder)) {
      throw UserError("{}: is a link to {}; put the folder itself there, or give another -o",
                      folder.string(), fs::read_symlink(folder).string());
    }
    const std::vector<fs::path> files = report_files(folder, tasks);
    io::check_output(files, settings.force || goes_on, "-o", inputs);
    io::check_own_output(files);
  }
}

// Gives the same sentence once, however many values it holds for.
EvalEvents noting_once(EvalEvents events) {
  if (events.note) {
    auto seen = std::make_shared<std::set<std::string>>();
    events.note = [seen, note = events.note](const std::string& sentence) {
      if (seen->insert(sentence).second) {
        note(sentence);
      }
    };
  }
  return events;
}

}  // namespace

SweepAxis parse_sweep(const std::string& text) {
  const size_t equals = text.find('=');
  const std::string setting = text.substr(0, equals);
  if (equals == std::string::npos ||
      std::find(kSettings.begin(), kSettings.end(), setting) == kSettings.end()) {
    const std::string near = nearest_name(setting, kSettings);
    throw UserError("--sweep '{}' is not SETTING=VALUE,VALUE,..{}; settings: {}", printable(text),
                    near.empty() || near == setting ? "" : ", did you mean '" + near + "'?",
                    fmt::join(kSettings, ", "));
  }
  const std::string values = text.substr(equals + 1);
  if (values.empty()) {
    throw UserError("--sweep {} has no values; write {}=VALUE,VALUE,..", printable(text), setting);
  }
  return {setting, setting == "router" ? split_routers(values) : split_at_commas(values)};
}

std::vector<SweepValue> sweep_values(const std::vector<SweepAxis>& axes,
                                     const route::RouterRequest& base,
                                     const model::ModelConfig& config, bool force) {
  if (!config.moe) {
    throw UserError("this model is dense, it has no router to sweep; leave out --sweep");
  }
  check_axes(axes, base);
  const bool has_p =
      std::any_of(axes.begin(), axes.end(), [](const auto& axis) { return axis.setting == "p"; });
  const std::string max = has_p ? max_of(base, config.moe->router) : "";
  std::vector<SweepValue> values;
  for (const auto& point : grid_of(axes)) {
    SweepValue value{point, name_of(axes, point), {}};
    try {
      route::RouterRequest request = base;
      for (size_t i = 0; i < axes.size(); ++i) {
        apply(axes[i].setting, point[i], max, request);
      }
      value.routing = resolve_router(config, request, force);
    } catch (const UserError& error) {
      throw UserError("--sweep {}: {}", printable(value.name), error.what());
    }
    for (const auto& other : values) {
      if (other.routing.router == value.routing.router &&
          other.routing.ep_ranks == value.routing.ep_ranks) {
        throw UserError("--sweep: {} and {} are the same router, {}; leave one out", other.name,
                        value.name, route::to_string(value.routing.router));
      }
    }
    values.push_back(std::move(value));
  }
  return values;
}

SweepReport sweep(const EvalSettings& settings, const std::vector<SweepAxis>& axes,
                  const EvalEvents& all_events) {
  const EvalEvents events = noting_once(all_events);
  PreparedEvaluation evaluation(settings, events, load_requested_tasks(settings));
  OpenedModel& opened = evaluation.opened;
  const auto values = sweep_values(axes, model::router_of_opened(settings.upcycle, settings.router),
                                   opened.config, settings.force);
  check_sweep_output(settings, values, evaluation.tasks());
  for (const auto& value : values) {
    for (const auto& note : value.routing.notes) {
      events.notify(note);
    }
  }
  Runner runner(settings, opened, events, request_sizes(settings, opened, evaluation.tasks()));
  SweepReport report{settings.model.string(), axes, {}, {}};
  for (const auto& value : values) {
    opened.routing = value.routing;
    runner.restart(value.name);
    const RunReport run = evaluation.run(runner, &value == &values.back());
    if (!settings.out.empty() && settings.is_rank_zero()) {
      write_report(run, settings.out / value.name);
    }
    add_row(report, value, run, settings.tasks);
  }
  if (!settings.out.empty() && settings.is_rank_zero()) {
    io::add_to_output_list(settings.out, {"sweep.html", "sweep.json"});
    io::write_whole(settings.out / "sweep.html", sweep_page(report));
    io::write_whole(settings.out / "sweep.json", sweep_json(report).dump(2) + "\n");
  }
  runner.remove_temporary_cache();
  return report;
}

}  // namespace moe::eval
