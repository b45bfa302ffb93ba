#pragma once
// Starts the ranks of --ranks N as processes of this very command line, passes signals on to them,
// and sees that none outlives the run or the others.

#include "core/distributed/session.h"

namespace moe::distributed {

inline constexpr int kInterrupted = 130;  // exit code of main()

// Returns when all have ended well. When one ends badly the others are given a moment to say why,
// then ended; thrown is what rank 0 would have said: UserError, Interrupted or std::runtime_error.
void launch(const RankSettings& settings);

}  // namespace moe::distributed
