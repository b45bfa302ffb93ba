#include "core/model/config/compute.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <set>
#include <string_view>

#include "core/base/error.h"

namespace moe::model {
namespace {

constexpr std::array kPrecisions = {"fp32", "tf32", "bf16"};
constexpr std::array kRecomputes = {"none", "ffn", "layer"};

template <typename Choice, size_t N>
Choice parse(const std::array<const char*, N>& names, const char* flag, const std::string& text) {
  for (size_t index = 0; index < N; ++index) {
    if (text == names[index]) {
      return static_cast<Choice>(index);
    }
  }
  throw UserError("{} '{}' is unknown; known: {}", flag, text, fmt::join(names, ", "));
}

int64_t parse_layer(std::string_view word, const std::string& text, int64_t layers) {
  int64_t layer = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), layer);
  USER_ERROR_IF(
      error == std::errc::result_out_of_range || (error == std::errc() && layer >= layers),
      "--layers {}: layer {} does not exist; the model has layers 0 to {}", text, std::string(word),
      layers - 1);
  USER_ERROR_IF(
      error != std::errc() || end != word.data() + word.size() || layer < 0,
      "--layers {}: '{}' is not understood; give even, odd, all or a list like 0,3,5 or 0-3", text,
      std::string(word));
  return layer;
}

// Adds the layers of one item of the list, such as "5" or "0-3", to `out`.
void add_range(std::string_view word, const std::string& text, int64_t layers,
               std::set<int64_t>& out) {
  const size_t dash = word.find('-', 1);
  const int64_t first = parse_layer(word.substr(0, dash), text, layers);
  const int64_t last =
      dash == std::string_view::npos ? first : parse_layer(word.substr(dash + 1), text, layers);
  USER_ERROR_IF(last < first, "--layers {}: the range {} is reversed", text, std::string(word));
  for (int64_t layer = first; layer <= last; ++layer) {
    USER_ERROR_IF(!out.insert(layer).second, "--layers {}: layer {} is named twice", text, layer);
  }
}

}  // namespace

Precision parse_precision(const std::string& text) {
  return parse<Precision>(kPrecisions, "--precision", text);
}

Recompute parse_recompute(const std::string& text) {
  return parse<Recompute>(kRecomputes, "--recompute", text);
}

void check_precision(Precision precision, bool on_cuda) {
  USER_ERROR_IF(precision == Precision::kTf32 && !on_cuda,
                "--precision tf32: only CUDA GPUs support TF32, and this run is on the CPU; use "
                "fp32 or bf16, or --device cuda");
}

Precision inference_precision(const std::optional<Precision>& requested, bool on_cuda) {
  const Precision precision = requested.value_or(on_cuda ? Precision::kBf16 : Precision::kF32);
  check_precision(precision, on_cuda);
  return precision;
}

const char* to_string(Precision precision) { return kPrecisions[static_cast<size_t>(precision)]; }
const char* to_string(Recompute recompute) { return kRecomputes[static_cast<size_t>(recompute)]; }

bool LoraSettings::is_on(const std::string& part) const {
  return rank > 0 && std::ranges::find(on, part) != on.end();
}

double LoraSettings::scale() const { return alpha == 0 ? 1.0 : alpha / rank; }

void check_lora(const LoraSettings& settings) {
  constexpr int64_t kMaxRank = int64_t{1} << 16;
  USER_ERROR_IF(settings.rank < 0 || settings.rank > kMaxRank,
                "--lora {}: the rank must be between 1 and {} (0: no adapters)", settings.rank,
                kMaxRank);
  USER_ERROR_IF(!std::isfinite(settings.alpha) || settings.alpha < 0,
                "--lora-alpha {}: must be a positive number", settings.alpha);
  USER_ERROR_IF(settings.rank == 0 && settings.alpha != 0,
                "--lora-alpha without --lora: set the rank of the adapters with --lora");
  USER_ERROR_IF(settings.on.empty(), "--lora-on is empty; known: attention, ffn");
  for (const auto& part : settings.on) {
    USER_ERROR_IF(part != "attention" && part != "ffn",
                  "--lora-on '{}' is unknown; known: attention, ffn", part);
  }
}

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
      add_range(list.substr(start, comma - start), text, layers, chosen);
      start = comma + 1;
    }
  }
  USER_ERROR_IF(chosen.empty(),
                "--layers {}: a model of {} layer has none of these; give even, all or 0", text,
                layers);
  return {chosen.begin(), chosen.end()};
}

}  // namespace moe::model
