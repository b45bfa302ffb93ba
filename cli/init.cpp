// moe init: a folder of random weights from a config, dense or mixture.

#include "core/model/convert/init.h"

#include <CLI/CLI.hpp>
#include <chrono>

#include "cli/commands.h"
#include "cli/flags.h"
#include "cli/progress.h"
#include "core/base/error.h"
#include "core/base/option.h"
#include "core/base/text.h"
#include "core/model/convert/inspect.h"

namespace moe::cli {

namespace {

struct InitFlags {
  std::string config, out, dtype = "keep", shard_size = "5GB", tokenizer,
                           experts_init = "independent", distribution = "normal";
  route::RouterRequest router;
  model::InitSettings settings;
  bool quiet = false, json = false;
};

void check(const InitFlags& flags) {
  if (!flags.settings.experts &&
      (flags.router.any() || flags.settings.layers != "all" || flags.settings.granularity != 1)) {
    throw UserError(
        "--router, --cf, --ep-ranks, --layers and --granularity need --experts; a config that "
        "describes a mixture has its own");
  }
}

model::InitSettings settings_from(const InitFlags& flags) {
  model::InitSettings settings = flags.settings;
  settings.config = flags.config;
  settings.out = flags.out;
  settings.router = route::requested_router(flags.router, route::parse_router("top2:cf=inf"));
  settings.ep_ranks = flags.router.ep_ranks;
  settings.dtype = flags.dtype == "keep"   ? ""
                   : flags.dtype == "bf16" ? "bfloat16"
                   : flags.dtype == "fp16" ? "float16"
                                           : "float32";
  settings.shard_bytes = parse_bytes(flags.shard_size, "--shard-size");
  settings.tokenizer = flags.tokenizer;
  settings.scaled_outputs = flags.distribution == "megatron";
  settings.same_experts = flags.experts_init == "same";
  return settings;
}

void print_result(const InitFlags& flags, const model::InitPlan& plan, OrderedJson report,
                  double seconds) {
  if (flags.json) {
    report["out"] = flags.out;
    report["seconds"] = seconds;
    print_text("{}\n", json_text(report, 2));
    return;
  }
  const auto bytes = static_cast<double>(plan.bytes);
  if (plan.config.moe) {
    const model::MoeConfig& moe = *plan.config.moe;
    print_text("layers {} of {} are mixtures of {} experts of width {}{}, router {}\n",
               model::layer_ranges(moe.layers), plan.config.layers, moe.experts, moe.expert_width,
               moe.granularity == 1 ? "" : fmt::format(" (granularity {})", moe.granularity),
               route::to_string(moe.router));
  }
  print_text("parameters   {} total, {} active per token\nwritten      {} to {} in {} ({}/s)\n",
             format_count(static_cast<double>(plan.parameters.total)),
             format_count(static_cast<double>(plan.parameters.active)), format_bytes(bytes),
             flags.out, format_seconds(seconds), format_bytes(bytes / std::max(seconds, 1e-9)));
}

void run(const InitFlags& flags) {
  check(flags);
  const model::InitSettings settings = settings_from(flags);
  const model::InitPlan plan = model::plan_init(settings);
  const auto start = std::chrono::steady_clock::now();
  Progress progress("init", "B", plan.bytes, flags.quiet);
  OrderedJson report = model::init(plan, settings, [&](uint64_t done) { progress.set(done); });
  progress.finish();
  print_result(flags, plan, std::move(report),
               std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
}

Options options_of(InitFlags& flags) {
  return {
      {.name = "config",
       .member = &flags.config,
       .group = group::kModel,
       .help = "a config.json, or a folder that holds one",
       .spelled = "CONFIG",
       .is_required = true},
      {.name = "out",
       .member = &flags.out,
       .group = group::kOutput,
       .help = "the folder to write",
       .spelled = "-o,--out",
       .is_required = true},
      {.name = "experts",
       .member = &flags.settings.experts,
       .group = group::kModel,
       .help = "make a dense config a mixture of so many experts"},
      {.name = "layers",
       .member = &flags.settings.layers,
       .group = group::kModel,
       .help = "with --experts: all, even, odd or a list"},
      {.name = "granularity",
       .member = &flags.settings.granularity,
       .group = group::kModel,
       .help = "G: cuts each of the --experts into G of width F/G; the router's k, max and cf grow "
               "G times"},
      {.name = "experts-init",
       .member = one_of("experts-init", flags.experts_init, {"independent", "same"}),
       .group = group::kModel,
       .help = "independent, or same: equal experts within a layer"},
      {.name = "init",
       .member = one_of("init", flags.distribution, {"normal", "megatron"}),
       .group = group::kModel,
       .help = "normal: every matrix N(0, initializer_range^2); megatron: attention's and the "
               "feed-forwards' outputs divided by sqrt(2 layers)"},
      {.name = "seed",
       .member = &flags.settings.seed,
       .group = group::kModel,
       .help = "of all weights",
       .range = number_from(0)},
      {.name = "dtype",
       .member = one_of("dtype", flags.dtype, {"keep", "bf16", "fp16", "fp32"}),
       .group = group::kModel,
       .help = "keep (the config's), bf16, fp16 or fp32"},
      {.name = "shard-size",
       .member = &flags.shard_size,
       .group = group::kOutput,
       .help = "largest file, like 5GB or 200MB"},
      {.name = "tokenizer",
       .member = &flags.tokenizer,
       .group = group::kOutput,
       .help = "a tokenizer.model, a tokenizer.json or a folder with tokenizer files to copy"},
  };
}

}  // namespace

void add_init(CLI::App& app) {
  auto flags = std::make_shared<InitFlags>();
  CLI::App* command = app.add_subcommand("init", "random weights from a config, dense or mixture");
  add_options(*command, options_of(*flags));
  add_router_flags(*command, flags->router);
  add_force(*command, flags->settings.force);
  add_quiet(*command, flags->quiet);
  add_json(*command, flags->json);
  add_config(*command);
  command->callback([flags] { run(*flags); });
}

}  // namespace moe::cli
