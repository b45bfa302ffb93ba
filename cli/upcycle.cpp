// moe upcycle: converts a dense model (LLaMA, Mistral, Qwen2, Qwen3) to a mixture of experts.

#include "core/upcycle/upcycle.h"

#include <functional>
#include <optional>

#include "cli/flags.h"
#include "cli/output.h"
#include "core/base/error.h"
#include "core/base/resources.h"
#include "core/base/text.h"
#include "core/data/examples.h"
#include "core/data/records.h"
#include "core/io/output_checks.h"
#include "core/route/router.h"
#include "core/tokenizer/tokenizer.h"
#include "core/train/loop/plan.h"
#include "core/train/observe/metrics.h"
#include "core/upcycle/calibrate.h"
#include "core/upcycle/inspect.h"
#include "core/upcycle/verify.h"
#include "kernels/cpu/caching_allocator.h"

namespace moe::cli {
namespace {

constexpr int64_t kVerifyTokens = 2048;

struct UpcycleFlags {
  std::string dense, verify_text, calibration, device, add_tokens;
  std::vector<std::string> expert_parents;
  std::optional<int64_t> experts;
  route::RouterRequest router;
  model::UpcycleSettings settings;
  bool dry_run = false, quiet = false, json = false, verify = false, force_memory = false;
};

bool is_verified(const UpcycleFlags& flags) { return flags.verify || !flags.verify_text.empty(); }

model::UpcycleSettings settings_from(const UpcycleFlags& flags) {
  model::UpcycleSettings settings = flags.settings;
  for (const auto& text : flags.expert_parents) {
    settings.expert_parents.push_back(model::parse_expert_parent(text));
  }
  if (!settings.expert_parents.empty()) {
    settings.experts = model::count_copies(settings.expert_parents);
  }
  settings.experts = flags.experts.value_or(settings.experts);
  // The default router keeps the function of the parent and trains two experts per token.
  settings.router =
      route::requested_router(flags.router, route::parse_router(model::kUpcycledRouter));
  settings.ep_ranks = flags.router.ep_ranks;
  const bool scales_random_routers =
      settings.router_init.kind == model::RouterInitSettings::Kind::kRandom &&
      settings.router_init.entropy;
  USER_ERROR_IF(settings.gate_scale && !scales_random_routers && !flags.calibration.empty(),
                "--calibration {} is only used by --gate-scale auto and by --router-entropy with "
                "--router-init random; add one of them or remove --calibration",
                flags.calibration);
  settings.last_lr = train::last_learning_rate(flags.dense);
  settings.vocabulary = model::extend_vocabulary(flags.dense, io::split_tokens(flags.add_tokens));
  return settings;
}

std::string plan_text(const model::UpcyclePlan& plan) {
  const model::MoeConfig& moe = *plan.child.moe;
  const std::string context =
      plan.parent.sliding_window > 0
          ? fmt::format("context      {} tokens (sliding_window of the parent)\n",
                        plan.parent.longest_sequence())
          : "";
  const std::string slices = moe.granularity == 1
                                 ? ""
                                 : fmt::format(" ({} feed-forwards split into {})",
                                               moe.experts / moe.granularity, moe.granularity);
  return fmt::format(
      "layers {} of {} become mixtures of {} experts{}, router {}\n"
      "parameters   {} dense -> {} total, {} active per token\n{}",
      model::layer_ranges(moe.layers), plan.child.layers, moe.experts,
      slices + (moe.shared_expert_width > 0 ? " plus a shared expert" : ""),
      route::to_string(moe.router), format_count(plan.dense.total),
      format_count(plan.mixture.total), format_count(plan.mixture.active), context);
}

void dry_run(const UpcycleFlags& flags, const model::UpcycleSettings& settings,
             const model::UpcyclePlan& plan) {
  const double rate = probe_disk(settings.out);
  const double seconds = plan.bytes / rate;
  if (flags.json) {
    return print_json({{"tensor_bytes", plan.bytes},
                       {"parameters",
                        {{"dense", plan.dense.total},
                         {"total", plan.mixture.total},
                         {"active", plan.mixture.active}}},
                       {"disk_bytes_per_second", rate},
                       {"estimated_seconds", seconds}},
                      2);
  }
  print_text("{}to write     {}, about {} at {}/s (dry run: nothing was written)\n",
             plan_text(plan), format_bytes(plan.bytes), format_seconds(seconds),
             format_bytes(rate));
}

// Returns the callback that calls `before` and measures the equality certificate; empty without
// --verify. Reads the text now, so that errors in it come before anything is written.
model::Certify certifier(const UpcycleFlags& flags, const io::Checkpoint& dense,
                         const std::string& difference, int64_t logits,
                         std::function<void()> before) {
  if (!is_verified(flags)) {
    return {};
  }
  auto text = model::verify_text(dense, flags.verify_text, kVerifyTokens);
  text.device = parse_device(flags.device);
  text.logits = logits;
  text.name += logits > 0 ? fmt::format(" and the first {} logits, of the parent", logits) : "";
  return [&dense, text, difference, before](const std::filesystem::path& staged) {
    before();
    return model::certify_equality(dense, io::Checkpoint(staged), text, difference);
  };
}

// Returns kInstruct if the first record of a file is a conversation, else kLm.
data::Objective detect_objective(const std::filesystem::path& file) {
  constexpr auto kLm = data::Objective::kLm;
  data::RecordReader reader(file);
  const auto first = reader.next();
  if (!first || reader.form() == data::RecordForm::kText) {
    return kLm;
  }
  USER_ERROR_IF(!first->error.empty(), "{}", first->error);
  const auto format = data::recognise(parse_json(first->text, file.string()), kLm);
  return format && data::is_conversation(*format) ? data::Objective::kInstruct : kLm;
}

// Returns the first kMaxRouterTokens tokens of a file in any format of moe train --data.
model::RouterText read_router_text(const io::Checkpoint& dense, const std::filesystem::path& file) {
  const int64_t vocab_size = model::parse_config(dense.config(), dense.config_name()).vocab_size;
  model::RouterText text;
  text.name = file.string();
  const auto codec = [&] {
    const auto tokenizer =
        std::make_shared<const io::Tokenizer>(io::Tokenizer::load(dense.folder(), vocab_size));
    text.bos = tokenizer->bos_id();
    return data::make_text_codec(tokenizer);
  };
  data::ReadSettings settings;
  settings.objective = detect_objective(file);
  settings.max_per_file = model::kMaxRouterTokens;
  int64_t remaining = model::kMaxRouterTokens;
  const auto add_example = [&](data::Example&& example) {
    if (const auto count = std::min(remaining, std::ssize(example.ids)); count > 0) {
      text.sequences.emplace_back(example.ids.begin(), example.ids.begin() + count);
      remaining -= count;
    }
  };
  data::stream_examples({data::Source{file}}, settings, vocab_size, codec, add_example);
  return text;
}

// Returns the text that initializes or scales the routers; it has no sequences if none is needed.
model::RouterText router_text(const UpcycleFlags& flags, const io::Checkpoint& dense,
                              const model::UpcycleSettings& settings) {
  model::RouterText text;
  const model::RouterInitSettings& init = settings.router_init;
  if (init.kind == model::RouterInitSettings::Kind::kPrompts) {
    text = model::tokenize_prompts(
        dense, model::read_prompts(init.file, settings.experts, settings.expert_parents),
        init.file.string());
  } else if (init.kind == model::RouterInitSettings::Kind::kCluster) {
    text = read_router_text(dense, init.file);
  } else if (init.entropy) {
    const auto read = model::verify_text(dense, flags.calibration, kVerifyTokens, "--calibration");
    text.name = read.name;
    text.sequences = {read.ids};
    text.bos = read.bos;
  }
  text.device = parse_device(flags.device);
  return text;
}

// Throws UserError if a model that must be run (--verify, --gate-scale auto, --router-init) does
// not fit in memory. Upcycling itself streams tensors.
void check_models_fit(const UpcycleFlags& flags, const io::Checkpoint& dense,
                      const model::UpcycleSettings& settings, const model::UpcyclePlan& plan,
                      const model::RouterText& text) {
  const bool verifies = is_verified(flags);
  const bool measures_routers = settings.router_init.is_measured();
  if (!verifies && settings.gate_scale && !measures_routers) {
    return;
  }
  const uint64_t running =
      model::verify_bytes(dense, verifies ? &plan.child : nullptr, parse_device(flags.device));
  const uint64_t states = measures_routers ? model::state_bytes(plan.child, text) : 0;
  check_memory(
      {running + states, 1,
       fmt::format("running {}{}", flags.dense, verifies ? " and its mixture" : ""),
       verifies           ? "upcycling without --verify needs almost none"
       : measures_routers ? "shorter texts, or a random router without --router-entropy, need less"
                          : "--gate-scale with a number needs almost none"},
      flags.force_memory);
}

// Returns the callback that calls `before`, measures the gate scale (--gate-scale auto) and, with
// --verify, finds dead experts; empty if neither is needed.
model::Calibrate calibrator(const UpcycleFlags& flags, const io::Checkpoint& dense,
                            const model::UpcycleSettings& settings, std::function<void()> before) {
  const bool finds_dead_experts =
      is_verified(flags) && settings.router.family->can_leave_experts_dead;
  if (settings.gate_scale && !finds_dead_experts) {
    return {};
  }
  const bool has_calibration = !flags.calibration.empty();
  auto text =
      model::verify_text(dense, has_calibration ? flags.calibration : flags.verify_text,
                         kVerifyTokens, has_calibration ? "--calibration" : "--verify-text");
  text.device = parse_device(flags.device);
  return [&dense, &settings, text, before](const std::filesystem::path& staged) {
    before();
    return model::calibrate(dense, staged, settings, text);
  };
}

// Prints advice on the hyperparameters of training (sources: recipes/README.md).
void print_advice(const model::UpcycleSettings& settings) {
  const route::RouterSettings& router = settings.router;
  const std::string lr =
      settings.last_lr ? fmt::format("{:g}, {:g} times the parent's last learning rate",
                                     train::kMaxLrRatio * *settings.last_lr, train::kMaxLrRatio)
                       : "the parent's peak learning rate";
  print_text(
      "advice       train with --lr up to {}{}{}. In published runs with a tenth of the parent's "
      "tokens, the loss\n             is 1 to 5 % below that of continued dense training; in "
      "shorter runs the gain is smaller (recipes/README.md, Guidance)\n",
      lr, router.family->load_balance_coef ? "; --lb-coef 0.01 to 0.001" : "",
      route::has_capacity(router) ? "; at least 1,024 tokens per logical rank and micro-batch"
                                  : "");
}

void print_result(const UpcycleFlags& flags, const model::UpcycleSettings& settings,
                  const model::UpcyclePlan& plan, OrderedJson report, double seconds) {
  const std::string out = settings.out.string();
  if (flags.json) {
    report["out"] = out;
    report["seconds"] = seconds;
    return print_json(report, 2);
  }
  const auto words = [](const OrderedJson& object) {
    return terminal_line(object.value("words", ""));
  };
  print_text("{}", plan_text(plan));
  print_written(plan.bytes, out, seconds);
  // Prints nothing if the object is missing or has no "words".
  const auto print_words = [&](const char* label, const OrderedJson& parent, const char* key) {
    if (parent.contains(key) && parent[key].contains("words")) {
      print_text("{:<13}{}\n", label, words(parent[key]));
    }
  };
  for (const auto& layer : report["router_init"].value("layers", OrderedJson::array())) {
    print_text("router init  {}\n", words(layer));
  }
  print_words("gate scale", report, "calibration");
  print_words("certificate", report, "certificate");
  if (report.contains("certificate")) {
    print_words("unscaled", report["certificate"], "without_gate_scale");
  } else {
    const OrderedJson& expected = report["preserves_function"];
    print_text("function     {}{}; not measured (see --verify)\n",
               expected.value("exact", false) ? "identical by construction: " : "",
               words(expected));
  }
  print_text("next         moe train {} -o RUN --data FILE   (moe inspect {} shows the model)\n",
             terminal_line(out), terminal_line(out));
  if (!flags.quiet) {
    print_advice(settings);
  }
}

void run(const UpcycleFlags& flags) {
  apply_threads();
  const model::UpcycleSettings settings = settings_from(flags);
  const io::Checkpoint dense(flags.dense);
  const model::UpcyclePlan plan = model::plan_upcycle(dense, settings);
  io::check_inputs_outside(settings.out,
                           {flags.verify_text, flags.calibration, settings.router_init.file});
  const model::RouterText text = router_text(flags, dense, settings);
  if (!settings.vocabulary.words.empty() && !flags.quiet) {
    print_text(stderr, "{}\n", terminal_line(settings.vocabulary.words));
  }
  if (flags.dry_run) {
    return dry_run(flags, settings, plan);
  }
  check_models_fit(flags, dense, settings, plan, text);
  Progress progress("upcycle", "B", plan.bytes, flags.quiet);
  std::optional<double> seconds;  // of writing, without verification
  const auto finish_writing = [&] {
    if (!seconds) {
      seconds = progress.finish();
    }
  };
  const model::Certify certify = certifier(flags, dense, model::describe_difference(settings, plan),
                                           settings.vocabulary.begin, finish_writing);
  const model::Calibrate calibrate = calibrator(flags, dense, settings, finish_writing);
  OrderedJson report =
      model::upcycle(dense, plan, settings,
                     {[&](uint64_t done) { progress.set(done); }, certify, calibrate,
                      [&] {
                        model::RouterInit routers =
                            model::init_routers(dense, plan.child, settings.router_init, text);
                        // Releases memory that the forward pass of the parent has cached.
                        kernels::use_caching_allocator().release();
                        return routers;
                      }});
  finish_writing();
  for (const auto& warning : report.value("warnings", std::vector<std::string>())) {
    print_text(stderr, "warning: {}\n", terminal_line(warning));
  }
  print_result(flags, settings, plan, std::move(report), *seconds);
}

Options source_options(UpcycleFlags& flags) {
  model::UpcycleSettings& settings = flags.settings;
  return {
      positional("DENSE", &flags.dense, group::kModel,
                 "dense model directory: LLaMA, Mistral, Qwen2 or Qwen3"),
      output_path(&settings.out, "model directory to create"),
      {"experts", &flags.experts, group::kModel, "experts per MoE layer", Range(),
       "8, or the sum of --expert"},
      {.name = "expert",
       .member = &flags.expert_parents,
       .group = group::kModel,
       .help = "FOLDER[:N]: use N copies (default 1) of the feed-forwards of this dense model as "
               "experts; may be repeated",
       .is_repeated = true},
      {"rest", choice<bool, bool>("rest", settings.mean_rest, {{"base", false}, {"mean", true}}),
       group::kModel,
       "with --expert: all other weights: base (DENSE) or mean (mean of the parents)"},
      {"vary",
       Choice{
           [&settings] { return model::to_string(settings.vary); },
           [&settings](const std::string& text) { settings.vary = model::parse_variation(text); }},
       group::kModel,
       "perturb the copies: drop:R (reinitialize a share R of the dimensions), drop:R,separate (in "
       "each matrix separately), or noise:S (add noise of S standard deviations)"},
      {"shared-expert", &settings.shared_expert, group::kModel,
       "keep the dense feed-forward as a shared expert; the routed experts start at zero output "
       "(not for Qwen3)"},
      {"layers", &settings.layers, group::kModel,
       "MoE layers: even, odd, all, or a list like 0,3,5 or 0-3"},
      {"add-tokens", &flags.add_tokens, group::kModel,
       "special tokens to add to the vocabulary, a comma list as in moe train", Range(), "none"},
      {"granularity", &settings.granularity, group::kModel,
       "split each expert into G of width F/G; the router's k, max and cf are multiplied by G"},
      {"seed", &settings.seed, group::kModel, "random seed of the router weights", seed_range()},
      {"dtype",
       choice<std::optional<io::DType>, std::optional<io::DType>>(
           "dtype", settings.dtype,
           {{"keep", std::nullopt}, {"bf16", io::DType::kBF16}, {"fp32", io::DType::kF32}}),
       group::kModel, "dtype of the weights: keep, bf16 or fp32"},
  };
}

// Returns the member of --router-init. Setting it keeps the value of --router-entropy.
Choice router_init_member(model::RouterInitSettings& init) {
  return {[&init] { return model::to_string(init); },
          [&init](const std::string& text) {
            const std::optional<double> entropy = init.entropy;
            init = model::parse_router_init(text);
            init.entropy = entropy;
          }};
}

// Returns the member of --gate-scale, which is empty for auto.
Choice gate_scale_member(std::optional<double>& scale) {
  return {[&scale] { return scale ? fmt::format("{}", *scale) : "auto"; },
          [&scale](const std::string& text) {
            double value = 0;
            USER_ERROR_IF(text != "auto" && !CLI::detail::lexical_cast(text, value),
                          "--gate-scale '{}' must be a positive number or auto", text);
            scale = text == "auto" ? std::nullopt : std::optional(value);
          }};
}

Options router_options(UpcycleFlags& flags) {
  model::UpcycleSettings& settings = flags.settings;
  return {
      {"router-std", &settings.router_std, group::kRouter,
       "standard deviation of random router weights", number_from(0),
       "the config's initializer_range"},
      {"router-init", router_init_member(settings.router_init), group::kRouter,
       "random, prompts:FILE (JSON with texts for each expert), or cluster:FILE (clusters of the "
       "hidden states of a text)"},
      {"router-entropy", &settings.router_init.entropy, group::kRouter,
       "scale each router to this mean entropy, as a share of ln E", Range(),
       "0.7 with prompts and cluster, else not scaled"},
      {"gate-scale", gate_scale_member(settings.gate_scale), group::kRouter,
       "factor of all gate weights; auto = 1 / mean sum of gate weights (topp, relu, gate=none)"},
      {"calibration", &flags.calibration, group::kRouter,
       "text for --gate-scale auto, and for --router-entropy with --router-init random", Range(),
       "an embedded text; for --gate-scale, --verify-text if given"},
  };
}

Options output_options(UpcycleFlags& flags) {
  return {
      byte_size("shard-size", flags.settings.shard_bytes, group::kOutput,
                "maximum size of a weight file", "5GB"),
      {"verify", &flags.verify, group::kOutput,
       "compare the logits with the dense model and store the result: identical, close or "
       "different"},
      {"verify-text", &flags.verify_text, group::kOutput, "text for --verify; implies it", Range(),
       "an embedded text"},
      {"dry-run", &flags.dry_run, group::kOutput,
       "print size, parameters and estimated time without writing"},
  };
}

Options options(UpcycleFlags& flags) {
  return concat(
      {source_options(flags),
       route::request_options(flags.router),
       router_options(flags),
       output_options(flags),
       {device_option(flags.device), force_memory_option(flags.force_memory),
        force_option(flags.settings.force), quiet_option(flags.quiet), json_option(flags.json)}});
}

}  // namespace

void add_upcycle(CLI::App& app) {
  add_config(
      add_command<const UpcycleFlags&>(
          app, "upcycle", "convert a dense model to a mixture of experts", run, options),
      "moe upcycle my-llama -o my-moe --experts 8 --layers even --router top1+ir+fr --verify\n"
      "moe upcycle base -o my-moe --expert math:4 --expert code:4 --router-init prompts:p.json\n"
      "moe upcycle my-llama -o my-moe --granularity 4 --shared-expert --dry-run");
}

}  // namespace moe::cli
