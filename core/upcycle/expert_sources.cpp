#include "core/upcycle/expert_sources.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <optional>

#include "core/base/error.h"
#include "core/base/random.h"
#include "core/base/text.h"
#include "core/model/config/folder_tensors.h"
#include "core/model/config/weights.h"

namespace moe::model {
namespace {

namespace fs = std::filesystem;

constexpr float kMaxF16 = 65504;

std::vector<std::pair<const char*, int64_t>> shape_fields(const ModelConfig& config) {
  return {{"num_hidden_layers", config.layers},
          {"hidden_size", config.hidden_size},
          {"intermediate_size", config.intermediate_size},
          {"num_attention_heads", config.heads},
          {"num_key_value_heads", config.kv_heads},
          {"head_dim", config.head_dim},
          {"vocab_size", config.vocab_size},
          {"tie_word_embeddings", config.tie_word_embeddings ? 1 : 0},
          {"biases of queries, keys and values", config.qkv_bias ? 1 : 0},
          {"norms of queries and keys", config.qk_norm ? 1 : 0}};
}

void check_fits(const io::Checkpoint& parent, const io::Checkpoint& base,
                const ModelConfig& base_config) {
  const ModelConfig config = parse_config(parent.config(), parent.config_name());
  USER_ERROR_IF(config.moe,
                "--expert {}: is a mixture of experts already; its parents are dense folders",
                parent.folder().string());
  const auto theirs = shape_fields(config), ours = shape_fields(base_config);
  for (size_t i = 0; i < ours.size(); ++i) {
    USER_ERROR_IF(theirs[i] != ours[i],
                  "--expert {}: {} is {}, but {} in {}; the parents of a mixture have one shape",
                  parent.folder().string(), ours[i].first, theirs[i].second, ours[i].second,
                  base.folder().string());
  }
  check_tensors(parent, config);
}

// Writes tensor `info` in blocks of at most 256 KiB of f32, which stay in the CPU cache between
// `fill` (called with the index of the first value) and the conversion to the dtype of `info`.
void write_blocks(io::SafetensorsWriter& writer, const io::TensorInfo& info,
                  const std::function<void(int64_t, std::span<float>)>& fill) {
  constexpr int64_t kBlockValues = int64_t{1} << 16;
  const auto value_bytes = static_cast<size_t>(io::dtype_bytes(info.dtype));
  std::vector<float> values(std::min(info.elements(), kBlockValues));
  std::vector<std::byte> bytes(values.size() * value_bytes);
  for (int64_t begin = 0; begin < info.elements(); begin += kBlockValues) {
    const auto count = static_cast<size_t>(std::min(info.elements() - begin, kBlockValues));
    const auto block = std::span(values).first(count);
    fill(begin, block);
    const auto out = std::span(bytes).first(count * value_bytes);
    convert(std::as_bytes(block), io::DType::kF32, out, info.dtype);
    writer.write(out);
  }
}

// Fills `values` with the values of tensor `name` from index `begin` on, and drops their pages.
void read_block(const io::Checkpoint& parent, const std::string& name, int64_t begin,
                std::span<float> values) {
  const io::DType from = parent.info(name).dtype;
  const auto step = static_cast<size_t>(io::dtype_bytes(from));
  const auto bytes =
      parent.bytes(name).subspan(static_cast<size_t>(begin) * step, values.size() * step);
  convert(bytes, from, std::as_writable_bytes(values), io::DType::kF32);
  parent.tensor_file(name)->file().drop(bytes);
}

bool is_contiguous(const ExpertMatrix& matrix) { return matrix.row_step == matrix.info.shape[1]; }

// Throws UserError if a factor makes a finite value exceed the range of F16.
void check_range(const ExpertMatrix& matrix, std::span<const float> values) {
  const bool is_beyond = matrix.info.dtype == io::DType::kF16 && matrix.factor != 1 &&
                         std::any_of(values.begin(), values.end(), [&](float value) {
                           return std::fabs(value) > kMaxF16 && std::isfinite(value);
                         });
  USER_ERROR_IF(is_beyond,
                "{}: {:g} times a weight of it is beyond fp16; give --dtype bf16 or fp32",
                matrix.info.name, matrix.factor);
}

std::optional<double> parse_number(const std::string& text) {
  double number = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  return error == std::errc() && stop == end ? std::optional(number) : std::nullopt;
}

int64_t count_dropped(int64_t width, double share) { return static_cast<int64_t>(share * width); }

// Selects the dimensions to redraw, by a partial Fisher-Yates shuffle of `count` dimensions.
std::vector<bool> draw_dropped(int64_t count, double share, uint64_t seed,
                               const std::string& stream) {
  std::vector<size_t> order(count);
  std::iota(order.begin(), order.end(), size_t{0});
  std::vector<bool> dropped(order.size(), false);
  Random random(seed, stream);
  for (size_t i = 0; i < static_cast<size_t>(count_dropped(count, share)); ++i) {
    std::swap(order[i], order[i + random.below(order.size() - i)]);
    dropped[order[i]] = true;
  }
  return dropped;
}

void for_each_row(const ExpertMatrix& matrix,
                  const std::function<void(size_t, std::span<float>)>& row) {
  const auto rows = static_cast<size_t>(matrix.info.shape[0]);
  std::vector<float> values(matrix.info.shape[1]);
  for (size_t index = 0; index < rows; ++index) {
    read_values(matrix, static_cast<int64_t>(index) * matrix.info.shape[1], values);
    row(index, values);
  }
}

struct Moments {
  double mean = 0, std = 0;
};

// Computes the moments of the values for which `is_counted(row, column)` is true, in one pass: the
// mean of weights is near 0, so the sum of squares in f64 does not cancel.
Moments compute_moments(const ExpertMatrix& matrix,
                        const std::function<bool(size_t, size_t)>& is_counted) {
  double sum = 0, squares = 0, count = 0;
  for_each_row(matrix, [&](size_t row, std::span<float> values) {
    for (size_t column = 0; column < values.size(); ++column) {
      if (is_counted(row, column)) {
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

// Returns model.layers.3.mlp.experts.7 for model.layers.3.mlp.experts.7.up_proj.weight.
std::string expert_prefix(const std::string& name) {
  return name.substr(0, name.rfind('.', name.rfind('.') - 1));
}

}  // namespace

ExpertParent parse_expert_parent(const std::string& text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || fs::exists(text)) {
    return {text, 1};
  }
  const std::string number = text.substr(colon + 1);
  int64_t copies = 0;
  const char* const end = number.data() + number.size();
  const auto [stop, error] = std::from_chars(number.data(), end, copies);
  if (number.empty() || stop != end) {  // the colon is part of the path
    return {text, 1};
  }
  USER_ERROR_IF(error != std::errc() || copies < 1 || copies > 65536,
                "--expert '{}': the number of copies behind ':' is from 1 to 65536", text);
  return {text.substr(0, colon), copies};
}

int64_t count_copies(const std::vector<ExpertParent>& parents) {
  int64_t count = 0;
  for (const auto& parent : parents) {
    count += parent.copies;
  }
  return count;
}

ExpertParents::ExpertParents(const io::Checkpoint& base, const ModelConfig& config,
                             const std::vector<ExpertParent>& parents, int64_t granularity)
    : base_(&base) {
  std::map<fs::path, const io::Checkpoint*> by_path;
  for (const auto& parent : parents) {
    auto& checkpoint = by_path[fs::weakly_canonical(parent.folder)];
    if (checkpoint == nullptr) {
      opened_.push_back(std::make_unique<io::Checkpoint>(parent.folder));
      checkpoint = opened_.back().get();
      check_fits(*checkpoint, base, config);
    }
    parents_.insert(parents_.end(), parent.copies * granularity, checkpoint);
  }
}

std::vector<int64_t> ExpertParents::experts(const io::Checkpoint& parent) const {
  std::vector<int64_t> experts;
  for (size_t expert = 0; expert < parents_.size(); ++expert) {
    if (parents_[expert] == &parent) {
      experts.push_back(static_cast<int64_t>(expert));
    }
  }
  return experts;
}

void write_mean(io::SafetensorsWriter& writer, const io::TensorInfo& info,
                const std::vector<std::unique_ptr<io::Checkpoint>>& parents) {
  std::vector<float> values;
  std::vector<double> sums;
  write_blocks(writer, info, [&](int64_t begin, std::span<float> block) {
    values.resize(block.size());
    sums.assign(block.size(), 0.0);
    for (const auto& parent : parents) {
      read_block(*parent, info.name, begin, values);
      std::transform(values.begin(), values.end(), sums.begin(), sums.begin(),
                     [](float value, double sum) { return sum + value; });
    }
    std::transform(sums.begin(), sums.end(), block.begin(),
                   [&](double sum) { return static_cast<float>(sum / parents.size()); });
  });
}

io::TensorSource extended_tensor(const io::TensorInfo& info, const io::Checkpoint& parent,
                                 int64_t begin, int64_t end) {
  return {info, [=, &parent](io::SafetensorsWriter& writer) {
            const int64_t width = info.shape.at(1), stored = parent.info(info.name).elements();
            std::vector<double> sums(static_cast<size_t>(width));
            write_blocks(writer, info, [&](int64_t first, std::span<float> block) {
              const int64_t from = std::min(first, stored);
              const int64_t count = std::min(stored - from, std::ssize(block));
              read_block(parent, info.name, from, block.first(static_cast<size_t>(count)));
              for (float& value : block) {
                double& sum = sums[static_cast<size_t>(first % width)];
                const int64_t row = first++ / width;
                sum += row < begin ? static_cast<double>(value) : 0.0;
                value = row < begin || row >= end
                            ? value
                            : static_cast<float>(sum / static_cast<double>(begin));
              }
            });
          }};
}

void write_converted(io::SafetensorsWriter& writer, const io::TensorInfo& info,
                     const io::Checkpoint& parent, const std::string& name) {
  write_blocks(writer, info, [&](int64_t begin, std::span<float> block) {
    read_block(parent, name, begin, block);
  });
}

void FiniteWeights::check(const io::Checkpoint& parent, const std::string& name) {
  const io::SafetensorsFile& file = *parent.tensor_file(name);
  if (!checked_.emplace(&file, name).second) {
    return;
  }
  constexpr size_t kBlockBytes = size_t{8} << 20;
  const auto bytes = parent.bytes(name);
  const io::DType dtype = parent.info(name).dtype;
  for (size_t begin = 0; begin < bytes.size(); begin += kBlockBytes) {
    const auto block = bytes.subspan(begin, std::min(kBlockBytes, bytes.size() - begin));
    if (const auto found = find_non_finite(block, dtype)) {
      throw UserError(
          "{}: tensor '{}' has a weight that is NaN or infinite (value {}); a mixture of such a "
          "model computes nothing, give a checkpoint whose weights are finite",
          parent.folder().string(), printable(name),
          begin / static_cast<size_t>(io::dtype_bytes(dtype)) + *found);
    }
    file.file().drop(block);
  }
}

void check_granularity(int64_t granularity, int64_t experts, int64_t max_experts, int64_t width) {
  USER_ERROR_IF(granularity < 1 || granularity > width || width % granularity != 0,
                "--granularity {}: the feed-forward is {} wide and cannot be cut into so many "
                "equal parts; give a divisor of {}",
                granularity, width, width);
  USER_ERROR_IF(experts < 1 || experts > max_experts / granularity,
                "--experts {} with --granularity {}: a layer has 1 to {} experts in all", experts,
                granularity, max_experts);
}

route::FunctionPreservation preserves_function(const MoeConfig& moe, double gate_scale) {
  const route::RouterSettings& router = moe.router;
  const route::FunctionPreservation whole = route::preserves_function(router, gate_scale);
  const bool is_exact = route::weights_sum_to_one(router) && gate_scale == 1.0;
  if (moe.granularity == 1 || !is_exact) {
    return whole;
  }
  if (router.fr) {
    return {false, fmt::format("not preserved: +fr gives a token one of the {} slices of another "
                               "feed-forward, without the others",
                               moe.granularity)};
  }
  if (!router.capacity_factor) {
    return whole;
  }
  if (router.ir) {
    return {false,
            fmt::format("not preserved for a token that capacity drops: +ir gives it one of the {} "
                        "slices of a feed-forward, without the others (cf=inf drops none)",
                        moe.granularity)};
  }
  return {false,
          "not preserved for a token that capacity drops from all its experts: it passes by the "
          "residual only (cf=inf serves every token)"};
}

ExpertMatrix expert_slice(const io::Checkpoint& parent, const std::string& name, int64_t slice,
                          int64_t granularity) {
  ExpertMatrix matrix;
  matrix.info = parent.info(name);
  matrix.file = parent.tensor_file(name).get();
  matrix.from = matrix.info.dtype;
  const bool is_down = name.ends_with("down_proj.weight");
  int64_t& cut = matrix.info.shape.at(is_down ? 1 : 0);
  MOE_CHECK(matrix.info.shape.size() == 2 && cut % granularity == 0 && slice < granularity,
            "slice {} of {} of {}", slice, granularity, name);
  matrix.row_step = matrix.info.shape[1];
  cut /= granularity;
  matrix.factor = is_down ? static_cast<float>(granularity) : 1;
  const int64_t first = slice * cut * (is_down ? 1 : matrix.row_step);
  matrix.bytes = parent.bytes(name).subspan(first * io::dtype_bytes(matrix.from));
  return matrix;
}

std::span<const std::byte> read_values(const ExpertMatrix& matrix, int64_t begin,
                                       std::span<float> values) {
  const auto step = io::dtype_bytes(matrix.from);
  const int64_t columns = is_contiguous(matrix) ? matrix.info.elements() : matrix.info.shape[1];
  const auto offset = [&](int64_t index) {  // in matrix.bytes
    return static_cast<size_t>(index / columns * matrix.row_step + index % columns) * step;
  };
  const auto end = begin + std::ssize(values);
  for (int64_t index = begin; index < end;) {
    const int64_t count = std::min(end - index, columns - index % columns);
    const auto part = values.subspan(index - begin, count);
    convert(matrix.bytes.subspan(offset(index), part.size() * step), matrix.from,
            std::as_writable_bytes(part), io::DType::kF32);
    index += count;
  }
  if (matrix.factor != 1) {
    std::transform(values.begin(), values.end(), values.begin(),
                   [&](float value) { return value * matrix.factor; });
  }
  const size_t first = offset(begin);
  return matrix.bytes.subspan(first, values.empty() ? 0 : offset(end - 1) + step - first);
}

void write_matrix(io::SafetensorsWriter& writer, const ExpertMatrix& matrix) {
  if (matrix.info.dtype == matrix.from && matrix.factor == 1 && is_contiguous(matrix)) {
    const auto bytes = matrix.bytes.first(matrix.info.bytes());
    writer.write(bytes);
    matrix.file->file().drop(bytes);
    return;
  }
  write_blocks(writer, matrix.info, [&](int64_t begin, std::span<float> block) {
    matrix.file->file().drop(read_values(matrix, begin, block));
    check_range(matrix, block);
  });
}

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
  const auto share = parse_number(number);
  USER_ERROR_IF((kind != "drop" && kind != "noise") || !share,
                "--vary '{}': is none of none, drop:0.5, drop:0.5,separate or noise:0.01", text);
  variation.share = *share;
  variation.kind = kind == "drop" ? Variation::Kind::kDrop : Variation::Kind::kNoise;
  USER_ERROR_IF(kind == "drop" && !(*share > 0 && *share < 1),
                "--vary {}: the share of dimensions that are drawn anew lies between 0 and 1; none "
                "is a plain copy",
                text);
  USER_ERROR_IF(!(std::isfinite(*share) && *share > 0),
                "--vary {}: the noise, relative to a matrix' deviation, must be positive", text);
  return variation;
}

std::string to_string(const Variation& variation) {
  if (!variation) {
    return "none";
  }
  return variation.kind == Variation::Kind::kNoise
             ? fmt::format("noise:{}", variation.share)
             : fmt::format("drop:{}{}", variation.share, variation.separate ? ",separate" : "");
}

void check_variation(const Variation& variation, int64_t width) {
  USER_ERROR_IF(
      variation.kind == Variation::Kind::kDrop && count_dropped(width, variation.share) == 0,
      "--vary {}: less than one of {} dimensions; drop:{:.2g} or more draws one",
      to_string(variation), width, 1.0 / width);
}

void write_varied(io::SafetensorsWriter& writer, const ExpertMatrix& matrix,
                  const Variation& variation, uint64_t seed) {
  MOE_CHECK(variation && matrix.info.shape.size() == 2, "{}", matrix.info.name);
  const bool is_drop = variation.kind == Variation::Kind::kDrop;
  const bool is_down = matrix.info.name.ends_with("down_proj.weight");
  std::vector<bool> dropped;
  if (is_drop) {
    const std::string& name = matrix.info.name;
    dropped = draw_dropped(matrix.info.shape[is_down ? 1 : 0], variation.share, seed,
                           (variation.separate ? name : expert_prefix(name)) + " dimensions");
  }
  const auto is_changed = [&](size_t row, size_t column) {
    return !is_drop || dropped[is_down ? column : row];
  };
  const Moments moments = compute_moments(matrix, is_changed);
  Random random(seed, matrix.info.name + " varied");
  std::vector<std::byte> out(matrix.info.shape[1] * io::dtype_bytes(matrix.info.dtype));
  for_each_row(matrix, [&](size_t row, std::span<float> values) {
    for (size_t column = 0; column < values.size(); ++column) {
      if (is_changed(row, column)) {
        const double kept = is_drop ? moments.mean : static_cast<double>(values[column]);
        const double deviation = is_drop ? moments.std : variation.share * moments.std;
        values[column] = static_cast<float>(kept + deviation * random.normal());
      }
    }
    check_range(matrix, values);
    convert(std::as_bytes(values), io::DType::kF32, out, matrix.info.dtype);
    writer.write(out);
  });
  matrix.file->file().drop(matrix.bytes);
}

void write_normal(io::SafetensorsWriter& writer, const io::TensorInfo& info, double std,
                  uint64_t seed, const std::string& stream) {
  Random random(seed, stream);
  write_blocks(writer, info,
               [&](int64_t /*begin*/, std::span<float> block) { random.fill_normal(block, std); });
}

io::TensorSource constant_tensor(const io::TensorInfo& info, float value) {
  return {info, [info, value](io::SafetensorsWriter& writer) {
            write_blocks(writer, info, [&](int64_t /*begin*/, std::span<float> block) {
              std::fill(block.begin(), block.end(), value);
            });
          }};
}

}  // namespace moe::model
