// moe bench comm: what the links between ranks carry.

#include <CLI/CLI.hpp>
#include <memory>

#include "cli/bench.h"
#include "cli/flags.h"
#include "core/base/error.h"
#include "core/bench/comm.h"
#include "core/distributed/on_all_ranks.h"
#include "core/distributed/session.h"

namespace moe::cli {
namespace {

struct CommFlags {
  bench::CommSettings settings;
  distributed::RankSettings ranks;
  std::string most_bytes;
};

std::string describe(const bench::Link& link) {
  return fmt::format("{:.3g} GB/s from a rank, latency {:.3g} us", link.bytes_per_s / 1e9,
                     link.latency_s * 1e6);
}

std::string table_of(const bench::CommReport& report) {
  std::string table = fmt::format("{} ranks on {} host{}\n", report.ranks, report.hosts,
                                  report.hosts == 1 ? "" : "s");
  table += fmt::format("{:<16}{:>12}{:>12}{:>10}{:>10}  {:>8}\n", "", "bytes", "median us", "best",
                       "worst", "GB/s");
  for (const auto& row : report.rows) {
    table += fmt::format("{:<16}{:>12}{:>12.1f}{:>10.1f}{:>10.1f}  {:>8.3f}\n", row.operation,
                         row.bytes, 1e6 * row.time.median_s, 1e6 * row.time.best_s,
                         1e6 * row.time.worst_s, row.rate / 1e9);
  }
  std::string flags;  // of the model of communication in moe train
  if (report.within_host) {
    table += fmt::format("within a host: {}\n", describe(*report.within_host));
    flags += fmt::format(" --link-gbs {:.3g}", report.within_host->bytes_per_s / 1e9);
  }
  if (report.between_hosts) {
    table += fmt::format("between hosts: {}\n", describe(*report.between_hosts));
    flags += fmt::format(" --network-gbs {:.3g}", report.between_hosts->bytes_per_s / 1e9);
  }
  return table + fmt::format("to plan with: moe train --dry-run --nodes N --gpus M{}\n", flags);
}

bench::CommSettings settings_of(const CommFlags& flags) {
  bench::CommSettings settings = flags.settings;
  if (!flags.most_bytes.empty()) {
    settings.most_bytes = static_cast<int64_t>(parse_bytes(flags.most_bytes, "--bytes"));
  }
  if (settings.most_bytes < bench::kLeastBytes) {
    throw UserError("--bytes: the smallest tensor measured has {} bytes; give more",
                    bench::kLeastBytes);
  }
  return settings;
}

// Rank 0 alone has the result; a process that only started ranks has none.
std::optional<BenchResult> measure(const CommFlags& flags, const BenchFlags& shared) {
  const bench::CommSettings settings = settings_of(flags);
  distributed::RankSettings ranks = flags.ranks;
  ranks.threads = shared.threads;
  ranks.on_cuda = shared.device == "cuda";
  std::optional<BenchResult> result;
  distributed::run_on_ranks(ranks, [&](distributed::Comm& comm) {
    if (comm.size() == 1) {
      throw UserError(
          "moe bench comm measures what ranks say to each other, and there is one; give --ranks N, "
          "or start it with torchrun, mpirun or srun");
    }
    distributed::check_same_on_all_ranks(
        comm, "the sizes",
        fmt::format("bytes {}\nrepeats {}", settings.most_bytes, settings.repeats));
    const bench::CommReport report = bench::bench_comm(comm, settings);
    if (comm.rank() == 0) {
      OrderedJson json = bench::to_json(report);
      json["settings"] = {{"ranks", report.ranks},
                          {"hosts", report.hosts},
                          {"bytes", settings.most_bytes},
                          {"repeats", settings.repeats}};
      result = {json, table_of(report)};
    }
  });
  return result;
}

}  // namespace

Measure add_bench_comm(CLI::App& command) {
  auto flags = std::make_shared<CommFlags>();
  add_options(command, {{.name = "bytes",
                         .member = &flags->most_bytes,
                         .group = group::kMeasure,
                         .help = "the largest tensor of a rank",
                         .fallback = "64MiB"},
                        {.name = "repeats",
                         .member = &flags->settings.repeats,
                         .group = group::kMeasure,
                         .help = "after two to warm up",
                         .range = whole_between(1, 1000000)}});
  add_rank_flags(command, flags->ranks);
  return [flags](const BenchFlags& shared) { return measure(*flags, shared); };
}

}  // namespace moe::cli
