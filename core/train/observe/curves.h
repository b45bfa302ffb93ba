#pragma once
// Summaries of the steps of a run in bounded memory, for its report: curves, expert loads, and the
// stages of ReLU training. Steps are added in ascending order. history.json has their JSON;
// from_json() throws UserError, prefixed with `where`, if the JSON is not from to_json().

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/base/json.h"

namespace moe::train {

// Return the number of `key` in a JSON line; nothing if `line` is not an object, has no such key,
// or a value of another type. find_number() also returns nothing for NaN and infinity.
std::optional<double> find_number(const Json& line, const std::string& key);
std::optional<int64_t> find_int(const Json& line, const std::string& key);
bool is_finite_number(const Json& value);

struct Point {
  int64_t step = 0;
  double value = 0;
};

// Returns a weighted moving average with as many points, or none if there are too few to smooth.
std::vector<Point> smoothed(const std::vector<Point>& points);

// A curve downsampled for drawing: buckets of equal width in steps, which doubles when there are
// too many. A bucket keeps its mean, and its extremes with their steps: spikes remain visible.
class Downsampled {
 public:
  static constexpr size_t kMaxPoints = 1000;

  void add(int64_t step, double value);  // `value` must be finite
  bool empty() const { return buckets_.empty(); }

  // Returns at most `max_points` (>= 4) points in order: all, or the first, the last, and the
  // extremes of each bucket.
  std::vector<Point> points(size_t max_points = kMaxPoints) const;
  std::vector<Point> means() const;  // one per bucket, at its middle step
  bool is_downsampled() const { return width_ > 1; }

  OrderedJson to_json() const;
  static Downsampled from_json(const Json& json, const std::string& where);

  Point first, last, min, max;  // of all values; undefined if empty

 private:
  struct Bucket {
    int64_t index = 0;  // step / width_
    int64_t begin = 0, end = 0;
    Point min, max;
    double sum = 0;
    int64_t count = 0;
    void add(const Bucket& later);
  };
  bool exceeds(size_t max_points) const;  // true if points() would have more

  int64_t width_ = 1;
  std::vector<Bucket> buckets_;
};

// Rows of each expert of a MoE layer.
struct LayerLoad {
  int64_t layer = 0;
  std::vector<int64_t> rows;  // [E]
};

// Expert loads over time, in columns of equal width in steps, which doubles when there are many.
class LoadMap {
 public:
  struct Column {
    int64_t index = 0;             // step / width
    int64_t begin = 0, end = 0;    // first and last step
    std::vector<LayerLoad> loads;  // sums, one per layer
    void add(const Column& later);
  };

  // Ignores loads whose layers differ from those of the first step.
  void add(int64_t step, const std::vector<LayerLoad>& loads);
  bool empty() const { return columns_.empty(); }
  const std::vector<Column>& columns() const { return columns_; }

  OrderedJson to_json() const;
  static LoadMap from_json(const Json& json, const std::string& where);

 private:
  size_t max_columns() const;

  int64_t width_ = 1;
  std::vector<Column> columns_;
};

// Returns the "layers" of a line of metrics.jsonl; skips malformed ones.
std::vector<LayerLoad> parse_loads(const Json& line);

// Returns the rows of an expert over an equal share: 1 = balanced, 0 = no rows.
double relative_load(const LayerLoad& load, size_t expert);

// Watches MoE layers for collapse (core/train/README.md, "Collapse"). After every kSteps steps an
// expert is nearly idle if it had less than a tenth of an equal share of the rows of its layer in
// those steps. A layer with an idle expert is news once, until every expert has a fifth of its
// share. Layers with less than 20 rows per expert in those steps are not judged.
class CollapseWatch {
 public:
  static constexpr int64_t kSteps = 20;

  void add(int64_t step, const std::vector<LayerLoad>& loads);
  // Return a sentence about the layers that collapsed with the last step added, and about all that
  // were collapsed in the last kSteps steps; "" if there are none.
  const std::string& news() const { return news_; }
  const std::string& state() const { return state_; }

  OrderedJson to_json() const;
  static CollapseWatch from_json(const Json& json, const std::string& where);

 private:
  int64_t steps_ = 0;  // of the current window
  std::vector<LayerLoad> rows_;
  std::set<int64_t> collapsed_;  // layers
  std::string news_, state_;
};

// Ends of the stages of ReLU training (core/route/README.md, "Stages of ReLU training"): dense
// while lambda is too small to matter, then sparsifying, then stable around the target.
struct ReluStages {
  std::optional<double> first_sparsity;  // S_0, of the first step; unset before it
  double target = 0;
  // Last step before the end of the sparsifying stage with S <= S_0 + 0.05; 0 if there is none.
  int64_t dense_end = 0;
  std::optional<int64_t> sparsifying_end;  // first step with S >= S*

  // Adds the sparsity S of a step and its target S*.
  void add(int64_t step, double sparsity, double target_sparsity);

  OrderedJson to_json() const;  // null before the first step
  static ReluStages from_json(const Json& json, const std::string& where);
};

}  // namespace moe::train
