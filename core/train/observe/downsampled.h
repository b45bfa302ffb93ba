#pragma once
// A curve of any length in bounded memory, for drawing: steps fall into buckets of equal width, and
// the width doubles when they become too many. Of each bucket the least and the largest value stay,
// with their steps, so no spike is lost, and the mean.

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/json.h"

namespace moe::train {

struct Point {
  int64_t step = 0;
  double value = 0;
};

class Downsampled {
 public:
  static constexpr size_t kMostPoints = 1000;

  void add(int64_t step, double value);  // steps ascend, values are finite
  bool empty() const { return buckets_.empty(); }

  // By step, at most `most` (4 or more): all that were added, or two a bucket and the first and
  // last. None where none was added.
  std::vector<Point> points(size_t most = kMostPoints) const;
  std::vector<Point> means() const;  // one a bucket, at its middle step
  bool is_downsampled() const { return width_ > 1; }

  OrderedJson to_json() const;
  // The same curve, to go on with. UserError, opened by `where`: it is not what to_json() makes.
  static Downsampled from_json(const Json& json, const std::string& where);

  Point first, last, least, largest;  // of all that were added

 private:
  struct Bucket {
    int64_t index = 0;  // step / width_
    int64_t begin = 0, end = 0;
    Point least, largest;
    double sum = 0;
    int64_t count = 0;
  };
  bool exceeds(size_t most) const;  // points() would have more
  void merge_neighbours();

  int64_t width_ = 1;
  std::vector<Bucket> buckets_;
};

}  // namespace moe::train
