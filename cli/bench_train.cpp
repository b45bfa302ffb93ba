// moe bench train: steps of training and their parts.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "cli/bench.h"
#include "cli/flags.h"
#include "core/bench/train.h"

namespace moe::cli {

namespace {

// A line a number of threads, then a line a part: milliseconds of the thread that calls.
std::string table_of_threads(const std::vector<bench::CountedWork>& counted) {
  const bench::CountedWork& alone = counted.front();
  std::string table =
      "counted by each thread's processor time, as if each had a core and memory were fast "
      "enough:\n";
  for (const auto& each : counted) {
    if (each.threads > 1) {
      const double speedup = alone.all.work_s() / each.all.caller_s;
      table += fmt::format(
          "  {:>2} threads: serial share of a step {:4.1f} %, {:5.2f} times one thread, {:.0f} % "
          "of "
          "each used\n",
          each.threads, 100 * bench::serial_share(each.all, each.threads), speedup,
          100 * speedup / each.threads);
    }
  }
  table += fmt::format("  {:<18}", "threads");
  for (const auto& each : counted) {
    table += fmt::format("{:>9}   ", each.threads);
  }
  table += "\n";
  for (const auto& [name, time] : alone.parts) {
    table += fmt::format("  {:<18}", name);
    for (const auto& each : counted) {
      const auto part = each.parts.find(name);
      table += part == each.parts.end() ? std::string(12, ' ')
                                        : fmt::format("{:>9.2f} ms", 1e3 * part->second.caller_s);
    }
    table += "\n";
  }
  return table;
}

std::string table_of(const bench::TrainReport& report) {
  const double step = report.step.median_s;
  std::string table = fmt::format(
      "{} parameters{}; step of {} tokens {}, {:.0f} ms of CPU\n"
      "{:.0f} tokens/s, {:.1f} GFLOP/s, {:.2f} of the roof ({:.1f} by at::mm in this run)\n",
      report.parameters, report.router.empty() ? ", dense" : ", router " + report.router,
      report.tokens, in_words(report.step), 1e3 * report.cpu_s,
      static_cast<double>(report.tokens) / step, report.flop / step / 1e9,
      report.flop / step / report.roof_flops, report.roof_flops / 1e9);
  double sum = 0;
  for (const auto& [name, seconds] : report.parts_s) {
    sum += seconds;
  }
  for (const auto& [name, seconds] : report.parts_s) {
    const auto alone = report.one_thread.parts_s.find(name);
    const std::string speedup = alone == report.one_thread.parts_s.end()
                                    ? ""
                                    : fmt::format("{:>8.2f} x", alone->second / seconds);
    table += fmt::format("  {:<18}{:>9.2f} ms{:>7.1f} %{}\n", name, 1e3 * seconds,
                         100 * seconds / sum, speedup);
  }
  if (report.one_thread.step_s > 0) {
    table += fmt::format("x: one thread takes as long, by {} threads; {:.0f} ms a step\n",
                         report.threads, 1e3 * report.one_thread.step_s);
  }
  if (!report.counted_steps.empty()) {
    table += table_of_threads(report.counted_steps);
  }
  const auto& counted = report.counted;
  table += fmt::format(
      "rows {} useful, {} padded, {} dropped, {} filled in, {} rectified; load {:.2f} x mean\n"
      "peak memory {:.0f} MiB, {:.0f} page faults a step, loss {:.4f} -> {:.4f}\n",
      counted.rows(), counted.padding, counted.dropped_requests, counted.fr_filled,
      counted.ir_tokens, counted.load_max_over_mean(),
      static_cast<double>(report.peak_bytes) / (1 << 20), report.faults, report.first_loss,
      report.last_loss);
  return table;
}

BenchResult measure(bench::TrainBenchSettings settings, c10::Device device) {
  settings.device = device;
  model::check_precision(settings.precision, device.is_cuda());
  const bench::TrainReport report = bench::bench_train(settings);
  OrderedJson json = {{"settings", bench::to_json(settings)}};
  json.update(bench::to_json(report));
  return {json, table_of(report)};
}

}  // namespace

Measure add_bench_train(CLI::App& command) {
  auto flags = std::make_shared<bench::TrainBenchSettings>();
  auto& settings = *flags;
  const Range size = whole_between(1, 1 << 20);
  add_options(command, {{.name = "model",
                         .member = &settings.model,
                         .group = group::kMeasure,
                         .help = "a folder, or a synthetic mixture: S (35 M) or M (176 M)",
                         .spelled = "MODEL"}});
  add_options(command, model::request_options(settings.upcycle));
  add_router_flags(command, settings.router);
  add_force_memory(command, settings.force_memory);
  add_options(command,
              {{.name = "precision",
                .member = choice(settings.precision, model::parse_precision, model::to_string),
                .group = group::kMeasure,
                .help = "fp32, bf16 or tf32 (CUDA GPUs)"},
               {.name = "rows",
                .member = &settings.rows,
                .group = group::kMeasure,
                .help = "of a step",
                .range = size},
               {.name = "seq-len",
                .member = &settings.length,
                .group = group::kMeasure,
                .help = "tokens a row",
                .range = size},
               {.name = "warmup",
                .member = &settings.warmup,
                .group = group::kMeasure,
                .help = "steps before",
                .range = size},
               {.name = "repeats",
                .member = &settings.repeats,
                .group = group::kMeasure,
                .help = "steps that are timed",
                .range = size}});
  return [flags](const BenchFlags& shared) { return measure(*flags, device_of(shared.device)); };
}

}  // namespace moe::cli
