#pragma once
// What one rank does on its own while the others may already wait for it: writing its part of a
// checkpoint, reading a model from a slow disk. That may take longer than ranks wait for each other
// (--comm-timeout); so a rank at such work says again and again that it is, and is waited for as
// long as it does. Processes that die meanwhile are found as ever; one that stands still says
// nothing any more, and is given up after two time limits.

#include <memory>

#include "core/distributed/comm.h"

namespace moe::distributed {

class RollCall;

// Tells the roll once a `pause_s`, from a thread of its own; `roll` outlives it.
std::unique_ptr<LongOperation> tell_of_own_work(RollCall& roll, double pause_s);

}  // namespace moe::distributed
