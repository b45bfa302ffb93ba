#pragma once
// Launcher of --ranks N: starts the ranks as processes of this command line, forwards signals to
// them, and ends them if one fails.

#include "core/distributed/session.h"

namespace moe::distributed {

inline constexpr int kInterrupted = 130;  // exit code of main()

// Returns once all ranks have exited with code 0. If one exits otherwise, gives the others time to
// report, kills those that are left, and throws UserError, Interrupted or std::runtime_error with
// the reason.
void launch(const RankSettings& settings);

}  // namespace moe::distributed
