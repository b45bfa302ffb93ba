// moe bench train: steps of training and their parts.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "cli/bench.h"
#include "cli/flags.h"
#include "core/bench/train.h"

namespace moe::cli {

namespace {

struct TrainBenchFlags {
  bench::TrainBenchSettings settings;
  std::string precision = "fp32";
};

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
    table +=
        fmt::format("  {:<18}{:>9.2f} ms{:>7.1f} %\n", name, 1e3 * seconds, 100 * seconds / sum);
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

BenchResult measure(TrainBenchFlags flags, c10::Device device) {
  flags.settings.device = device;
  flags.settings.precision = model::parse_precision(flags.precision);
  const bench::TrainReport report = bench::bench_train(flags.settings);
  OrderedJson json = {{"settings", bench::to_json(flags.settings)}};
  json.update(bench::to_json(report));
  return {json, table_of(report)};
}

}  // namespace

Measure add_bench_train(CLI::App& command) {
  auto flags = std::make_shared<TrainBenchFlags>();
  auto& settings = flags->settings;
  command.add_option("MODEL", settings.model,
                     "a folder, or a synthetic mixture: S (default, 35 M) or M (176 M)");
  add_options(command, model::request_options(settings.upcycle));
  add_router_flags(command, settings.router);
  add_force_memory(command, settings.force_memory);
  const auto size = CLI::Range(int64_t{1}, int64_t{1} << 20);
  command.add_option("--precision", flags->precision, "fp32 (default) or bf16");
  command.add_option("--rows", settings.rows, "of a step (2)")->check(size);
  command.add_option("--seq-len", settings.length, "tokens a row (512)")->check(size);
  command.add_option("--warmup", settings.warmup, "steps before (2)")->check(size);
  command.add_option("--repeats", settings.repeats, "steps that are timed (7)")->check(size);
  return [flags](const BenchFlags& shared) { return measure(*flags, device_of(shared.device)); };
}

}  // namespace moe::cli
