#pragma once
// Who does what in a run of several processes: P processes = R replicas x G processes of an
// expert-parallel group. The G processes of a group hold each expert once and carry the W logical
// ranks between them; process p is rank p % G of the group of replica p / G. Rows of a micro-batch
// go to the ranks of a group in contiguous blocks; replica r takes micro-batches r, r + R, ... of a
// step (so R replicas equal one process that accumulates R micro-batches). Results follow from W
// alone as long as all processes hold equally many tokens (core/route/README.md).

#include <memory>
#include <optional>
#include <string>

#include "core/distributed/comm.h"

namespace moe::distributed {

struct Layout {
  int64_t processes = 1, rank = 0, replicas = 1;
  int64_t logical_ranks = 1, experts = 1;  // W, E; 1 and 1 for a dense model

  int64_t group() const { return processes / replicas; }  // G
  int64_t replica() const { return rank / group(); }
  int64_t ep_rank() const { return rank % group(); }
  int64_t local_experts() const { return experts / group(); }
  int64_t first_expert() const { return ep_rank() * local_experts(); }
  int64_t local_logical_ranks() const { return logical_ranks / group(); }
  int64_t first_logical_rank() const { return ep_rank() * local_logical_ranks(); }
  // The first of `count` things (rows of a micro-batch) that rank `index` of the group takes; index
  // G = count.
  int64_t first_of(int64_t count, int64_t index) const { return count * index / group(); }
  bool is_rank_zero() const { return rank == 0; }
};

// The part of `count` things that one of several processes takes: all parts are equally long but
// the last ones, which may be shorter or empty.
struct Part {
  Part(int64_t count, const Comm& among);
  int64_t size() const { return end - begin; }
  int64_t length;  // of a full part
  int64_t begin, end;
};

// Of `replicas` empty: G = gcd(P, W), 1 for a dense model (experts = 0: every process a replica).
// UserError: replicas do not divide the processes, G does not divide W, W does not divide E; names
// the flags.
Layout make_layout(int64_t processes, int64_t rank, std::optional<int64_t> replicas,
                   int64_t logical_ranks, int64_t experts);

// "4 processes = 2 replicas x 2 in an expert-parallel group; 8 logical ranks, 4 a process; 8
// experts, 4 a process".
std::string describe(const Layout& layout);

// The Comms of one rank. Every rank makes it at the same time.
struct World {
  World(Comm& all_ranks, const Layout& layout);

  Layout layout;
  Comm& all;                       // P ranks
  std::unique_ptr<Comm> group;     // the G ranks of this replica: tokens travel here
  std::unique_ptr<Comm> replicas;  // the R processes that hold the same experts

  void set_trace(const TraceContext& trace);  // of all three
};

}  // namespace moe::distributed
