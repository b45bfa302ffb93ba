// Updates of several ranks (threads) against the update of one process.

#include <mutex>

#include "core/train/step/optimizer.h"
#include "tests/support/catch.h"
#include "tests/support/rank_threads.h"

using namespace moe;
using namespace moe::train;
using at::Tensor;

namespace {

using Named = std::vector<model::NamedParameter>;

// Sizes that are not multiples of the numbers of processes.
Named some_parameters(int64_t seed) {
  at::manual_seed(seed);
  return {{"matrix", at::randn({7, 5}).requires_grad_(true)},
          {"experts", at::randn({3, 4, 2}).requires_grad_(true)},
          {"norm", at::randn({2}).requires_grad_(true)},
          {"unused", at::randn({3}).requires_grad_(true)}};
}

// Sets the gradients of process `rank`. "unused" has none on any process, "norm" none on process 1.
void set_gradients(Named& parameters, int64_t rank) {
  at::manual_seed(100 + rank);
  for (auto& parameter : parameters) {
    const Tensor gradient = at::randn_like(parameter.tensor);
    if (parameter.name != "unused" && (parameter.name != "norm" || rank != 1)) {
      parameter.tensor.mutable_grad() = gradient;
    }
  }
}

AdamWSettings adamw_settings(io::DType moments) {
  AdamWSettings settings;
  settings.weight_decay = 0.1;
  settings.moments = moments;
  return settings;
}

double distance(const Tensor& a, const Tensor& b) {
  return ((a - b).norm() / (b.norm() + 1e-12)).item<double>();
}

}  // namespace

TEST_CASE("sharded AdamW on several processes gives the update of one process", "[train]") {
  for (const io::DType moments : {io::DType::kF32, io::DType::kBF16}) {
    for (const int64_t processes : {1, 2, 3, 5}) {
      // One process with the sum of all gradients.
      Named alone = some_parameters(1);
      AdamW optimizer(alone, adamw_settings(moments), 9);
      std::vector<double> norms;
      for (int step = 0; step < 3; ++step) {
        for (auto& parameter : alone) {
          parameter.tensor.mutable_grad() = Tensor();
        }
        for (int64_t rank = 0; rank < processes; ++rank) {
          Named other = some_parameters(1);
          set_gradients(other, rank + 10 * step);
          for (size_t i = 0; i < alone.size(); ++i) {
            const Tensor& more = other[i].tensor.grad();
            Tensor& sum = alone[i].tensor.mutable_grad();
            if (more.defined()) {
              sum = sum.defined() ? sum + more : more;
            }
          }
        }
        norms.push_back(gradient_norm(alone));
        optimizer.step(1e-2);
      }

      std::mutex mutex;
      double error = 0, norm_error = 0;
      test::run_as_threads(processes, [&](distributed::Comm& comm) {
        distributed::World world(comm, distributed::make_layout(processes, comm.rank(), {}, 1, 0));
        std::unique_lock seeded(mutex);  // all threads share the generator
        Named mine = some_parameters(1);
        std::vector<Named> gradients;
        for (int step = 0; step < 3; ++step) {
          gradients.push_back(some_parameters(1));
          set_gradients(gradients.back(), comm.rank() + 10 * step);
        }
        seeded.unlock();
        RankShards shards(mine, world);
        AdamW own(shards.slices(), adamw_settings(moments), 9);
        for (int step = 0; step < 3; ++step) {
          for (size_t i = 0; i < mine.size(); ++i) {
            mine[i].tensor.mutable_grad() = gradients[step][i].tensor.grad();
          }
          shards.reduce_gradients();
          const double norm = shards.norm();
          own.step(1e-2);
          shards.gather_weights();
          const std::lock_guard lock(mutex);
          norm_error = std::max(norm_error, std::abs(norm / norms[step] - 1));
        }
        const std::lock_guard lock(mutex);
        for (size_t i = 0; i < mine.size(); ++i) {
          error = std::max(error, distance(mine[i].tensor, alone[i].tensor));
        }
      });
      INFO(processes << " processes");
      // The order of sums of up to five f32 numbers differs.
      CHECK(error < 1e-6);
      CHECK(norm_error < 1e-6);
    }
  }
}
