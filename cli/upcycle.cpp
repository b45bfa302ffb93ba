// moe upcycle: a dense folder of LLaMA or its kin becomes a mixture of experts.

#include "core/model/convert/upcycle.h"

#include <CLI/CLI.hpp>
#include <chrono>
#include <functional>
#include <optional>

#include "cli/commands.h"
#include "cli/flags.h"
#include "cli/progress.h"
#include "core/base/error.h"
#include "core/base/option.h"
#include "core/base/resources.h"
#include "core/base/text.h"
#include "core/data/examples.h"
#include "core/data/records.h"
#include "core/io/output_checks.h"
#include "core/model/convert/calibrate.h"
#include "core/model/convert/inspect.h"
#include "core/model/convert/verify.h"
#include "core/route/router.h"
#include "core/tokenizer/tokenizer.h"
#include "core/train/loop/plan.h"
#include "core/train/observe/metrics.h"
#include "kernels/cpu/caching_allocator.h"

namespace moe::cli {

namespace {

constexpr int64_t kVerifyTokens = 2048;

struct UpcycleFlags {
  std::string dense, out, dtype = "keep", shard_size = "5GB", verify_text, gate_scale = "1",
                          calibration, device, rest = "base", vary = "none", router_init = "random";
  std::vector<std::string> expert_parents;
  std::optional<int64_t> experts;
  double router_std = -1;
  std::optional<double> router_entropy;
  route::RouterRequest router;
  model::UpcycleSettings settings;
  bool dry_run = false, quiet = false, json = false, verify = false, force_memory = false;
};

bool is_verified(const UpcycleFlags& flags) { return flags.verify || !flags.verify_text.empty(); }

// --gate-scale X|auto; auto is nothing yet.
std::optional<double> gate_scale_of(const std::string& text) {
  if (text == "auto") {
    return std::nullopt;
  }
  double value = 0;
  if (!CLI::detail::lexical_cast(text, value)) {
    throw UserError("--gate-scale '{}' is neither a positive number nor auto", text);
  }
  return value;
}

bool scales_random_routers(const model::UpcycleSettings& settings) {
  return settings.router_init.kind == model::RouterInit::Kind::kRandom &&
         settings.router_init.entropy;
}

model::UpcycleSettings settings_from(const UpcycleFlags& flags) {
  model::UpcycleSettings settings = flags.settings;
  settings.out = flags.out;
  for (const auto& text : flags.expert_parents) {
    settings.expert_parents.push_back(model::parse_expert_parent(text));
  }
  if (!settings.expert_parents.empty()) {
    settings.experts = model::count_copies(settings.expert_parents);
  }
  settings.experts = flags.experts.value_or(settings.experts);
  settings.mean_rest = flags.rest == "mean";
  settings.vary = model::parse_variation(flags.vary);
  // The default keeps the parent's function exactly and gives every token two experts to learn
  // from.
  settings.router =
      route::requested_router(flags.router, route::parse_router(model::kUpcycledRouter));
  settings.ep_ranks = flags.router.ep_ranks;
  settings.gate_scale = gate_scale_of(flags.gate_scale);
  settings.router_init = model::parse_router_init(flags.router_init);
  settings.router_init.entropy = flags.router_entropy;
  if (settings.gate_scale && !scales_random_routers(settings) && !flags.calibration.empty()) {
    throw UserError(
        "--calibration {}: only --gate-scale auto and the --router-entropy of a random router read "
        "it; add one of them, or leave it out",
        flags.calibration);
  }
  settings.shard_bytes = parse_bytes(flags.shard_size, "--shard-size");
  settings.last_lr = train::last_learning_rate(flags.dense);
  if (flags.dtype != "keep") {
    settings.dtype = flags.dtype == "bf16" ? io::DType::kBF16 : io::DType::kF32;
  }
  return settings;
}

std::string describe(const model::UpcyclePlan& plan) {
  const model::MoeConfig& moe = *plan.child.moe;
  const std::string context =
      plan.parent.sliding_window > 0
          ? fmt::format("context      {} tokens, the parent's sliding_window\n",
                        plan.parent.longest_sequence())
          : "";
  const std::string slices = moe.granularity == 1
                                 ? ""
                                 : fmt::format(" ({} feed-forwards cut into {})",
                                               moe.experts / moe.granularity, moe.granularity);
  return fmt::format(
      "layers {} of {} become mixtures of {} experts{}, router {}\n"
      "parameters   {} dense -> {} total, {} active per token\n{}",
      model::layer_ranges(moe.layers), plan.child.layers, moe.experts,
      slices + (moe.shared_expert_width > 0 ? " beside the dense feed-forward" : ""),
      route::to_string(moe.router), format_count(static_cast<double>(plan.dense.total)),
      format_count(static_cast<double>(plan.mixture.total)),
      format_count(static_cast<double>(plan.mixture.active)), context);
}

void dry_run(const UpcycleFlags& flags, const model::UpcycleSettings& settings,
             const model::UpcyclePlan& plan) {
  const double rate = probe_disk(settings.out);
  const double seconds = static_cast<double>(plan.bytes) / rate;
  if (flags.json) {
    const OrderedJson json = {{"tensor_bytes", plan.bytes},
                              {"parameters",
                               {{"dense", plan.dense.total},
                                {"total", plan.mixture.total},
                                {"active", plan.mixture.active}}},
                              {"disk_bytes_per_second", rate},
                              {"estimated_seconds", seconds}};
    print_text("{}\n", json_text(json, 2));
    return;
  }
  print_text("{}to write     {}, about {} at {}/s (dry run: nothing was written)\n", describe(plan),
             format_bytes(static_cast<double>(plan.bytes)), format_seconds(seconds),
             format_bytes(rate));
}

// `before` is called when the folder is written and the comparison begins.
model::Certify certifier(const UpcycleFlags& flags, const io::Checkpoint& dense,
                         const std::string& difference, std::function<void()> before) {
  if (!is_verified(flags)) {
    return {};
  }
  auto text = model::verify_text(dense, flags.verify_text,
                                 kVerifyTokens);  // refused before a byte is written
  text.device = device_of(flags.device);
  return [&dense, text, difference, before](const std::filesystem::path& staged) {
    before();
    return model::certify_equality(dense, io::Checkpoint(staged), text, difference);
  };
}

bool looks_for_dead_experts(const UpcycleFlags& flags, const model::UpcycleSettings& settings) {
  return is_verified(flags) && settings.router.family->can_leave_experts_dead;
}

// How moe train would read a file: as instructions where its first record is a conversation.
data::Objective objective_of(const std::filesystem::path& file) {
  data::RecordReader reader(file);
  const auto first = reader.next();
  if (!first || reader.form() == data::RecordForm::kText) {
    return data::Objective::kLm;
  }
  const auto format = data::recognise(parse_json(first->text, file.string()), data::Objective::kLm);
  return format && data::is_conversation(*format) ? data::Objective::kInstruct
                                                  : data::Objective::kLm;
}

// The first tokens of a file in any form that moe train reads.
model::RouterText text_of_file(const io::Checkpoint& dense, const std::filesystem::path& file) {
  const int64_t vocab_size = model::parse_config(dense.config(), dense.config_name()).vocab_size;
  model::RouterText text;
  text.name = file.string();
  const auto codec = [&] {
    const auto tokenizer =
        std::make_shared<const io::Tokenizer>(io::Tokenizer::load(dense.folder(), vocab_size));
    text.bos = tokenizer->bos_id();
    return data::codec_of(tokenizer);
  };
  data::ReadSettings few;
  few.objective = objective_of(file);
  few.most_per_file = model::kMostRouterTokens;
  int64_t left = model::kMostRouterTokens;
  const auto keep = [&](data::Example&& example) {
    const auto take = std::min(left, static_cast<int64_t>(example.ids.size()));
    if (take > 0) {
      text.sequences.emplace_back(example.ids.begin(), example.ids.begin() + take);
      left -= take;
    }
  };
  data::stream_examples({data::Source{file}}, few, vocab_size, codec, keep);
  return text;
}

// What the dense folder reads for its routers; nothing where they are drawn alone.
model::RouterText router_text(const UpcycleFlags& flags, const io::Checkpoint& dense,
                              const model::UpcycleSettings& settings) {
  model::RouterText text;
  const model::RouterInit& init = settings.router_init;
  if (init.kind == model::RouterInit::Kind::kPrompts) {
    text = model::text_of_prompts(
        dense, model::read_prompts(init.file, settings.experts, settings.expert_parents),
        init.file.string());
  } else if (init.kind == model::RouterInit::Kind::kCluster) {
    text = text_of_file(dense, init.file);
  } else if (init.entropy) {
    const auto read = model::verify_text(dense, flags.calibration, kVerifyTokens, "--calibration");
    text.name = read.name;
    text.sequences = {read.ids};
  }
  text.device = device_of(flags.device);
  return text;
}

// Writing is streamed: only models that are run take memory worth a look.
void check_models_fit(const UpcycleFlags& flags, const io::Checkpoint& dense,
                      const model::UpcycleSettings& settings, const model::UpcyclePlan& plan,
                      const model::RouterText& text) {
  const bool verifies = is_verified(flags);
  const bool starts_routers = settings.router_init.is_measured();
  if (!verifies && settings.gate_scale && !starts_routers) {
    return;
  }
  const uint64_t running =
      model::verify_bytes(dense, verifies ? &plan.child : nullptr, device_of(flags.device));
  const uint64_t states = starts_routers ? model::state_bytes(plan.child, text) : 0;
  check_memory(
      {running + states, 1,
       fmt::format("running {}{}", flags.dense, verifies ? " and its mixture" : ""),
       verifies         ? "leaving --verify out takes almost none"
       : starts_routers ? "shorter texts, or a random router without --router-entropy, take less"
                        : "a number for --gate-scale in place of auto takes almost none"},
      flags.force_memory);
}

// Without --gate-scale auto and --verify no model is ever held; a ReLU router that is verified is
// looked over for dead experts too.
model::Calibrate calibrator(const UpcycleFlags& flags, const io::Checkpoint& dense,
                            const model::UpcycleSettings& settings, std::function<void()> before) {
  if (settings.gate_scale && !looks_for_dead_experts(flags, settings)) {
    return {};
  }
  const bool own_text = !flags.calibration.empty();
  auto text = model::verify_text(dense, own_text ? flags.calibration : flags.verify_text,
                                 kVerifyTokens, own_text ? "--calibration" : "--verify-text");
  text.device = device_of(flags.device);
  return [&dense, &settings, text, before](const std::filesystem::path& staged) {
    before();
    return model::calibrate(dense, staged, settings, text);
  };
}

// What a real run of the mixture should know; recipes/README.md has the sources.
void print_advice(const model::UpcycleSettings& settings) {
  const route::RouterSettings& router = settings.router;
  std::string flags = settings.last_lr ? fmt::format("--lr up to {:g}, ten times the parent's last",
                                                     train::kMaxLrRatio * *settings.last_lr)
                                       : "--lr up to the parent's highest";
  if (router.family->load_balance_coef) {
    flags += "; --lb-coef 0.01 to 0.001";
  }
  if (route::has_capacity(router)) {
    flags += "; 1,024 tokens or more a logical rank";
  }
  print_text(
      "advice       published mixtures beat continued dense training by 1 to 5 % in loss after a "
      "tenth of the parent's tokens;\n"
      "             a short run gains less. {} (recipes/README.md, Guidance)\n",
      flags);
}

// Returns a string that holds names of files for one line of output.
std::string line_text(const std::string& text) { return terminal_text(text, /*one_line=*/true); }

void print_result(const UpcycleFlags& flags, const model::UpcycleSettings& settings,
                  const model::UpcyclePlan& plan, OrderedJson report, double seconds) {
  if (flags.json) {
    report["out"] = flags.out;
    report["seconds"] = seconds;
    print_text("{}\n", json_text(report, 2));
    return;
  }
  const auto bytes = static_cast<double>(plan.bytes);
  const OrderedJson routers = report["router_init"].value("layers", OrderedJson::array());
  print_text("{}written      {} to {} in {} ({}/s)\n", describe(plan), format_bytes(bytes),
             line_text(flags.out), format_seconds(seconds),
             format_bytes(bytes / std::max(seconds, 1e-9)));
  for (const auto& layer : routers) {
    print_text("router start {}\n", line_text(layer.value("words", "")));
  }
  if (report.contains("calibration") && report["calibration"].contains("words")) {
    print_text("gate scale   {}\n", line_text(report["calibration"].value("words", "")));
  }
  if (report.contains("certificate")) {
    const OrderedJson& certificate = report["certificate"];
    print_text("certificate  {}\n", line_text(certificate.value("words", "")));
    if (certificate.contains("without_gate_scale")) {
      print_text("without it   {}\n",
                 line_text(certificate["without_gate_scale"].value("words", "")));
    }
  } else {
    const OrderedJson& expected = report["preserves_function"];
    print_text("function     {}{}; not measured, --verify does\n",
               expected.value("exact", false) ? "identical by construction: " : "",
               line_text(expected.value("words", "")));
  }
  print_text(
      "next         moe train {} -o RUN --data FILE   (moe inspect {} shows what it holds)\n",
      line_text(flags.out), line_text(flags.out));
  if (!flags.quiet) {
    print_advice(settings);
  }
}

void run(const UpcycleFlags& flags) {
  const model::UpcycleSettings settings = settings_from(flags);
  const io::Checkpoint dense(flags.dense);
  const model::UpcyclePlan plan = model::plan_upcycle(dense, settings);
  io::check_inputs_outside(settings.out,
                           {flags.verify_text, flags.calibration, settings.router_init.file});
  const model::RouterText text = router_text(flags, dense, settings);
  if (flags.dry_run) {
    return dry_run(flags, settings, plan);
  }
  check_models_fit(flags, dense, settings, plan, text);
  Progress progress("upcycle", "B", plan.bytes, flags.quiet);
  const auto start = std::chrono::steady_clock::now();
  std::optional<double> seconds;  // of the writing, without the verification
  const auto written = [&] {
    if (!seconds) {
      seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      progress.finish();
    }
  };
  const model::Certify certify =
      certifier(flags, dense, model::changes_function(settings, plan), written);
  const model::Calibrate calibrate = calibrator(flags, dense, settings, written);
  OrderedJson report =
      model::upcycle(dense, plan, settings,
                     {[&](uint64_t done) { progress.set(done); }, certify, calibrate,
                      [&] {
                        model::RouterStart routers =
                            model::start_routers(dense, plan.child, settings.router_init, text);
                        // Writing streams: it needs none of the memory that the parent's forward
                        // took.
                        kernels::use_caching_allocator().release();
                        return routers;
                      }});
  written();
  for (const auto& warning : report.value("warnings", std::vector<std::string>())) {
    print_text(stderr, "warning: {}\n", terminal_text(warning, /*one_line=*/true));
  }
  print_result(flags, settings, plan, std::move(report), *seconds);
}

Options source_options(UpcycleFlags& flags) {
  return {
      {.name = "dense",
       .member = &flags.dense,
       .group = group::kModel,
       .help = "a dense folder: LLaMA, Mistral, Qwen2 or Qwen3",
       .spelled = "DENSE",
       .is_required = true},
      {.name = "out",
       .member = &flags.out,
       .group = group::kOutput,
       .help = "the folder to write",
       .spelled = "-o,--out",
       .is_required = true},
      {.name = "experts",
       .member = &flags.experts,
       .group = group::kModel,
       .help = "experts in each MoE layer",
       .fallback = "8, or as many as --expert makes"},
      {.name = "expert",
       .member = &flags.expert_parents,
       .group = group::kModel,
       .help = "FOLDER[:N]: N experts (1) are copies of this dense folder's feed-forwards; given "
               "once for each parent",
       .is_repeated = true},
      {.name = "rest",
       .member = one_of("rest", flags.rest, {"base", "mean"}),
       .group = group::kModel,
       .help = "with --expert, where all but the experts is from: base, or the mean of the parents",
       .fallback = "base"},
      {.name = "vary",
       .member = &flags.vary,
       .group = group::kModel,
       .help = "copies that differ: drop:R draws the share R of each expert's dimensions anew "
               "(drop:R,separate: of each matrix apart), noise:S adds S deviations of each matrix",
       .fallback = "none"},
      {.name = "shared-expert",
       .member = &flags.settings.shared_expert,
       .group = group::kModel,
       .help =
           "the dense feed-forward stays beside the experts, which add zeros at first; not of a "
           "Qwen3"},
      {.name = "layers",
       .member = &flags.settings.layers,
       .group = group::kModel,
       .help = "even, odd, all, or a list like 0,3,5 or 0-3"},
      {.name = "granularity",
       .member = &flags.settings.granularity,
       .group = group::kModel,
       .help =
           "G: cuts each of the --experts into G of width F/G; the router's k, max and cf grow G "
           "times, so that top2 takes 2 G of them, at first two whole feed-forwards"},
      {.name = "seed",
       .member = &flags.settings.seed,
       .group = group::kModel,
       .help = "of the router's weights",
       .range = number_from(0)},
      {.name = "dtype",
       .member = one_of("dtype", flags.dtype, {"keep", "bf16", "fp32"}),
       .group = group::kModel,
       .help = "keep, bf16 or fp32"},
  };
}

Options router_options(UpcycleFlags& flags) {
  return {
      {.name = "router-std",
       .member = &flags.settings.router_std,
       .group = group::kRouter,
       .help = "standard deviation of the router's weights",
       .fallback = "the config's initializer_range",
       .range = number_from(0)},
      {.name = "router-init",
       .member = &flags.router_init,
       .group = group::kRouter,
       .help = "random; prompts:FILE, JSON that says for each expert texts that it is for, and not "
               "for; or cluster:FILE, clusters of a text's hidden states",
       .fallback = "random"},
      {.name = "router-entropy",
       .member = &flags.router_entropy,
       .group = group::kRouter,
       .help = "scales each router so that the mean entropy of its first routing is this share of "
               "ln E",
       .fallback = "0.7 for prompts and cluster; a random one is left as drawn"},
      {.name = "gate-scale",
       .member = &flags.gate_scale,
       .group = group::kRouter,
       .help =
           "multiplies the weights of all experts; auto = 1 / their mean sum, for routers whose "
           "weights do not sum to 1 (topp, relu, gate=none)",
       .fallback = "1"},
      {.name = "calibration",
       .member = &flags.calibration,
       .group = group::kRouter,
       .help = "the text that --gate-scale auto measures on (that of --verify-text), and "
               "--router-entropy of a random router",
       .fallback = "an embedded one"},
  };
}

Options output_options(UpcycleFlags& flags) {
  return {
      {.name = "shard-size",
       .member = &flags.shard_size,
       .group = group::kOutput,
       .help = "largest file, like 5GB or 200MB"},
      {.name = "verify",
       .member = &flags.verify,
       .group = group::kOutput,
       .help = "run parent and child on a text and write the equality certificate: identical, "
               "close or different"},
      {.name = "verify-text",
       .member = &flags.verify_text,
       .group = group::kOutput,
       .help = "the text to verify on",
       .fallback = "an embedded one"},
      {.name = "dry-run",
       .member = &flags.dry_run,
       .group = group::kOutput,
       .help = "say bytes, parameters and time, write nothing"},
  };
}

}  // namespace

void add_upcycle(CLI::App& app) {
  auto flags = std::make_shared<UpcycleFlags>();
  CLI::App* command = app.add_subcommand(
      "upcycle", "a dense LLaMA (or Mistral, Qwen2, Qwen3) folder becomes a mixture of experts");
  add_options(*command, source_options(*flags));
  add_router_flags(*command, flags->router);
  add_options(*command, joined({router_options(*flags), output_options(*flags)}));
  add_device(*command, flags->device);
  add_force_memory(*command, flags->force_memory);
  add_force(*command, flags->settings.force);
  add_quiet(*command, flags->quiet);
  add_json(*command, flags->json);
  add_config(*command);
  command->callback([flags] { run(*flags); });
}

}  // namespace moe::cli
