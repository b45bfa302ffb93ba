#include "core/eval/evaluate.h"

#include <algorithm>
#include <chrono>

#include "core/base/error.h"
#include "core/eval/text_windows.h"
#include "core/eval/written_answers.h"
#include "core/io/checkpoint.h"

namespace moe::eval {
namespace {

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void tell(const EvalEvents& events, const std::string& sentence) {
  if (events.note) {
    events.note(sentence);
  }
}

// The folder without its weights: enough to refuse, or to tokenise.
struct Subject {
  io::Checkpoint checkpoint;
  model::ModelConfig config;
  io::Tokenizer tokenizer;
  route::ResolvedRouter routing;
  bool adds_bos = false;
};

route::ResolvedRouter resolve_router(const model::ModelConfig& config,
                                     const EvalSettings& settings) {
  if (config.moe) {
    const model::MoeConfig& moe = *config.moe;
    const route::StoredRouter stored{moe.router, moe.ep_ranks, moe.experts, moe.gate_scale};
    return route::override_router(
        stored, settings.router, settings.force, route::Purpose::kEvaluate);
  }
  if (settings.router.any()) {
    throw UserError(
        "this model is dense, it has no router; leave out --router, --cf and --ep-ranks");
  }
  return {};
}

Subject open_subject(const EvalSettings& settings, const EvalEvents& events) {
  io::Checkpoint checkpoint(settings.model);
  model::ModelConfig config = model::parse_config(checkpoint.config(), checkpoint.config_name());
  if (!settings.stats.empty()) {
    if (!config.moe) {
      throw UserError("{}: this model is dense, it routes nothing to count; leave out --stats",
                      settings.model.string());
    }
    check_stats_file(settings.stats, settings.force);
  }
  route::ResolvedRouter routing = resolve_router(config, settings);
  io::Tokenizer tokenizer = io::Tokenizer::load(settings.model, config.vocab_size);
  // 0.4.1 added no BOS, whatever the tokenizer said.
  const Bos bos =
      settings.bos == Bos::kAuto && settings.compat == Compat::k041 ? Bos::kOff : settings.bos;
  const bool adds_bos = resolve_bos(bos, tokenizer);
  for (const auto& note : routing.notes) {
    tell(events, note);
  }
  return {
      std::move(checkpoint), std::move(config), std::move(tokenizer), std::move(routing), adds_bos};
}

TextEncoder encoder_of(const Subject& subject, Compat compat) {
  TextEncoder encoder =
      make_encoder(subject.tokenizer, subject.adds_bos, subject.config.max_position_embeddings);
  if (compat == Compat::k041 && !subject.adds_bos && subject.tokenizer.eos_id() >= 0) {
    encoder.prefix_id = subject.tokenizer.eos_id();  // what 0.4.1 puts before an empty context
    encoder.prefix_text = subject.tokenizer.piece(encoder.prefix_id);
  }
  return encoder;
}

ScoreSettings score_settings(const EvalSettings& settings, const Subject& subject) {
  return {{subject.routing.router, subject.routing.ep_ranks},
          settings.batch_tokens,
          settings.group_tokens};
}

std::vector<TextPair> text_pairs(const std::vector<Question>& questions) {
  std::vector<TextPair> pairs;
  for (const auto& question : questions) {
    for (size_t i = 0; i < question.choices.size(); ++i) {
      pairs.push_back({question.context_of(i),
                       question.continuation_of(i),
                       fmt::format("{}, choice {}", question.where, i + 1),
                       question.source});
    }
  }
  return pairs;
}

int64_t count_cut(const std::vector<Request>& requests) {
  int64_t cut = 0;
  for (const auto& request : requests) {
    cut += request.choice_cut ? 1 : 0;
  }
  return cut;
}

void tell_cut(const EvalEvents& events, const std::string& what, int64_t cut, int64_t window) {
  if (cut > 0) {
    tell(events,
         fmt::format("{}: {} continuation{} longer than the model's window of {} tokens, scored by "
                     "{} end only "
                     "(lm-evaluation-harness refuses such items)",
                     what,
                     cut,
                     cut == 1 ? " is" : "s are",
                     window,
                     cut == 1 ? "its" : "their"));
  }
}

void tell_subset(const EvalEvents& events, const LoadedTask& loaded) {
  const int64_t whole = loaded.task.harness_items;
  if (whole != 0 && loaded.total_questions != whole) {
    tell(events,
         fmt::format("{}: the file has {} questions, lm-evaluation-harness scores {}: results are "
                     "not comparable",
                     loaded.task.name,
                     loaded.total_questions,
                     whole));
  }
  for (const auto& note : loaded.notes) {
    tell(events, note);
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

std::vector<RequestLabel> labels_of(const std::vector<TextPair>& pairs) {
  std::vector<RequestLabel> labels;
  for (const auto& pair : pairs) {
    labels.push_back({pair.source, false});
  }
  return labels;
}

int64_t group_tokens(const EvalSettings& settings, const Subject& subject) {
  return routes_in_groups(subject.config, subject.routing.router)
             ? settings.group_tokens * subject.routing.ep_ranks
             : 0;
}

// What is known of a mixture's routing before anything is run.
RoutingStats stats_head(const EvalSettings& settings, const Subject& subject) {
  const auto& router = subject.routing.router;
  RoutingStats stats;
  stats.model = settings.model.string();
  stats.router = route::to_string(router);
  stats.ep_ranks = subject.routing.ep_ranks;
  stats.experts = subject.config.moe->experts;
  if (router.family == route::Family::kTopK) {
    stats.k = router.k;
    stats.has_fr = router.fr && router.k < stats.experts;
  }
  stats.group_tokens = group_tokens(settings, subject);
  stats.row_bytes = subject.config.hidden_size * static_cast<int64_t>(sizeof(float));
  stats.by = settings.stats_by;
  stats.moe_layers = subject.config.moe->layers;
  return stats;
}

// Scores requests and gathers what their routing says.
class Runner {
 public:
  Runner(const EvalSettings& settings, const Subject& subject, const EvalEvents& events)
      : llama_(model::Llama::load(subject.checkpoint)),
        events_(events),
        settings_(score_settings(settings, subject)) {
    if (subject.config.moe) {
      stats_ = stats_head(settings, subject);
    }
    if (stats_ && settings.stats_by.any()) {
      tally_.emplace(subject.tokenizer, subject.config.vocab_size, stats_->moe_layers.size());
      settings_.routing.count_tokens = true;
      settings_.observe = [this](const Forward& forward) { tally_->add(forward); };
    }
  }
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  Scores run(const std::string& what,
             const std::vector<Request>& requests,
             const std::vector<RequestLabel>& labels) {
    if (events_.start) {
      events_.start(what, static_cast<int64_t>(requests.size()));
    }
    if (tally_) {
      tally_->begin(requests, labels);
    }
    Scores scores = score_requests(llama_, requests, settings_, events_.progress);
    if (stats_) {
      stats_->add(scores);
      stats_->tasks.push_back(
          {what, scores.counters, tally_ ? tally_->gold() : std::vector<TokenCounts>()});
    }
    return scores;
  }

  std::vector<std::string> write(const Subject& subject,
                                 const LoadedTask& loaded,
                                 const std::vector<std::vector<int64_t>>& prompts) {
    if (events_.start) {
      events_.start(loaded.task.name, static_cast<int64_t>(prompts.size()));
    }
    return write_answers(llama_,
                         settings_.routing,
                         subject.tokenizer,
                         loaded.task.generation,
                         prompts,
                         events_.progress);
  }

  // The statistics of a mixture, written to their file where one is wanted.
  std::optional<RoutingStats> finish(const std::filesystem::path& file) {
    if (stats_ && tally_) {
      stats_->tokens = tally_->finish();
    }
    if (stats_ && !file.empty()) {
      write_stats(*stats_, file);
    }
    return stats_;
  }

 private:
  model::Llama llama_;
  const EvalEvents& events_;
  ScoreSettings settings_;
  std::optional<RoutingStats> stats_;
  std::optional<TokenTally> tally_;
};

RunReport report_head(const EvalSettings& settings, const Subject& subject) {
  RunReport report;
  report.model = settings.model.string();
  report.dtype = "float32";
  report.window = subject.config.max_position_embeddings;
  report.adds_bos = subject.adds_bos;
  report.limit = settings.limit;
  report.batch_tokens = settings.batch_tokens;
  report.compat = settings.compat;
  if (subject.config.moe) {
    report.router = route::to_string(subject.routing.router);
    report.ep_ranks = subject.routing.ep_ranks;
    report.group_tokens = group_tokens(settings, subject);
  }
  return report;
}

// What the model is asked: scores of requests, or answers to prompts.
struct EncodedTask {
  std::vector<Request> requests;
  std::vector<std::vector<int64_t>> prompts;
};

EncodedTask encode_task(const TextEncoder& encoder, const LoadedTask& loaded) {
  EncodedTask encoded;
  if (loaded.task.output != OutputType::kGenerateUntil) {
    encoded.requests = encode_requests(encoder, text_pairs(loaded.questions));
    return encoded;
  }
  for (const auto& question : loaded.questions) {
    encoded.prompts.push_back(encode_prompt(encoder, loaded.task.generation, question.context));
  }
  return encoded;
}

void tell_uncounted(const EvalEvents& events,
                    const EvalSettings& settings,
                    const std::vector<EncodedTask>& tasks) {
  const bool any = std::any_of(
      tasks.begin(), tasks.end(), [](const auto& task) { return !task.prompts.empty(); });
  if (any && !settings.stats.empty()) {
    tell(events, "routing is not counted while answers are written; --stats leaves them out");
  }
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

TaskReport run_task(Runner& runner,
                    const Subject& subject,
                    LoadedTask loaded,
                    const EncodedTask& encoded,
                    int64_t resamples) {
  if (loaded.task.output == OutputType::kGenerateUntil) {
    std::vector<std::string> answers = runner.write(subject, loaded, encoded.prompts);
    return make_written_report(std::move(loaded), std::move(answers));
  }
  Scores scores = runner.run(loaded.task.name, encoded.requests, labels_of(loaded.questions));
  TaskReport report = make_task_report(std::move(loaded), std::move(scores), resamples);
  report.cut_choices = count_cut(encoded.requests);
  return report;
}

}  // namespace

RunReport evaluate(const EvalSettings& settings, const EvalEvents& events) {
  std::vector<LoadedTask> tasks =
      load_tasks(settings.tasks, settings.data, settings.limit, {settings.compat, settings.shots});
  if (!settings.out.empty()) {
    check_output(report_files(settings.out, tasks), settings.force);
  }
  const OtherRun other =
      settings.against.empty() ? OtherRun() : read_run(settings.against, names_of(tasks));
  const Subject subject = open_subject(settings, events);
  const TextEncoder encoder = encoder_of(subject, settings.compat);
  std::vector<EncodedTask> encoded;
  for (const auto& loaded : tasks) {
    tell_subset(events, loaded);
    encoded.push_back(encode_task(encoder, loaded));
    tell_cut(events, loaded.task.name, count_cut(encoded.back().requests), encoder.window);
  }
  tell_uncounted(events, settings, encoded);
  Runner runner(settings, subject, events);
  RunReport report = report_head(settings, subject);
  const double begin = now_seconds();
  for (size_t i = 0; i < tasks.size(); ++i) {
    report.tasks.push_back(
        run_task(runner, subject, std::move(tasks[i]), encoded[i], settings.resamples));
  }
  report.seconds = now_seconds() - begin;
  report.routing = runner.finish(settings.stats);
  add_averages(report, settings.tasks);
  add_differences(report, other);
  if (!settings.out.empty()) {
    write_report(report, settings.out);
  }
  return report;
}

Scores evaluate_requests(const EvalSettings& settings,
                         const std::filesystem::path& file,
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
  const TextWindows windows = read_text_windows(files,
                                                encoder_of(subject, settings.compat),
                                                std::max<int64_t>(0, subject.tokenizer.eos_id()),
                                                settings.limit);
  Runner runner(settings, subject, events);
  runner.run("texts", windows.requests, windows.labels);
  return *runner.finish(settings.stats);
}

}  // namespace moe::eval
