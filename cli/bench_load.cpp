// moe bench load: how long a folder takes to become a model, mapped or copied to f32.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "cli/bench.h"
#include "cli/flags.h"
#include "cli/progress.h"
#include "core/bench/load.h"

namespace moe::cli {

namespace {

struct LoadBenchFlags {
  std::string folder;
  int64_t repeats = 5;
  bool force_memory = false;
};

std::string line_of(const std::string& what, const bench::Loading& loading) {
  return fmt::format("{} of weights {} in {}; the first time {:.1f} ms; {} of anonymous memory\n",
                     format_bytes(static_cast<double>(loading.bytes)), what, in_words(loading.load),
                     1e3 * loading.first_s, format_bytes(static_cast<double>(loading.anonymous)));
}

BenchResult measure(const LoadBenchFlags& flags) {
  const auto report = bench::bench_load(flags.folder, flags.repeats, flags.force_memory);
  OrderedJson json = {{"settings", {{"model", flags.folder}, {"repeats", flags.repeats}}}};
  json.update(bench::to_json(report));
  return {json, fmt::format("{}loaded so, the first token after {:.0f} ms\n{}",
                            line_of("mapped, as eval and generate do,", report.mapped),
                            1e3 * report.first_token_s,
                            line_of("copied to f32, as train does,", report.f32))};
}

}  // namespace

Measure add_bench_load(CLI::App& command) {
  auto flags = std::make_shared<LoadBenchFlags>();
  add_options(command, {{.name = "model",
                         .member = &flags->folder,
                         .group = group::kMeasure,
                         .help = "a folder",
                         .spelled = "MODEL",
                         .is_required = true},
                        {.name = "repeats",
                         .member = &flags->repeats,
                         .group = group::kMeasure,
                         .help = "after a first one",
                         .range = whole_between(1, 1000)}});
  add_force_memory(command, flags->force_memory);
  return [flags](const BenchFlags&) { return measure(*flags); };
}

}  // namespace moe::cli
