#pragma once
// Mixtures of a tiny dense model, loaded or with experts that differ.

#include "core/model/llama/llama.h"
#include "tests/support/mixture.h"

namespace moe::test {

// Upcycles a new tiny dense model in `dir` and loads the mixture, whose layers 0 and 2 have
// experts.
inline model::Llama load_tiny_mixture(const TempDir& dir, const Mixture& mixture) {
  write_tiny_checkpoint(dir / "dense");
  write_mixture(dir / "dense", dir / "moe", mixture);
  return model::Llama::load(io::Checkpoint(dir / "moe"));
}

// Upcycles dir/dense to dir/moe, whose experts differ: normal noise of this deviation and seed is
// added to every parameter.
inline void write_varied_mixture(const TempDir& dir, const Mixture& mixture, double deviation,
                                 uint64_t seed) {
  write_mixture(dir / "dense", dir / "copies", mixture);
  const io::Checkpoint copies(dir / "copies");
  const model::Llama model = model::Llama::load(copies);
  at::manual_seed(seed);
  for (const auto& parameter : model.parameters()) {
    at::Tensor tensor = parameter.tensor;
    tensor += at::randn_like(tensor) * deviation;
  }
  model::save_folder(model, model.default_routing(), copies, dir / "moe", false,
                     *distributed::solo_comm());
}

}  // namespace moe::test
