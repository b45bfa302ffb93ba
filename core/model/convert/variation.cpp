#include "core/model/convert/variation.h"

#include <charconv>
#include <cmath>
#include <functional>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/random.h"
#include "core/model/convert/dtype_conversion.h"

namespace moe::model {
namespace {

constexpr const char* kForms = "none, drop:0.5, drop:0.5,separate or noise:0.01";

std::optional<double> number_in(const std::string& text) {
  double number = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  return error == std::errc() && stop == end ? std::optional(number) : std::nullopt;
}

int64_t dropped_count(int64_t width, double share) {
  return static_cast<int64_t>(share * static_cast<double>(width));
}

// Which of `count` dimensions are drawn anew: floor(share * count) of them, by a shuffle that stops
// there.
std::vector<bool> dropped_dimensions(int64_t count, double share, uint64_t seed,
                                     const std::string& stream) {
  const int64_t wanted = dropped_count(count, share);
  std::vector<size_t> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), size_t{0});
  std::vector<bool> dropped(order.size(), false);
  Random random(seed, stream);
  for (size_t i = 0; i < static_cast<size_t>(wanted); ++i) {
    std::swap(order[i], order[i + random.below(order.size() - i)]);
    dropped[order[i]] = true;
  }
  return dropped;
}

// Calls `row(index, values)` for the matrix's rows in f32.
void for_each_row(const ExpertMatrix& matrix,
                  const std::function<void(size_t, std::span<float>)>& row) {
  const auto rows = static_cast<size_t>(matrix.info.shape[0]);
  std::vector<float> values(static_cast<size_t>(matrix.info.shape[1]));
  for (size_t index = 0; index < rows; ++index) {
    read_values(matrix, static_cast<int64_t>(index) * matrix.info.shape[1], values);
    row(index, values);
  }
}

struct Moments {
  double mean = 0, std = 0;
};

// Of the values that `counts` says, in one reading: weights have a mean near 0, so that the sum of
// their squares in f64 loses nothing.
Moments moments_of(const ExpertMatrix& matrix, const std::function<bool(size_t, size_t)>& counts) {
  double sum = 0, squares = 0, count = 0;
  for_each_row(matrix, [&](size_t row, std::span<float> values) {
    for (size_t column = 0; column < values.size(); ++column) {
      if (counts(row, column)) {
        const double value = values[column];
        sum += value;
        squares += value * value;
        count += 1;
      }
    }
  });
  const double mean = sum / count;
  return {mean, std::sqrt(std::max(0.0, squares / count - mean * mean))};
}

// model.layers.3.mlp.experts.7 of model.layers.3.mlp.experts.7.up_proj.weight
std::string expert_of(const std::string& name) {
  return name.substr(0, name.rfind('.', name.rfind('.') - 1));
}

}  // namespace

Variation parse_variation(const std::string& text) {
  Variation variation;
  if (text == "none") {
    return variation;
  }
  const size_t colon = text.find(':');
  const std::string kind = text.substr(0, colon);
  std::string number = colon == std::string::npos ? "" : text.substr(colon + 1);
  const std::string separate = ",separate";
  if (kind == "drop" && number.ends_with(separate)) {
    variation.separate = true;
    number.resize(number.size() - separate.size());
  }
  const auto share = number_in(number);
  if ((kind != "drop" && kind != "noise") || !share) {
    throw UserError("--vary '{}': is none of {}", text, kForms);
  }
  variation.share = *share;
  variation.kind = kind == "drop" ? Variation::Kind::kDrop : Variation::Kind::kNoise;
  if (kind == "drop" && !(*share > 0 && *share < 1)) {
    throw UserError(
        "--vary {}: the share of dimensions that are drawn anew lies between 0 and 1; none is a "
        "plain copy",
        text);
  }
  if (!(std::isfinite(*share) && *share > 0)) {
    throw UserError("--vary {}: the noise, relative to a matrix' deviation, must be positive",
                    text);
  }
  return variation;
}

std::string to_string(const Variation& variation) {
  switch (variation.kind) {
    case Variation::Kind::kNone:
      return "none";
    case Variation::Kind::kDrop:
      return fmt::format("drop:{}{}", variation.share, variation.separate ? ",separate" : "");
    case Variation::Kind::kNoise:
      return fmt::format("noise:{}", variation.share);
  }
  MOE_CHECK(false, "variation {}", static_cast<int>(variation.kind));
}

void check_variation(const Variation& variation, int64_t width) {
  if (variation.kind == Variation::Kind::kDrop && dropped_count(width, variation.share) == 0) {
    throw UserError("--vary {}: less than one of {} dimensions; drop:{:.2g} or more draws one",
                    to_string(variation), width, 1.0 / static_cast<double>(width));
  }
}

void write_varied(io::SafetensorsWriter& writer, const ExpertMatrix& matrix,
                  const Variation& variation, uint64_t seed) {
  MOE_CHECK(variation && matrix.info.shape.size() == 2, "{}", matrix.info.name);
  const bool is_drop = variation.kind == Variation::Kind::kDrop;
  const bool is_down = matrix.info.name.ends_with("down_proj.weight");
  std::vector<bool> dropped;
  if (is_drop) {
    const std::string& name = matrix.info.name;
    dropped = dropped_dimensions(matrix.info.shape[is_down ? 1 : 0], variation.share, seed,
                                 (variation.separate ? name : expert_of(name)) + " dimensions");
  }
  const auto is_changed = [&](size_t row, size_t column) {
    return !is_drop || dropped[is_down ? column : row];
  };
  const Moments moments = moments_of(matrix, is_changed);
  Random random(seed, matrix.info.name + " varied");
  std::vector<std::byte> out(static_cast<size_t>(matrix.info.shape[1]) *
                             static_cast<size_t>(io::dtype_bytes(matrix.info.dtype)));
  for_each_row(matrix, [&](size_t row, std::span<float> values) {
    for (size_t column = 0; column < values.size(); ++column) {
      if (is_changed(row, column)) {
        const double kept = is_drop ? moments.mean : static_cast<double>(values[column]);
        const double deviation = is_drop ? moments.std : variation.share * moments.std;
        values[column] = static_cast<float>(kept + deviation * random.normal());
      }
    }
    convert(std::as_bytes(values), io::DType::kF32, out, matrix.info.dtype);
    writer.write(out);
  });
  matrix.file->file().drop(matrix.bytes);
}

}  // namespace moe::model
