#pragma once
// k-means on directions with clusters of equal size: what a router of --router-init cluster:FILE
// starts from (core/model/README.md, "Routers that know something at the start").

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace moe::model {

// Which cluster each of N points belongs to, each cluster having floor(N / E) or ceil(N / E) of
// them. `similarities` [N, E] f32: of all pairs of point and cluster the most similar are joined
// first, equal ones by point, then by cluster, unless the point has a cluster or the cluster is
// full: it takes a point beyond floor(N / E) only while fewer than N mod E clusters have done so.
std::vector<int64_t> balanced_clusters(const at::Tensor& similarities);

// The E centroids [E, D] f32 of `points` [N, D] f32, N >= E, of length 1: points are made of length
// 1, k-means++ (Arthur and Vassilvitskii 2007) draws the first centroids from `seed` and `stream`,
// and rounds of balanced_clusters() and means follow until no point changes its cluster, or 50 are
// done. Returns fewer rows where fewer than E points differ.
at::Tensor balanced_centroids(const at::Tensor& points, int64_t clusters, uint64_t seed,
                              const std::string& stream);

}  // namespace moe::model
