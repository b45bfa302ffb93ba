#pragma once
// Which ranks of a run share a host, and with it files, page cache and memory.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/available_memory.h"
#include "core/distributed/comm.h"

namespace moe::distributed {

// The ranks on the host of this one, itself too, ascending. A collective.
std::vector<int64_t> ranks_of_this_host(Comm& ranks);

// check_memory() on every rank, `need.processes` being those of its host; null is one process
// alone. All have looked before any goes on and takes memory. A collective; UserError on all ranks
// where memory is short on one. What it returns with `force` is this rank's own.
std::optional<std::string> check_memory(Comm* ranks, MemoryNeed need, bool force);

}  // namespace moe::distributed
