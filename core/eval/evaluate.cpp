// The obvious order of things: read, refuse, encode, load, run, write.
#include "core/eval/evaluate.h"

#include "core/base/error.h"
#include "core/eval/evaluation.h"
#include "core/eval/text_windows.h"

namespace moe::eval {
namespace {

std::vector<RequestLabel> labels_of(const std::vector<TextPair>& pairs) {
  std::vector<RequestLabel> labels;
  for (const auto& pair : pairs) {
    labels.push_back({pair.source, false});
  }
  return labels;
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

RunReport evaluate(const EvalSettings& settings, const EvalEvents& events) {
  std::vector<LoadedTask> tasks = load_asked(settings);
  if (!settings.out.empty()) {
    check_output(report_files(settings.out, tasks), settings.force);
  }
  const OtherRun other =
      settings.against.empty() ? OtherRun() : read_run(settings.against, names_of(tasks));
  Evaluation evaluation(settings, events, std::move(tasks));
  Runner runner(settings, evaluation.subject, events);
  RunReport report = evaluation.run(runner, /*is_last=*/true);
  report.routing = runner.finish(settings.stats);
  add_differences(report, other);
  if (!settings.out.empty() && settings.is_first_rank()) {
    write_report(report, settings.out);
  }
  runner.forget();
  return report;
}

Scores evaluate_requests(const EvalSettings& settings, const std::filesystem::path& file,
                         const EvalEvents& events) {
  std::vector<TextPair> pairs = read_text_pairs(file);
  if (settings.limit && static_cast<int64_t>(pairs.size()) > *settings.limit) {
    pairs.resize(static_cast<size_t>(*settings.limit));
  }
  const Subject subject = open_subject(settings, events);
  const TextEncoder encoder = encoder_of(subject, settings.compat);
  const std::vector<Request> requests = encode_requests(encoder, pairs);
  tell_cut(events, file.string(), count_cut(requests), encoder.window);
  Runner runner(settings, subject, events);
  Scores scores = runner.run("requests", requests, labels_of(pairs));
  runner.finish(settings.stats);
  return scores;
}

RoutingStats evaluate_texts(const EvalSettings& settings,
                            const std::vector<std::filesystem::path>& files,
                            const EvalEvents& events) {
  const Subject subject = open_subject(settings, events);
  if (!subject.config.moe) {
    throw UserError(
        "{}: this model is dense, it routes nothing to count; --stats-text needs a "
        "mixture of experts",
        settings.model.string());
  }
  const TextWindows windows =
      read_text_windows(files, encoder_of(subject, settings.compat),
                        std::max<int64_t>(0, subject.tokenizer.eos_id()), settings.limit);
  Runner runner(settings, subject, events);
  runner.run("texts", windows.requests, windows.labels);
  return *runner.finish(settings.stats);
}

}  // namespace moe::eval
