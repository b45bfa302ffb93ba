#pragma once
// Ranks as threads of one process: how expert parallelism is tested without a cluster, and with
// several ranks on one GPU. Slow and obvious: every rank reads what the others show it.

#include <functional>

#include "core/distributed/comm.h"

namespace moe::distributed {

// Runs `body` once for each of `ranks` ranks, each in a thread of its own, with LibTorch's shared
// backward thread off there: it would run the backward of all ranks, and a blocking exchange in it
// would wait for itself. Returns when all have ended. When one throws, the others' next collective
// throws too, and the first exception is thrown here.
void run_as_threads(int64_t ranks, const std::function<void(Comm&)>& body,
                    at::Device device = at::kCPU);

}  // namespace moe::distributed
