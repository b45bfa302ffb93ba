#pragma once
// Agreement between ranks: work of which a failure on one rank is thrown on all, equality of
// settings, and the ranks that share a host. All functions are collectives. `ranks` may be null: a
// single process.

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/base/resources.h"
#include "core/distributed/comm.h"

namespace moe::distributed {

// Runs `body`, which must not use a Comm, on every rank, as a long operation (comm.h). If it throws
// on one rank, throws on all: UserError, else Interrupted, else std::runtime_error that names the
// rank; of several ranks, the exception of the lowest one.
void on_all_ranks(Comm* ranks, const std::function<void()>& body);

// Returns true if `statement` is true on any rank.
bool any_rank(Comm* ranks, bool statement);

// Throws UserError on all ranks if `text`, a description of `what` ("the settings"), differs
// between ranks. The message names the first rank and line that differ from rank 0's.
void check_same_on_all_ranks(Comm& ranks, const std::string& what, const std::string& text);

// Returns the ranks on the host of this rank, including it, ascending.
std::vector<int64_t> ranks_of_this_host(Comm& ranks);

// Calls check_memory() on every rank, with need.processes set to the ranks of its host, before any
// rank goes on and takes memory. Throws UserError on all ranks if memory is short on one. With
// `force` returns the shortage of this rank instead.
std::optional<std::string> check_memory(Comm* ranks, MemoryNeed need, bool force);

}  // namespace moe::distributed
