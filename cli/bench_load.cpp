// moe bench load: how long a folder takes to become a model in memory.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "cli/bench.h"
#include "cli/progress.h"
#include "core/bench/load.h"

namespace moe::cli {

namespace {

struct LoadBenchFlags {
  std::string folder;
  int64_t repeats = 5;
};

BenchResult measure(const LoadBenchFlags& flags) {
  const auto report = bench::bench_load(flags.folder, flags.repeats);
  OrderedJson json = {{"settings", {{"model", flags.folder}, {"repeats", flags.repeats}}}};
  json.update(bench::to_json(report));
  const auto bytes = static_cast<double>(report.bytes);
  return {json,
          fmt::format("{} of weights in {}, {}/s; the first time, into new memory, {:.0f} ms\n"
                      "anonymous memory: {} above the start\n",
                      format_bytes(bytes), in_words(report.load),
                      format_bytes(bytes / report.load.median_s), 1e3 * report.first_s,
                      format_bytes(static_cast<double>(report.anonymous)))};
}

}  // namespace

Measure add_bench_load(CLI::App& command) {
  auto flags = std::make_shared<LoadBenchFlags>();
  command.add_option("MODEL", flags->folder, "a folder")->required();
  command.add_option("--repeats", flags->repeats, "after a first one (5)")
      ->check(CLI::Range(int64_t{1}, int64_t{1000}));
  return [flags](const BenchFlags&) { return measure(*flags); };
}

}  // namespace moe::cli
