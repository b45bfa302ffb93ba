// moe bench generate: tokens a second of texts that are generated, beside the reading of memory.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>

#include "cli/bench.h"
#include "cli/flags.h"
#include "cli/progress.h"
#include "core/bench/generate.h"

namespace moe::cli {

namespace {

BenchResult measure(const bench::GenerateBenchSettings& settings) {
  const bench::GenerateReport report = bench::bench_generate(settings);
  OrderedJson json = {{"settings", bench::to_json(settings)}};
  json.update(bench::to_json(report));
  const auto rows = static_cast<double>(settings.rows);
  return {json, fmt::format("{}: a token of {} text{} in {}: {:.0f} tokens/s\n"
                            "{} of active weights a step, {:.2f} of the rate at which memory is "
                            "read ({}/s)\n",
                            settings.model.string(), settings.rows, settings.rows == 1 ? "" : "s",
                            in_words(report.step), rows / report.step.median_s,
                            format_bytes(static_cast<double>(report.active_bytes)),
                            report.share_of_read_rate(), format_bytes(report.read_bytes_per_s))};
}

}  // namespace

Measure add_bench_generate(CLI::App& command) {
  auto flags = std::make_shared<bench::GenerateBenchSettings>();
  auto precision = std::make_shared<std::optional<model::Precision>>();
  auto& settings = *flags;
  add_options(command, {{.name = "model",
                         .member = &settings.model,
                         .group = group::kMeasure,
                         .help = "model folder, dense or MoE",
                         .spelled = "MODEL",
                         .is_required = true},
                        {.name = "rows",
                         .member = &settings.rows,
                         .group = group::kMeasure,
                         .help = "texts at once",
                         .range = whole_between(1, 48)},
                        {.name = "prompt-tokens",
                         .member = &settings.prompt_tokens,
                         .group = group::kMeasure,
                         .help = "random ones before each text",
                         .range = whole_between(1, 1 << 20)},
                        {.name = "tokens",
                         .member = &settings.tokens,
                         .group = group::kMeasure,
                         .help = "new ones of each text",
                         .range = whole_between(2, 1 << 20)},
                        {.name = "repeats",
                         .member = &settings.repeats,
                         .group = group::kMeasure,
                         .help = "after one to warm up",
                         .range = whole_between(1, 1000)}});
  add_inference_precision(command, *precision);
  add_force_memory(command, settings.force_memory);
  return [flags, precision](const BenchFlags&) {
    flags->precision = model::inference_precision(*precision, /*on_cuda=*/false);
    return measure(*flags);
  };
}

}  // namespace moe::cli
