#pragma once
// What ranks settle before they depend on each other: that each of them could do its part, that
// all mean the same run, and whether something holds on one of them. Every rank makes the same
// call; `ranks` null is one process alone.

#include <functional>
#include <string>

#include "core/distributed/comm.h"

namespace moe::distributed {

// Runs `body`, which uses no Comm, on every rank. What it throws on one it throws on all: a
// UserError or Interrupted as such, the lowest rank's first, others as std::runtime_error that
// names the rank. It is announced as a long operation (comm.h), so it may take its time.
void on_all_ranks(Comm* ranks, const std::function<void()>& body);

// Whether `statement` is true on any rank.
bool any_rank(Comm* ranks, bool statement);

// Ranks must not differ in `what` ("the settings", "the model"), of which `text` tells all.
// UserError on all of them names the first rank that differs from rank 0, and the first line that
// does.
void check_same_on_all_ranks(Comm& ranks, const std::string& what, const std::string& text);

}  // namespace moe::distributed
