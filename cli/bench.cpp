// moe bench: how fast, as shares of what the machine does in the same run.

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <torch/version.h>

#include "cli/bench_comm.h"
#include "cli/bench_parts.h"
#include "cli/commands.h"
#include "cli/flags.h"
#include "cli/launch.h"
#include "core/base/error.h"
#include "core/base/version.h"
#include "core/bench/layer.h"
#include "core/route/router_override.h"

namespace moe::cli {

namespace {

struct BenchFlags {
  std::string what = "layer";
  bench::LayerSettings layer;
  CommFlags comm;
  std::string comm_bytes, device;
  std::vector<std::string> routers = {"top1", "top1+ir+fr"};
  std::string cf;
  int threads = 0;
  bool json = false;
};

double percent(const bench::Timing& part, const bench::Timing& whole) {
  return 100 * part.median_s / whole.median_s;
}

void print_row(const std::string& name,
               const bench::Timing& time,
               const std::string& rate,
               const std::string& share) {
  fmt::print("  {:<10}{:>10.2f}{:>10.2f}{:>10.2f}  {:>9}  {}\n",
             name,
             1e3 * time.median_s,
             1e3 * time.best_s,
             1e3 * time.worst_s,
             rate,
             share);
}

void print_report(const bench::LayerReport& report) {
  const auto rate = [&](const bench::Timing& time) {
    return fmt::format("{:.1f}", report.flop / time.median_s / 1e9);
  };
  const auto& counted = report.counted;
  fmt::print(
      "{}: {} rows ({} dropped, {} filled in, {} rectified, {} padding), load {:.2f} x mean\n",
      report.router,
      counted.rows(),
      counted.dropped_requests,
      counted.fr_filled,
      counted.ir_tokens,
      counted.padding,
      counted.load_max_over_mean());
  fmt::print("  {:<10}{:>10}{:>10}{:>10}  {:>9}\n", "", "median ms", "best", "worst", "GFLOP/s");
  print_row("roof", report.roof, rate(report.roof), "at::mm on the same rows, one matrix");
  print_row("products",
            report.products,
            rate(report.products),
            fmt::format("{:.0f} % of the roof", percent(report.roof, report.products)));
  print_row("routing",
            report.routing,
            "",
            fmt::format("{:.2f} % of the products", percent(report.routing, report.products)));
  print_row("counting",
            report.counting,
            "",
            fmt::format("{:.3f} % of the products, part of routing",
                        percent(report.counting, report.products)));
  if (report.layer.median_s > 0) {
    print_row("layer",
              report.layer,
              rate(report.layer),
              fmt::format("{:.0f} % of the roof", percent(report.roof, report.layer)));
  }
}

void check(const BenchFlags& flags) {
  const auto& layer = flags.layer;
  const int64_t ranks = layer.ep_ranks == 0 ? layer.experts : layer.ep_ranks;
  if (layer.experts % ranks != 0) {
    throw UserError(
        "--ep-ranks {} does not divide the {} experts; use a divisor", ranks, layer.experts);
  }
}

void run(BenchFlags flags) {
  apply_threads(flags.threads);
  if (flags.what == "comm") {
    flags.comm.ranks.threads = flags.threads;
    flags.comm.ranks.on_cuda = flags.device == "cuda";
    flags.comm.settings.repeats = flags.layer.repeats;
    if (!flags.comm_bytes.empty()) {
      flags.comm.settings.most_bytes =
          static_cast<int64_t>(parse_bytes(flags.comm_bytes, "--bytes"));
    }
    return bench_comm(flags.comm, flags.json);
  }
  check(flags);
  flags.layer.whole = flags.what == "layer";
  std::vector<route::RouterSettings> routers;
  for (const auto& text : flags.routers) {  // refused before anything is timed
    routers.push_back(route::requested_router({text, flags.cf, {}}, {}));
    route::check_router(routers.back(), flags.layer.experts);
  }
  OrderedJson json = {{"moe_version", kVersion},
                      {"torch_version", TORCH_VERSION},
                      {"threads", at::get_num_threads()},
                      {"instruction_set", at::get_cpu_capability()},
                      {"settings", bench::to_json(flags.layer)},
                      {"layers", OrderedJson::array()}};
  if (!flags.json) {
    fmt::print("f32, forward and backward: T {}, D {}, F {}, E {}; {} threads, {}, {} repeats\n",
               flags.layer.tokens,
               flags.layer.width,
               flags.layer.inner,
               flags.layer.experts,
               at::get_num_threads(),
               at::get_cpu_capability(),
               flags.layer.repeats);
  }
  for (const auto& router : routers) {
    const bench::LayerReport report = bench::bench_layer(flags.layer, router);
    json["layers"].push_back(bench::to_json(report));
    if (!flags.json) {
      print_report(report);
    }
  }
  if (flags.json) {
    fmt::print("{}\n", json.dump(2));
  }
}

}  // namespace

void add_bench(CLI::App& app) {
  auto flags = std::make_shared<BenchFlags>();
  auto& layer = flags->layer;
  CLI::App* command = app.add_subcommand("bench", "speed, beside a roof measured in the same run");
  const auto size = CLI::Range(int64_t{1}, int64_t{1} << 24);
  command
      ->add_option("WHAT",
                   flags->what,
                   "layer (default: a whole MoE layer), route (routing and products) or comm "
                   "(between ranks)")
      ->check(CLI::IsMember({"layer", "route", "comm"}));
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
  command->add_option("--bytes", flags->comm_bytes, "comm: the largest tensor of a rank (64MiB)");
  add_rank_flags(*command, flags->comm.ranks);
  add_device(*command, flags->device);
  add_threads(*command, flags->threads);
  add_json(*command, flags->json);
  add_config(*command);
  add_bench_eval(*command);
  command->callback([flags, command] {
    if (command->get_subcommands().empty()) {
      run(*flags);
    }
  });
}

}  // namespace moe::cli
