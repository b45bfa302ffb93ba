#include "cli/launch.h"

#include <CLI/CLI.hpp>

namespace moe::cli {

void add_rank_flags(CLI::App& command, dist::RankSettings& ranks) {
  command
      .add_option("--ranks", ranks.ranks,
                  "start N processes on this host (under torchrun, mpirun or srun: theirs)")
      ->check(CLI::Range(int64_t{1}, int64_t{4096}));
  command
      .add_option("--comm-timeout", ranks.timeout_s,
                  "seconds that ranks wait for each other before the run is given up (30)")
      ->check(CLI::Range(1.0, 86400.0));
}

}  // namespace moe::cli
