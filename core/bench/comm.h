#pragma once
// Collectives between ranks: the time of each over sizes, and from the largest and smallest
// all_to_all the two numbers of a link that a model of communication needs: t(bytes) = latency +
// bytes / rate.

#include <optional>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/bench/timing.h"
#include "core/distributed/comm.h"

namespace moe::bench {

inline constexpr int64_t kLeastBytes = 64;

struct CommSettings {
  int64_t most_bytes = 64 << 20;  // of one rank's tensor; sizes grow from the least eightfold
  int64_t repeats = 7;            // after two to warm up
};

struct CommRow {
  std::string operation;
  int64_t bytes = 0;  // of one rank's input (reduce_scatter: its input; all_gather: its output)
  Timing time;        // of the slowest rank, each time
  double rate = 0;    // bytes a second that a rank sends to others, at the median
};

// What one rank reaches with ranks of its own host, or of others.
struct Link {
  double latency_s = 0;
  double bytes_per_s = 0;
};

struct CommReport {
  int64_t ranks = 1, hosts = 1;
  std::vector<CommRow> rows;
  std::optional<Link> within_host, between_hosts;
};

// Every rank calls it; all get the same report.
CommReport bench_comm(distributed::Comm& comm, const CommSettings& settings);

OrderedJson to_json(const CommReport& report);

}  // namespace moe::bench
