#include "core/model/llama/compute.h"

#include <fmt/ranges.h>

#include <array>

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
void check_precision(Precision precision, bool on_cuda) {
  if (precision == Precision::kTf32 && !on_cuda) {
    throw UserError(
        "--precision tf32: CUDA GPUs alone multiply in TF32, and this run is on the CPU; use fp32 "
        "or bf16, or --device cuda");
  }
}

Precision inference_precision(const std::optional<Precision>& asked, bool on_cuda) {
  const Precision precision = asked.value_or(on_cuda ? Precision::kBf16 : Precision::kF32);
  check_precision(precision, on_cuda);
  return precision;
}

Recompute parse_recompute(const std::string& text) {
  return parse<Recompute>(kRecomputes, "--recompute", text);
}
const char* to_string(Precision precision) { return kPrecisions[static_cast<size_t>(precision)]; }
const char* to_string(Recompute recompute) { return kRecomputes[static_cast<size_t>(recompute)]; }

}  // namespace moe::model
