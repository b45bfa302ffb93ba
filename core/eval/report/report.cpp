#include "core/eval/report/report.h"

#include <algorithm>

#include "core/base/error.h"
#include "core/base/sha256.h"
#include "core/base/version.h"
#include "core/io/file.h"
#include "core/io/output_checks.h"

namespace moe::eval {
namespace {

// Returns the mean of each task's `metric`, or of `fallback` if the task lacks it.
std::map<std::string, TaskAverage> task_averages(const RunReport& report, const std::string& metric,
                                                 const std::string& fallback) {
  std::map<std::string, TaskAverage> tasks;
  for (const auto& task : report.tasks) {
    const auto mean = task.metrics.find(task.metrics.contains(metric) ? metric : fallback);
    if (mean != task.metrics.end()) {
      tasks[task.loaded.task.name] = {mean->second, task.questions()};
    }
  }
  return tasks;
}

// Returns the means of tasks and groups under the keys of paper_tables().
std::map<std::string, double> values_by_name(const RunReport& report) {
  std::map<std::string, double> values;
  for (const auto& task : report.tasks) {
    for (const auto& [metric, mean] : task.metrics) {
      values[task.loaded.task.name + " " + metric] = mean.value;
    }
  }
  for (const auto& group : known_groups()) {
    const auto tasks = task_averages(report, group.metric, group.metric);
    const auto members = group_tasks(group);
    const bool has_all =
        std::ranges::all_of(members, [&](const auto& member) { return tasks.contains(member); });
    if (has_all && !group.metric.empty()) {
      values[group.name + " " + group.metric] = average(group, tasks, report.compat)->mean.value;
    }
  }
  return values;
}

std::filesystem::path samples_file(const std::filesystem::path& out, const Task& task) {
  return out / fmt::format("samples_{}.jsonl", task.name);
}

std::vector<std::vector<std::string>> table_rows(const RunReport& report) {
  std::vector<std::vector<std::string>> rows = {
      {"Task", "Version", "Shots", "n", "Metric", "Value", "Stderr"}};
  const auto add = [&](const std::string& name, const std::string& version,
                       const std::string& shots, int64_t questions, const std::string& metric,
                       const Mean& mean) {
    rows.push_back({name, version, shots, fmt::format("{}", questions), metric,
                    fmt::format("{:.4f}", mean.value),
                    mean.standard_error ? fmt::format("{:.4f}", *mean.standard_error) : "N/A"});
  };
  for (const auto& task : report.tasks) {
    const auto& [name, version] = std::pair(task.loaded.task.name, task.loaded.task.version);
    for (const auto& metric : task.loaded.task.metrics) {
      add(name, version ? fmt::format("{:.1f}", *version) : "-",
          fmt::format("{}", task.loaded.shots), task.questions(), metric.key(),
          task.metrics.at(metric.key()));
    }
  }
  for (const auto& [group, mean, questions] : report.groups) {
    add("(" + group.name + ")", group.version == "N/A" ? "-" : group.version, "", questions,
        group.metric, mean);
  }
  return rows;
}

void put_scores(OrderedJson& sample, const TaskReport& report, size_t index) {
  const Question& question = report.loaded.questions[index];
  sample["arguments"] = OrderedJson::object();
  sample["resps"] = OrderedJson::array();
  sample["filtered_resps"] = OrderedJson::array();
  for (size_t i = 0; i < question.choices.size(); ++i) {
    const Score& score = report.scores[index][i];
    sample["arguments"][fmt::format("gen_args_{}", i)] = {
        {"arg_0", question.choice_context(i)}, {"arg_1", question.choice_continuation(i)}};
    const OrderedJson response = {fmt::format("{}", score.logprob),
                                  score.is_greedy ? "True" : "False"};
    sample["resps"].push_back(OrderedJson::array({response}));
    sample["filtered_resps"].push_back(response);
  }
}

void put_answer(OrderedJson& sample, const TaskReport& report, size_t index,
                const std::string& filter) {
  const std::string& answer = report.answers[index];
  const OrderedJson settings = {
      {"until", report.loaded.task.generation.until}, {"do_sample", false}, {"temperature", 0.0}};
  sample["arguments"]["gen_args_0"] = {{"arg_0", report.loaded.questions[index].context},
                                       {"arg_1", settings}};
  sample["resps"] = OrderedJson::array({OrderedJson::array({answer})});
  sample["filtered_resps"] =
      OrderedJson::array({filtered_answer(report.loaded, filter, index, answer)});
}

OrderedJson value_json(const TaskReport& report, const Metric& metric, size_t index) {
  const double value = report.values.at(metric.key())[index];
  return metric.is_mean() ? OrderedJson(value)
                          : OrderedJson::array(
                                {report.loaded.questions[index].gold, static_cast<int64_t>(value)});
}

OrderedJson sample_json(const TaskReport& report, size_t index, const std::string& filter) {
  const Question& question = report.loaded.questions[index];
  OrderedJson sample = {{"doc_id", index}, {"doc", question.fields}, {"target", question.target}};
  if (report.answers.empty()) {
    put_scores(sample, report, index);
  } else {
    put_answer(sample, report, index, filter);
  }
  sample.update({{"filter", filter},
                 {"metrics", OrderedJson::array()},
                 {"doc_hash", sha256_hex(question.fields.dump(2))},
                 {"prompt_hash", sha256_hex(question.context)},
                 {"target_hash", sha256_hex(question.target)}});
  for (const auto& metric : report.loaded.task.metrics) {
    if (metric.filter == filter) {
      sample["metrics"].push_back(metric.name);
      sample[metric.name] = value_json(report, metric, index);
    }
  }
  return sample;
}

// Sets "NAME,FILTER" and "NAME_stderr,FILTER". `key`: Metric::key().
void put_metric(OrderedJson& json, std::string key, const Mean& mean) {
  key += key.find(',') == std::string::npos ? ",none" : "";
  json[key] = mean.value;
  json[key.insert(key.find(','), "_stderr")] =
      mean.standard_error ? OrderedJson(*mean.standard_error) : OrderedJson("N/A");
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

const char* to_string(Aggregation aggregation) {
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
                       {"aggregation", to_string(metric.aggregation)},
                       {"higher_is_better", metric.higher_is_better()}});
  }
  OrderedJson files = OrderedJson::array();
  for (const auto& form : task.data.scored.layouts) {
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
  const route::CounterValues sum = route::sum_layers(task.run.counters).sum;
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
    json["higher_is_better"][task.name][metric.name] = metric.higher_is_better();
  }
  json["n-samples"][task.name] = {{"original", report.loaded.total_questions},
                                  {"effective", report.questions()}};
}

}  // namespace

void add_averages(RunReport& report, const std::vector<std::string>& names) {
  for (const auto& name : groups_among(names)) {
    const Group& group = *find_group(name);
    // In 0.4.1, BIG-Bench-Hard has a single filter, and the key of its metric is "exact_match".
    const auto tasks = task_averages(report, group.metric, "exact_match");
    if (const auto found = average(group, tasks, report.compat)) {
      report.groups.push_back(*found);
    }
  }
  for (auto& table : paper_tables(values_by_name(report))) {
    const bool is_requested = std::ranges::find(names, table.name) != names.end();
    if (is_requested || table.is_complete()) {
      report.papers.push_back(std::move(table));
    }
  }
}

std::string results_table(const RunReport& report) {
  std::string table = align_columns(table_rows(report), /*left_columns=*/{0, 4});
  for (const auto& paper : report.papers) {
    table += "\n" + to_text(paper);
  }
  return report.against.empty() ? table : table + "\n" + to_table(report.against);
}

std::vector<std::filesystem::path> report_files(const std::filesystem::path& out,
                                                const std::vector<LoadedTask>& tasks) {
  std::vector<std::filesystem::path> files = {out / "results.json"};
  for (const auto& loaded : tasks) {
    files.push_back(samples_file(out, loaded.task));
  }
  return files;
}

void write_report(const RunReport& report, const std::filesystem::path& out) {
  std::error_code failure;
  std::filesystem::create_directories(out, failure);
  USER_ERROR_IF(failure, "-o {}: cannot create the folder: {}", out.string(), failure.message());
  std::vector<std::string> names = {"results.json"};
  for (const auto& task : report.tasks) {
    names.push_back(samples_file(out, task.loaded.task).filename().string());
  }
  io::add_to_output_list(out, names);
  for (const auto& task : report.tasks) {
    io::write_whole(samples_file(out, task.loaded.task), samples_jsonl(task));
  }
  io::write_whole(out / "results.json", results_json(report).dump(2) + "\n");
}

std::string samples_jsonl(const TaskReport& report) {
  std::vector<std::string> filters;
  for (const auto& metric : report.loaded.task.metrics) {
    if (std::ranges::find(filters, metric.filter) == filters.end()) {
      filters.push_back(metric.filter);
    }
  }
  std::string lines;
  for (const auto& filter : filters) {
    for (size_t index = 0; index < report.loaded.questions.size(); ++index) {
      lines += sample_json(report, index, filter).dump() + "\n";
    }
  }
  return lines;
}

OrderedJson results_json(const RunReport& report) {
  OrderedJson json;
  for (const auto& task : report.tasks) {
    put_task(json, task);
  }
  for (const auto& average : report.groups) {
    const Group& group = average.group;
    json["results"][group.name] = json["groups"][group.name] = group_json(average);
    json["group_subtasks"][group.name] = group.members;
    json["versions"][group.name] = group.version;
    json["higher_is_better"][group.name][group.metric.substr(0, group.metric.find(','))] = true;
  }
  json["config"] = {{"model", "moe"},
                    {"model_args", "pretrained=" + report.model},
                    {"model_dtype", report.dtype},
                    {"batch_size", report.batch_tokens > 0 ? OrderedJson(report.batch_tokens)
                                                           : OrderedJson("auto")},
                    {"batch_size_unit", "tokens"},
                    {"device", report.device},
                    {"limit", report.limit ? OrderedJson(*report.limit) : OrderedJson()},
                    {"bootstrap_iters", kBootstrapSamples}};
  json["max_length"] = report.window;
  json["model_source"] = "moe";
  json["model_name"] = report.model;
  json.update(report.prompt_form);
  json["total_evaluation_time_seconds"] = fmt::format("{:.3f}", report.seconds);
  json["moe"] = moe_json(report);
  return json;
}

}  // namespace moe::eval
