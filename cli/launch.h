#pragma once
// The flags of commands that run on several ranks.

#include "core/distributed/session.h"

namespace CLI {
class App;
}

namespace moe::cli {

// --ranks and --comm-timeout. `ranks` outlives `command`; --threads and --device are the command's.
void add_rank_flags(CLI::App& command, distributed::RankSettings& ranks);

}  // namespace moe::cli
