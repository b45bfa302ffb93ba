#pragma once
// One rank alone: every collective is a copy or nothing.

#include <memory>

#include "core/dist/comm.h"

namespace moe::dist {

std::unique_ptr<Comm> solo_comm(torch::Device device = at::kCPU);

}  // namespace moe::dist
