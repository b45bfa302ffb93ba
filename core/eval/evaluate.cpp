#include "core/eval/evaluate.h"

#include <chrono>

#include "core/base/error.h"
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
  route::ResolvedRouter routing = resolve_router(config, settings);
  io::Tokenizer tokenizer = io::Tokenizer::load(settings.model, config.vocab_size);
  const bool adds_bos = resolve_bos(settings.bos, tokenizer);
  for (const auto& note : routing.notes) {
    tell(events, note);
  }
  return {
      std::move(checkpoint), std::move(config), std::move(tokenizer), std::move(routing), adds_bos};
}

TextEncoder encoder_of(const Subject& subject) {
  return make_encoder(subject.tokenizer, subject.adds_bos, subject.config.max_position_embeddings);
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
      pairs.push_back({question.context,
                       kChoiceDelimiter + question.choices[i],
                       fmt::format("{}, choice {}", question.where, i + 1)});
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
}

RunReport report_head(const EvalSettings& settings, const Subject& subject) {
  RunReport report;
  report.model = settings.model.string();
  report.dtype = "float32";
  report.window = subject.config.max_position_embeddings;
  report.adds_bos = subject.adds_bos;
  report.limit = settings.limit;
  report.batch_tokens = settings.batch_tokens;
  if (subject.config.moe) {
    report.router = route::to_string(subject.routing.router);
    report.ep_ranks = subject.routing.ep_ranks;
    const bool grouped = routes_in_groups(subject.config, subject.routing.router);
    report.group_tokens = grouped ? settings.group_tokens * subject.routing.ep_ranks : 0;
  }
  return report;
}

Scores score_all(const model::Llama& llama,
                 const std::vector<Request>& requests,
                 const ScoreSettings& settings,
                 const std::string& what,
                 const EvalEvents& events) {
  if (events.start) {
    events.start(what, static_cast<int64_t>(requests.size()));
  }
  return score_requests(llama, requests, settings, events.progress);
}

}  // namespace

RunReport evaluate(const EvalSettings& settings, const EvalEvents& events) {
  std::vector<LoadedTask> tasks = load_tasks(settings.tasks, settings.data, settings.limit);
  if (!settings.out.empty()) {
    check_output(report_files(settings.out, tasks), settings.force);
  }
  const Subject subject = open_subject(settings, events);
  const TextEncoder encoder = encoder_of(subject);
  std::vector<std::vector<Request>> requests;
  for (const auto& loaded : tasks) {
    tell_subset(events, loaded);
    requests.push_back(encode_requests(encoder, text_pairs(loaded.questions)));
    tell_cut(events, loaded.task.name, count_cut(requests.back()), encoder.window);
  }
  const model::Llama llama = model::Llama::load(subject.checkpoint);
  RunReport report = report_head(settings, subject);
  const double begin = now_seconds();
  for (size_t i = 0; i < tasks.size(); ++i) {
    Scores scores = score_all(
        llama, requests[i], score_settings(settings, subject), tasks[i].task.name, events);
    report.tasks.push_back(make_task_report(std::move(tasks[i]), std::move(scores)));
    report.tasks.back().cut_choices = count_cut(requests[i]);
  }
  report.seconds = now_seconds() - begin;
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
  const TextEncoder encoder = encoder_of(subject);
  const std::vector<Request> requests = encode_requests(encoder, pairs);
  tell_cut(events, file.string(), count_cut(requests), encoder.window);
  const model::Llama llama = model::Llama::load(subject.checkpoint);
  return score_all(llama, requests, score_settings(settings, subject), "requests", events);
}

}  // namespace moe::eval
