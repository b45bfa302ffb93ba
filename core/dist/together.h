#pragma once
// What ranks settle before they depend on each other: that each of them could do its part, and that
// they mean the same run.

#include <functional>
#include <string>

#include "core/dist/comm.h"

namespace moe::dist {

// Runs `body`, which talks to nobody, on every rank. What it throws on one it throws on all: a
// UserError or Interrupted as such, the lowest rank's first, others as std::runtime_error that
// names the rank.
void together(Comm& comm, const std::function<void()>& body);

// UserError where `text` differs between ranks: names the first rank that differs from rank 0, and
// `what` it is about ("the settings").
void agree(Comm& comm, const std::string& what, const std::string& text);

}  // namespace moe::dist
