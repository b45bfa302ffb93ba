#include "core/eval/report/compare.h"

#include <algorithm>
#include <cmath>

#include "core/base/error.h"
#include "core/base/sha256.h"
#include "core/base/text.h"

namespace moe::eval {
namespace {

namespace fs = std::filesystem;

bool is_log_name(const std::string& file, const std::string& task) {
  const std::string begin = "samples_" + task, end = ".jsonl";
  if (!file.starts_with(begin) || !file.ends_with(end)) {
    return false;
  }
  const std::string rest = file.substr(begin.size(), file.size() - begin.size() - end.size());
  const auto digits = rest.find_first_not_of("0123456789", 1);
  return rest.empty() || (rest[0] == '_' && digits == 5 && rest[5] == '-');  // "_2024-05-01T.."
}

// Returns the sample log of `task` with the latest date; empty if there is none.
fs::path find_log(const fs::path& folder, const std::string& task) {
  fs::path last;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (entry.is_regular_file() && is_log_name(name, task) &&
        (last.empty() || name > last.filename().string())) {
      last = entry.path();
    }
  }
  return last;
}

OtherTask read_log(const fs::path& file) {
  OtherTask task;
  for (const auto& [json, where] : read_jsonl(file)) {
    OtherAnswer& answer = task[get_int(json, "doc_id", where)];
    answer.target = get_string(json, "target", where);
    answer.prompt_hash = get_string(json, "prompt_hash", where, "");
    const std::string filter = get_string(json, "filter", where, "none");
    for (const auto& metric : get_strings(json, "metrics", where)) {
      const auto value = json.find(metric);
      if (value != json.end() && value->is_number()) {
        answer.values[filter == "none" ? metric : metric + "," + filter] = value->get<double>();
      }
    }
  }
  return task;
}

Difference compare_metric(const TaskReport& report, const Metric& metric, const OtherTask& other) {
  const auto& values = report.values.at(metric.key());
  Difference difference{report.loaded.task.name, metric.key()};
  difference.is_binary = true;
  std::vector<double> paired_differences;
  double ours = 0, theirs = 0;
  for (const auto& [doc_id, answer] : other) {
    const auto found = answer.values.find(metric.key());
    if (doc_id < 0 || doc_id >= report.questions() || found == answer.values.end()) {
      continue;
    }
    const Question& question = report.loaded.questions[static_cast<size_t>(doc_id)];
    USER_ERROR_IF(answer.target != question.target,
                  "--against: the right answer of question {} of {} is '{}' in the other run and "
                  "'{}' here; run both with the same data files",
                  doc_id, difference.task, printable(answer.target, 40),
                  printable(question.target, 40));
    const std::string& hash = answer.prompt_hash;
    difference.other_prompts += !hash.empty() && hash != sha256_hex(question.context) ? 1 : 0;
    const double a = values[static_cast<size_t>(doc_id)], b = found->second;
    ours += a;
    theirs += b;
    paired_differences.push_back(a - b);
    difference.is_binary = difference.is_binary && (a == 0 || a == 1) && (b == 0 || b == 1);
    if (a != b) {
      difference.items.push_back({doc_id, a, b});
      ++(a > b ? difference.only_ours : difference.only_theirs);
    }
  }
  difference.questions = std::ssize(paired_differences);
  if (paired_differences.empty()) {
    return difference;
  }
  const Mean mean = compute_mean(paired_differences);
  difference.ours = ours / difference.questions;
  difference.theirs = theirs / difference.questions;
  difference.error = mean.standard_error.value_or(0);
  if (difference.is_binary) {
    difference.p = mcnemar(difference.only_ours, difference.only_theirs);
  } else if (difference.error > 0) {
    difference.p = std::erfc(std::abs(mean.value) / difference.error / std::sqrt(2.0));
  }
  return difference;
}

std::string metric_name(const Difference& difference) {
  return difference.metric == "perplexity" ? "log-likelihood" : difference.metric;
}

}  // namespace

OtherRun read_run(const fs::path& folder, const std::vector<std::string>& tasks) {
  USER_ERROR_IF(!fs::is_directory(folder),
                "--against {}: not a folder; give the -o folder of another run", folder.string());
  OtherRun run;
  for (const auto& task : tasks) {
    if (const fs::path file = find_log(folder, task); !file.empty()) {
      run[task] = read_log(file);
    }
  }
  USER_ERROR_IF(run.empty(),
                "--against {}: has no sample log of {}; evaluate the other model with -o and the "
                "same tasks",
                folder.string(), fmt::join(tasks, ", "));
  return run;
}

std::vector<Difference> compare(const TaskReport& report, const OtherTask& other) {
  std::vector<Difference> differences;
  for (const auto& metric : report.loaded.task.metrics) {
    Difference difference = metric.is_mean() ? compare_metric(report, metric, other) : Difference{};
    if (difference.questions > 0) {
      differences.push_back(std::move(difference));
    }
  }
  return differences;
}

double mcnemar(int64_t b, int64_t c) {
  const double n = b + c;
  double tail = 0;
  for (int64_t k = 0; k <= std::min(b, c); ++k) {
    tail += std::exp(std::lgamma(n + 1) - std::lgamma(k + 1) - std::lgamma(n - k + 1) -
                     n * std::log(2.0));
  }
  return std::min(1.0, 2 * tail);
}

std::string to_table(const std::vector<Difference>& differences) {
  // Spaces in the header set the minimum widths of the columns.
  std::vector<std::vector<std::string>> rows = {
      {"Task", "Metric", "     n", "    this", "   other", "  change", " stderr", "  only",
       "   only", "      p"},
      {"", "", "", "", "", "", "", "this", "other", ""}};
  const auto decimal = [](double value) { return fmt::format("{:.4f}", value); };
  for (const auto& d : differences) {
    rows.push_back({d.task, metric_name(d), std::to_string(d.questions), decimal(d.ours),
                    decimal(d.theirs), fmt::format("{:+.4f}", d.ours - d.theirs), decimal(d.error),
                    d.is_binary ? std::to_string(d.only_ours) : "-",
                    d.is_binary ? std::to_string(d.only_theirs) : "-", decimal(d.p)});
  }
  return align_columns(rows, /*left_columns=*/{0, 1});
}

std::string to_item_list(const std::vector<Difference>& differences) {
  std::string list;
  for (const auto& difference : differences) {
    for (const auto& item : difference.items) {
      list += fmt::format("{} {} question {}: this {:.4f}, other {:.4f}\n", difference.task,
                          metric_name(difference), item.doc_id, item.ours, item.theirs);
    }
  }
  return list;
}

OrderedJson to_json(const std::vector<Difference>& differences) {
  OrderedJson all = OrderedJson::array();
  for (const auto& d : differences) {
    OrderedJson items = OrderedJson::array();
    for (const auto& item : d.items) {
      items.push_back({{"doc_id", item.doc_id}, {"this", item.ours}, {"other", item.theirs}});
    }
    all.push_back({{"task", d.task},
                   {"metric", metric_name(d)},
                   {"n", d.questions},
                   {"this", d.ours},
                   {"other", d.theirs},
                   {"difference", d.ours - d.theirs},
                   {"stderr", d.error},
                   {"only_this", d.only_ours},
                   {"only_other", d.only_theirs},
                   {"test", d.is_binary ? "mcnemar_exact" : "paired_normal"},
                   {"p", d.p},
                   {"items", std::move(items)}});
  }
  return all;
}

}  // namespace moe::eval
