// moe generate: prints text that a model generates, greedily or by sampling.

#include "core/model/llama/generate.h"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <memory>
#include <optional>

#include "cli/flags.h"
#include "cli/output.h"
#include "core/base/error.h"
#include "core/base/resources.h"
#include "core/base/text.h"
#include "core/data/templates.h"
#include "core/tokenizer/tokenizer.h"
#include "kernels/ops/device.h"

namespace moe::cli {

namespace {

struct GenerateFlags {
  std::string model, prompt, bos = "auto", text_template, device;
  std::optional<model::Precision> precision;
  route::RouterRequest router;
  model::GenerateSettings settings;
  int threads = 0;
  bool json = false, force = false, force_memory = false, chat = false;
};

void check_chat(const GenerateFlags& flags) {
  USER_ERROR_IF(!flags.chat && !flags.text_template.empty(), "--template {} needs --chat",
                flags.text_template);
  USER_ERROR_IF(flags.chat && flags.bos != "auto",
                "--bos {} with --chat: the template decides about the BOS token; leave out --bos",
                flags.bos);
}

bool ends_with(const std::vector<int64_t>& ids, const std::vector<int64_t>& end) {
  return !end.empty() && ids.size() >= end.size() &&
         std::equal(end.rbegin(), end.rend(), ids.rbegin());
}

model::RoutingOptions routing_for(const GenerateFlags& flags, const model::ModelConfig& config) {
  const auto& moe = config.moe;
  const model::RoutingOptions stored =
      moe ? model::RoutingOptions{moe->router, moe->ep_ranks} : model::RoutingOptions{};
  if (!flags.router.any()) {
    return model::generation_routing(stored);
  }
  USER_ERROR_IF(!moe,
                "this model is dense, it has no router; leave out --router, --cf and --ep-ranks");
  const auto resolved =
      route::override_router({stored.router, stored.ep_ranks, moe->experts, moe->gate_scale},
                             flags.router, flags.force, route::Purpose::kEvaluate);
  for (const auto& note : resolved.notes) {
    print_text(stderr, "{}\n", note);
  }
  return {resolved.router, resolved.ep_ranks};
}

// Returns the tokens of --prompt. With --bos auto they begin with a BOS if the tokenizer adds one
// or is a sentencepiece model, because those were all trained with one.
std::vector<int64_t> prompt_ids(const GenerateFlags& flags, const io::Tokenizer& tokenizer) {
  std::vector<int64_t> ids = tokenizer.encode(flags.prompt);
  const bool adds_bos =
      flags.bos == "auto"
          ? tokenizer.adds_bos() || tokenizer.kind() == io::TokenizerKind::kSentencepiece
          : flags.bos == "on";
  if (adds_bos || ids.empty()) {
    USER_ERROR_IF(tokenizer.bos_id() < 0, "{}",
                  ids.empty() ? "--prompt is empty and this tokenizer has no BOS token; give a text"
                              : "this tokenizer has no BOS token; use --bos off");
    ids.insert(ids.begin(), tokenizer.bos_id());
  }
  return ids;
}

// Prints text unchanged to a file or pipe. On a terminal escapes control characters other than line
// breaks and tabs.
void print_generated(const std::string& text) {
  const std::string shown = is_terminal(1) ? terminal_text(text) : text;
  std::fwrite(shown.data(), 1, shown.size(), stdout);
}

void run(const GenerateFlags& flags) {
  check_chat(flags);
  const c10::Device device = parse_device(flags.device);
  const model::Precision precision =
      model::inference_precision(flags.precision, kernels::device_traits(device).has_tensor_cores);
  apply_threads(flags.threads);
  const io::Checkpoint checkpoint(flags.model);
  const auto config = model::parse_config(checkpoint.config(), checkpoint.config_name());
  const auto routing = routing_for(flags, config);
  const auto tokenizer =
      std::make_shared<const io::Tokenizer>(io::Tokenizer::load(flags.model, config.vocab_size));
  data::Question question;
  if (flags.chat) {
    const std::string word = flags.text_template.empty() ? "auto" : flags.text_template;
    question = data::question_tokens(data::Template::parse(data::named_template(word, flags.model)),
                                     flags.prompt, data::make_text_codec(tokenizer));
  } else {
    question.ids = prompt_ids(flags, *tokenizer);
  }
  const std::vector<int64_t>& prompt = question.ids;
  const int64_t room = config.longest_sequence() - static_cast<int64_t>(prompt.size());
  USER_ERROR_IF(room <= 0, "--prompt has {} tokens, the context length is {}; shorten it",
                prompt.size(), config.longest_sequence());
  check_memory(
      {model::generate_bytes(config, routing, static_cast<int64_t>(prompt.size()), flags.settings,
                             device),
       1, fmt::format("generating with {}", flags.model),
       "a shorter --prompt or a smaller --max-tokens takes less, but most of it are the weights"},
      flags.force_memory);
  const auto llama =
      model::Llama::load(checkpoint, {}, device, model::Storage::kStored, {precision});
  model::GenerateSettings settings = flags.settings;
  settings.max_tokens = std::min(settings.max_tokens, room);
  settings.eos_ids = tokenizer->stop_ids();
  settings.stops = [&](const std::vector<int64_t>& ids) { return ends_with(ids, question.end); };

  io::TextStream stream(*tokenizer);
  const auto print_more = [&](int64_t id) {
    print_generated(stream.push({id}));
    std::fflush(stdout);
  };
  if (!flags.json && !flags.chat) {
    print_generated(stream.push(prompt));
  }
  const auto ids = model::generate(llama, routing, prompt, settings,
                                   flags.json ? std::function<void(int64_t)>() : print_more);
  if (flags.json) {
    std::vector<int64_t> all = flags.chat ? std::vector<int64_t>() : prompt;
    all.insert(all.end(), ids.begin(), ids.end());
    print_json({{"prompt_ids", prompt}, {"ids", ids}, {"text", tokenizer->decode(all)}});
  } else {
    print_generated(stream.finish() + "\n");
  }
}

Options generate_options(GenerateFlags& flags) {
  Range probability = number_between(std::numeric_limits<double>::min(), 1);
  probability.rule = "must lie in (0, 1]";
  Option prompt{"prompt", &flags.prompt, group::kOutput, "text to continue"};
  prompt.is_required = true;
  return {
      positional("MODEL", &flags.model, group::kModel, "model directory"),
      prompt,
      {"max-tokens", &flags.settings.max_tokens, group::kOutput, "maximum number of new tokens",
       whole_between(1, 1 << 20)},
      {"temperature", &flags.settings.temperature, group::kOutput,
       "sampling temperature; 0 = greedy", number_from(0)},
      {"top-p", &flags.settings.top_p, group::kOutput, "nucleus sampling; 1 = all tokens",
       probability},
      {"seed", &flags.settings.seed, group::kOutput, "random seed of the sampling"},
      {"bos", one_of("bos", flags.bos, {"auto", "on", "off"}), group::kOutput,
       "begin with the BOS token: auto (as the tokenizer does), on or off"},
      {"chat", &flags.chat, group::kOutput,
       "send --prompt as a user's turn of the chat template and print only the answer"},
      {"template", &flags.text_template, group::kOutput,
       "with --chat: auto (the model's chat template) or a template of moe train", Range(), "auto"},
      {"force", &flags.force, group::kRouter, "allow --router to change the stored gate="},
  };
}

}  // namespace

void add_generate(CLI::App& app) {
  const auto [command, flags] =
      add_command<const GenerateFlags&>(app, "generate", "generate text, greedy or sampled", run);
  add_options(*command, generate_options(*flags));
  add_options(*command, route::request_options(flags->router));
  add_device(*command, flags->device);
  add_inference_precision(*command, flags->precision);
  add_threads(*command, flags->threads);
  add_force_memory(*command, flags->force_memory);
  add_json(*command, flags->json);
  add_config(*command,
             "moe generate my-moe --prompt \"Once upon a time\"\n"
             "moe generate my-moe --chat --prompt \"What is an expert?\" --temperature 0.7");
}

}  // namespace moe::cli
