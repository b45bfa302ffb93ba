#include "core/train/observe/curves.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/base/error.h"

namespace moe::train {
namespace {

void require(bool condition, const std::string& where, const char* rule) {
  USER_ERROR_IF(!condition, "{}: {}", where, rule);
}

OrderedJson to_pair(Point point) { return OrderedJson::array({point.step, point.value}); }

Point read_point(const Json& json, const char* key, const std::string& where) {
  const Json pair = json.value(key, Json());
  require(pair.is_array() && pair.size() == 2 && pair[0].is_number_integer() && pair[1].is_number(),
          where, "a point of a curve must be [step, number]");
  return {pair[0], pair[1]};
}

constexpr size_t kMaxColumns = 160;  // the resolution of a screen

// Appends `next`, or adds it to the last of `buckets` if both have the same index.
template <typename Bucket>
void append_or_add(std::vector<Bucket>& buckets, Bucket next) {
  if (!buckets.empty() && buckets.back().index == next.index) {
    buckets.back().add(next);
  } else {
    buckets.push_back(std::move(next));
  }
}

// Merges the buckets into buckets of twice the width.
template <typename Bucket>
void double_width(std::vector<Bucket>& buckets, int64_t& width) {
  width *= 2;
  std::vector<Bucket> wider;
  for (Bucket& bucket : buckets) {
    bucket.index /= 2;
    append_or_add(wider, std::move(bucket));
  }
  buckets = std::move(wider);
}

std::pair<int64_t, size_t> shape(const LayerLoad& load) { return {load.layer, load.rows.size()}; }

void add_rows(std::vector<LayerLoad>& sums, const std::vector<LayerLoad>& loads) {
  for (size_t layer = 0; layer < sums.size(); ++layer) {
    for (size_t expert = 0; expert < sums[layer].rows.size(); ++expert) {
      sums[layer].rows[expert] += loads[layer].rows[expert];
    }
  }
}

// Returns the first `count` of `words`, and the number of the others.
std::string first_of(std::vector<std::string> words, size_t count, const char* separator) {
  if (words.size() > count) {
    words[count] = fmt::format("{} more", words.size() - count);
    words.resize(count + 1);
  }
  return fmt::format("{}", fmt::join(words, separator));
}

constexpr double kDenseTolerance = 0.05;  // variation of S while lambda is negligible

}  // namespace

bool is_finite_number(const Json& value) {
  return value.is_number() && std::isfinite(value.get<double>());
}

std::optional<double> find_number(const Json& line, const std::string& key) {
  const auto value = line.find(key);
  return value != line.end() && is_finite_number(*value) ? std::optional(value->get<double>())
                                                         : std::nullopt;
}

std::optional<int64_t> find_int(const Json& line, const std::string& key) {
  const auto value = line.find(key);
  return value != line.end() && value->is_number_integer() ? std::optional(value->get<int64_t>())
                                                           : std::nullopt;
}

std::vector<Point> smoothed(const std::vector<Point>& points) {
  constexpr int64_t kMinPoints = 20, kWidthDivisor = 30;
  const auto count = std::ssize(points);
  if (count < kMinPoints) {
    return {};
  }
  const auto max_width = std::max<int64_t>(1, count / kWidthDivisor);  // half of a window
  std::vector<Point> smooth;
  for (int64_t index = 0; index < count; ++index) {  // symmetric, to avoid lag at the ends
    const int64_t width = std::min({max_width, index, count - 1 - index});
    double sum = 0, weights = 0;
    for (int64_t offset = -width; offset <= width; ++offset) {
      const double weight = width + 1 - std::abs(offset);
      sum += weight * points[index + offset].value;
      weights += weight;
    }
    smooth.push_back({points[index].step, sum / weights});
  }
  return smooth;
}

void Downsampled::add(int64_t step, double value) {
  const Point point{step, value};
  if (empty()) {
    first = min = max = point;
  }
  last = point;
  min = value < min.value ? point : min;
  max = value > max.value ? point : max;
  append_or_add(buckets_, {step / width_, step, step, point, point, /*sum=*/value, 1});
  while (exceeds(kMaxPoints)) {
    double_width(buckets_, width_);
  }
}

void Downsampled::Bucket::add(const Bucket& later) {
  end = later.end;
  sum += later.sum;
  count += later.count;
  min = later.min.value < min.value ? later.min : min;
  max = later.max.value > max.value ? later.max : max;
}

bool Downsampled::exceeds(size_t max_points) const {
  return (is_downsampled() ? 2 * buckets_.size() + 2 : buckets_.size()) > max_points;
}

std::vector<Point> Downsampled::points(size_t max_points) const {
  if (empty()) {
    return {};
  }
  if (exceeds(max_points)) {
    Downsampled fewer = *this;
    while (fewer.exceeds(max_points) && fewer.buckets_.size() > 1) {
      double_width(fewer.buckets_, fewer.width_);
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
        bucket.min, bucket.max, [](Point left, Point right) { return left.step < right.step; });
    push(early);
    push(late);
  }
  push(last);
  return points;
}

std::vector<Point> Downsampled::means() const {
  std::vector<Point> means;
  for (const auto& bucket : buckets_) {
    means.push_back({bucket.begin + (bucket.end - bucket.begin) / 2, bucket.sum / bucket.count});
  }
  return means;
}

OrderedJson Downsampled::to_json() const {
  OrderedJson buckets = OrderedJson::array();  // flat: nine numbers per bucket
  for (const auto& bucket : buckets_) {
    for (const int64_t number : {bucket.index, bucket.begin, bucket.end, bucket.count}) {
      buckets.push_back(number);
    }
    buckets.push_back(bucket.sum);
    for (const Point& point : {bucket.min, bucket.max}) {
      buckets.push_back(point.step);
      buckets.push_back(point.value);
    }
  }
  return {{"width", width_},       {"first", to_pair(first)}, {"last", to_pair(last)},
          {"least", to_pair(min)}, {"largest", to_pair(max)}, {"buckets", buckets}};
}

Downsampled Downsampled::from_json(const Json& json, const std::string& where) {
  constexpr size_t kNumbers = 9;
  Downsampled curve;
  curve.width_ = get_int(json, "width", where);
  curve.first = read_point(json, "first", where);
  curve.last = read_point(json, "last", where);
  curve.min = read_point(json, "least", where);
  curve.max = read_point(json, "largest", where);
  const Json numbers = json.value("buckets", Json());
  USER_ERROR_IF(curve.width_ < 1 || !numbers.is_array() || numbers.empty() ||
                    numbers.size() % kNumbers != 0 || numbers.size() / kNumbers > kMaxPoints,
                "{}: a curve must have a width and 1 to {} buckets of {} numbers", where,
                kMaxPoints, kNumbers);
  const std::set<size_t> kValues = {4, 6, 8};  // the others are integers
  for (size_t at = 0; at < numbers.size(); at += kNumbers) {
    for (size_t i = 0; i < kNumbers; ++i) {
      const Json& number = numbers[at + i];
      require(kValues.contains(i) ? number.is_number() : number.is_number_integer(), where,
              "index, steps and count of a bucket must be integers, and its values numbers");
    }
    Bucket bucket{numbers[at],
                  numbers[at + 1],
                  numbers[at + 2],
                  {numbers[at + 5], numbers[at + 6]},
                  {numbers[at + 7], numbers[at + 8]},
                  numbers[at + 4],
                  numbers[at + 3]};
    require(bucket.count >= 1 && (curve.empty() || bucket.index > curve.buckets_.back().index),
            where, "the buckets of a curve must hold values and ascend");
    curve.buckets_.push_back(bucket);
  }
  return curve;
}

void LoadMap::add(int64_t step, const std::vector<LayerLoad>& loads) {
  if (loads.empty() ||
      (!empty() && !std::ranges::equal(columns_.front().loads, loads, {}, shape, shape))) {
    return;
  }
  append_or_add(columns_, {step / width_, step, step, loads});
  while (columns_.size() > max_columns()) {
    double_width(columns_, width_);
  }
}

void LoadMap::Column::add(const Column& later) {
  end = later.end;
  add_rows(loads, later.loads);
}

// Returns the maximum number of columns: fewer for many layers and experts, which would make the
// page large.
size_t LoadMap::max_columns() const {
  constexpr size_t kMaxCells = 100'000, kMinColumns = 8;
  size_t rows = 0;
  for (const auto& load : columns_.front().loads) {
    rows += load.rows.size();
  }
  return std::clamp(kMaxCells / std::max<size_t>(1, rows), kMinColumns, kMaxColumns);
}

OrderedJson LoadMap::to_json() const {
  OrderedJson layers = OrderedJson::array(), columns = OrderedJson::array();
  for (const auto& load : empty() ? std::vector<LayerLoad>() : columns_.front().loads) {
    layers.push_back({load.layer, load.rows.size()});
  }
  for (const auto& column : columns_) {
    std::vector<int64_t> numbers = {column.index, column.begin, column.end};
    for (const auto& load : column.loads) {
      numbers.insert(numbers.end(), load.rows.begin(), load.rows.end());
    }
    columns.push_back(numbers);
  }
  return {{"width", width_}, {"layers", layers}, {"columns", columns}};
}

LoadMap LoadMap::from_json(const Json& json, const std::string& where) {
  LoadMap map;
  map.width_ = get_int(json, "width", where);
  std::vector<LayerLoad> shape;
  size_t cells = 0;
  for (const auto& pair : json.value("layers", Json::array())) {
    require(pair.is_array() && pair.size() == 2 && pair[0].is_number_integer() &&
                pair[1].is_number_unsigned() && pair[1] <= 1'000'000,
            where, "a layer of the load map must be [layer, experts]");
    shape.push_back({pair[0], std::vector<int64_t>(pair[1].get<size_t>())});
    cells += shape.back().rows.size();
  }
  for (const auto& numbers : json.value("columns", Json::array())) {
    const bool fits = numbers.is_array() && numbers.size() == 3 + cells &&
                      std::ranges::all_of(numbers, &Json::is_number_integer);
    require(fits && map.width_ >= 1 && !shape.empty() && map.columns_.size() < kMaxColumns, where,
            "a column of the load map must be three numbers and a row count for each expert");
    Column column{numbers[0], numbers[1], numbers[2], shape};
    size_t at = 3;
    for (auto& load : column.loads) {
      for (auto& rows : load.rows) {
        rows = numbers[at++];
      }
    }
    map.columns_.push_back(std::move(column));
  }
  return map;
}

std::vector<LayerLoad> parse_loads(const Json& line) {
  constexpr int64_t kMaxRows = int64_t{1} << 40;
  std::vector<LayerLoad> loads;
  const auto layers = line.find("layers");
  if (layers == line.end() || !layers->is_array()) {
    return loads;
  }
  for (const auto& json : *layers) {
    const auto layer = find_int(json, "layer");
    const auto rows = json.find("load");
    if (!layer || rows == json.end() || !rows->is_array()) {
      continue;
    }
    loads.push_back({*layer, {}});
    for (const auto& count : *rows) {
      const int64_t value = count.is_number_integer() ? count.get<int64_t>() : 0;
      loads.back().rows.push_back(std::clamp<int64_t>(value, 0, kMaxRows));
    }
  }
  return loads;
}

double relative_load(const LayerLoad& load, size_t expert) {
  const double total = std::accumulate(load.rows.begin(), load.rows.end(), 0.0);
  return total > 0 ? static_cast<double>(load.rows[expert]) *
                         static_cast<double>(load.rows.size()) / total
                   : 0;
}

void CollapseWatch::add(int64_t step, const std::vector<LayerLoad>& loads) {
  constexpr int64_t kMinRows = 20;  // per expert; with fewer, chance leaves one idle
  constexpr int64_t kIdle = 10, kRecovered = 5;
  news_.clear();
  if (!std::ranges::equal(rows_, loads, {}, shape, shape)) {
    rows_ = loads;
    steps_ = 0;
  } else {
    add_rows(rows_, loads);
  }
  if (++steps_ < kSteps || loads.empty()) {
    return;
  }
  std::vector<std::string> all, fresh;
  for (const auto& [layer, rows] : rows_) {
    const auto experts = std::ssize(rows);
    const auto sum = std::accumulate(rows.begin(), rows.end(), int64_t{0});
    std::vector<std::string> idle;
    bool has_recovered = sum >= kMinRows * experts;
    for (int64_t expert = 0; expert < experts && sum >= kMinRows * experts; ++expert) {
      if (rows[expert] * experts * kIdle < sum) {
        idle.push_back(fmt::format("{}", expert));
      }
      has_recovered = has_recovered && rows[expert] * experts * kRecovered >= sum;
    }
    if (has_recovered) {
      collapsed_.erase(layer);
    }
    if (idle.empty()) {
      continue;
    }
    const auto busiest = std::ranges::max_element(rows);
    all.push_back(fmt::format("layer {}: {} of {} ({}), while expert {} has {:.0f} %", layer,
                              idle.size(), experts, first_of(idle, 8, ", "), busiest - rows.begin(),
                              100.0 * *busiest / sum));
    if (collapsed_.insert(layer).second) {
      fresh.push_back(all.back());
    }
  }
  const auto sentence = [&](const std::vector<std::string>& layers) {
    return layers.empty()
               ? ""
               : fmt::format(
                     "experts are nearly idle, each with less than {:.3g} % of the routed "
                     "tokens of its layer (a tenth of an equal share) in steps {} to {}: "
                     "{}. They hardly learn; a higher --lb-coef (0.1; top-k and top-p) or a "
                     "router with bias=0.01 (top-k) spreads the tokens, and a lower --lr keeps "
                     "them spread",
                     10.0 / std::ssize(rows_.front().rows), step - kSteps + 1, step,
                     first_of(layers, 4, "; "));
  };
  state_ = sentence(all);
  news_ = sentence(fresh);
  rows_.clear();
}

OrderedJson CollapseWatch::to_json() const {
  OrderedJson rows = OrderedJson::array();
  for (const auto& load : rows_) {
    rows.push_back({{"layer", load.layer}, {"rows", load.rows}});
  }
  return {{"steps", steps_}, {"layers", rows}, {"collapsed", collapsed_}, {"state", state_}};
}

CollapseWatch CollapseWatch::from_json(const Json& json, const std::string& where) {
  CollapseWatch watch;
  if (json.is_null()) {  // an older version
    return watch;
  }
  watch.steps_ = get_int(json, "steps", where);
  for (const auto& load : json.value("layers", Json::array())) {
    watch.rows_.push_back({get_int(load, "layer", where), get_ints(load, "rows", where)});
  }
  const auto collapsed = get_ints(json, "collapsed", where);
  watch.collapsed_ = {collapsed.begin(), collapsed.end()};
  watch.state_ = get_string(json, "state", where);
  return watch;
}

void ReluStages::add(int64_t step, double sparsity, double target_sparsity) {
  target = target_sparsity;
  first_sparsity = first_sparsity.value_or(sparsity);
  if (sparsifying_end) {
    return;
  }
  if (sparsity >= target) {
    sparsifying_end = step;
  } else if (sparsity <= *first_sparsity + kDenseTolerance) {
    dense_end = step;
  }
}

OrderedJson ReluStages::to_json() const {
  if (!first_sparsity) {
    return nullptr;
  }
  return {{"first_sparsity", *first_sparsity},
          {"target", target},
          {"dense_end", dense_end},
          {"sparsifying_end", sparsifying_end.value_or(0)}};
}

ReluStages ReluStages::from_json(const Json& json, const std::string& where) {
  ReluStages stages;
  if (json.is_null()) {
    return stages;
  }
  stages.first_sparsity = get_double(json, "first_sparsity", where);
  stages.target = get_double(json, "target", where);
  stages.dense_end = get_int(json, "dense_end", where);
  if (const int64_t end = get_int(json, "sparsifying_end", where); end > 0) {
    stages.sparsifying_end = end;
  }
  return stages;
}

}  // namespace moe::train
