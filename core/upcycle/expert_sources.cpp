#include "core/upcycle/expert_sources.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>

#include "core/base/error.h"
#include "core/base/option.h"
#include "core/base/random.h"
#include "core/base/text.h"
#include "core/model/config/compute.h"
#include "core/model/config/folder_tensors.h"
#include "core/model/config/weights.h"

namespace moe::model {
namespace {

namespace fs = std::filesystem;

constexpr float kMaxF16 = 65504;

// Returns the parts of a config that all parents must share, with the names of their keys.
std::vector<std::pair<const char*, std::string>> shared_fields(const ModelConfig& config) {
  const RopeConfig& rope = config.rope;
  const bool is_llama3 = rope.type == RopeType::kLlama3,
             is_dynamic = rope.type == RopeType::kDynamic;
  std::vector<std::pair<const char*, std::string>> fields;
  const auto add = [&](const char* key, const auto& value) {
    fields.emplace_back(key, fmt::format("{}", value));
  };
  add("num_hidden_layers", config.layers);
  add("hidden_size", config.hidden_size);
  add("intermediate_size", config.intermediate_size);
  add("num_attention_heads", config.heads);
  add("num_key_value_heads", config.kv_heads);
  add("head_dim", config.head_dim);
  add("vocab_size", config.vocab_size);
  add("tie_word_embeddings", config.tie_word_embeddings);
  add("biases of queries, keys and values", config.qkv_bias);
  add("norms of queries and keys", config.qk_norm);
  add("rms_norm_eps", config.rms_norm_eps);
  add("sliding_window", config.sliding_window);
  add("rope_theta", rope.theta);
  add("rope_type", kRopeTypeNames[static_cast<size_t>(rope.type)]);
  add("factor of rope_scaling", rope.factor);
  add("low_freq_factor", rope.low_freq_factor);
  add("high_freq_factor", rope.high_freq_factor);
  // Only these types of RoPE depend on a length.
  add("original_max_position_embeddings", is_llama3 ? rope.original_max_position_embeddings : 0);
  add("max_position_embeddings", is_dynamic ? config.max_position_embeddings : 0);
  return fields;
}

void check_fits(const io::Checkpoint& parent, const io::Checkpoint& base,
                const ModelConfig& base_config) {
  const ModelConfig config = parse_config(parent.config(), parent.config_name());
  USER_ERROR_IF(config.moe,
                "--expert {}: is already a mixture of experts; parents must be dense folders",
                parent.folder().string());
  const auto fields = shared_fields(config), base_fields = shared_fields(base_config);
  for (size_t i = 0; i < base_fields.size(); ++i) {
    USER_ERROR_IF(fields[i] != base_fields[i],
                  "--expert {}: {} is {}, but {} in {}; it must be equal in all parents",
                  parent.folder().string(), base_fields[i].first, fields[i].second,
                  base_fields[i].second, base.folder().string());
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
  USER_ERROR_IF(
      is_beyond,
      "{}: {:g} times one of its weights exceeds the range of fp16; use --dtype bf16 or fp32",
      matrix.info.name, matrix.factor);
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

// Writes the matrix without variation.
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

// Writes the varied matrix. Reads the matrix of the parent twice, first for its moments.
void write_varied(io::SafetensorsWriter& writer, const ExpertMatrix& matrix,
                  const Variation& variation, uint64_t seed) {
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
        const double center = is_drop ? moments.mean : static_cast<double>(values[column]);
        const double deviation = is_drop ? moments.std : variation.share * moments.std;
        values[column] = static_cast<float>(center + deviation * random.normal());
      }
    }
    check_range(matrix, values);
    convert(std::as_bytes(values), io::DType::kF32, out, matrix.info.dtype);
    writer.write(out);
  });
  matrix.file->file().drop(matrix.bytes);
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
                "--expert '{}': the number of copies after ':' must be between 1 and 65536", text);
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

io::TensorSource mean_tensor(const io::TensorInfo& info,
                             std::shared_ptr<const ExpertParents> parents) {
  return {info, [info, parents](io::SafetensorsWriter& writer) {
            std::vector<float> values;
            std::vector<double> sums;
            write_blocks(writer, info, [&](int64_t begin, std::span<float> block) {
              values.resize(block.size());
              sums.assign(block.size(), 0.0);
              for (const auto& parent : parents->checkpoints()) {
                read_block(*parent, info.name, begin, values);
                std::ranges::transform(values, sums, sums.begin(), std::plus<double>());
              }
              std::ranges::transform(sums, block.begin(), [&](double sum) {
                return static_cast<float>(sum / parents->checkpoints().size());
              });
            });
          }};
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
                if (row < begin) {
                  sum += static_cast<double>(value);
                } else if (row < end) {
                  value = static_cast<float>(sum / static_cast<double>(begin));
                }
              }
            });
          }};
}

io::TensorSource copied_tensor(const io::TensorInfo& info, const io::Checkpoint& parent,
                               const std::string& source) {
  return {info, [info, &parent, source](io::SafetensorsWriter& writer) {
            if (info.dtype == parent.info(source).dtype) {
              writer.copy(*parent.tensor_file(source), source);
              return;
            }
            write_blocks(writer, info, [&](int64_t begin, std::span<float> block) {
              read_block(parent, source, begin, block);
            });
          }};
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
    if (const auto position = find_non_finite(block, dtype)) {
      throw UserError(
          "{}: tensor '{}' has a weight that is NaN or infinite (value {}); use a checkpoint whose "
          "weights are finite",
          parent.folder().string(), printable(name),
          begin / static_cast<size_t>(io::dtype_bytes(dtype)) + *position);
    }
    file.file().drop(block);
  }
}

void check_granularity(int64_t granularity, int64_t experts, int64_t max_experts, int64_t width) {
  USER_ERROR_IF(granularity < 1 || granularity > width || width % granularity != 0,
                "--granularity {}: must divide the width {} of the feed-forward", granularity,
                width);
  USER_ERROR_IF(experts < 1 || experts > max_experts / granularity,
                "--experts {} with --granularity {}: a layer has 1 to {} experts in all", experts,
                granularity, max_experts);
}

MoeConfig mixture_config(const ModelConfig& dense, const std::string& layers, int64_t experts,
                         int64_t granularity, const route::RouterSettings& router) {
  MoeConfig moe;
  moe.layers = parse_layers(layers, dense.layers);
  moe.granularity = granularity;
  moe.experts = experts * granularity;
  moe.expert_width = dense.intermediate_size / granularity;
  moe.router = route::with_granularity(router, granularity);
  moe.ep_ranks = experts;
  moe.lb_coef = route::default_lb_coef(router);
  moe.entropy_coef = route::default_entropy_coef(router);
  moe.router_std = dense.initializer_range;
  return moe;
}

route::FunctionPreservation preserves_function(const MoeConfig& moe, double gate_scale) {
  const route::RouterSettings& router = moe.router;
  const route::FunctionPreservation whole = route::preserves_function(router, gate_scale);
  const bool is_exact = route::weights_sum_to_one(router) && gate_scale == 1.0;
  if (moe.granularity == 1 || !is_exact || (!router.fr && !router.capacity_factor)) {
    return whole;
  }
  if (router.fr) {
    return {false, fmt::format("not preserved: +fr gives a token one of the {} slices of another "
                               "feed-forward, without the others",
                               moe.granularity)};
  }
  return {false,
          "not preserved for a token that capacity drops" +
              (router.ir ? fmt::format(": +ir gives it one of the {} slices of a "
                                       "feed-forward, without the others (cf=inf drops none)",
                                       moe.granularity)
                         : " from all its experts: it passes by the residual only (cf=inf "
                           "serves every token)")};
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
  double& share = variation.share;
  USER_ERROR_IF((kind != "drop" && kind != "noise") || !set_value(&share, number),
                "--vary '{}': must be none, drop:0.5, drop:0.5,separate or noise:0.01", text);
  variation.kind = kind == "drop" ? Variation::Kind::kDrop : Variation::Kind::kNoise;
  USER_ERROR_IF(kind == "drop" && !(share > 0 && share < 1),
                "--vary {}: the share of redrawn dimensions must be between 0 and 1; none copies "
                "without variation",
                text);
  USER_ERROR_IF(!(share > 0),
                "--vary {}: the noise, in standard deviations of the matrix, must be positive",
                text);
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
      "--vary {}: less than one of {} dimensions; use drop:{:.2g} or more", to_string(variation),
      width, 1.0 / width);
}

io::TensorSource matrix_tensor(const io::TensorInfo& info, ExpertMatrix matrix,
                               const Variation& variation, uint64_t seed) {
  MOE_CHECK(matrix.info.shape == info.shape, "{}", info.name);
  matrix.info = info;
  return {info, [matrix, variation, seed](io::SafetensorsWriter& writer) {
            variation ? write_varied(writer, matrix, variation, seed)
                      : write_matrix(writer, matrix);
          }};
}

io::TensorSource normal_tensor(const io::TensorInfo& info, double std, uint64_t seed,
                               const std::string& stream) {
  return {info, [=](io::SafetensorsWriter& writer) {
            Random random(seed, stream);
            write_blocks(writer, info, [&](int64_t /*begin*/, std::span<float> block) {
              random.fill_normal(block, std);
            });
          }};
}

io::TensorSource constant_tensor(const io::TensorInfo& info, float value) {
  return {info, [info, value](io::SafetensorsWriter& writer) {
            write_blocks(writer, info, [&](int64_t /*begin*/, std::span<float> block) {
              std::ranges::fill(block, value);
            });
          }};
}

}  // namespace moe::model
