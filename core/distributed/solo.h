#pragma once
// One rank alone: every collective is a copy or nothing.

#include <memory>

#include "core/distributed/comm.h"

namespace moe::distributed {

// A transfer that was over before anybody waited.
std::unique_ptr<Transfer> finished_transfer();

std::unique_ptr<Comm> solo_comm(at::Device device = at::kCPU);

}  // namespace moe::distributed
