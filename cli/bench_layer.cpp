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

double percent(const bench::Timing& part, const bench::Timing& whole) {
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
                  fmt::format("{:.0f} % of the roof", percent(report.roof, report.products)));
  table +=
      row_of("routing", report.routing, "",
             fmt::format("{:.2f} % of the products", percent(report.routing, report.products)));
  table += row_of("counting", report.counting, "",
                  fmt::format("{:.3f} % of the products, part of routing",
                              percent(report.counting, report.products)));
  if (report.layer.median_s > 0) {
    table += row_of("layer", report.layer, rate(report.layer),
                    fmt::format("{:.0f} % of the roof", percent(report.roof, report.layer)));
    table += "  in parts, once:";
    for (const auto& [name, seconds] : report.parts_s) {
      table += fmt::format(" {} {:.2f} ms", name, 1e3 * seconds);
    }
    table += fmt::format("; peak memory {} MiB\n", report.peak_bytes >> 20);
  }
  if (report.graph.median_s > 0) {
    table += row_of("forward", report.forward, "", "without gradients, launched by the host");
    table += row_of("graph", report.graph, "",
                    fmt::format("the same recorded, {:.0f} % of the time",
                                percent(report.graph, report.forward)));
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
  if (layer.graph && (!layer.device.is_cuda() || !layer.bf16)) {
    throw UserError(
        "--graph records the launches of a GPU's products in bf16; give --device cuda and "
        "--precision bf16");
  }
}

// A router without a capacity has rows of a number that the host must be told.
void check_graph(const LayerFlags& flags, const route::RouterSettings& router) {
  if (flags.layer.graph && !route::has_capacity(router)) {
    throw UserError("--graph records launches whose sizes stay, and {} has no capacity; give --cf",
                    route::to_string(router));
  }
  if (flags.layer.graph && !route::has_kernel_plan(router, flags.layer.experts)) {
    throw UserError(
        "--graph records launches that never wait for the host, and {} is planned by operations "
        "that do; leave it out",
        route::to_string(router));
  }
}

BenchResult measure(LayerFlags flags) {
  check(flags);
  std::vector<route::RouterSettings> routers;
  for (const auto& text : flags.routers) {  // refused before anything is timed
    routers.push_back(route::requested_router({text, flags.cf, {}}, {}));
    route::check_router(routers.back(), flags.layer.experts);
    check_graph(flags, routers.back());
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
  const auto size = CLI::Range(int64_t{1}, int64_t{1} << 24);
  command.add_option("--router", flags->routers, "one or more (top1 top1+ir+fr)");
  command.add_option("--cf", flags->cf, "capacity factor of all of them, or inf");
  command.add_option("--tokens", layer.tokens, "T (4096)")->check(size);
  command.add_option("--width", layer.width, "D (1024)")->check(size);
  command.add_option("--inner", layer.inner, "F of an expert (2816)")->check(size);
  command.add_option("--experts", layer.experts, "E (8)")->check(size);
  command.add_option("--ep-ranks", layer.ep_ranks, "logical ranks W (E)")->check(size);
  command.add_option("--skew", layer.skew, "how unevenly tokens like the experts (0)");
  command.add_option("--repeats", layer.repeats, "after one to warm up (7)")
      ->check(CLI::Range(int64_t{1}, int64_t{1000}));
  command.add_option("--precision", flags->precision, "of products: fp32 (default) or bf16")
      ->check(CLI::IsMember({"fp32", "bf16"}));
  command.add_flag("--graph", layer.graph,
                   "also the forward alone, launched by the host and recorded as a CUDA graph");
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
