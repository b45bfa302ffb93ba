// moe init: creates a model directory with random weights from a config, dense or MoE.

#include "core/upcycle/init.h"

#include "cli/flags.h"
#include "cli/output.h"
#include "core/base/error.h"
#include "core/base/text.h"
#include "core/upcycle/inspect.h"

namespace moe::cli {
namespace {

struct InitFlags {
  route::RouterRequest router;
  model::InitSettings settings;
  bool quiet = false, json = false;
};

model::InitSettings settings_from(const InitFlags& flags) {
  USER_ERROR_IF(!flags.settings.experts && (flags.router.any() || flags.settings.layers != "all" ||
                                            flags.settings.granularity != 1),
                "--router, --cf, --ep-ranks, --layers and --granularity need --experts; for a MoE "
                "config, edit the config instead");
  model::InitSettings settings = flags.settings;
  settings.router = route::requested_router(flags.router, route::parse_router("top2:cf=inf"));
  settings.ep_ranks = flags.router.ep_ranks;
  return settings;
}

void print_result(const InitFlags& flags, const model::InitPlan& plan, OrderedJson report,
                  double seconds) {
  if (flags.json) {
    report["out"] = flags.settings.out.string();
    report["seconds"] = seconds;
    return print_json(report, 2);
  }
  if (plan.config.moe) {
    const model::MoeConfig& moe = *plan.config.moe;
    print_text("layers {} of {} are mixtures of {} experts of width {}{}, router {}\n",
               model::layer_ranges(moe.layers), plan.config.layers, moe.experts, moe.expert_width,
               moe.granularity == 1 ? "" : fmt::format(" (granularity {})", moe.granularity),
               route::to_string(moe.router));
  }
  print_text("parameters   {} total, {} active per token\n", format_count(plan.parameters.total),
             format_count(plan.parameters.active));
  print_written(plan.bytes, flags.settings.out.string(), seconds);
}

void run(const InitFlags& flags) {
  apply_threads();
  const model::InitSettings settings = settings_from(flags);
  const model::InitPlan plan = model::plan_init(settings);
  Progress progress("init", "B", plan.bytes, flags.quiet);
  OrderedJson report = model::init(plan, settings, [&](uint64_t done) { progress.set(done); });
  print_result(flags, plan, std::move(report), progress.finish());
}

Options init_options(model::InitSettings& settings) {
  return {
      positional("CONFIG", &settings.config, group::kModel, "config.json, or a directory with one"),
      output_path(&settings.out, "model directory to create"),
      {"experts", &settings.experts, group::kModel,
       "replace the feed-forwards of a dense config by MoE layers with N experts"},
      {"layers", &settings.layers, group::kModel,
       "with --experts: MoE layers: all, even, odd, or a list like 0,3,5 or 0-3"},
      {"granularity", &settings.granularity, group::kModel,
       "split each expert into G of width F/G; the router's k, max and cf are multiplied by G"},
      {"experts-init",
       choice<bool, bool>("experts-init", settings.same_experts,
                          {{"independent", false}, {"same", true}}),
       group::kModel, "weights of the experts of a layer: independent, or same (equal)"},
      {"init",
       choice<bool, bool>("init", settings.scaled_outputs, {{"normal", false}, {"megatron", true}}),
       group::kModel,
       "normal: N(0, initializer_range^2); megatron: output projections divided by sqrt(2 layers)"},
      {"seed", &settings.seed, group::kModel, "random seed", seed_range()},
      {"dtype",
       choice<std::string, std::string>(
           "dtype", settings.dtype,
           {{"keep", ""}, {"bf16", "bfloat16"}, {"fp16", "float16"}, {"fp32", "float32"}}),
       group::kModel, "dtype of the weights: keep (the config's), bf16, fp16 or fp32"},
      byte_size("shard-size", settings.shard_bytes, group::kOutput, "maximum size of a weight file",
                "5GB"),
      {"tokenizer", &settings.tokenizer, group::kOutput,
       "tokenizer to copy: tokenizer.model, tokenizer.json, or a directory with tokenizer files"},
  };
}

Options options(InitFlags& flags) {
  return concat(
      {init_options(flags.settings),
       route::request_options(flags.router),
       {force_option(flags.settings.force), quiet_option(flags.quiet), json_option(flags.json)}});
}

}  // namespace

void add_init(CLI::App& app) {
  add_config(add_command<const InitFlags&>(
                 app, "init", "create a model with random weights, dense or MoE", run, options),
             "moe init config.json -o random --experts 8 --router top2 --tokenizer my-llama");
}

}  // namespace moe::cli
