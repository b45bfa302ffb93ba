#include "core/eval/runner.h"

#include "core/base/error.h"
#include "core/eval/written_answers.h"

namespace moe::eval {
namespace {

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

ScoreSettings score_settings(const EvalSettings& settings, const Subject& subject) {
  return {{subject.routing.router, subject.routing.ep_ranks},
          settings.batch_tokens,
          settings.group_tokens};
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

}  // namespace

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
    if (events.note) {
      events.note(note);
    }
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

int64_t group_tokens(const EvalSettings& settings, const Subject& subject) {
  return routes_in_groups(subject.config, subject.routing.router)
             ? settings.group_tokens * subject.routing.ep_ranks
             : 0;
}

Runner::Runner(const EvalSettings& settings, const Subject& subject, const EvalEvents& events)
    : subject_(subject),
      events_(events),
      llama_(model::Llama::load(subject.checkpoint)),
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

Scores Runner::run(const std::string& what,
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

std::vector<std::string> Runner::write(const LoadedTask& loaded,
                                       const std::vector<std::vector<int64_t>>& prompts) {
  if (events_.start) {
    events_.start(loaded.task.name, static_cast<int64_t>(prompts.size()));
  }
  return write_answers(llama_,
                       settings_.routing,
                       subject_.tokenizer,
                       loaded.task.generation,
                       prompts,
                       events_.progress);
}

std::optional<RoutingStats> Runner::finish(const std::filesystem::path& file) {
  if (stats_ && tally_) {
    stats_->tokens = tally_->finish();
  }
  if (stats_ && !file.empty()) {
    write_stats(*stats_, file);
  }
  return stats_;
}

}  // namespace moe::eval
