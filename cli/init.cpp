// moe init: a folder of random weights from a config, dense or mixture.

#include "core/model/convert/init.h"

#include <CLI/CLI.hpp>
#include <chrono>

#include "cli/commands.h"
#include "cli/flags.h"
#include "cli/progress.h"
#include "core/base/error.h"
#include "core/base/option.h"
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
    fmt::print("{}\n", report.dump(2));
    return;
  }
  const auto bytes = static_cast<double>(plan.bytes);
  if (plan.config.moe) {
    const model::MoeConfig& moe = *plan.config.moe;
    fmt::print("layers {} of {} are mixtures of {} experts of width {}{}, router {}\n",
               model::layer_ranges(moe.layers), plan.config.layers, moe.experts, moe.expert_width,
               moe.granularity == 1 ? "" : fmt::format(" (granularity {})", moe.granularity),
               route::to_string(moe.router));
  }
  fmt::print("parameters   {} total, {} active per token\nwritten      {} to {} in {} ({}/s)\n",
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

}  // namespace

void add_init(CLI::App& app) {
  auto flags = std::make_shared<InitFlags>();
  CLI::App* command = app.add_subcommand("init", "random weights from a config, dense or mixture");
  command->option_defaults()->group(group::kModel);
  command->add_option("CONFIG", flags->config, "a config.json, or a folder that holds one")
      ->required();
  command->add_option("-o,--out", flags->out, "the folder to write")
      ->required()
      ->group(group::kOutput);
  command->add_option("--experts", flags->settings.experts,
                      "make a dense config a mixture of so many experts");
  command->add_option("--layers", flags->settings.layers,
                      "with --experts: all (default), even, odd or a list");
  command->add_option("--granularity", flags->settings.granularity,
                      "G (1): cuts each of the --experts into G of width F/G; the router's k, max "
                      "and cf grow G times");
  add_router_flags(*command, flags->router);
  command
      ->add_option("--experts-init", flags->experts_init,
                   "independent (default) or same: equal experts within a layer")
      ->check(CLI::IsMember({"independent", "same"}));
  command
      ->add_option(
          "--init", flags->distribution,
          "normal (default): every matrix N(0, initializer_range^2); megatron: attention's "
          "and the feed-forwards' outputs divided by sqrt(2 layers)")
      ->check(CLI::IsMember({"normal", "megatron"}));
  command->add_option("--seed", flags->settings.seed, "seed of all weights (1)")
      ->check(CLI::NonNegativeNumber);
  command->add_option("--dtype", flags->dtype, "keep (default: the config's), bf16, fp16 or fp32")
      ->check(CLI::IsMember({"keep", "bf16", "fp16", "fp32"}));
  command->option_defaults()->group(group::kOutput);
  command->add_option("--shard-size", flags->shard_size,
                      "largest file, like 5GB (default) or 200MB");
  command->add_option(
      "--tokenizer", flags->tokenizer,
      "a tokenizer.model, a tokenizer.json or a folder with tokenizer files to copy");
  add_force(*command, flags->settings.force);
  add_quiet(*command, flags->quiet);
  add_json(*command, flags->json);
  add_config(*command);
  command->callback([flags] { run(*flags); });
}

}  // namespace moe::cli
