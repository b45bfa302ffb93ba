#include "core/train/observe/downsampled.h"

#include <algorithm>
#include <cmath>

#include "core/base/error.h"

namespace moe::train {

namespace {

OrderedJson json_of(Point point) { return OrderedJson::array({point.step, point.value}); }

Point point_of(const Json& step, const Json& value, const std::string& where) {
  if (!step.is_number_integer() || !value.is_number() || !std::isfinite(value.get<double>())) {
    throw UserError("{}: a point of a curve must be a step and a finite number", where);
  }
  return {step, value};
}

Point read_point(const Json& json, const char* key, const std::string& where) {
  const Json pair = json.value(key, Json());
  if (!pair.is_array() || pair.size() != 2) {
    throw UserError("{}: '{}' of a curve must be [step, value]", where, key);
  }
  return point_of(pair[0], pair[1], where);
}

}  // namespace

void Downsampled::add(int64_t step, double value) {
  const Point point{step, value};
  if (empty()) {
    first = least = largest = point;
  }
  last = point;
  least = value < least.value ? point : least;
  largest = value > largest.value ? point : largest;
  if (empty() || buckets_.back().index != step / width_) {
    buckets_.push_back({step / width_, step, step, point, point, 0, 0});
  }
  Bucket& bucket = buckets_.back();
  bucket.end = step;
  bucket.sum += value;
  ++bucket.count;
  bucket.least = value < bucket.least.value ? point : bucket.least;
  bucket.largest = value > bucket.largest.value ? point : bucket.largest;
  while (exceeds(kMostPoints)) {
    merge_neighbours();
  }
}

bool Downsampled::exceeds(size_t most) const {
  return (is_downsampled() ? 2 * buckets_.size() + 2 : buckets_.size()) > most;
}

void Downsampled::merge_neighbours() {
  width_ *= 2;
  std::vector<Bucket> wider;
  for (Bucket bucket : buckets_) {
    bucket.index /= 2;
    if (wider.empty() || wider.back().index != bucket.index) {
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

std::vector<Point> Downsampled::points(size_t most) const {
  if (empty()) {
    return {};
  }
  if (exceeds(most)) {
    Downsampled fewer = *this;
    while (fewer.exceeds(most) && fewer.buckets_.size() > 1) {
      fewer.merge_neighbours();
    }
    return fewer.points(fewer.buckets_.size() * 2 + 2);
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
        bucket.least, bucket.largest, [](Point left, Point two) { return left.step < two.step; });
    push(early);
    push(late);
  }
  push(last);
  return points;
}

std::vector<Point> Downsampled::means() const {
  std::vector<Point> means;
  for (const auto& bucket : buckets_) {
    means.push_back({bucket.begin + (bucket.end - bucket.begin) / 2,
                     bucket.sum / static_cast<double>(bucket.count)});
  }
  return means;
}

OrderedJson Downsampled::to_json() const {
  OrderedJson buckets = OrderedJson::array();  // flat: nine numbers a bucket
  for (const auto& bucket : buckets_) {
    for (const int64_t number : {bucket.index, bucket.begin, bucket.end, bucket.count}) {
      buckets.push_back(number);
    }
    buckets.push_back(bucket.sum);
    for (const Point& point : {bucket.least, bucket.largest}) {
      buckets.push_back(point.step);
      buckets.push_back(point.value);
    }
  }
  return {{"width", width_},         {"first", json_of(first)},     {"last", json_of(last)},
          {"least", json_of(least)}, {"largest", json_of(largest)}, {"buckets", buckets}};
}

Downsampled Downsampled::from_json(const Json& json, const std::string& where) {
  constexpr size_t kNumbers = 9;
  Downsampled curve;
  curve.width_ = get_int(json, "width", where);
  curve.first = read_point(json, "first", where);
  curve.last = read_point(json, "last", where);
  curve.least = read_point(json, "least", where);
  curve.largest = read_point(json, "largest", where);
  const Json numbers = json.value("buckets", Json());
  if (curve.width_ < 1 || !numbers.is_array() || numbers.empty() ||
      numbers.size() % kNumbers != 0 || numbers.size() / kNumbers > kMostPoints) {
    throw UserError("{}: a curve must have a width and 1 to {} buckets of {} numbers", where,
                    kMostPoints, kNumbers);
  }
  for (size_t at = 0; at < numbers.size(); at += kNumbers) {
    for (size_t i = 0; i < 4; ++i) {
      if (!numbers[at + i].is_number_integer()) {
        throw UserError("{}: place, steps and count of a bucket must be whole numbers", where);
      }
    }
    Bucket bucket{numbers[at],
                  numbers[at + 1],
                  numbers[at + 2],
                  point_of(numbers[at + 5], numbers[at + 6], where),
                  point_of(numbers[at + 7], numbers[at + 8], where),
                  point_of(0, numbers[at + 4], where).value,
                  numbers[at + 3]};
    if (bucket.count < 1 || (!curve.empty() && bucket.index <= curve.buckets_.back().index)) {
      throw UserError("{}: the buckets of a curve must hold values and ascend", where);
    }
    curve.buckets_.push_back(bucket);
  }
  return curve;
}

}  // namespace moe::train
