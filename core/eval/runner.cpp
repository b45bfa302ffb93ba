#include "core/eval/runner.h"

#include <algorithm>

#include "core/base/error.h"
#include "core/io/output_checks.h"
#include "core/model/config/weights.h"
#include "core/model/llama/memory_need.h"
#include "core/upcycle/upcycle.h"
#include "kernels/ops/device.h"

namespace moe::eval {

namespace fs = std::filesystem;

namespace {

constexpr const char* kCacheName = "responses.cache";

// Returns routing statistics with the settings filled in and no counts.
RoutingStats empty_stats(const EvalSettings& settings, const OpenedModel& opened) {
  const auto& router = opened.routing.router;
  RoutingStats stats;
  stats.model = settings.model.string();
  stats.router = route::to_string(router);
  stats.ep_ranks = opened.routing.ep_ranks;
  stats.experts = opened.config.moe->experts;
  if (router.family->has_token_requests) {
    stats.k = router.k;
    stats.has_fr = router.fr && router.k < stats.experts;
  }
  stats.group_tokens = group_tokens(settings, opened);
  stats.row_bytes = opened.config.hidden_size * static_cast<int64_t>(sizeof(float));
  stats.by = settings.stats_by;
  stats.moe_layers = opened.config.moe->layers;
  return stats;
}

model::Llama load_model(const EvalSettings& settings, const OpenedModel& opened,
                        const RequestSizes& sizes) {
  distributed::check_memory(settings.ranks, memory_need(settings, opened, sizes),
                            settings.force_memory);
  // Prevents a timeout of collectives while one rank reads much longer than the others.
  const auto reading = settings.ranks == nullptr ? nullptr : settings.ranks->long_operation();
  return model::Llama::load(opened.checkpoint, {}, settings.device, model::Storage::kStored,
                            {settings.precision});
}

// Returns the settings for scoring, without ranks and caches.
ScoreSettings score_settings(const EvalSettings& settings, const OpenedModel& opened) {
  ScoreSettings scoring = {{opened.routing.router, opened.routing.ep_ranks},
                           settings.batch_tokens,
                           settings.group_tokens};
  if (opened.config.moe && settings.stats_by.any()) {
    scoring.routing.count_tokens = true;
    scoring.observe = [](const Forward&) {};  // Runner::restart() replaces it
  }
  return scoring;
}

// Returns the size of the matrices that are read from mapped files without a copy: 0 on a GPU, to
// which weights are copied.
uint64_t mapped_bytes(const EvalSettings& settings, const OpenedModel& opened) {
  uint64_t bytes = 0;
  const bool is_mapped = kernels::device_traits(settings.device).has_host_memory;
  for (const auto& tensor : opened.checkpoint.tensors()) {
    const bool is_matrix = tensor.shape.size() >= 2 && !model::is_router(tensor.name);
    bytes += is_mapped && is_matrix ? static_cast<uint64_t>(tensor.bytes()) : 0;
  }
  return bytes;
}

// Returns the maximum number of tokens of a forward pass with several requests.
int64_t forward_limit(const EvalSettings& settings, const OpenedModel& opened) {
  return forward_limit(opened.config, mapped_bytes(settings, opened),
                       score_settings(settings, opened));
}

// Tasks with fewer than kBytesPerToken * forward_limit() bytes are encoded completely. A larger
// task is assumed to fill a forward pass: English has about 4 bytes per token.
constexpr int64_t kBytesPerToken = 8;
// The question with the most tokens is assumed to be among this number of questions with the most
// bytes.
constexpr size_t kLongestQuestions = 16;

// Returns the questions that request_sizes() encodes: all if their texts have fewer than
// `max_bytes` bytes, else at most kLongestQuestions, those with the longest texts.
LoadedTask sample_questions(const LoadedTask& loaded, int64_t max_bytes) {
  int64_t total = 0;
  std::vector<std::pair<int64_t, const Question*>> order;  // bytes of the longest text
  for (const auto& question : loaded.questions) {
    int64_t longest = question.choices.empty() ? std::ssize(question.context) : 0;
    total += longest;
    for (size_t i = 0; i < question.choices.size(); ++i) {
      const int64_t bytes =
          std::ssize(question.choice_context(i)) + std::ssize(question.choice_continuation(i));
      total += bytes;
      longest = std::max(longest, bytes);
    }
    order.emplace_back(longest, &question);
  }
  if (total >= max_bytes && order.size() > kLongestQuestions) {
    std::ranges::stable_sort(order, std::greater<>(),
                             [](const auto& entry) { return entry.first; });
    order.resize(kLongestQuestions);
  }
  LoadedTask sample;
  sample.task = loaded.task;
  for (const auto& [bytes, question] : order) {
    sample.questions.push_back(*question);
  }
  return sample;
}

}  // namespace

MemoryNeed memory_need(const EvalSettings& settings, const OpenedModel& opened,
                       const RequestSizes& sizes) {
  const model::ModelConfig& config = opened.config;
  const auto& router = opened.routing.router;
  const auto forward = [&](int64_t tokens, int64_t cached_tokens) {
    return model::forward_bytes(config, router, tokens, cached_tokens, settings.device);
  };
  // Generation adapts its batch size to the memory; the minimum is one answer with its KV cache.
  const int64_t cached =
      std::min(sizes.prompt_tokens + sizes.answer_tokens, config.max_position_embeddings);
  const uint64_t weights = model::bytes_to_copy(config, model::Storage::kStored, settings.device);
  const int64_t limit = forward_limit(settings, opened);
  const bool in_groups = group_tokens(settings, opened) > 0;
  return {
      weights + std::max(forward(sizes.forward_tokens, 0), forward(sizes.prompt_tokens, cached)), 1,
      fmt::format("evaluating {}", settings.model.string()),
      fmt::format("a {} below {}{} less", in_groups ? "--group-tokens" : "--batch-tokens",
                  in_groups ? settings.group_tokens : limit,
                  settings.ranks == nullptr ? " needs" : ", or fewer --ranks, need")};
}

route::ResolvedRouter resolve_router(const model::ModelConfig& config,
                                     const route::RouterRequest& request, bool force) {
  if (config.moe) {
    const model::MoeConfig& moe = *config.moe;
    const route::StoredRouter stored{moe.router, moe.ep_ranks, moe.experts, moe.gate_scale};
    return route::override_router(stored, request, force, route::Purpose::kEvaluate);
  }
  USER_ERROR_IF(request.any(),
                "this model is dense and has no router; remove --router, --cf and --ep-ranks, or "
                "add --upcycle N");
  return {};
}

OpenedModel open_model(const EvalSettings& settings, const EvalEvents& events) {
  io::Checkpoint checkpoint = model::open_checkpoint(settings.model, settings.upcycle,
                                                     settings.router, settings.force_memory);
  model::ModelConfig config = model::parse_config(checkpoint.config(), checkpoint.config_name());
  if (!settings.stats.empty()) {
    USER_ERROR_IF(!config.moe,
                  "{}: this model is dense and has no routing statistics; remove --stats",
                  settings.model.string());
    check_stats_file(settings.stats, settings.force);
    io::check_inputs_outside(settings.stats, input_files(settings));
  }
  route::ResolvedRouter routing = resolve_router(
      config, model::remaining_router_request(settings.upcycle, settings.router), settings.force);
  io::Tokenizer tokenizer = io::Tokenizer::load(settings.model, config.vocab_size);
  // Version 0.4.1 never added a BOS.
  const Bos bos =
      settings.bos == Bos::kAuto && settings.compat == Compat::k041 ? Bos::kOff : settings.bos;
  const bool adds_bos = resolve_bos(bos, tokenizer);
  if (bos == Bos::kOn && !adds_bos) {
    events.note("--bos on: this tokenizer has no BOS token, so none is added");
  }
  for (const auto& note : routing.notes) {
    events.note(note);
  }
  return {std::move(checkpoint), std::move(config), std::move(tokenizer), std::move(routing),
          adds_bos};
}

TextEncoder make_encoder(const OpenedModel& opened, Compat compat) {
  TextEncoder encoder =
      make_encoder(opened.tokenizer, opened.adds_bos, opened.config.max_position_embeddings);
  if (compat == Compat::k041 && !opened.adds_bos && opened.tokenizer.eos_id() >= 0) {
    encoder.prefix_id = opened.tokenizer.eos_id();  // 0.4.1 replaces an empty context by the EOS
    encoder.prefix_text = opened.tokenizer.piece(encoder.prefix_id);
  }
  return encoder;
}

int64_t group_tokens(const EvalSettings& settings, const OpenedModel& opened) {
  return routes_in_groups(opened.config, opened.routing.router)
             ? settings.group_tokens * opened.routing.ep_ranks
             : 0;
}

std::optional<ResponseFile> response_file(const EvalSettings& settings) {
  const std::string& setting = settings.cache_responses;
  if (setting == "off" || (setting.empty() && settings.out.empty())) {
    return std::nullopt;
  }
  if (setting.empty()) {
    return ResponseFile{settings.out / kCacheName, /*is_temporary=*/true};
  }
  const fs::path path = setting;
  return ResponseFile{fs::is_directory(path) ? path / kCacheName : path, false};
}

Runner::Runner(const EvalSettings& settings, const OpenedModel& opened, const EvalEvents& events,
               const RequestSizes& sizes)
    : settings_(settings),
      opened_(opened),
      events_(events),
      llama_(load_model(settings, opened, sizes)) {
  open_cache();
  restart();
}

void Runner::restart(const std::string& label) {
  label_ = label;
  scoring_ = score_settings(settings_, opened_);
  scoring_.ranks = settings_.ranks;
  stats_.reset();
  tally_.reset();
  if (opened_.config.moe) {
    stats_ = empty_stats(settings_, opened_);
  }
  if (stats_ && settings_.stats_by.any()) {
    tally_.emplace(opened_.tokenizer, opened_.config.vocab_size, stats_->moe_layers.size());
    scoring_.observe = [this](const Forward& forward) { tally_->add(forward); };
  }
  if (cache_) {
    cache_->use(scoring_.routing);
    scoring_.cache = &*cache_;
  }
}

void Runner::open_cache() {
  response_file_ = response_file(settings_);
  if (!response_file_) {
    return;
  }
  // The cache has no token counts, so every forward pass must run.
  if (settings_.stats_by.any()) {
    response_file_.reset();
    events_.note("responses are not cached: --stats-by needs every forward pass to run");
    return;
  }
  cache_.emplace(response_file_->file, model_digest(opened_.checkpoint),
                 fmt::format("{} {}", dtype_name(settings_.precision),
                             c10::DeviceTypeName(settings_.device.type(), true)));
  const io::LineLog& log = cache_->log();
  if (!log.lines().empty()) {
    events_.note(
        fmt::format("{}: {} cached responses; those with this model and these settings are reused",
                    log.path().string(), log.lines().size()));
  }
  if (log.damaged() > 0) {
    events_.note(fmt::format("{}: ignored {} damaged line{}", log.path().string(), log.damaged(),
                             log.damaged() == 1 ? "" : "s"));
  }
}

void Runner::start(const std::string& name, int64_t requests) {
  name_ = label_.empty() ? name : label_ + " " + name;
  requests_ = requests;
  cached_before_ = cache_ ? cache_->hits() : 0;
  events_.start(name_, requests);
}

void Runner::progress(int64_t done) {
  if (cache_) {
    events_.cached(cache_->hits() - cached_before_);
  }
  events_.progress(done);
  if (events_.stop_requested()) {
    throw Interrupted(fmt::format(
        "interrupted in {} after {} of {} requests; {}", name_, done, requests_,
        cache_ ? fmt::format("repeat the command to resume (responses are cached in {})",
                             response_file_->file.string())
               : "no response was cached; use -o OUT or --cache-responses FILE to be able to "
                 "resume"));
  }
}

Scores Runner::run(const std::string& name, const std::vector<Request>& requests,
                   const LoadedTask* loaded) {
  start(name, static_cast<int64_t>(requests.size()));
  if (tally_) {
    tally_->begin(requests);
  }
  std::optional<RunningAccuracy> running;
  if (loaded != nullptr && events_.running) {
    running.emplace(*loaded, events_.running);
  }
  int64_t done = 0;
  ScoreSettings scoring = scoring_;
  scoring.answered = [&](const std::vector<size_t>& answered, const Scores& so_far) {
    if (running) {
      running->add(answered, so_far);
    }
    progress(done += std::ssize(answered));
  };
  Scores scores = score_requests(llama_, requests, scoring);
  if (stats_) {
    stats_->add(scores);
    stats_->tasks.push_back({name, scores.counters, tally_ ? tally_->gold() : TokenCounts()});
  }
  return scores;
}

std::vector<std::string> Runner::generate(const LoadedTask& loaded,
                                          const std::vector<std::vector<int64_t>>& prompts) {
  start(loaded.task.name, static_cast<int64_t>(prompts.size()));
  const Generation& generation = loaded.task.generation;
  distributed::Comm* ranks = settings_.ranks;
  std::optional<RunningAccuracy> running;
  if (events_.running) {
    running.emplace(loaded, events_.running);
  }
  constexpr size_t kPromptsPerRound = 64;  // of each rank, between two all-gathers
  const size_t world_size = num_ranks(ranks), rank = rank_index(ranks);
  const size_t round = world_size == 1 ? prompts.size() : kPromptsPerRound;
  std::vector<std::string> answers(prompts.size());
  int64_t done = 0;
  const auto count_answer = [&](size_t prompt) {
    if (running) {
      running->add_generated(prompt, answers[prompt]);
    }
    progress(++done);
  };
  for (size_t begin = 0; begin < prompts.size(); begin += round * world_size) {
    const size_t end = std::min(begin + round * world_size, prompts.size());
    std::vector<size_t> own;  // prompts of this rank
    for (size_t prompt = begin + rank; prompt < end; prompt += world_size) {
      own.push_back(prompt);
    }
    distributed::on_all_ranks(ranks, [&] {
      find_or_generate(generation, prompts, own, [&](size_t prompt, std::string text) {
        answers[prompt] = std::move(text);
        if (world_size == 1) {
          count_answer(prompt);
        }
      });
    });
    for (size_t first = begin; world_size > 1 && first < end; first += world_size) {
      const bool has_own = first + rank < end;
      auto all =
          gather_generated(ranks, has_own ? std::optional(answers[first + rank]) : std::nullopt);
      distributed::on_all_ranks(ranks, [&] {
        for (size_t owner = 0; owner < all.size(); ++owner) {
          answers[first + owner] = std::move(all[owner]);
          count_answer(first + owner);
        }
      });
    }
  }
  return answers;
}

// Calls `done` with the answer to each prompt in `indices`: first the cached answers, then the
// generated ones, which it adds to the cache.
void Runner::find_or_generate(const Generation& generation,
                              const std::vector<std::vector<int64_t>>& prompts,
                              const std::vector<size_t>& indices, const OnAnswer& done) {
  std::vector<size_t> uncached;
  for (const size_t prompt : indices) {
    auto text = cache_ ? cache_->find_answer(prompts[prompt], generation) : std::nullopt;
    if (text) {
      done(prompt, std::move(*text));
    } else {
      uncached.push_back(prompt);
    }
  }
  generate_answers(llama_, scoring_.routing, opened_.tokenizer, generation, prompts, uncached,
                   [&](size_t prompt, std::string text) {
                     if (cache_) {
                       cache_->store_answer(prompts[prompt], generation, text);
                     }
                     done(prompt, std::move(text));
                   });
}

void Runner::remove_temporary_cache() {
  if (cache_ && response_file_->is_temporary && settings_.is_rank_zero()) {
    std::error_code ignored;
    fs::remove(response_file_->file, ignored);
  }
}

std::optional<RoutingStats> Runner::finish(const fs::path& file) {
  if (stats_ && tally_) {
    stats_->tokens = tally_->finish();
  }
  if (stats_ && !file.empty() && settings_.is_rank_zero()) {
    write_stats(*stats_, file);
  }
  return stats_;
}

RequestSizes request_sizes(const EvalSettings& settings, const OpenedModel& opened,
                           const std::vector<Request>& requests) {
  return {largest_forward(opened.config, mapped_bytes(settings, opened), requests,
                          score_settings(settings, opened))};
}

RequestSizes request_sizes(const EvalSettings& settings, const OpenedModel& opened,
                           const std::vector<LoadedTask>& tasks) {
  const TextEncoder encoder = make_encoder(opened, settings.compat);
  const int64_t limit = forward_limit(settings, opened);
  RequestSizes sizes;
  for (const auto& loaded : tasks) {
    const LoadedTask sample = sample_questions(loaded, kBytesPerToken * limit);
    const bool has_all = sample.questions.size() == loaded.questions.size();
    try {
      const EncodedTask encoded =
          encode_task(encoder, sample, /*counts_routing=*/!settings.stats.empty());
      if (!encoded.requests.empty()) {
        const int64_t tokens = request_sizes(settings, opened, encoded.requests).forward_tokens;
        sizes.forward_tokens =
            std::max({sizes.forward_tokens, tokens, has_all ? int64_t{0} : limit});
      }
      for (const auto& prompt : encoded.prompts) {
        sizes.prompt_tokens = std::max(sizes.prompt_tokens, std::ssize(prompt));
        sizes.answer_tokens = std::max(sizes.answer_tokens, loaded.task.generation.max_tokens);
      }
    } catch (const UserError&) {  // EncodedTasks::at() reports the error
      sizes.forward_tokens = std::max(sizes.forward_tokens, limit);
    }
  }
  return sizes;
}

std::string dtype_name(model::Precision precision) {
  return precision == model::Precision::kF32    ? "float32"
         : precision == model::Precision::kBf16 ? "bfloat16"
                                                : "tf32";
}

std::vector<fs::path> input_files(const EvalSettings& settings) {
  std::vector<fs::path> files(settings.tasks.begin(), settings.tasks.end());
  for (const char* name :
       {"config.json", "tokenizer.model", "tokenizer.json", "tokenizer_config.json",
        "special_tokens_map.json", "chat_template.jinja"}) {
    files.push_back(settings.model / name);
  }
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(settings.model, ignored)) {
    if (entry.path().filename().string().starts_with("model")) {  // shards and their index
      files.push_back(entry.path());
    }
  }
  for (const auto& entry : fs::directory_iterator(settings.against, ignored)) {
    files.push_back(entry.path());
  }
  return files;
}

std::vector<TextPair> right_answers(const std::vector<Question>& questions) {
  std::vector<TextPair> pairs;
  for (const auto& question : questions) {
    if (!question.target.empty()) {
      pairs.push_back({question.context, question.delimiter + question.target, question.where,
                       question.source, /*is_gold=*/true});
    }
  }
  return pairs;
}

EncodedTask encode_task(const TextEncoder& encoder, const LoadedTask& loaded, bool counts_routing) {
  EncodedTask encoded;
  if (loaded.task.output != OutputType::kGenerateUntil) {
    encoded.requests = encode_requests(encoder, text_pairs(loaded.questions));
    return encoded;
  }
  for (const auto& question : loaded.questions) {
    encoded.prompts.push_back(encode_prompt(encoder, loaded.task.generation, question.context));
  }
  if (counts_routing) {
    encoded.requests = encode_requests(encoder, right_answers(loaded.questions));
  }
  return encoded;
}

EncodedTasks::EncodedTasks(TextEncoder encoder, const std::vector<LoadedTask>& tasks,
                           bool counts_routing)
    : encoder_(std::move(encoder)),
      thread_([this, &tasks, counts_routing](const std::stop_token& stop) {
        for (size_t i = 0; i < tasks.size() && !error_ && !stop.stop_requested(); ++i) {
          EncodedTask encoded;
          std::exception_ptr error;
          try {
            encoded = encode_task(encoder_, tasks[i], counts_routing);
          } catch (...) {
            error = std::current_exception();
          }
          const std::lock_guard lock(mutex_);
          encoded_.push_back(std::move(encoded));
          error_ = error;
          changed_.notify_all();
        }
      }) {}

const EncodedTask& EncodedTasks::at(size_t index) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return error_ || encoded_.size() > index; });
  if (error_) {
    std::rethrow_exception(error_);
  }
  return encoded_.at(index);
}

LiveTasks::LiveTasks(const fs::path& folder, const std::vector<std::string>& names,
                     const fs::path& data, std::optional<int64_t> limit)
    : tasks_(load_tasks(names, data, limit)) {
  const io::Checkpoint checkpoint(folder);
  const auto config = model::parse_config(checkpoint.config(), checkpoint.config_name());
  const auto tokenizer = io::Tokenizer::load(folder, config.vocab_size);
  const TextEncoder encoder =
      make_encoder(tokenizer, resolve_bos(Bos::kAuto, tokenizer), config.max_position_embeddings);
  for (const auto& loaded : tasks_) {
    USER_ERROR_IF(loaded.task.output == OutputType::kGenerateUntil,
                  "task {}: generating answers is too slow during training; remove the task and "
                  "run moe eval on the checkpoints",
                  loaded.task.name);
    requests_.push_back(encode_requests(encoder, text_pairs(loaded.questions)));
  }
}

std::map<std::string, std::map<std::string, Mean>> LiveTasks::run(
    const model::Llama& llama, const model::RoutingOptions& routing) const {
  std::map<std::string, std::map<std::string, Mean>> means;
  ScoreSettings settings;
  settings.routing = routing;
  for (size_t task = 0; task < tasks_.size(); ++task) {
    Scores scores = score_requests(llama, requests_[task], settings);
    means[tasks_[task].task.name] =
        make_task_report(tasks_[task], std::move(scores), /*resamples=*/0).metrics;
  }
  return means;
}

}  // namespace moe::eval
