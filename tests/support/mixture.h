#pragma once
// Upcycled folders for tests of other libraries.

#include <cstdint>
#include <optional>

#include "core/upcycle/upcycle.h"
#include "tests/support/tiny_checkpoint.h"

namespace moe::test {

// Settings of upcycling; the others have the defaults of `moe upcycle` (every second layer).
struct Mixture {
  std::string router;
  int64_t experts = 8;
  std::optional<double> router_std = {};  // large: tokens choose different experts
  std::optional<int64_t> ep_ranks = {};
  bool shared_expert = false;
};

// Upcycles the folder `dense` into `out`, which is replaced.
inline void write_mixture(const std::filesystem::path& dense, const std::filesystem::path& out,
                          const Mixture& mixture) {
  model::UpcycleSettings settings;
  settings.out = out;
  settings.experts = mixture.experts;
  settings.router = route::parse_router(mixture.router);
  settings.router_std = mixture.router_std;
  settings.ep_ranks = mixture.ep_ranks;
  settings.shared_expert = mixture.shared_expert;
  settings.force = true;
  const io::Checkpoint parent(dense);
  model::upcycle(parent, model::plan_upcycle(parent, settings), settings);
}

}  // namespace moe::test
