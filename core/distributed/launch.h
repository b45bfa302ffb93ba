#pragma once
// Runs a command on the ranks that moe itself or another launcher starts. With one rank there is no
// store, thread or other process.

#include <functional>

#include "core/distributed/comm.h"

namespace moe::distributed {

struct RankSettings {
  int64_t ranks = 0;      // --ranks: local processes to start; 0: not given
  double timeout_s = 30;  // --comm-timeout: how long ranks wait for each other
  int threads = 0;        // --threads of each process; 0: divide the cores among them
  bool on_cuda = false;   // one GPU per rank
};

// Runs `body` on every rank: in this process if it is a rank of moe (--ranks), torchrun, mpirun or
// srun, or the only one. With --ranks N, starts N processes of this command line, which call this
// function as ranks, and blocks until they have exited: a command does nothing before or after this
// call. Only rank 0 may print. A single rank rethrows the exception of `body`. With several ranks,
// the message is printed once and each rank exits with the exit code of main(); the process that
// started them throws UserError, Interrupted or std::runtime_error with the reason.
void run_on_ranks(const RankSettings& settings, const std::function<void(Comm&)>& body);

// Returns the index of a rank's GPU: local_rank, or 0 if a single GPU is visible and `is_assigned`,
// that is, the launcher may have assigned it (srun --gpus-per-task=1). Throws UserError if there
// are too few GPUs.
int64_t rank_gpu(int64_t local_rank, int64_t num_visible, bool is_assigned);

}  // namespace moe::distributed
