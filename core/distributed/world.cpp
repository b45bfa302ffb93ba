#include "core/distributed/world.h"

#include <algorithm>
#include <numeric>

#include "core/base/error.h"

namespace moe::distributed {

namespace {

void check_numbers(const Layout& layout) {
  if (layout.replicas < 1 || layout.processes % layout.replicas != 0) {
    throw UserError("--replicas {} does not divide the {} processes; give a divisor of it",
                    layout.replicas, layout.processes);
  }
  if (layout.logical_ranks % layout.group() != 0) {
    throw UserError(
        "{} processes share the experts of a replica, and do not divide --ep-ranks {}; give other "
        "--ep-ranks, or more --replicas",
        layout.group(), layout.logical_ranks);
  }
  if (layout.experts % layout.logical_ranks != 0) {
    throw UserError("--ep-ranks {} does not divide the {} experts; give a divisor of it",
                    layout.logical_ranks, layout.experts);
  }
}

// The ranks first, first + stride, ... `count` of them.
std::vector<int64_t> ranks_from(int64_t first, int64_t stride, int64_t count) {
  std::vector<int64_t> ranks;
  for (int64_t index = 0; index < count; ++index) {
    ranks.push_back(first + index * stride);
  }
  return ranks;
}

}  // namespace

Part::Part(int64_t count, const Comm& among)
    : length((count + among.size() - 1) / among.size()),
      begin(std::min(count, among.rank() * length)),
      end(std::min(count, begin + length)) {}

Layout make_layout(int64_t processes, int64_t rank, std::optional<int64_t> replicas,
                   int64_t logical_ranks, int64_t experts) {
  MOE_CHECK(rank >= 0 && rank < processes, "rank {} of {}", rank, processes);
  Layout layout{processes, rank, processes, 1, 1};
  if (experts > 0) {
    layout.replicas = replicas.value_or(processes / std::gcd(processes, logical_ranks));
    layout.logical_ranks = logical_ranks;
    layout.experts = experts;
  } else if (replicas && *replicas != processes) {
    throw UserError(
        "--replicas {}: a dense model has no experts to share out, each of the {} processes is a "
        "replica; leave out --replicas",
        *replicas, processes);
  }
  check_numbers(layout);
  return layout;
}

std::string describe(const Layout& layout) {
  const std::string processes = fmt::format(
      "{} processes = {} replica{} x {} in an "
      "expert-parallel group",
      layout.processes, layout.replicas, layout.replicas == 1 ? "" : "s", layout.group());
  return fmt::format("{}; {} logical ranks, {} a process; {} experts, {} a process", processes,
                     layout.logical_ranks, layout.local_logical_ranks(), layout.experts,
                     layout.local_experts());
}

World::World(Comm& all_ranks, const Layout& its_layout)
    : layout(its_layout),
      all(all_ranks),
      group(all_ranks.part("group",
                           ranks_from(layout.replica() * layout.group(), 1, layout.group()))),
      replicas(all_ranks.part("replicas",
                              ranks_from(layout.ep_rank(), layout.group(), layout.replicas))) {}

void World::set_trace(const TraceContext& trace) {
  all.trace = group->trace = replicas->trace = trace;
}

}  // namespace moe::distributed
