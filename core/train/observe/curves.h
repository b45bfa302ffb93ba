#pragma once
// A curve of any length in bounded memory, for drawing: steps fall into buckets of equal width, and
// the width doubles when they become too many. Of each bucket the least and the largest value stay,
// with their steps, so no spike is lost, and the mean.

#include <cstdint>
#include <optional>
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

// Rows of every expert of every MoE layer over time, in bounded memory: columns of equal width in
// steps, whose width doubles when they become too many.

struct LayerLoad {
  int64_t layer = 0;
  std::vector<int64_t> rows;  // [E]
};

class LoadMap {
 public:
  struct Column {
    int64_t index = 0;             // step / width
    int64_t begin = 0, end = 0;    // first and last step
    std::vector<LayerLoad> loads;  // summed, one a layer
  };

  // Steps ascend. Layers that are not those of the first step are left out.
  void add(int64_t step, const std::vector<LayerLoad>& loads);
  bool empty() const { return columns_.empty(); }
  const std::vector<Column>& columns() const { return columns_; }

  OrderedJson to_json() const;
  // The same map, to go on with. UserError, opened by `where`: it is not what to_json() makes.
  static LoadMap from_json(const Json& json, const std::string& where);

 private:
  size_t most_columns() const;

  int64_t width_ = 1;
  std::vector<Column> columns_;
};

// The "layers" of a line of metrics.jsonl; those that are not ours are left out.
std::vector<LayerLoad> loads_of(const Json& line);

// Rows of an expert over an equal share: 1 = balanced, 0 = dead; 0 for a layer without rows.
double relative_load(const LayerLoad& load, size_t expert);

// When the stages of ReLU training end (core/route/README.md, "Stages of ReLU training"): dense
// while lambda is too small to matter, then sparsifying, then stable around the target.

class ReluStages {
 public:
  // The sparsity S of a step and its target S*; steps ascend. Whether the sparsifying stage ended
  // with it, which happens once.
  bool add(int64_t step, double sparsity, double target);

  bool has_begun() const { return first_.has_value(); }
  double target() const { return target_; }
  // The last step with S <= S_0 + 0.05, S_0 of the first step; of those before the stage after it
  // ended. 0 where no step was dense.
  int64_t dense_end() const { return dense_end_; }
  // The first step with S >= S*.
  std::optional<int64_t> sparsifying_end() const { return sparsifying_end_; }

  OrderedJson to_json() const;  // null before the first step
  // UserError, opened by `where`: it is not what to_json() makes.
  static ReluStages from_json(const Json& json, const std::string& where);

 private:
  std::optional<double> first_;
  double target_ = 0;
  int64_t dense_end_ = 0;
  std::optional<int64_t> sparsifying_end_;
};

}  // namespace moe::train
