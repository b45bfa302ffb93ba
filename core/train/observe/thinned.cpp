#include "core/train/observe/thinned.h"

#include <algorithm>

namespace moe::train {

void Thinned::add(int64_t step, double value) {
  const Point point{step, value};
  if (empty()) {
    first = least = largest = point;
  }
  last = point;
  least = value < least.value ? point : least;
  largest = value > largest.value ? point : largest;
  if (empty() || buckets_.back().place != step / width_) {
    buckets_.push_back({step / width_, step, step, point, point, 0, 0});
  }
  Bucket& bucket = buckets_.back();
  bucket.end = step;
  bucket.sum += value;
  ++bucket.count;
  bucket.least = value < bucket.least.value ? point : bucket.least;
  bucket.largest = value > bucket.largest.value ? point : bucket.largest;
  while (is_thinned() ? 2 * buckets_.size() + 2 > kMostPoints : buckets_.size() > kMostPoints) {
    merge_neighbours();
  }
}

void Thinned::merge_neighbours() {
  width_ *= 2;
  std::vector<Bucket> wider;
  for (Bucket bucket : buckets_) {
    bucket.place /= 2;
    if (wider.empty() || wider.back().place != bucket.place) {
      wider.push_back(bucket);
      continue;
    }
    Bucket& into = wider.back();
    into.end = bucket.end;
    into.sum += bucket.sum;
    into.count += bucket.count;
    into.least = bucket.least.value < into.least.value ? bucket.least : into.least;
    into.largest = bucket.largest.value > into.largest.value ? bucket.largest : into.largest;
  }
  buckets_ = std::move(wider);
}

std::vector<Point> Thinned::points() const {
  if (empty()) {
    return {};
  }
  std::vector<Point> points;
  const auto push = [&](Point point) {
    if (points.empty() || points.back().step < point.step) {
      points.push_back(point);
    }
  };
  push(first);
  for (const auto& bucket : buckets_) {
    const auto [early, late] = std::minmax(
        bucket.least, bucket.largest, [](Point one, Point two) { return one.step < two.step; });
    push(early);
    push(late);
  }
  push(last);
  return points;
}

std::vector<Point> Thinned::means() const {
  std::vector<Point> means;
  for (const auto& bucket : buckets_) {
    means.push_back({bucket.begin + (bucket.end - bucket.begin) / 2,
                     bucket.sum / static_cast<double>(bucket.count)});
  }
  return means;
}

}  // namespace moe::train
