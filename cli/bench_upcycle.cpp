// moe bench upcycle: how near writing a mixture comes to writing as many bytes.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "cli/bench.h"
#include "cli/flags.h"
#include "cli/progress.h"
#include "core/bench/upcycle.h"

namespace moe::cli {

namespace {

struct UpcycleBenchFlags {
  std::string dense;
  model::UpcycleSettings settings;
  int64_t repeats = 3;
};

BenchResult measure(const UpcycleBenchFlags& flags) {
  model::UpcycleSettings settings = flags.settings;
  settings.router = route::parse_router("top2:cf=inf");
  const auto report = bench::bench_upcycle(flags.dense, settings, flags.repeats);
  OrderedJson json = {{"settings",
                       {{"model", flags.dense},
                        {"experts", settings.experts},
                        {"layers", settings.layers},
                        {"repeats", flags.repeats}}}};
  json.update(bench::to_json(report));
  const auto rate = [&](const bench::Timing& time) {
    return format_bytes(static_cast<double>(report.bytes) / time.median_s);
  };
  return {json, fmt::format("{} written in {}, {}/s\n"
                            "plain writes of as much: {}, {}/s; upcycling reaches {:.2f} of it\n"
                            "anonymous memory: {} above the start\n",
                            format_bytes(static_cast<double>(report.bytes)),
                            in_words(report.upcycle), rate(report.upcycle), in_words(report.disk),
                            rate(report.disk), report.disk.median_s / report.upcycle.median_s,
                            format_bytes(static_cast<double>(report.anonymous)))};
}

}  // namespace

Measure add_bench_upcycle(CLI::App& command) {
  auto flags = std::make_shared<UpcycleBenchFlags>();
  add_options(command, {{.name = "dense",
                         .member = &flags->dense,
                         .group = group::kMeasure,
                         .help = "a dense folder",
                         .spelled = "DENSE",
                         .is_required = true},
                        {.name = "out",
                         .member = &flags->settings.out,
                         .group = group::kMeasure,
                         .help = "a folder to make there and remove again",
                         .spelled = "-o,--out",
                         .is_required = true},
                        {.name = "experts",
                         .member = &flags->settings.experts,
                         .group = group::kMeasure,
                         .help = "E"},
                        {.name = "layers",
                         .member = &flags->settings.layers,
                         .group = group::kMeasure,
                         .help = "even, odd, all or a list"},
                        {.name = "repeats",
                         .member = &flags->repeats,
                         .group = group::kMeasure,
                         .help = "of both",
                         .range = whole_between(1, 100)}});
  return [flags](const BenchFlags&) { return measure(*flags); };
}

}  // namespace moe::cli
