#include "core/model/config/compute.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>

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

}  // namespace

Precision parse_precision(const std::string& text) {
  return parse<Precision>(kPrecisions, "--precision", text);
}

Recompute parse_recompute(const std::string& text) {
  return parse<Recompute>(kRecomputes, "--recompute", text);
}

void check_precision(Precision precision, bool on_cuda) {
  if (precision == Precision::kTf32 && !on_cuda) {
    throw UserError(
        "--precision tf32: CUDA GPUs alone multiply in TF32, and this run is on the CPU; use fp32 "
        "or bf16, or --device cuda");
  }
}

Precision inference_precision(const std::optional<Precision>& requested, bool on_cuda) {
  const Precision precision = requested.value_or(on_cuda ? Precision::kBf16 : Precision::kF32);
  check_precision(precision, on_cuda);
  return precision;
}

const char* to_string(Precision precision) { return kPrecisions[static_cast<size_t>(precision)]; }
const char* to_string(Recompute recompute) { return kRecomputes[static_cast<size_t>(recompute)]; }

bool LoraSettings::is_on(const std::string& part) const {
  return rank > 0 && std::find(on.begin(), on.end(), part) != on.end();
}

double LoraSettings::scale() const { return alpha == 0 ? 1.0 : alpha / static_cast<double>(rank); }

void check_lora(const LoraSettings& settings) {
  constexpr int64_t kMaxRank = int64_t{1} << 16;
  if (settings.rank < 0 || settings.rank > kMaxRank) {
    throw UserError("--lora {}: the rank must lie in 1 .. {} (0: no adapters)", settings.rank,
                    kMaxRank);
  }
  if (!std::isfinite(settings.alpha) || settings.alpha < 0) {
    throw UserError("--lora-alpha {}: must be a positive number", settings.alpha);
  }
  if (settings.rank == 0 && settings.alpha != 0) {
    throw UserError("--lora-alpha without --lora: say the rank of the adapters");
  }
  if (settings.on.empty()) {
    throw UserError("--lora-on names nothing; known: attention, ffn");
  }
  for (const auto& part : settings.on) {
    if (part != "attention" && part != "ffn") {
      throw UserError("--lora-on '{}' is unknown; known: attention, ffn", part);
    }
  }
}

}  // namespace moe::model
