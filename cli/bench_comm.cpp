#include "cli/bench_comm.h"

#include "core/base/error.h"

namespace moe::cli {
namespace {

std::string describe(const bench::Link& link) {
  return fmt::format(
      "{:.3g} GB/s from a rank, latency {:.3g} us", link.bytes_per_s / 1e9, link.latency_s * 1e6);
}

void print_report(const bench::CommReport& report) {
  fmt::print("{} ranks on {} host{}\n", report.ranks, report.hosts, report.hosts == 1 ? "" : "s");
  fmt::print(
      "{:<16}{:>12}{:>12}{:>10}{:>10}  {:>8}\n", "", "bytes", "median us", "best", "worst", "GB/s");
  for (const auto& row : report.rows) {
    fmt::print("{:<16}{:>12}{:>12.1f}{:>10.1f}{:>10.1f}  {:>8.3f}\n",
               row.operation,
               row.bytes,
               1e6 * row.time.median_s,
               1e6 * row.time.best_s,
               1e6 * row.time.worst_s,
               row.rate / 1e9);
  }
  std::string flags;  // of the model of communication in moe train
  if (report.within_host) {
    fmt::print("within a host: {}\n", describe(*report.within_host));
    flags += fmt::format(" --link-gbs {:.3g}", report.within_host->bytes_per_s / 1e9);
  }
  if (report.between_hosts) {
    fmt::print("between hosts: {}\n", describe(*report.between_hosts));
    flags += fmt::format(" --network-gbs {:.3g}", report.between_hosts->bytes_per_s / 1e9);
  }
  fmt::print("to plan with: moe train --dry-run --nodes N --gpus M{}\n", flags);
}

void check(const CommFlags& flags) {
  if (flags.settings.most_bytes < bench::kLeastBytes) {
    throw UserError("--bytes: the smallest tensor measured has {} bytes; give more",
                    bench::kLeastBytes);
  }
}

}  // namespace

void bench_comm(const CommFlags& flags, bool as_json) {
  check(flags);
  dist::run_on_ranks(flags.ranks, [&](dist::Comm& comm) {
    if (comm.size() == 1) {
      throw UserError(
          "moe bench comm measures what ranks say to each other, and there is one; give --ranks N, "
          "or start it with torchrun, mpirun or srun");
    }
    dist::agree(
        comm,
        "the sizes",
        fmt::format("bytes {}\nrepeats {}", flags.settings.most_bytes, flags.settings.repeats));
    const bench::CommReport report = bench::bench_comm(comm, flags.settings);
    if (comm.rank() == 0 && as_json) {
      fmt::print("{}\n", bench::to_json(report).dump(2));
    } else if (comm.rank() == 0) {
      print_report(report);
    }
  });
}

}  // namespace moe::cli
