// In order: read, refuse, encode, load, run, write.
#include "core/eval/evaluate.h"

#include <algorithm>
#include <chrono>

#include "core/base/error.h"
#include "core/distributed/comm.h"
#include "core/eval/report/report.h"
#include "core/eval/runner.h"
#include "core/eval/scoring/forwards.h"
#include "core/eval/scoring/token_tally.h"
#include "core/io/output_checks.h"

namespace moe::eval {
namespace {

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void tell_subset(const EvalEvents& events, const LoadedTask& loaded) {
  const int64_t whole = loaded.task.harness_items;
  if (whole != 0 && loaded.total_questions != whole) {
    events.notify(
        fmt::format("{}: the file has {} questions, lm-evaluation-harness scores {}: results are "
                    "not comparable",
                    loaded.task.name, loaded.total_questions, whole));
  }
  for (const auto& note : loaded.notes) {
    events.notify(note);
  }
}

// One for each of text_pairs(questions).
std::vector<RequestLabel> labels_of(const std::vector<Question>& questions) {
  std::vector<RequestLabel> labels;
  for (const auto& question : questions) {
    for (size_t i = 0; i < question.choices.size(); ++i) {
      labels.push_back({question.source, static_cast<int64_t>(i) == question.gold});
    }
  }
  return labels;
}

RunReport report_head(const EvalSettings& settings, const OpenedModel& opened) {
  RunReport report;
  report.model = settings.model.string();
  report.upcycle = model::to_json(settings.upcycle);
  report.dtype = dtype_name(settings.precision);
  report.window = opened.config.max_position_embeddings;
  report.adds_bos = opened.adds_bos;
  report.limit = settings.limit;
  report.batch_tokens = settings.batch_tokens;
  report.device = settings.device.str();
  report.compat = settings.compat;
  if (opened.config.moe) {
    report.router = route::to_string(opened.routing.router);
    report.ep_ranks = opened.routing.ep_ranks;
    report.group_tokens = group_tokens(settings, opened);
  }
  return report;
}

// Says where generation routes otherwise than scoring.
void tell_generation(const EvalEvents& events, const EvalSettings& settings,
                     const OpenedModel& opened, const std::vector<LoadedTask>& tasks) {
  const bool any = std::any_of(tasks.begin(), tasks.end(), [](const auto& loaded) {
    return loaded.task.output == OutputType::kGenerateUntil;
  });
  if (any && group_tokens(settings, opened) > 0) {
    events.notify(
        "answers are generated without a capacity and without +fr, as moe generate routes: a "
        "token's expert must not depend on what is computed beside it");
  }
  if (any && !settings.stats.empty()) {
    events.notify(
        "routing is not counted while answers are generated: --stats counts each question with its "
        "right answer as one text");
  }
}

int64_t count_cut(const std::vector<Request>& requests) {
  return std::count_if(requests.begin(), requests.end(),
                       [](const auto& request) { return request.choice_cut; });
}

void tell_cut(const EvalEvents& events, const std::string& what, int64_t cut, int64_t window) {
  if (cut > 0) {
    events.notify(
        fmt::format("{}: {} continuation{} longer than the model's window of {} tokens, scored by "
                    "{} end only "
                    "(lm-evaluation-harness refuses such items)",
                    what, cut, cut == 1 ? " is" : "s are", window, cut == 1 ? "its" : "their"));
  }
}

std::vector<RequestLabel> labels_of(const std::vector<TextPair>& pairs) {
  std::vector<RequestLabel> labels;
  for (const auto& pair : pairs) {
    labels.push_back({pair.source, false});
  }
  return labels;
}

TaskReport run_task(Runner& runner, LoadedTask loaded, const EncodedTask& encoded,
                    int64_t resamples) {
  if (loaded.task.output == OutputType::kGenerateUntil) {
    std::vector<std::string> answers = runner.generate(loaded, encoded.prompts);
    if (!encoded.requests.empty()) {
      std::vector<RequestLabel> labels = labels_of(right_answers(loaded.questions));
      std::for_each(labels.begin(), labels.end(), [](auto& label) { label.is_gold = true; });
      runner.run(loaded.task.name, encoded.requests, labels);
    }
    return make_generated_report(std::move(loaded), std::move(answers));
  }
  Scores scores =
      runner.run(loaded.task.name, encoded.requests, labels_of(loaded.questions), &loaded);
  TaskReport report = make_task_report(std::move(loaded), std::move(scores), resamples);
  report.cut_choices = count_cut(encoded.requests);
  return report;
}

std::vector<std::string> names_of(const std::vector<LoadedTask>& tasks) {
  std::vector<std::string> names;
  for (const auto& loaded : tasks) {
    names.push_back(loaded.task.name);
  }
  return names;
}

void add_differences(RunReport& report, const OtherRun& other) {
  for (const auto& task : report.tasks) {
    if (const auto found = other.find(task.loaded.task.name); found != other.end()) {
      for (auto& difference : compare(task, found->second)) {
        report.against.push_back(std::move(difference));
      }
    }
  }
}

}  // namespace

std::vector<LoadedTask> load_requested_tasks(const EvalSettings& settings) {
  return load_tasks(settings.tasks, settings.data, settings.limit,
                    {settings.compat, settings.shots});
}

PreparedEvaluation::PreparedEvaluation(const EvalSettings& settings, const EvalEvents& events,
                                       std::vector<LoadedTask> tasks)
    : opened(open_model(settings, events)),
      settings_(settings),
      events_(events),
      tasks_(std::move(tasks)),
      encoded_(encoder_of(opened, settings.compat), tasks_,
               /*counts_routing=*/!settings.stats.empty()) {
  for (const auto& loaded : tasks_) {
    tell_subset(events, loaded);
  }
}

const EncodedTask& PreparedEvaluation::encoded(size_t index) {
  const EncodedTask* task = nullptr;
  distributed::on_all_ranks(settings_.ranks, [&] { task = &encoded_.at(index); });
  tell_cut(events_, tasks_[index].task.name, count_cut(task->requests), encoded_.window());
  return *task;
}

RunReport PreparedEvaluation::run(Runner& runner, bool is_last) {
  tell_generation(events_, settings_, opened, tasks_);
  RunReport report = report_head(settings_, opened);
  const double begin = now_seconds();
  for (size_t i = 0; i < tasks_.size(); ++i) {
    const EncodedTask& task = encoded(i);
    LoadedTask loaded = is_last ? std::move(tasks_[i]) : tasks_[i];
    report.tasks.push_back(run_task(runner, std::move(loaded), task, settings_.resamples));
  }
  report.seconds = now_seconds() - begin;
  add_averages(report, settings_.tasks);
  return report;
}

RunReport evaluate(const EvalSettings& settings, const EvalEvents& events) {
  std::vector<LoadedTask> tasks = load_requested_tasks(settings);
  if (!settings.out.empty()) {
    const std::vector<std::filesystem::path> files = report_files(settings.out, tasks);
    io::check_output(files, settings.force, "-o", input_files(settings));
    io::check_own_output(files);
  }
  const OtherRun other =
      settings.against.empty() ? OtherRun() : read_run(settings.against, names_of(tasks));
  PreparedEvaluation evaluation(settings, events, std::move(tasks));
  Runner runner(settings, evaluation.opened, events,
                request_sizes(settings, evaluation.opened, evaluation.tasks()));
  RunReport report = evaluation.run(runner, /*is_last=*/true);
  report.routing = runner.finish(settings.stats);
  add_differences(report, other);
  if (!settings.out.empty() && settings.is_rank_zero()) {
    write_report(report, settings.out);
  }
  runner.remove_temporary_cache();
  return report;
}

Scores evaluate_requests(const EvalSettings& settings, const std::filesystem::path& file,
                         const EvalEvents& events) {
  const std::vector<TextPair> pairs = read_text_pairs(file, settings.limit);
  const OpenedModel opened = open_model(settings, events);
  const TextEncoder encoder = encoder_of(opened, settings.compat);
  const std::vector<Request> requests = encode_requests(encoder, pairs);
  tell_cut(events, file.string(), count_cut(requests), encoder.window);
  Runner runner(settings, opened, events, request_sizes(settings, opened, requests));
  Scores scores = runner.run("requests", requests, labels_of(pairs));
  runner.finish(settings.stats);
  return scores;
}

RoutingStats evaluate_texts(const EvalSettings& settings,
                            const std::vector<std::filesystem::path>& files,
                            const EvalEvents& events) {
  const OpenedModel opened = open_model(settings, events);
  if (!opened.config.moe) {
    throw UserError(
        "{}: this model is dense, it routes nothing to count; --stats-text needs a "
        "mixture of experts",
        settings.model.string());
  }
  const TextWindows windows =
      read_text_windows(files, encoder_of(opened, settings.compat),
                        std::max<int64_t>(0, opened.tokenizer.eos_id()), settings.limit);
  Runner runner(settings, opened, events, request_sizes(settings, opened, windows.requests));
  runner.run("texts", windows.requests, windows.labels);
  return *runner.finish(settings.stats);
}

}  // namespace moe::eval
