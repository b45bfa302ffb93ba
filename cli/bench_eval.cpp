// moe bench eval: how fast a folder scores, beside at::mm at its shapes in the same run.

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>

#include "cli/bench.h"
#include "cli/flags.h"
#include "core/base/error.h"
#include "core/bench/eval.h"

namespace moe::cli {

namespace {

std::string table_of(const bench::EvalReport& report) {
  const double seconds = report.scoring.median_s;
  const auto rate = [&](int64_t count) { return static_cast<double>(count) / seconds; };
  std::string table = fmt::format(
      "{}: {} questions, {} requests, {} forwards{}\n", report.name, report.questions,
      report.requests, report.forwards,
      report.drop_share
          ? fmt::format(", router {}, {:.2f} % dropped", report.router, 100 * *report.drop_share)
          : "");
  table += fmt::format("  {:.1f} questions/s; median {:.1f} ms, best {:.1f}, worst {:.1f}\n",
                       rate(report.questions), 1e3 * seconds, 1e3 * report.scoring.best_s,
                       1e3 * report.scoring.worst_s);
  table += fmt::format(
      "  {:.0f} tokens/s asked for, {:.0f} computed (shared {:.2f} x), {} of {} scored\n",
      rate(report.tokens_asked), rate(report.tokens_computed),
      static_cast<double>(report.tokens_asked) /
          static_cast<double>(std::max<int64_t>(1, report.tokens_computed)),
      report.head_rows, report.tokens_computed);
  table += fmt::format(
      "  {:.1f} GFLOP/s, {:.0f} % of at::mm's {:.1f} at these shapes; peak memory {} MiB\n",
      report.flop / seconds / 1e9, 100 * report.roof.median_s / seconds,
      report.flop / report.roof.median_s / 1e9, report.peak_bytes >> 20);
  for (const bench::EvalPart& part : report.parts) {
    table += fmt::format("  {:<22}{:>10.2f} ms{:>7.1f} %", part.name, 1e3 * part.seconds,
                         100 * part.seconds / report.seconds_of_parts());
    table += part.roof_s > 0
                 ? fmt::format("{:>9.1f} GFLOP/s, {:.0f} % of at::mm's\n",
                               part.flop / part.seconds / 1e9, 100 * part.roof_s / part.seconds)
                 : "\n";
  }
  if (report.tokenising_s > 0) {
    table += fmt::format("  {:<22}{:>10.2f} ms, before scoring\n", "tokenising",
                         1e3 * report.tokenising_s);
  }
  return table;
}

BenchResult measure(const bench::EvalSettings& settings) {
  if (!settings.tasks.empty() && settings.data.empty()) {
    throw UserError("--tasks needs --data DIR, the folder of the benchmarks' files");
  }
  if (settings.parts && settings.device.is_cuda()) {
    throw UserError("--parts times what the CPU computes; leave out --device, or --parts");
  }
  OrderedJson json = {
      {"settings", {{"model", settings.model.string()}, {"repeats", settings.repeats}}},
      {"sets", OrderedJson::array()}};
  const bool is_f32 = settings.precision == model::Precision::kF32;
  if (!is_f32) {
    json["settings"]["precision"] = model::to_string(settings.precision);
  }
  std::string table =
      fmt::format("{}, {}: {} repeats\n", settings.model.string(),
                  is_f32 ? "f32" : model::to_string(settings.precision), settings.repeats);
  for (const auto& report : bench::bench_eval(settings)) {
    json["sets"].push_back(bench::to_json(report));
    table += table_of(report);
  }
  return {json, table};
}

}  // namespace

Measure add_bench_eval(CLI::App& command) {
  auto flags = std::make_shared<bench::EvalSettings>();
  auto precision = std::make_shared<std::optional<model::Precision>>();
  auto& settings = *flags;
  const Range size = whole_between(1, 1 << 30);
  add_options(command, {{.name = "model",
                         .member = &settings.model,
                         .group = group::kMeasure,
                         .help = "model folder, dense or MoE",
                         .spelled = "MODEL",
                         .is_required = true},
                        {.name = "tasks",
                         .member = &settings.tasks,
                         .group = group::kMeasure,
                         .help = "as of moe eval; without: synthetic letters and spans",
                         .takes_commas = true},
                        {.name = "data",
                         .member = &settings.data,
                         .group = group::kMeasure,
                         .help = "folder of the benchmarks' files"},
                        {.name = "limit",
                         .member = &settings.limit,
                         .group = group::kMeasure,
                         .help = "questions of each task",
                         .fallback = "all; of synthetic ones 60",
                         .range = size},
                        {.name = "batch-tokens",
                         .member = &settings.batch_tokens,
                         .group = group::kMeasure,
                         .help = "of one forward",
                         .fallback = "as moe eval's auto",
                         .range = size},
                        {.name = "group-tokens",
                         .member = &settings.group_tokens,
                         .group = group::kMeasure,
                         .help = "per logical rank, with capacity",
                         .range = size},
                        {.name = "repeats",
                         .member = &settings.repeats,
                         .group = group::kMeasure,
                         .help = "after one to warm up",
                         .range = whole_between(1, 1000)},
                        {.name = "parts",
                         .member = &settings.parts,
                         .group = group::kMeasure,
                         .help = "also where the time goes, each part beside at::mm"}});
  add_router_flags(command, settings.router);
  add_inference_precision(command, *precision);
  add_force_memory(command, settings.force_memory);
  return [flags, precision](const BenchFlags& shared) {
    flags->device = device_of(shared.device);
    flags->precision = model::inference_precision(*precision, flags->device.is_cuda());
    return measure(*flags);
  };
}

}  // namespace moe::cli
