#pragma once
// moe bench comm: what the links between ranks carry.

#include "core/bench/comm.h"
#include "core/dist/session.h"

namespace moe::cli {

struct CommFlags {
  bench::CommSettings settings;
  dist::RankSettings ranks;
};

// Prints on rank 0.
void bench_comm(const CommFlags& flags, bool as_json);

}  // namespace moe::cli
