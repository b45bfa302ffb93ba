#pragma once
// Runs a command on several ranks, no matter which launcher starts the processes. With one rank
// there is no store, thread or other process.

#include <functional>

#include "core/distributed/comm.h"

namespace moe::distributed {

struct RankSettings {
  int64_t ranks = 0;      // --ranks: local processes to start; 0: not given
  double timeout_s = 30;  // --comm-timeout: how long ranks wait for each other
  int threads = 0;        // --threads of each process; 0: divide the cores among them
  bool on_cuda = false;   // one GPU a rank
};

// Runs `body` on every rank. In a process that moe (--ranks), torchrun, mpirun or srun started as a
// rank, and without --ranks, body runs in this process. With --ranks N, starts N processes of this
// command line, whose call of this function runs body, and blocks until they have exited; so a
// command must do nothing before or after this call, and only rank 0 may print.
//
// One rank: throws the exception of body. Several: the message of a failure is printed once and the
// process exits here with the exit code of main() (UserError 2, Interrupted 130, else 1); with
// --ranks, throws UserError, Interrupted or std::runtime_error with the reason in the launching
// process, after giving the other ranks time to report and killing those that are left.
void run_on_ranks(const RankSettings& settings, const std::function<void(Comm&)>& body);

// Throws UserError if the rank with number `local_rank` on its host has no GPU of its own.
void check_gpu(int64_t local_rank, int64_t num_gpus);

// Returns the GPU of a rank. A single visible GPU is the one that its launcher assigned (srun
// --gpus-per-task=1, CUDA_VISIBLE_DEVICES). Throws UserError if several are visible, but too few.
int64_t gpu_of_rank(int64_t local_rank, int64_t num_visible);

}  // namespace moe::distributed
