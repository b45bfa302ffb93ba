#pragma once
// Checks for equal bits with any number of threads.

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <vector>

#include "tests/support/catch.h"

namespace moe::test {

inline bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() &&
         at::equal(a.contiguous().view({-1}).view(at::kByte),
                   b.contiguous().view({-1}).view(at::kByte));
}

// Returns the results of `run` with one thread and checks that 2, 4 and 8 give equal bits.
template <typename Run>
std::vector<at::Tensor> by_any_threads(Run run) {
  const int before = at::get_num_threads();
  std::vector<at::Tensor> first;
  for (const int threads : {1, 2, 4, 8}) {
    at::set_num_threads(threads);
    const std::vector<at::Tensor> results = run();
    for (size_t i = 0; i < results.size(); ++i) {
      INFO("result " << i << " with " << threads << " threads");
      CHECK((threads == 1 || same_bits(results[i], first[i])));
    }
    first = threads == 1 ? results : first;
  }
  at::set_num_threads(before);
  return first;
}

}  // namespace moe::test
