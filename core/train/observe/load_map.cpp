#include "core/train/observe/load_map.h"

#include <algorithm>
#include <numeric>

#include "core/base/error.h"

namespace moe::train {

namespace {

constexpr size_t kMostColumns = 160;  // as fine as a screen shows

bool have_one_shape(const std::vector<LayerLoad>& left, const std::vector<LayerLoad>& right) {
  return std::equal(left.begin(), left.end(), right.begin(), right.end(),
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
  if (!empty() && columns_.back().index == step / width_) {
    columns_.back().end = step;
    add_loads(columns_.back().loads, loads);
  } else {
    columns_.push_back({step / width_, step, step, loads});
  }
  while (columns_.size() > most_columns()) {
    width_ *= 2;
    std::vector<Column> wider;
    for (auto& column : columns_) {
      column.index /= 2;
      if (!wider.empty() && wider.back().index == column.index) {
        wider.back().end = column.end;
        add_loads(wider.back().loads, column.loads);
      } else {
        wider.push_back(std::move(column));
      }
    }
    columns_ = std::move(wider);
  }
}

// Fewer where layers times experts would make the page heavy.
size_t LoadMap::most_columns() const {
  constexpr size_t kCells = 100'000, kLeast = 8;
  size_t rows = 0;
  for (const auto& load : columns_.front().loads) {
    rows += load.rows.size();
  }
  return std::clamp(kCells / std::max<size_t>(1, rows), kLeast, kMostColumns);
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
    if (!pair.is_array() || pair.size() != 2 || !pair[0].is_number_integer() ||
        !pair[1].is_number_unsigned() || pair[1] > 1'000'000) {
      throw UserError("{}: a layer of the load map must be [layer, experts]", where);
    }
    shape.push_back({pair[0], std::vector<int64_t>(pair[1].get<size_t>())});
    cells += shape.back().rows.size();
  }
  for (const auto& numbers : json.value("columns", Json::array())) {
    const bool fits = numbers.is_array() && numbers.size() == 3 + cells &&
                      std::all_of(numbers.begin(), numbers.end(),
                                  [](const Json& number) { return number.is_number_integer(); });
    if (!fits || map.width_ < 1 || shape.empty() || map.columns_.size() >= kMostColumns) {
      throw UserError(
          "{}: a column of the load map must be three numbers and a row count for each "
          "expert",
          where);
    }
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
