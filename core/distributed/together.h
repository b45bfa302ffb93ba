#pragma once
// What ranks settle before they depend on each other: that each of them could do its part.
// (session.h: that they mean the same run.)

#include <functional>
#include <string>

#include "core/distributed/comm.h"

namespace moe::distributed {

// Runs `body`, which talks to nobody, on every rank. What it throws on one it throws on all: a
// UserError or Interrupted as such, the lowest rank's first, others as std::runtime_error that
// names the rank. It may take its time: own_work.h.
void together(Comm& comm, const std::function<void()>& body);

}  // namespace moe::distributed
