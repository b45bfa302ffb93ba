#pragma once
// A run on several ranks, seen from a command: one call, whoever starts the processes. Alone, it
// costs nothing: no store, no thread, no process.

#include <functional>

#include "core/distributed/comm.h"

namespace moe::distributed {

struct RankSettings {
  int64_t ranks = 0;      // --ranks: local processes to start; 0 = not said
  double timeout_s = 30;  // --comm-timeout: how long ranks wait for each other
  int threads = 0;        // --threads of each process; 0 = the cores are shared out
  bool on_cuda = false;   // a GPU each
};

// Runs `body` on every rank of the run. Where moe (--ranks), torchrun, mpirun or srun has started
// this process as a rank, or there is but one, this process's body runs here. Else --ranks starts N
// processes of this very command line, in which the same call runs the body, and waits for them.
// So nothing of the run may stand before or behind this call, and only rank 0 prints.
//
// One rank alone: what body throws is thrown. Several: the sentence of a failure is said once, and
// the process ends here with the exit code of main() (UserError 2, Interrupted 130, else 1); the
// launcher of --ranks throws what ended its ranks, after all of them have ended.
void run_on_ranks(const RankSettings& settings, const std::function<void(Comm&)>& body);

// UserError where the rank that is number `local_rank` of its host has no GPU among `gpus`.
void check_gpu(int64_t local_rank, int64_t gpus);

// The GPU of the rank that is number `local_rank` of its host, of the `visible` ones that its
// process sees. Where it sees one, its launcher gave it that one (srun --gpus-per-task=1, or
// CUDA_VISIBLE_DEVICES), whatever its number is. UserError where it sees several, but too few.
int64_t gpu_of_rank(int64_t local_rank, int64_t visible);

}  // namespace moe::distributed
