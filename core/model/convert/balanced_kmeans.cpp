#include "core/model/convert/balanced_kmeans.h"

#include <ATen/ATen.h>

#include "core/base/error.h"
#include "core/base/random.h"

namespace moe::model {

using at::Tensor;

namespace {

constexpr int kMostRounds = 50;
// Squared distances of unit vectors below this are rounding: the two are one.
constexpr double kSamePoint = 1e-6;

// The number of a point, drawn with probabilities in proportion to `weights` [N] f64.
int64_t draw(const Tensor& weights, double sum, Random& random) {
  double left = random.uniform() * sum;
  const double* const weight = weights.const_data_ptr<double>();
  int64_t last = 0;
  for (int64_t point = 0; point < weights.size(0); ++point) {
    if (weight[point] > 0) {
      last = point;
      if ((left -= weight[point]) < 0) {
        break;
      }
    }
  }
  return last;
}

// [E, D], or fewer rows where fewer than E of the unit vectors `points` [N, D] differ.
Tensor first_centroids(const Tensor& points, int64_t clusters, Random& random) {
  std::vector<Tensor> chosen;
  Tensor nearest;  // [N] f64, squared distances to the nearest centroid
  auto next = static_cast<int64_t>(random.below(static_cast<uint64_t>(points.size(0))));
  for (;;) {
    chosen.push_back(points[next]);
    if (static_cast<int64_t>(chosen.size()) == clusters) {
      break;
    }
    Tensor squared = 2 - 2 * at::mv(points, points[next]).to(at::kDouble);
    squared = at::where(squared < kSamePoint, 0.0, squared);
    nearest = nearest.defined() ? at::minimum(nearest, squared) : squared;
    const double sum = nearest.sum().item<double>();
    if (sum == 0) {
      break;
    }
    next = draw(nearest, sum, random);
  }
  return at::stack(chosen);
}

Tensor unit_rows(const Tensor& rows) {
  return rows / at::linalg_vector_norm(rows, 2, 1, /*keepdim=*/true).clamp_min(1e-30);
}

}  // namespace

std::vector<int64_t> balanced_clusters(const Tensor& similarities) {
  const int64_t points = similarities.size(0), clusters = similarities.size(1);
  const Tensor order =
      (-similarities).flatten().argsort(/*stable=*/true, /*dim=*/0, /*descending=*/false);
  const int64_t* const pair = order.const_data_ptr<int64_t>();
  std::vector<int64_t> cluster_of(static_cast<size_t>(points), -1);
  std::vector<int64_t> sizes(static_cast<size_t>(clusters), 0);
  const int64_t least = points / clusters;
  int64_t larger_left = points % clusters;  // clusters that may still take one more than `least`
  for (int64_t index = 0; index < order.size(0); ++index) {
    int64_t& cluster = cluster_of[static_cast<size_t>(pair[index] / clusters)];
    int64_t& size = sizes[static_cast<size_t>(pair[index] % clusters)];
    if (cluster >= 0 || size > least || (size == least && larger_left == 0)) {
      continue;
    }
    larger_left -= size == least ? 1 : 0;
    ++size;
    cluster = pair[index] % clusters;
  }
  return cluster_of;
}

Tensor balanced_centroids(const Tensor& points, int64_t clusters, uint64_t seed,
                          const std::string& stream) {
  MOE_CHECK(points.size(0) >= clusters && clusters > 0, "{} points in {} clusters", points.size(0),
            clusters);
  const Tensor units = unit_rows(points);
  Random random(seed, stream);
  Tensor centroids = first_centroids(units, clusters, random);
  std::vector<int64_t> before;
  for (int round = 0; round < kMostRounds && centroids.size(0) == clusters; ++round) {
    std::vector<int64_t> cluster_of = balanced_clusters(at::mm(units, centroids.t()));
    if (cluster_of == before) {
      break;
    }
    const Tensor sums = at::zeros_like(centroids);
    sums.index_add_(0, at::tensor(cluster_of, at::kLong), units);
    centroids = unit_rows(sums);  // the mean of a cluster and their sum have one direction
    before = std::move(cluster_of);
  }
  return centroids;
}

}  // namespace moe::model
