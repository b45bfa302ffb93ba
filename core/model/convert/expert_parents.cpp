#include "core/model/convert/expert_parents.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <span>
#include <utility>

#include "core/base/error.h"
#include "core/model/config/weights.h"
#include "core/model/convert/dtype_conversion.h"

namespace moe::model {
namespace {

namespace fs = std::filesystem;

// What both parents' tensors must agree in.
std::vector<std::pair<const char*, int64_t>> shape_of(const ModelConfig& config) {
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
  if (config.moe) {
    throw UserError("--expert {}: is a mixture of experts already; its parents are dense folders",
                    parent.folder().string());
  }
  const auto theirs = shape_of(config), ours = shape_of(base_config);
  for (size_t i = 0; i < ours.size(); ++i) {
    if (theirs[i] != ours[i]) {
      throw UserError(
          "--expert {}: {} is {}, but {} in {}; the parents of a mixture have one shape",
          parent.folder().string(), ours[i].first, theirs[i].second, ours[i].second,
          base.folder().string());
    }
  }
  check_tensors(parent, config);
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
  if (number.empty() || stop != end) {  // a colon of the path
    return {text, 1};
  }
  if (error != std::errc() || copies < 1 || copies > 65536) {
    throw UserError("--expert '{}': the number of copies behind ':' is from 1 to 65536", text);
  }
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
    of_expert_.insert(of_expert_.end(), static_cast<size_t>(parent.copies * granularity),
                      checkpoint);
  }
}

std::vector<int64_t> ExpertParents::experts_of(const io::Checkpoint& parent) const {
  std::vector<int64_t> experts;
  for (size_t expert = 0; expert < of_expert_.size(); ++expert) {
    if (of_expert_[expert] == &parent) {
      experts.push_back(static_cast<int64_t>(expert));
    }
  }
  return experts;
}

void write_mean(io::SafetensorsWriter& writer, const io::TensorInfo& info,
                const std::vector<std::unique_ptr<io::Checkpoint>>& parents) {
  constexpr int64_t kBlockValues = int64_t{1} << 18;
  const auto longest = static_cast<size_t>(std::min(info.elements(), kBlockValues));
  std::vector<double> sums(longest);
  std::vector<float> values(longest);
  std::vector<std::byte> out(longest * static_cast<size_t>(io::dtype_bytes(info.dtype)));
  for (int64_t begin = 0; begin < info.elements(); begin += kBlockValues) {
    const auto count = static_cast<size_t>(std::min(info.elements() - begin, kBlockValues));
    const auto block = std::span(values).first(count);
    std::fill(sums.begin(), sums.end(), 0.0);
    for (const auto& parent : parents) {
      const io::DType from = parent->info(info.name).dtype;
      const auto step = static_cast<size_t>(io::dtype_bytes(from));
      const auto bytes =
          parent->bytes(info.name).subspan(static_cast<size_t>(begin) * step, count * step);
      convert(bytes, from, std::as_writable_bytes(block), io::DType::kF32);
      std::transform(block.begin(), block.end(), sums.begin(), sums.begin(),
                     [](float value, double sum) { return sum + static_cast<double>(value); });
      parent->file_of(info.name).file().drop(bytes);
    }
    std::transform(
        sums.begin(), sums.begin() + static_cast<int64_t>(count), block.begin(),
        [&](double sum) { return static_cast<float>(sum / static_cast<double>(parents.size())); });
    const auto written =
        std::span(out).first(count * static_cast<size_t>(io::dtype_bytes(info.dtype)));
    convert(std::as_bytes(block), io::DType::kF32, written, info.dtype);
    writer.write(written);
  }
}

}  // namespace moe::model
