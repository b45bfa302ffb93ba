#include "core/model/config/layer_list.h"

#include <algorithm>
#include <charconv>
#include <set>

#include "core/base/error.h"

namespace moe::model {
namespace {

int64_t parse_layer(std::string_view word, const std::string& text, int64_t layers) {
  int64_t layer = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), layer);
  if (error == std::errc::result_out_of_range || (error == std::errc() && layer >= layers)) {
    throw UserError("--layers {}: layer {} does not exist; the model has layers 0 to {}", text,
                    std::string(word), layers - 1);
  }
  if (error != std::errc() || end != word.data() + word.size() || layer < 0) {
    throw UserError(
        "--layers {}: '{}' is not understood; give even, odd, all or a list like 0,3,5 or 0-3",
        text, std::string(word));
  }
  return layer;
}

// One word of a list, "5" or "0-3".
void add_word(std::string_view word, const std::string& text, int64_t layers,
              std::set<int64_t>& out) {
  const size_t dash = word.find('-', 1);
  const int64_t first = parse_layer(word.substr(0, dash), text, layers);
  const int64_t last =
      dash == std::string_view::npos ? first : parse_layer(word.substr(dash + 1), text, layers);
  if (last < first) {
    throw UserError("--layers {}: the range {} runs backwards", text, std::string(word));
  }
  for (int64_t layer = first; layer <= last; ++layer) {
    if (!out.insert(layer).second) {
      throw UserError("--layers {}: layer {} is named twice", text, layer);
    }
  }
}

}  // namespace

std::vector<int64_t> parse_layers(const std::string& text, int64_t layers) {
  std::set<int64_t> chosen;
  if (text == "even" || text == "odd" || text == "all") {
    for (int64_t layer = text == "odd" ? 1 : 0; layer < layers; layer += text == "all" ? 1 : 2) {
      chosen.insert(layer);
    }
  } else {
    const std::string_view list = text;
    for (size_t start = 0; start <= list.size();) {
      const size_t comma = std::min(list.find(',', start), list.size());
      add_word(list.substr(start, comma - start), text, layers, chosen);
      start = comma + 1;
    }
  }
  if (chosen.empty()) {
    throw UserError("--layers {}: a model of {} layer has none of these; give even, all or 0", text,
                    layers);
  }
  return {chosen.begin(), chosen.end()};
}

}  // namespace moe::model
