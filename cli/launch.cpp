#include "cli/launch.h"

#include "cli/options.h"

namespace moe::cli {

void add_rank_flags(CLI::App& command, distributed::RankSettings& ranks) {
  add_options(command,
              {{.name = "ranks",
                .member = &ranks.ranks,
                .group = group::kRanks,
                .help = "start N processes on this host (under torchrun, mpirun or srun: theirs)",
                .fallback = "one",
                .range = whole_between(1, 4096)},
               {.name = "comm-timeout",
                .member = &ranks.timeout_s,
                .group = group::kRanks,
                .help = "seconds that ranks wait for each other before the run is given up",
                .range = number_between(1, 86400)}});
}

}  // namespace moe::cli
