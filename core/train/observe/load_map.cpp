#include "core/train/observe/load_map.h"

#include <algorithm>
#include <numeric>

namespace moe::train {

namespace {

bool have_one_shape(const std::vector<LayerLoad>& one, const std::vector<LayerLoad>& other) {
  return std::equal(one.begin(), one.end(), other.begin(), other.end(),
                    [](const auto& a, const auto& b) {
                      return a.layer == b.layer && a.rows.size() == b.rows.size();
                    });
}

void add_loads(std::vector<LayerLoad>& sums, const std::vector<LayerLoad>& loads) {
  for (size_t layer = 0; layer < sums.size(); ++layer) {
    for (size_t expert = 0; expert < sums[layer].rows.size(); ++expert) {
      sums[layer].rows[expert] += loads[layer].rows[expert];
    }
  }
}

}  // namespace

void LoadMap::add(int64_t step, const std::vector<LayerLoad>& loads) {
  if (loads.empty() || (!empty() && !have_one_shape(columns_.front().loads, loads))) {
    return;
  }
  if (!empty() && columns_.back().place == step / width_) {
    columns_.back().end = step;
    add_loads(columns_.back().loads, loads);
  } else {
    columns_.push_back({step / width_, step, step, loads});
  }
  while (columns_.size() > most_columns()) {
    width_ *= 2;
    std::vector<Column> wider;
    for (auto& column : columns_) {
      column.place /= 2;
      if (!wider.empty() && wider.back().place == column.place) {
        wider.back().end = column.end;
        add_loads(wider.back().loads, column.loads);
      } else {
        wider.push_back(std::move(column));
      }
    }
    columns_ = std::move(wider);
  }
}

// As fine as a screen shows, fewer where layers times experts would make the page heavy.
size_t LoadMap::most_columns() const {
  constexpr size_t kCells = 100'000, kLeast = 8, kMost = 160;
  size_t rows = 0;
  for (const auto& load : columns_.front().loads) {
    rows += load.rows.size();
  }
  return std::clamp(kCells / std::max<size_t>(1, rows), kLeast, kMost);
}

std::vector<LayerLoad> loads_of(const Json& line) {
  constexpr int64_t kMostRows = int64_t{1} << 40;
  std::vector<LayerLoad> loads;
  const auto layers = line.find("layers");
  if (layers == line.end() || !layers->is_array()) {
    return loads;
  }
  for (const auto& json : *layers) {
    const auto number = json.find("layer"), rows = json.find("load");
    if (number == json.end() || !number->is_number_integer() || rows == json.end() ||
        !rows->is_array()) {
      continue;
    }
    LayerLoad load{*number, {}};
    for (const auto& count : *rows) {
      const int64_t value = count.is_number_integer() ? count.get<int64_t>() : 0;
      load.rows.push_back(std::clamp<int64_t>(value, 0, kMostRows));
    }
    loads.push_back(std::move(load));
  }
  return loads;
}

double relative_load(const LayerLoad& load, size_t expert) {
  const double total = std::accumulate(load.rows.begin(), load.rows.end(), 0.0);
  return total > 0 ? static_cast<double>(load.rows[expert]) *
                         static_cast<double>(load.rows.size()) / total
                   : 0;
}

}  // namespace moe::train
