#include "core/eval/report.h"

#include <algorithm>

#include "core/base/error.h"
#include "core/base/version.h"

namespace moe::eval {
namespace {

OrderedJson error_json(const Mean& mean) {
  return mean.standard_error ? OrderedJson(*mean.standard_error) : OrderedJson("N/A");
}

OrderedJson metrics_json(const TaskReport& task) {
  const std::string& name = task.loaded.task.name;
  OrderedJson metrics = {{"name", name}, {"alias", name}, {"sample_len", task.scores.size()}};
  for (const auto& metric : task.loaded.task.metrics) {
    metrics[metric + ",none"] = task.metrics.at(metric).value;
    metrics[metric + "_stderr,none"] = error_json(task.metrics.at(metric));
  }
  return metrics;
}

OrderedJson task_config_json(const Task& task) {
  OrderedJson metrics = OrderedJson::array();
  for (const auto& metric : task.metrics) {
    metrics.push_back({{"metric", metric}, {"aggregation", "mean"}, {"higher_is_better", true}});
  }
  return {{"task", task.name},
          {"output_type", "multiple_choice"},
          {"target_delimiter", kChoiceDelimiter},
          {"num_fewshot", 0},
          {"metric_list", std::move(metrics)},
          {"files", task.files}};
}

OrderedJson routing_json(const TaskReport& task) {
  route::CounterValues sum;
  for (const auto& layer : task.run.counters) {
    sum.add(layer);
  }
  return {{"forwards", task.run.forwards},
          {"input_tokens", task.run.input_tokens},
          {"requests", sum.requests},
          {"dropped_requests", sum.dropped_requests},
          {"drop_rate", drop_rate(task)},
          {"dropped_tokens", sum.dropped_tokens},
          {"fr_filled", sum.fr_filled},
          {"ir_tokens", sum.ir_tokens},
          {"experts_per_token", sum.experts_per_token()}};
}

// Everything of ours that the harness has no name for.
OrderedJson moe_json(const RunReport& report) {
  OrderedJson moe = {{"version", kVersion}, {"bos", report.adds_bos}, {"seconds", report.seconds}};
  for (const auto& task : report.tasks) {
    if (task.cut_choices > 0) {
      moe["cut_choices"][task.loaded.task.name] = task.cut_choices;
    }
  }
  if (report.router.empty()) {
    return moe;
  }
  moe["router"] = report.router;
  moe["ep_ranks"] = report.ep_ranks;
  moe["group_tokens"] = report.group_tokens == 0 ? OrderedJson() : OrderedJson(report.group_tokens);
  for (const auto& task : report.tasks) {
    moe["routing"][task.loaded.task.name] = routing_json(task);
  }
  return moe;
}

struct Row {
  std::string task, version, n, metric, value, error;
};

std::vector<Row> table_rows(const RunReport& report) {
  std::vector<Row> rows = {{"Task", "Version", "n", "Metric", "Value", "Stderr"}};
  for (const auto& task : report.tasks) {
    const auto& [name, version] = std::pair(task.loaded.task.name, task.loaded.task.version);
    for (const auto& metric : task.loaded.task.metrics) {
      const Mean& mean = task.metrics.at(metric);
      rows.push_back({name,
                      version ? fmt::format("{:.1f}", *version) : "-",
                      fmt::format("{}", task.scores.size()),
                      metric,
                      fmt::format("{:.4f}", mean.value),
                      mean.standard_error ? fmt::format("{:.4f}", *mean.standard_error) : "N/A"});
    }
  }
  return rows;
}

}  // namespace

double drop_rate(const TaskReport& report) {
  int64_t requests = 0, dropped = 0;
  for (const auto& layer : report.run.counters) {
    requests += layer.requests;
    dropped += layer.dropped_requests;
  }
  return requests == 0 ? 0.0 : static_cast<double>(dropped) / static_cast<double>(requests);
}

TaskReport make_task_report(LoadedTask loaded, Scores run) {
  TaskReport report{std::move(loaded), {}, {}, std::move(run), 0};
  std::map<std::string, std::vector<double>> values;
  auto next = report.run.scores.begin();
  for (const auto& question : report.loaded.questions) {
    const auto end = next + static_cast<int64_t>(question.choices.size());
    report.scores.emplace_back(next, end);
    next = end;
    for (const auto& [metric, value] : question_metrics(question, report.scores.back())) {
      values[metric].push_back(value);
    }
  }
  MOE_CHECK(next == report.run.scores.end(), "scores left over");
  report.run.scores.clear();
  for (const auto& [metric, all] : values) {
    report.metrics[metric] = mean_of(all);
  }
  return report;
}

OrderedJson results_json(const RunReport& report) {
  OrderedJson json;
  for (const auto& task : report.tasks) {
    const std::string& name = task.loaded.task.name;
    json["results"][name] = metrics_json(task);
    json["group_subtasks"][name] = OrderedJson::array();
    json["configs"][name] = task_config_json(task.loaded.task);
    json["versions"][name] =
        task.loaded.task.version ? OrderedJson(*task.loaded.task.version) : OrderedJson();
    json["n-shot"][name] = 0;
    for (const auto& metric : task.loaded.task.metrics) {
      json["higher_is_better"][name][metric] = true;
    }
    json["n-samples"][name] = {{"original", task.loaded.total_questions},
                               {"effective", task.scores.size()}};
  }
  json["config"] = {{"model", "moe"},
                    {"model_args", "pretrained=" + report.model},
                    {"model_dtype", report.dtype},
                    {"batch_size", report.batch_tokens},
                    {"batch_size_unit", "tokens"},
                    {"device", "cpu"},
                    {"limit", report.limit ? OrderedJson(*report.limit) : OrderedJson()},
                    {"bootstrap_iters", 0}};
  json["max_length"] = report.window;
  json["model_source"] = "moe";
  json["model_name"] = report.model;
  json["total_evaluation_time_seconds"] = fmt::format("{:.3f}", report.seconds);
  json["moe"] = moe_json(report);
  return json;
}

std::string results_table(const RunReport& report) {
  const std::vector<Row> rows = table_rows(report);
  const auto width = [&](std::string Row::*column) {
    size_t widest = 0;
    for (const auto& row : rows) {
      widest = std::max(widest, (row.*column).size());
    }
    return widest;
  };
  std::string table;
  for (const auto& row : rows) {
    table += fmt::format("{:<{}}  {:>{}}  {:>{}}  {:<{}}  {:>{}}  {:>{}}\n",
                         row.task,
                         width(&Row::task),
                         row.version,
                         width(&Row::version),
                         row.n,
                         width(&Row::n),
                         row.metric,
                         width(&Row::metric),
                         row.value,
                         width(&Row::value),
                         row.error,
                         width(&Row::error));
  }
  return table;
}

}  // namespace moe::eval
