// A step of several processes against the same step of one: ranks as threads, each with a model of
// its own.

#include <mutex>

#include "core/model/convert/upcycle.h"
#include "core/train/step/gradients.h"
#include "core/train/step/updater.h"
#include "tests/support/catch.h"
#include "tests/support/rank_threads.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"

using namespace moe;
using namespace moe::train;
using at::Tensor;
using moe::test::TempDir;

namespace {

using Named = std::vector<model::NamedParameter>;

// Parameters of sizes that no number of processes divides, one an expert's.
Named some_parameters(int64_t seed) {
  at::manual_seed(seed);
  return {{"matrix", at::randn({7, 5}).requires_grad_(true)},
          {"experts", at::randn({3, 4, 2}).requires_grad_(true)},
          {"norm", at::randn({2}).requires_grad_(true)},
          {"unused", at::randn({3}).requires_grad_(true)}};
}

// The gradient of process `rank`; nobody has one of "unused", process 1 none of "norm".
void set_gradients(Named& parameters, int64_t rank) {
  at::manual_seed(100 + rank);
  for (auto& parameter : parameters) {
    const Tensor gradient = at::randn_like(parameter.tensor);
    if (parameter.name != "unused" && (parameter.name != "norm" || rank != 1)) {
      parameter.tensor.mutable_grad() = gradient;
    }
  }
}

AdamWSettings settings_of(io::DType moments) {
  AdamWSettings settings;
  settings.weight_decay = 0.1;
  settings.moments = moments;
  return settings;
}

double distance(const Tensor& a, const Tensor& b) {
  return ((a - b).norm() / (b.norm() + 1e-12)).item<double>();
}

}  // namespace

TEST_CASE("shards of several processes make the update of one, element by element", "[train]") {
  for (const io::DType moments : {io::DType::kF32, io::DType::kBF16}) {
    for (const int64_t processes : {1, 2, 3, 5}) {
      // One process, which has the sum of all gradients.
      Named alone = some_parameters(1);
      AdamW optimizer(alone, settings_of(moments), 9);
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
      double worst = 0, worst_norm = 0;
      test::run_as_threads(processes, [&](distributed::Comm& comm) {
        distributed::World world(comm, distributed::make_layout(processes, comm.rank(), {}, 1, 0));
        std::unique_lock seeded(mutex);  // the generator is everybody's
        Named mine = some_parameters(1);
        std::vector<Named> gradients;
        for (int step = 0; step < 3; ++step) {
          gradients.push_back(some_parameters(1));
          set_gradients(gradients.back(), comm.rank() + 10 * step);
        }
        seeded.unlock();
        RankShards shards(mine, world);
        AdamW own(shards.slices(), settings_of(moments), 9);
        double off = 0, off_norm = 0;
        for (int step = 0; step < 3; ++step) {
          for (size_t i = 0; i < mine.size(); ++i) {
            mine[i].tensor.mutable_grad() = gradients[step][i].tensor.grad();
          }
          shards.reduce_gradients();
          off_norm = std::max(off_norm, std::abs(shards.norm() / norms[step] - 1));
          own.step(1e-2);
          shards.gather_weights();
        }
        for (size_t i = 0; i < mine.size(); ++i) {
          off = std::max(off, distance(mine[i].tensor, alone[i].tensor));
        }
        const std::lock_guard lock(mutex);
        worst = std::max(worst, off);
        worst_norm = std::max(worst_norm, off_norm);
      });
      INFO(processes << " processes");
      // Sums of up to five f32 numbers in another order.
      CHECK(worst < 1e-6);
      CHECK(worst_norm < 1e-6);
    }
  }
}
