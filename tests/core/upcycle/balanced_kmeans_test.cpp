// Balanced clusters and spherical k-means against plain loops.

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/base/random.h"
#include "core/upcycle/router_init.h"
#include "tests/support/catch.h"

namespace moe::model {
namespace {

using Rows = std::vector<std::vector<double>>;

at::Tensor random_points(int64_t points, int64_t width, uint64_t seed) {
  at::Tensor out = at::empty({points, width}, at::kFloat);
  Random random(seed, "points");
  random.fill_normal({out.data_ptr<float>(), static_cast<size_t>(out.numel())}, 1.0);
  return out;
}

Rows rows_of(const at::Tensor& tensor) {
  Rows rows;
  for (int64_t row = 0; row < tensor.size(0); ++row) {
    rows.emplace_back();
    for (int64_t column = 0; column < tensor.size(1); ++column) {
      rows.back().push_back(tensor[row][column].item<double>());
    }
  }
  return rows;
}

// Joins the most similar pair of point and non-full cluster until all points have a cluster.
std::vector<int64_t> clusters_by_loops(const Rows& similarities) {
  const size_t points = similarities.size(), clusters = similarities[0].size();
  std::vector<int64_t> cluster_of(points, -1), sizes(clusters, 0);
  const auto least = static_cast<int64_t>(points / clusters);
  const auto may_be_larger = static_cast<int64_t>(points % clusters);
  for (size_t joined = 0; joined < points; ++joined) {
    const auto larger =
        std::count_if(sizes.begin(), sizes.end(), [&](int64_t size) { return size > least; });
    size_t best_point = points, best_cluster = 0;
    for (size_t point = 0; point < points; ++point) {
      for (size_t cluster = 0; cluster < clusters; ++cluster) {
        const bool is_free =
            sizes[cluster] < least || (sizes[cluster] == least && larger < may_be_larger);
        if (cluster_of[point] < 0 && is_free &&
            (best_point == points ||
             similarities[point][cluster] > similarities[best_point][best_cluster])) {
          best_point = point;
          best_cluster = cluster;
        }
      }
    }
    cluster_of[best_point] = static_cast<int64_t>(best_cluster);
    ++sizes[best_cluster];
  }
  return cluster_of;
}

void normalise(std::vector<double>& row) {
  const double norm = std::sqrt(std::inner_product(row.begin(), row.end(), row.begin(), 0.0));
  for (double& value : row) {
    value /= norm;
  }
}

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

// k-means++ and the rounds, in f64.
Rows centroids_by_loops(Rows points, size_t clusters, uint64_t seed, const std::string& stream) {
  for (auto& point : points) {
    normalise(point);
  }
  Random random(seed, stream);
  Rows centroids = {points[random.below(points.size())]};
  while (centroids.size() < clusters) {
    std::vector<double> weights;
    for (const auto& point : points) {
      double nearest = 4;
      for (const auto& centroid : centroids) {
        nearest = std::min(nearest, 2 - 2 * dot(point, centroid));
      }
      weights.push_back(nearest < 1e-6 ? 0 : nearest);
    }
    double left = random.uniform() * std::accumulate(weights.begin(), weights.end(), 0.0);
    size_t drawn = 0;
    while ((left -= weights[drawn]) >= 0) {
      ++drawn;
    }
    centroids.push_back(points[drawn]);
  }
  std::vector<int64_t> before;
  for (int round = 0; round < 50; ++round) {
    Rows similarities;
    for (const auto& point : points) {
      similarities.emplace_back();
      for (const auto& centroid : centroids) {
        similarities.back().push_back(dot(point, centroid));
      }
    }
    const auto cluster_of = clusters_by_loops(similarities);
    if (cluster_of == before) {
      break;
    }
    before = cluster_of;
    centroids.assign(clusters, std::vector<double>(points[0].size(), 0.0));
    for (size_t point = 0; point < points.size(); ++point) {
      auto& centroid = centroids[static_cast<size_t>(cluster_of[point])];
      std::transform(centroid.begin(), centroid.end(), points[point].begin(), centroid.begin(),
                     std::plus<>());
    }
    for (auto& centroid : centroids) {
      normalise(centroid);
    }
  }
  return centroids;
}

TEST_CASE("balanced clusters equal those of plain loops, and their sizes differ by at most one",
          "[model]") {
  for (const auto& [points, clusters] : std::vector<std::pair<int64_t, int64_t>>{
           {1, 1}, {5, 4}, {4, 4}, {31, 2}, {32, 8}, {33, 8}, {39, 8}}) {
    for (const bool has_ties : {false, true}) {
      CAPTURE(points, clusters, has_ties);
      at::Tensor similarities = random_points(points, clusters, 7);
      similarities = has_ties ? similarities.round() : similarities;
      const auto cluster_of = balanced_clusters(similarities);
      CHECK(cluster_of == clusters_by_loops(rows_of(similarities)));
      for (int64_t cluster = 0; cluster < clusters; ++cluster) {
        const auto size = std::count(cluster_of.begin(), cluster_of.end(), cluster);
        CHECK(size >= points / clusters);
        CHECK(size <= (points + clusters - 1) / clusters);
      }
    }
  }
}

TEST_CASE("balanced centroids equal those of plain loops and are determined by the seed",
          "[model]") {
  const at::Tensor points = random_points(61, 6, 3);
  for (const uint64_t seed : {1, 2, 3}) {
    const at::Tensor centroids = balanced_centroids(points, 4, seed, "a layer");
    const Rows expected = centroids_by_loops(rows_of(points), 4, seed, "a layer");
    REQUIRE(centroids.sizes() == at::IntArrayRef({4, 6}));
    for (int64_t row = 0; row < 4; ++row) {
      for (int64_t column = 0; column < 6; ++column) {
        // Means of some 15 unit vectors in f32 against f64: a few epsilons (6e-8) of 1.
        CHECK(centroids[row][column].item<double>() ==
              Approx(expected[static_cast<size_t>(row)][static_cast<size_t>(column)]).margin(2e-6));
      }
    }
    CHECK(at::equal(centroids, balanced_centroids(points, 4, seed, "a layer")));
  }
  CHECK_FALSE(at::equal(balanced_centroids(points, 4, 1, "a layer"),
                        balanced_centroids(points, 4, 1, "another layer")));
}

TEST_CASE("fewer different points than clusters give fewer centroids", "[model]") {
  const at::Tensor points = random_points(2, 5, 1).repeat({4, 1});
  CHECK(balanced_centroids(points, 3, 1, "a layer").size(0) == 2);
  CHECK(balanced_centroids(points, 2, 1, "a layer").size(0) == 2);
}

}  // namespace
}  // namespace moe::model
