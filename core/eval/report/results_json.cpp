// results.json in the harness's form; what it has no name for stands under "moe".
#include "core/base/error.h"
#include "core/base/version.h"
#include "core/eval/report/report.h"

namespace moe::eval {
namespace {

OrderedJson error_json(const Mean& mean) {
  return mean.standard_error ? OrderedJson(*mean.standard_error) : OrderedJson("N/A");
}

void put_metric(OrderedJson& json, const std::string& key, const Mean& mean) {
  const size_t comma = key.find(',');
  const std::string name = key.substr(0, comma);
  const std::string filter = comma == std::string::npos ? "none" : key.substr(comma + 1);
  json[name + "," + filter] = mean.value;
  json[name + "_stderr," + filter] = error_json(mean);
}

OrderedJson metrics_json(const TaskReport& report) {
  const Task& task = report.loaded.task;
  OrderedJson json = {{"name", task.name},
                      {"alias", task.alias.empty() ? task.name : task.alias},
                      {"sample_len", report.questions()}};
  for (const auto& metric : task.metrics) {
    put_metric(json, metric.key(), report.metrics.at(metric.key()));
  }
  return json;
}

OrderedJson group_json(const GroupAverage& average) {
  const Group& group = average.group;
  OrderedJson json = {{"alias", group.alias.empty() ? group.name : group.alias},
                      {"name", group.name},
                      {"sample_len", average.questions}};
  put_metric(json, group.metric, average.mean);
  const bool plain = group.metric.find(',') == std::string::npos;
  json["sample_count"][group.metric + (plain ? ",none" : "")] = average.questions;
  return json;
}

const char* name_of(Aggregation aggregation) {
  return aggregation == Aggregation::kMean         ? "mean"
         : aggregation == Aggregation::kPerplexity ? "perplexity"
         : aggregation == Aggregation::kMacroF1    ? "macro_f1"
                                                   : "f1";
}

OrderedJson task_config_json(const LoadedTask& loaded) {
  const Task& task = loaded.task;
  OrderedJson metrics = OrderedJson::array();
  for (const auto& metric : task.metrics) {
    metrics.push_back({{"metric", metric.name},
                       {"aggregation", name_of(metric.aggregation)},
                       {"higher_is_better", metric.higher_is_better}});
  }
  OrderedJson files = OrderedJson::array();
  for (const auto& form : task.data.scored.forms) {
    files.push_back(form.files);
  }
  OrderedJson json = {{"task", task.name},
                      {"dataset_path", task.data.hub},
                      {"output_type", to_string(task.output)},
                      {"description", task.description},
                      {"target_delimiter", task.delimiter},
                      {"fewshot_delimiter", task.shot_delimiter},
                      {"num_fewshot", loaded.shots},
                      {"metric_list", std::move(metrics)},
                      {"files", std::move(files)}};
  if (task.output == OutputType::kGenerateUntil) {
    json["generation_kwargs"] = {{"until", task.generation.until},
                                 {"do_sample", false},
                                 {"temperature", 0.0},
                                 {"max_gen_toks", task.generation.max_tokens}};
  }
  return json;
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

OrderedJson paper_json(const PaperTable& paper) {
  OrderedJson json = {{"paper", paper.name}, {"reading", paper.title}};
  for (size_t i = 0; i < paper.columns.size(); ++i) {
    json[paper.columns[i]] = paper.values[i] ? OrderedJson(*paper.values[i]) : OrderedJson();
  }
  const auto average = paper.average();
  json["Avg"] = average ? OrderedJson(*average) : OrderedJson();
  return json;
}

OrderedJson moe_json(const RunReport& report) {
  OrderedJson moe = {{"version", kVersion},
                     {"harness", kHarnessVersion},
                     {"compat", to_string(report.compat)},
                     {"bos", report.adds_bos},
                     {"seconds", report.seconds}};
  for (const auto& task : report.tasks) {
    if (task.cut_choices > 0) {
      moe["cut_choices"][task.loaded.task.name] = task.cut_choices;
    }
  }
  for (const auto& paper : report.papers) {
    moe["papers"].push_back(paper_json(paper));
  }
  if (!report.against.empty()) {
    moe["against"] = to_json(report.against);
  }
  if (report.router.empty()) {
    return moe;
  }
  if (!report.upcycle.is_null()) {
    moe["upcycle"] = report.upcycle;
  }
  moe["router"] = report.router;
  moe["ep_ranks"] = report.ep_ranks;
  moe["group_tokens"] = report.group_tokens == 0 ? OrderedJson() : OrderedJson(report.group_tokens);
  for (const auto& task : report.tasks) {
    if (task.answers.empty()) {
      moe["routing"][task.loaded.task.name] = routing_json(task);
    }
  }
  return moe;
}

void put_task(OrderedJson& json, const TaskReport& report) {
  const Task& task = report.loaded.task;
  json["results"][task.name] = metrics_json(report);
  json["group_subtasks"][task.name] = OrderedJson::array();
  json["configs"][task.name] = task_config_json(report.loaded);
  json["versions"][task.name] = task.version ? OrderedJson(*task.version) : OrderedJson();
  json["n-shot"][task.name] = report.loaded.shots;
  for (const auto& metric : task.metrics) {
    json["higher_is_better"][task.name][metric.name] = metric.higher_is_better;
  }
  json["n-samples"][task.name] = {{"original", report.loaded.total_questions},
                                  {"effective", report.questions()}};
}

void put_group(OrderedJson& json, const GroupAverage& average) {
  const Group& group = average.group;
  json["results"][group.name] = group_json(average);
  json["groups"][group.name] = group_json(average);
  json["group_subtasks"][group.name] = group.members;
  json["versions"][group.name] = group.version;
  json["higher_is_better"][group.name][group.metric.substr(0, group.metric.find(','))] = true;
}

}  // namespace

OrderedJson results_json(const RunReport& report) {
  OrderedJson json;
  for (const auto& task : report.tasks) {
    put_task(json, task);
  }
  for (const auto& group : report.groups) {
    put_group(json, group);
  }
  json["config"] = {{"model", "moe"},
                    {"model_args", "pretrained=" + report.model},
                    {"model_dtype", report.dtype},
                    {"batch_size", report.batch_tokens > 0 ? OrderedJson(report.batch_tokens)
                                                           : OrderedJson("auto")},
                    {"batch_size_unit", "tokens"},
                    {"device", report.device},
                    {"limit", report.limit ? OrderedJson(*report.limit) : OrderedJson()},
                    {"bootstrap_iters", 100000}};
  json["max_length"] = report.window;
  json["model_source"] = "moe";
  json["model_name"] = report.model;
  json["total_evaluation_time_seconds"] = fmt::format("{:.3f}", report.seconds);
  json["moe"] = moe_json(report);
  return json;
}

}  // namespace moe::eval
