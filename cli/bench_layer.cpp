// moe bench layer and route: a MoE layer on random tokens and its parts, beside at::mm on the same
// rows.

#include <CLI/CLI.hpp>
#include <memory>

#include "cli/bench.h"
#include "cli/flags.h"
#include "core/base/error.h"
#include "core/bench/layer.h"
#include "core/route/route.h"
#include "core/route/router_override.h"

namespace moe::cli {

namespace {

struct LayerFlags {
  bench::LayerSettings layer;
  std::vector<std::string> routers = {"top1", "top1+ir+fr"};
  std::string cf, precision = "fp32";
};

double percent_of(const bench::Timing& part, const bench::Timing& whole) {
  return 100 * part.median_s / whole.median_s;
}

std::string row_of(const std::string& name, const bench::Timing& time, const std::string& rate,
                   const std::string& share) {
  return fmt::format("  {:<10}{:>10.2f}{:>10.2f}{:>10.2f}  {:>9}  {}\n", name, 1e3 * time.median_s,
                     1e3 * time.best_s, 1e3 * time.worst_s, rate, share);
}

std::string table_of(const bench::LayerReport& report) {
  const auto rate = [&](const bench::Timing& time) {
    return fmt::format("{:.1f}", report.flop / time.median_s / 1e9);
  };
  const auto& counted = report.counted;
  std::string table = fmt::format(
      "{}: {} rows ({} dropped, {} filled in, {} rectified, {} padding), load {:.2f} x mean\n",
      report.router, counted.rows(), counted.dropped_requests, counted.fr_filled, counted.ir_tokens,
      counted.padding, counted.load_max_over_mean());
  table += fmt::format("  {:<10}{:>10}{:>10}{:>10}  {:>9}\n", "", "median ms", "best", "worst",
                       "GFLOP/s");
  table += row_of("roof", report.roof, rate(report.roof), "at::mm on the same rows, one matrix");
  table += row_of("products", report.products, rate(report.products),
                  fmt::format("{:.0f} % of the roof", percent_of(report.roof, report.products)));
  table +=
      row_of("routing", report.routing, "",
             fmt::format("{:.2f} % of the products", percent_of(report.routing, report.products)));
  table += row_of("counting", report.counting, "",
                  fmt::format("{:.3f} % of the products, part of routing",
                              percent_of(report.counting, report.products)));
  if (report.layer.median_s > 0) {
    table += row_of("layer", report.layer, rate(report.layer),
                    fmt::format("{:.0f} % of the roof", percent_of(report.roof, report.layer)));
    table += "  in parts, once:";
    for (const auto& [name, seconds] : report.parts_s) {
      table += fmt::format(" {} {:.2f} ms", name, 1e3 * seconds);
    }
    table += fmt::format("; peak memory {} MiB\n", report.peak_bytes >> 20);
  }
  return table;
}

void check(const LayerFlags& flags) {
  const auto& layer = flags.layer;
  const int64_t ranks = layer.ep_ranks == 0 ? layer.experts : layer.ep_ranks;
  if (layer.experts % ranks != 0) {
    throw UserError("--ep-ranks {} does not divide the {} experts; use a divisor", ranks,
                    layer.experts);
  }
}

BenchResult measure(LayerFlags flags) {
  check(flags);
  std::vector<route::RouterSettings> routers;
  for (const auto& text : flags.routers) {  // refused before anything is timed
    routers.push_back(route::requested_router({text, flags.cf, {}}, {}));
    route::check_router(routers.back(), flags.layer.experts);
  }
  BenchResult result;
  result.json = {{"settings", bench::to_json(flags.layer)}, {"layers", OrderedJson::array()}};
  result.table =
      fmt::format("{}, forward and backward: T {}, D {}, F {}, E {}; {} repeats\n",
                  flags.layer.bf16 ? "bf16" : "f32", flags.layer.tokens, flags.layer.width,
                  flags.layer.inner, flags.layer.experts, flags.layer.repeats);
  for (const auto& router : routers) {
    const bench::LayerReport report = bench::bench_layer(flags.layer, router);
    result.json["layers"].push_back(bench::to_json(report));
    result.table += table_of(report);
  }
  return result;
}

Measure add_flags(CLI::App& command, bool times_layer) {
  auto flags = std::make_shared<LayerFlags>();
  auto& layer = flags->layer;
  layer.times_layer = times_layer;
  const Range size = whole_between(1, 1 << 24);
  add_options(command, {{.name = "router",
                         .member = &flags->routers,
                         .group = group::kMeasure,
                         .help = "one or more"},
                        {.name = "cf",
                         .member = &flags->cf,
                         .group = group::kMeasure,
                         .help = "capacity factor of all of them, or inf"},
                        {.name = "tokens",
                         .member = &layer.tokens,
                         .group = group::kMeasure,
                         .help = "T",
                         .range = size},
                        {.name = "width",
                         .member = &layer.width,
                         .group = group::kMeasure,
                         .help = "D",
                         .range = size},
                        {.name = "inner",
                         .member = &layer.inner,
                         .group = group::kMeasure,
                         .help = "F of an expert",
                         .range = size},
                        {.name = "experts",
                         .member = &layer.experts,
                         .group = group::kMeasure,
                         .help = "E",
                         .range = size},
                        {.name = "ep-ranks",
                         .member = &layer.ep_ranks,
                         .group = group::kMeasure,
                         .help = "logical ranks W",
                         .fallback = "E",
                         .range = size},
                        {.name = "skew",
                         .member = &layer.skew,
                         .group = group::kMeasure,
                         .help = "how unevenly tokens like the experts"},
                        {.name = "repeats",
                         .member = &layer.repeats,
                         .group = group::kMeasure,
                         .help = "after one to warm up",
                         .range = whole_between(1, 1000)},
                        {.name = "precision",
                         .member = one_of("precision", flags->precision, {"fp32", "bf16"}),
                         .group = group::kMeasure,
                         .help = "of products: fp32 or bf16"}});
  return [flags](const BenchFlags& shared) {
    flags->layer.device = device_of(shared.device);
    flags->layer.bf16 = flags->precision == "bf16";
    return measure(*flags);
  };
}

}  // namespace

Measure add_bench_layer(CLI::App& command) { return add_flags(command, true); }
Measure add_bench_route(CLI::App& command) { return add_flags(command, false); }

}  // namespace moe::cli
