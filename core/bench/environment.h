#pragma once
// What a measurement was taken with, for whoever reads it later, and what the process took.

#include <cstdint>

#include "core/base/json.h"

namespace moe::bench {

// Versions, machine, instruction set, threads, UTC date. `what` is the kind of measurement.
OrderedJson environment(const std::string& what);

// Of this process so far.
struct ProcessUse {
  double cpu_s = 0;         // user and system, all threads
  int64_t page_faults = 0;  // minor
  uint64_t peak_bytes = 0;  // resident
};
ProcessUse process_use();

// Anonymous resident bytes of this process now: what no file backs. 0 where the system does not
// say.
uint64_t anonymous_bytes();

}  // namespace moe::bench
