// moe bench: how fast, as shares of what the machine does in the same run. A layer in parts stands
// here, the other measurements in bench_*.cpp.

#include "cli/bench.h"

#include <ATen/Parallel.h>

#include <CLI/CLI.hpp>

#include "cli/commands.h"
#include "cli/flags.h"
#include "core/base/error.h"
#include "core/base/option.h"
#include "core/bench/layer.h"
#include "core/route/route.h"
#include "core/route/router_override.h"

namespace moe::cli {

namespace {

struct BenchFlags {
  std::string what = "layer";
  bench::LayerSettings layer;
  std::vector<std::string> routers = {"top1", "top1+ir+fr"};
  std::string cf, precision = "fp32";
  BenchOutput output;
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

void check(const BenchFlags& flags) {
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
void check_graph(const BenchFlags& flags, const route::RouterSettings& router) {
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

void run(BenchFlags flags) {
  const Json earlier = begin_bench(flags.output, flags.what);
  flags.layer.device = device_of(flags.output.device);
  flags.layer.bf16 = flags.precision == "bf16";
  check(flags);
  flags.layer.whole = flags.what == "layer";
  std::vector<route::RouterSettings> routers;
  for (const auto& text : flags.routers) {  // refused before anything is timed
    routers.push_back(route::requested_router({text, flags.cf, {}}, {}));
    route::check_router(routers.back(), flags.layer.experts);
    check_graph(flags, routers.back());
  }
  OrderedJson json = {{"settings", bench::to_json(flags.layer)}, {"layers", OrderedJson::array()}};
  std::string table =
      fmt::format("{}, forward and backward: T {}, D {}, F {}, E {}; {} repeats\n",
                  flags.layer.bf16 ? "bf16" : "f32", flags.layer.tokens, flags.layer.width,
                  flags.layer.inner, flags.layer.experts, flags.layer.repeats);
  for (const auto& router : routers) {
    const bench::LayerReport report = bench::bench_layer(flags.layer, router);
    json["layers"].push_back(bench::to_json(report));
    table += table_of(report);
  }
  print_bench(flags.output, flags.what, earlier, json, table);
}

}  // namespace

void add_bench(CLI::App& app) {
  auto flags = std::make_shared<BenchFlags>();
  auto& layer = flags->layer;
  CLI::App* command = app.add_subcommand("bench", "speed, beside a roof measured in the same run");
  command->option_defaults()->group(group::kMeasure);  // of the commands below too
  const auto size = CLI::Range(int64_t{1}, int64_t{1} << 24);
  command
      ->add_option(
          "WHAT", flags->what,
          "layer (default: a whole MoE layer) or route (routing and products); or a command below")
      ->check(CLI::IsMember({"layer", "route"}));
  command->add_option("--router", flags->routers, "one or more (top1 top1+ir+fr)");
  command->add_option("--cf", flags->cf, "capacity factor of all of them, or inf");
  command->add_option("--tokens", layer.tokens, "T (4096)")->check(size);
  command->add_option("--width", layer.width, "D (1024)")->check(size);
  command->add_option("--inner", layer.inner, "F of an expert (2816)")->check(size);
  command->add_option("--experts", layer.experts, "E (8)")->check(size);
  command->add_option("--ep-ranks", layer.ep_ranks, "logical ranks W (E)")->check(size);
  command->add_option("--skew", layer.skew, "how unevenly tokens like the experts (0)");
  command->add_option("--repeats", layer.repeats, "after one to warm up (7)")
      ->check(CLI::Range(int64_t{1}, int64_t{1000}));
  command->add_option("--precision", flags->precision, "of products: fp32 (default) or bf16")
      ->check(CLI::IsMember({"fp32", "bf16"}));
  command->add_flag("--graph", layer.graph,
                    "also the forward alone, launched by the host and recorded as a CUDA graph");
  add_device(*command, flags->output.device);
  add_bench_output(*command, flags->output);
  add_config(*command);
  add_bench_gemm(*command);
  add_bench_train(*command);
  add_bench_load(*command);
  add_bench_eval(*command);
  add_bench_upcycle(*command);
  add_bench_comm(*command);
  command->callback([flags, command] {
    if (command->get_subcommands().empty()) {
      run(*flags);
    }
  });
}

}  // namespace moe::cli
