#pragma once
// Rows of every expert of every MoE layer over time, in bounded memory: columns of equal width in
// steps, whose width doubles when they become too many.

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/json.h"

namespace moe::train {

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

}  // namespace moe::train
